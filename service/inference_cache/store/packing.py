"""Binary fields that Python writes and reads: statistics rows, catalog entries, columns of batches and removals.

Scripts take the columns apart and touch the first fields of a statistics row; the rest is opaque to them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from struct import Struct, error

from inference_cache.domain.models import ModelKey, ReplicaStats, Retention
from inference_cache.errors import StoreCorrupt

NO_FENCE = 2**48 - 1
"""Fence of a removal without one: the largest time that a segment can hold."""

_ROW = Struct(">QQddqqq")
_TIER_RUN = Struct(">HB")
_COUNT_RUN = Struct(">Hii")
_FENCE_RUN = Struct(">HHI")
_BREAK = Struct(">H")
_ENTRY = Struct(">QQQQQBI")


def pack_stats(stats: ReplicaStats) -> bytes:
    """Return a statistics row; scripts only ever touch its first two fields, ``alive_ms`` and ``reported_ms``."""
    fixed = _ROW.pack(
        stats.alive_ms,
        stats.reported_ms,
        stats.hit_rate,
        stats.pressure,
        stats.cache_memory_bytes,
        stats.t2_hit_tokens,
        stats.t2_query_tokens,
    )
    return fixed + stats.client_version.encode()


@lru_cache(maxsize=8192)
def unpack_stats(row: bytes) -> ReplicaStats | None:
    """Return the statistics of a row, ``None`` for an empty one."""
    if not row:
        return None
    try:
        alive, reported, hit_rate, pressure, memory, hits, queries = _ROW.unpack_from(row)
    except error as err:
        raise corrupt("statistics row") from err
    version = row[_ROW.size :].decode(errors="replace")
    return ReplicaStats(hit_rate, pressure, memory, hits, queries, version, reported, alive)


def pack_tiers(runs: Iterable[tuple[int, int]]) -> bytes:
    """Return ``(start, tier)`` runs as scripts read them."""
    return b"".join(_TIER_RUN.pack(start, tier) for start, tier in runs)


def pack_counts(runs: Iterable[tuple[int, int, int]]) -> bytes:
    """Return ``(start, first, step)`` runs as scripts read them."""
    return b"".join(_COUNT_RUN.pack(start, first, step) for start, first, step in runs)


def pack_breaks(breaks: Iterable[int]) -> bytes:
    """Return indexes as scripts read them."""
    return b"".join(map(_BREAK.pack, breaks))


def pack_fences(runs: Iterable[tuple[int, int | None]]) -> bytes:
    """Return ``(start, fence)`` runs as scripts read them: 16 bits, then 48."""
    out = []
    for start, fence_ms in runs:
        fence = NO_FENCE if fence_ms is None else fence_ms
        out.append(_FENCE_RUN.pack(start, fence >> 32, fence & 0xFFFFFFFF))
    return b"".join(out)


UNKNOWN = Retention(0)
"""Nothing is known of the tenant's retention."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What the catalog knows of a model, and when it was told (by the clock that all servers share).

    Scripts read the first two numbers of its payload, ``prefixes`` and ``holdings``, to add them up.
    """

    model: ModelKey
    prefixes: int = 0
    holdings: int = 0
    rows: int = 0
    told_ms: int = 0
    retention: Retention = UNKNOWN
    """What was known of the tenant's retention."""


def pack_entry(entry: Entry) -> bytes:
    """Return a catalog entry's payload."""
    tenant = entry.model.tenant_id.encode()
    numbers = (entry.prefixes, entry.holdings, entry.rows, entry.told_ms, entry.retention.ttl_ms)
    fixed = _ENTRY.pack(*(max(0, number) for number in numbers), entry.retention.lfu, len(tenant))
    return fixed + tenant + entry.model.model_id.encode()


def unpack_entry(payload: bytes) -> Entry | None:
    """Return the entry of a payload, ``None`` for the empty one of a model that vanished meanwhile."""
    if not payload:
        return None
    try:
        prefixes, holdings, rows, told, ttl, lfu, width = _ENTRY.unpack_from(payload)
    except error as err:
        raise corrupt("catalog entry") from err
    names = payload[_ENTRY.size :]
    return Entry(
        ModelKey(names[:width].decode(), names[width:].decode()),
        prefixes,
        holdings,
        rows,
        told,
        Retention(ttl, bool(lfu)),
    )


def corrupt(what: str) -> StoreCorrupt:
    """Return the error for bytes that no version known here writes."""
    return StoreCorrupt(f"a {what} that this version does not know")
