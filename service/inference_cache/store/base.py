"""The one interface of the index: what may be asked of a store and what each answer means.

Two implementations: :class:`~inference_cache.store.redis.RedisStore` and the in-memory
:class:`~inference_cache.store.model.ModelStore`, which is written to be obviously right and is the
oracle of the property tests. Both return evidence; scores, floors and policies are the domain's.

Rules that every implementation keeps:

* A *holding* is (model, partition, block key, replica) with a token count, a time and a tier. A report
  overwrites all three, even with an older time (the last arrival wins).
* A holding is *expired* when its time is at or before the caller's ``expired_at_ms`` (now - TTL). Expired
  holdings are never evidence; they stay counted until a sweep, an eviction or a clear removes them.
* A replica *serves* a scope (model, hash scheme; all adapters) while it has holdings in it and the largest time
  reported there since it last held nothing in that scope is after ``expired_at_ms``. That time
  is an upper bound: evicting the newest block does not lower it, losing the last one forgets it.
* A model is *present* likewise: it has holdings, and the largest time reported since it last had none is after
  ``expired_at_ms``. Statistics alone make neither serving nor present.
* Replica ids, tenants and models are ordered by their UTF-8 bytes.
* When a call returns, what it did is stored and every server sees it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from inference_cache.domain.models import (
    Batch,
    CacheState,
    ChainEvidence,
    Credit,
    ExactEvidence,
    Expired,
    Ingested,
    ModelKey,
    Partition,
    Presence,
    Removal,
    ReplicaStats,
    Retention,
    Trimmed,
)


class Store(Protocol):
    """The index. Every method may raise a subclass of :class:`~inference_cache.errors.StoreError`."""

    def now_ms(self) -> int:
        """Return the time by the store's clock, which all servers share."""
        ...

    async def lookup_chain(
        self,
        model: ModelKey,
        partition: Partition,
        keys: bytes,
        *,
        expired_at_ms: int,
        silent_at_ms: int | None = None,
        want_path: bool = False,
    ) -> ChainEvidence:
        """Find who holds the leading run of a chain.

        A replica's run ends at the first block that it does not hold or holds expired. Position-blind: a key
        counts wherever and however it was reported, and may repeat in the request.

        Args:
            model: whose index.
            partition: scheme and adapter of the request.
            keys: the chain's block keys, concatenated; may be empty.
            expired_at_ms: holdings of this time or older do not count.
            silent_at_ms: replicas with a statistics row that neither lived nor reported in the scope after this time
                are named as silent; ``None`` = nobody is.
            want_path: whether the evidence shall say where the blocks are, for :meth:`credit`.

        Raises:
            WalkTooLong: the chain needs more work than a lookup may do.
        """
        ...

    async def lookup_exact(
        self,
        model: ModelKey,
        partition: Partition,
        key: bytes,
        *,
        expired_at_ms: int,
        want_warm: bool,
        silent_at_ms: int | None = None,
        want_path: bool = False,
    ) -> ExactEvidence:
        """Find who holds one block; ``b""`` matches nothing.

        With ``want_warm``, a miss also brings the statistics of the serving replicas.
        """
        ...

    async def credit(self, model: ModelKey, partition: Partition, hits: Sequence[Credit], *, hot_threshold: int) -> int:
        """Count hits, for the order in which holdings give way under LFU; return how many found their stretch.

        A stretch (what one replica holds at one place) keeps one count and the deepest block that was hit; blocks
        beyond it count as never hit. Hits of what was removed since are dropped. Blocks within the depth of a holder
        with ``hot_threshold`` hits or more are the model's hot prefixes.
        """
        ...

    async def ingest(
        self,
        model: ModelKey,
        replica_id: str,
        batches: Sequence[Batch],
        *,
        reported_ms: int,
        ttl_ms: int,
        lfu: bool = False,
        stats: ReplicaStats | None = None,
    ) -> Ingested:
        """Store what one update of a replica reports.

        Batches apply in order. ``reported_ms`` is the holdings' time, already on the tenant's grid;
        ``stats`` replaces the replica's row and carries its own times. ``ttl_ms`` is the tenant's TTL, by which
        the backstop expiry of keys is set; ``lfu`` says whether it counts hits.
        """
        ...

    async def evict(self, model: ModelKey, replica_id: str, removal: Removal) -> int:
        """Remove blocks of one replica, in all hash schemes; return the number of holdings removed."""
        ...

    async def clear(self, model: ModelKey, replica_id: str, *, fence_ms: int | None) -> int:
        """Remove all holdings of a replica in a model, in all schemes and adapters, and its statistics row.

        With a fence, only holdings whose time is at or before it go, and the row only when its
        ``reported_ms`` is. Returns the number of holdings removed.
        """
        ...

    async def touch(self, model: ModelKey, replica_id: str, *, alive_ms: int) -> bool:
        """Set when a replica was last alive; without a statistics row nothing happens. Return whether there was one."""
        ...

    async def state(self, model: ModelKey) -> CacheState:
        """Return the statistics rows of a model and its distinct prefixes (expired ones until they are swept)."""
        ...

    async def presence(self, model: ModelKey, expired_at: Callable[[str], int]) -> Presence:
        """Tell what is present at all; ``expired_at`` maps a tenant id to its ``expired_at_ms``."""
        ...

    async def expire(
        self, expired_at: Callable[[str], int], retention: Callable[[str], Retention] | None = None
    ) -> Expired:
        """Sweep once: remove expired holdings everywhere, and statistics rows whose ``alive_ms`` is expired.

        With ``retention``, what follows from a tenant's changed policy is put in order too.
        """
        ...

    async def entries(self) -> dict[ModelKey, int]:
        """Return the distinct prefixes of each listed model, as :meth:`expire` does, without removing anything."""
        ...

    async def trim_tenant(self, tenant_id: str, max_prefixes: int, expired_at_ms: int, *, lfu: bool = False) -> Trimmed:
        """Remove distinct prefixes of a tenant, with all their holders, until it has ``max_prefixes``.

        What has expired goes first, then by the freshest report of a prefix, oldest first, then by model, scheme,
        adapter and block key; a run goes from its tail.
        """
        ...

    async def trim_index(
        self, max_holdings: int, expired_at: Callable[[str], int], lfu: Callable[[str], bool]
    ) -> Trimmed:
        """Remove holdings, of any tenant, until there are ``max_holdings``.

        What has expired goes first, then by hits (none in tenants that do not count them), then by report, oldest
        first, then by tenant, model, scheme, adapter, block key and replica; a replica's run goes from its tail.
        """
        ...

    async def lease(self, owner: str, ttl_ms: int) -> int | None:
        """Take or keep the sweeper's lease; return its token, or ``None`` while another owner has it."""
        ...

    async def ping(self) -> None:
        """Return when the store answers; raise what is wrong with it otherwise."""
        ...

    async def close(self) -> None:
        """Give back connections and child processes."""
        ...
