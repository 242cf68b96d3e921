"""The words of the index: what is reported, what is held, what a lookup finds.

Everything here is plain data. Times are milliseconds since the Unix epoch, block keys are exactly
:data:`KEY_BYTES` bytes wide (see :mod:`inference_cache.domain.blocks`), and several keys travel as one
``bytes`` object so that a prompt of thousands of blocks never becomes thousands of Python objects.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

KEY_BYTES = 8
"""Width of a block key. Hashes of any other width are reduced to it."""

MAX_TOKENS = 2**31 - 1
"""Where token sums saturate (the wire's int32)."""

RESERVED_TENANT = "inferencecache.io/probe"
"""The tenant of the server's self-test: callers can neither read nor write it."""


class Tier(IntEnum):
    """Where a replica holds a block, warmest first. A run is as cold as its coldest block."""

    T1 = 1
    T2 = 2
    T3 = 3
    OTHER = 4
    """A tier this version does not know: answered as UNSPECIFIED, colder than T3."""


@dataclass(frozen=True, slots=True)
class ModelKey:
    """One (tenant, model): the unit of atomicity and therefore of sharding."""

    tenant_id: str
    model_id: str


@dataclass(frozen=True, slots=True)
class Partition:
    """One (hash scheme, adapter) within a model; hashes of different partitions never match."""

    hash_scheme: str
    adapter_id: str = ""


@dataclass(frozen=True, slots=True)
class ReplicaStats:
    """The last statistics a replica reported for one model.

    ``reported_ms`` is when the payload was reported, ``alive_ms`` the newest sign of life
    (REPLICA_UPDATED moves it alone).
    """

    hit_rate: float = 0.0
    pressure: float = 0.0
    cache_memory_bytes: int = 0
    t2_hit_tokens: int = 0
    t2_query_tokens: int = 0
    client_version: str = ""
    reported_ms: int = 0
    alive_ms: int = 0


@dataclass(frozen=True, slots=True)
class Batch:
    """Distinct blocks of one partition as columns, in the order in which they are placed.

    A report becomes one or more batches of at most :data:`~inference_cache.domain.blocks.MAX_BATCH_BLOCKS`
    blocks. The value columns are run-length coded by the index of a run's first block, ascending,
    the first always 0.

    Attributes:
        partition: where the blocks belong.
        keys: ``n`` block keys, concatenated; no key occurs twice.
        tiers: ``(start, tier)`` runs.
        counts: ``(start, first, step)`` runs: block ``start + i`` has ``first + i * step`` tokens.
        breaks: indexes at which an unrelated run of blocks begins; ``0`` is never listed.
        after: key of the block that precedes ``keys[0]`` in the same chain, ``b""`` when there is none.
    """

    partition: Partition
    keys: bytes
    tiers: tuple[tuple[int, int], ...]
    counts: tuple[tuple[int, int, int], ...]
    breaks: tuple[int, ...] = ()
    after: bytes = b""


@dataclass(frozen=True, slots=True)
class Removal:
    """Blocks that one replica dropped, as columns.

    Attributes:
        keys: ``n`` block keys, concatenated.
        fences: ``(start, fence_ms)`` runs; a holding goes only when its time is at or before the
            fence. ``None`` stands for no fence: everything goes.
        adapter_id: the only adapter to touch; ``""`` means every adapter.
    """

    keys: bytes
    fences: tuple[tuple[int, int | None], ...]
    adapter_id: str = ""


class Run(NamedTuple):
    """What a replica holds of a requested chain: its leading ``blocks`` blocks, unexpired.

    ``oldest_ms`` and ``tier`` are those of the run's oldest and of its coldest block.
    """

    replica_id: str
    blocks: int
    oldest_ms: int
    tier: int
    stats: ReplicaStats | None = None


class Holder(NamedTuple):
    """An unexpired holding of one exactly requested block."""

    replica_id: str
    token_count: int
    reported_ms: int
    tier: int
    stats: ReplicaStats | None = None


@dataclass(frozen=True, slots=True)
class Path:
    """Where a lookup found its blocks: the store's own words, to be handed back to it with credits.

    Attributes:
        model: whose index.
        partition: which part of it.
        places: what was walked, in order: ``(place, offset, blocks)``.
        version: the state of the model that was seen; what came to be held later is not what was hit.
    """

    model: ModelKey
    partition: Partition
    places: tuple[tuple[bytes, int, int], ...]
    version: int


@dataclass(frozen=True, slots=True)
class Credit:
    """Hits of one replica's stretch of blocks at one place (LFU): how often, and how deep they reached."""

    place: bytes
    replica_id: str
    depth: int
    version: int
    hits: int = 1


@dataclass(frozen=True, slots=True)
class ChainEvidence:
    """What the store knows about a requested chain.

    Attributes:
        runs: replicas with at least one leading block, ordered by replica id (as bytes).
        serving: ids of all replicas that serve the scope (tenant, model, scheme) unexpired,
            whatever the adapter, ordered as bytes.
        silent: those of them that are silent, when the caller asked: with statistics, but no sign of life.
        path: where the blocks were found, when the caller asked.
    """

    runs: tuple[Run, ...] = ()
    serving: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    path: Path | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class ExactEvidence:
    """What the store knows about one exactly requested block.

    ``warm`` is filled only when there is no holder and the caller asked for it: the statistics of the
    serving replicas that have any, ordered like ``serving``. ``silent`` and ``path`` are those of a chain's evidence.
    """

    holders: tuple[Holder, ...] = ()
    serving: tuple[str, ...] = ()
    warm: tuple[tuple[str, ReplicaStats], ...] = ()
    silent: tuple[str, ...] = ()
    path: Path | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Presence:
    """Whether anything unexpired is held: in the index at all, by the tenant, by the model."""

    index: bool
    tenant: bool
    model: bool


@dataclass(frozen=True, slots=True)
class CacheState:
    """Statistics rows of one model, ordered by replica id (as bytes), its distinct prefixes, and how many are hot."""

    replicas: tuple[tuple[str, ReplicaStats], ...] = ()
    total_prefixes: int = 0
    hot_prefixes: int = 0


@dataclass(frozen=True, slots=True)
class Ingested:
    """What a report changed: holdings and distinct prefixes that are new.

    ``index_holdings`` and ``tenant_prefixes`` are the sums over the whole index and over the tenant after it, by which
    the cap and the tenant's quota are judged.
    """

    holdings: int = 0
    prefixes: int = 0
    index_holdings: int = field(default=0, compare=False)
    tenant_prefixes: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Retention:
    """How long a tenant's reports count, and whether what is hit often stays longer (LFU)."""

    ttl_ms: int
    lfu: bool = False


@dataclass(slots=True)
class Trimmed:
    """What making room removed by tenant: holdings for the cap, distinct prefixes for a quota; what had expired."""

    removed: dict[str, int] = field(default_factory=dict)
    expired: dict[str, int] = field(default_factory=dict)
    failed: int = 0
    """Models whose turn it was but whose node did not answer."""


@dataclass(slots=True)
class Expired:
    """What one sweep removed, and which models it left holding how many distinct prefixes."""

    holdings: dict[str, int] = field(default_factory=dict)
    """Removed holdings by tenant."""
    stats_rows: int = 0
    prefixes: dict[ModelKey, int] = field(default_factory=dict)
    """Distinct prefixes of each model that the catalog lists, after the sweep."""
    failed: int = 0
    """Models that could not be swept (their node did not answer)."""
