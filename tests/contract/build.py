"""Reports, removals and questions in few words, so that a contract test shows its rule and nothing else."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

from inference_cache.domain.models import (
    KEY_BYTES,
    Batch,
    ChainEvidence,
    Holder,
    Ingested,
    ModelKey,
    Partition,
    Presence,
    Removal,
    ReplicaStats,
    Run,
)
from inference_cache.store.base import Store

NOW = 1_700_000_000_000
"""The time at which these tests happen, in ms; any would do."""
TTL = 1_800_000
MODEL = ModelKey("tenant", "model")
BASE = Partition("vllm")
BATCH = 512
"""As many blocks as one writing call takes."""


def key(name: object) -> bytes:
    """Return the block key of a name."""
    return hashlib.blake2b(repr(name).encode(), digest_size=KEY_BYTES).digest()


def keys(*names: object) -> bytes:
    """Return the concatenated block keys of names."""
    return b"".join(key(name) for name in names)


def series(name: object, length: int, start: int = 0) -> bytes:
    """Return ``length`` keys of one endless chain, from its block ``start`` on."""
    return keys(*((name, at) for at in range(start, start + length)))


def each(joined: bytes) -> list[bytes]:
    """Take concatenated keys apart."""
    return [joined[at : at + KEY_BYTES] for at in range(0, len(joined), KEY_BYTES)]


def blocks(joined: bytes, start: int, stop: int | None = None) -> bytes:
    """Return the keys ``start`` to ``stop`` of concatenated ones."""
    return joined[start * KEY_BYTES : None if stop is None else stop * KEY_BYTES]


def chain(
    joined: bytes,
    partition: Partition = BASE,
    *,
    step: int = 16,
    first: int | None = None,
    tier: int = 1,
    breaks: Sequence[int] = (),
    after: bytes = b"",
) -> Batch:
    """Return a batch whose token counts grow evenly; the first block has ``step`` tokens unless told otherwise."""
    return Batch(
        partition,
        joined,
        ((0, tier),),
        ((0, step if first is None else first, step),),
        tuple(breaks),
        after,
    )


def odd(
    joined: bytes,
    counts: Sequence[int],
    tiers: Sequence[int] | None = None,
    partition: Partition = BASE,
    *,
    breaks: Sequence[int] = (),
    after: bytes = b"",
) -> Batch:
    """Return a batch with any token counts and tiers."""
    return Batch(
        partition,
        joined,
        run_length_tiers(tiers or [1] * len(counts)),
        run_length_counts(counts),
        tuple(breaks),
        after,
    )


def run_length_tiers(tiers: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Return ``(start, tier)`` runs."""
    return tuple((at, tier) for at, tier in enumerate(tiers) if at == 0 or tiers[at - 1] != tier)


def run_length_counts(counts: Sequence[int]) -> tuple[tuple[int, int, int], ...]:
    """Return ``(start, first, step)`` runs, each as long as it can be."""
    runs: list[tuple[int, int, int]] = []
    at = 0
    while at < len(counts):
        step = counts[at + 1] - counts[at] if at + 1 < len(counts) else 0
        runs.append((at, counts[at], step))
        end = at + 1
        while end < len(counts) and counts[end] == counts[end - 1] + step:
            end += 1
        at = end
    return tuple(runs)


def long_chain(joined: bytes, partition: Partition = BASE, *, tier: int = 1, size: int = BATCH) -> Iterator[Batch]:
    """Cut a chain of any length into batches that continue each other."""
    for start in range(0, len(joined) // KEY_BYTES, size):
        yield chain(
            blocks(joined, start, start + size),
            partition,
            first=16 * (start + 1),
            tier=tier,
            after=blocks(joined, start - 1, start) if start else b"",
        )


def gone(joined: bytes, *, fence: int | None = None, adapter: str = "") -> Removal:
    """Return the removal of keys with one fence."""
    return Removal(joined, ((0, fence),) if joined else (), adapter)


class Client:
    """One model of a store, asked and told in few words."""

    def __init__(self, store: Store, model: ModelKey = MODEL) -> None:
        self.store = store
        self.model = model

    async def report(
        self, replica_id: str, *batches: Batch, at: int = NOW, stats: ReplicaStats | None = None
    ) -> Ingested:
        """Report batches as one update."""
        return await self.store.ingest(self.model, replica_id, batches, reported_ms=at, ttl_ms=TTL, stats=stats)

    async def tell(self, replica_id: str, joined: bytes, *, at: int = NOW, tier: int = 1) -> Ingested:
        """Report one even chain of the base partition."""
        return await self.report(replica_id, *long_chain(joined, tier=tier), at=at)

    async def find(self, joined: bytes, partition: Partition = BASE, *, expired: int = NOW - TTL) -> ChainEvidence:
        """Look a chain up."""
        return await self.store.lookup_chain(self.model, partition, joined, expired_at_ms=expired)

    async def runs(self, joined: bytes, partition: Partition = BASE, *, expired: int = NOW - TTL) -> tuple[Run, ...]:
        """Return the runs that a chain finds."""
        return (await self.find(joined, partition, expired=expired)).runs

    async def depths(self, joined: bytes, partition: Partition = BASE, *, expired: int = NOW - TTL) -> dict[str, int]:
        """Return how many leading blocks of a chain each replica holds."""
        return {run.replica_id: run.blocks for run in await self.runs(joined, partition, expired=expired)}

    async def holders(self, one: bytes, partition: Partition = BASE, *, expired: int = NOW - TTL) -> tuple[Holder, ...]:
        """Return who holds one block."""
        found = await self.store.lookup_exact(self.model, partition, one, expired_at_ms=expired, want_warm=False)
        return found.holders

    async def counts(self, replica_id: str, joined: bytes, partition: Partition = BASE) -> list[int | None]:
        """Return the token count that a replica has for each block, ``None`` where it holds nothing."""
        found = [await self.holders(one, partition) for one in each(joined)]
        return [next((h.token_count for h in some if h.replica_id == replica_id), None) for some in found]

    async def serving(self, scheme: str = "vllm", *, expired: int = NOW - TTL) -> tuple[str, ...]:
        """Return who serves a scheme."""
        return (await self.find(b"", Partition(scheme), expired=expired)).serving

    async def evict(self, replica_id: str, joined: bytes, *, fence: int | None = None, adapter: str = "") -> int:
        """Evict keys of a replica."""
        return await self.store.evict(self.model, replica_id, gone(joined, fence=fence, adapter=adapter))

    async def clear(self, replica_id: str, *, fence: int | None = None) -> int:
        """Clear a replica."""
        return await self.store.clear(self.model, replica_id, fence_ms=fence)

    async def prefixes(self) -> int:
        """Return the distinct prefixes of the model."""
        return (await self.store.state(self.model)).total_prefixes

    async def rows(self) -> dict[str, ReplicaStats]:
        """Return the statistics rows of the model."""
        return dict((await self.store.state(self.model)).replicas)

    async def presence(self, *, expired: int = NOW - TTL) -> Presence:
        """Tell what is present, all tenants having one expiry."""
        return await self.store.presence(self.model, lambda _tenant: expired)
