"""Applying one report: what ``ReportCacheState`` does with each message of its stream."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from inference_cache.capacity import Capacity
from inference_cache.domain.models import RESERVED_TENANT, Batch, ModelKey, ReplicaStats
from inference_cache.domain.policy import PolicySource
from inference_cache.domain.report import batches_of
from inference_cache.domain.requests import UpdateEntry
from inference_cache.domain.times import clamp_us, floor_to_grid
from inference_cache.metrics import Metrics
from inference_cache.store.base import Store

MAX_CLIENT_VERSION = 128
"""Characters of a ``client_version`` that are kept: rows go along with every hit of their replica."""

INLINE_BLOCKS = 8192
"""Reports of more blocks are prepared on a thread, so that lookups of the same server go on meanwhile."""


@dataclass(frozen=True, slots=True)
class Update:
    """One message of a report.

    Attributes:
        model: whose index.
        replica_id: who reports.
        hash_scheme: how the hashes were made.
        adapter_id: adapter of entries that name none.
        timestamp_us: when this was so, in microseconds since the epoch; 0 = now.
        entries: the prefixes.
        blocks: about how many blocks they have in all.
        stats: the statistics, their times not filled in; ``None`` when the message has none.
        non_finite_stats: whether a number of them was not finite and became 0.
    """

    model: ModelKey
    replica_id: str
    hash_scheme: str
    adapter_id: str
    timestamp_us: int
    entries: Iterable[UpdateEntry]
    blocks: int
    stats: ReplicaStats | None = None
    non_finite_stats: bool = False


class Reports:
    """Applies reports to the index and counts what they lose."""

    def __init__(self, store: Store, policies: PolicySource, metrics: Metrics, capacity: Capacity) -> None:
        self._store = store
        self._policies = policies
        self._metrics = metrics
        self._capacity = capacity

    async def apply(self, update: Update) -> None:
        """Store one report; when this returns, lookups see it, and what had to give way for it is gone.

        Raises:
            StoreError: the index did not take it, or perhaps a part of it; sending it again is harmless.
        """
        if update.model.tenant_id == RESERVED_TENANT:
            self._metrics.reserved_tenant("ReportCacheState")
            return
        policies = self._policies.current()
        policy = policies.for_tenant(update.model.tenant_id)
        time_ms, moved = clamp_us(update.timestamp_us, self._store.now_ms())
        if moved:
            self._metrics.clamped("report", update.timestamp_us)
        if update.blocks > INLINE_BLOCKS:
            batches, dropped = await asyncio.to_thread(_prepare, update)
        else:
            batches, dropped = _prepare(update)
        for reason, number in dropped.items():
            self._metrics.report_dropped(reason, number)
        if update.non_finite_stats:
            self._metrics.report_dropped("non_finite_stats")
        stats = update.stats and replace(update.stats, reported_ms=time_ms, alive_ms=time_ms)
        if stats and len(stats.client_version) > MAX_CLIENT_VERSION:
            self._metrics.report_dropped("long_client_version")
            stats = replace(stats, client_version=stats.client_version[:MAX_CLIENT_VERSION])
        holdings = prefixes = 0
        if batches or stats:
            added = await self._store.ingest(
                update.model,
                update.replica_id,
                batches,
                reported_ms=floor_to_grid(time_ms, policy.grid_ms),
                ttl_ms=policy.ttl_ms,
                lfu=policy.lfu,
                stats=stats,
            )
            holdings, prefixes = added.holdings, added.prefixes
            await self._capacity.after(update.model.tenant_id, added, policies)
        self._metrics.reported(update.model, holdings=holdings, prefixes=prefixes)


def _prepare(update: Update) -> tuple[list[Batch], Counter[str]]:
    return batches_of(update.entries, hash_scheme=update.hash_scheme, adapter_id=update.adapter_id)
