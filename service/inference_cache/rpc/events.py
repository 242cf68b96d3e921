"""Applying one cache event: what ``PublishEvent`` does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inference_cache.domain import reasons
from inference_cache.domain.blocks import join_keys
from inference_cache.domain.models import RESERVED_TENANT, ModelKey
from inference_cache.domain.times import clamp_us, fence_ms
from inference_cache.metrics import Metrics
from inference_cache.rpc.evictions import Evictions
from inference_cache.store.base import Store


@dataclass(frozen=True, slots=True)
class Event:
    """One cache event.

    Attributes:
        kind: the type's name on the wire, ``"UNKNOWN"`` for a number without one.
        model: whose index.
        replica_id: the replica it happened to.
        hashes: the blocks it names, as sent.
        timestamp_us: when it happened, in microseconds since the epoch; 0 = not said.
        adapter_id: the only adapter to touch; ``""`` = every adapter.
    """

    kind: str
    model: ModelKey
    replica_id: str
    hashes: Sequence[bytes] = ()
    timestamp_us: int = 0
    adapter_id: str = ""


class Events:
    """Applies cache events to the index."""

    def __init__(self, store: Store, metrics: Metrics, evictions: Evictions) -> None:
        self._store = store
        self._metrics = metrics
        self._evictions = evictions

    async def apply(self, event: Event) -> None:
        """Apply one event; when this returns, lookups see it.

        Events whose type removes and revives nothing are counted and otherwise ignored.

        Raises:
            StoreError: the index did not take it; sending it again is harmless.
        """
        if event.model.tenant_id == RESERVED_TENANT:
            self._metrics.reserved_tenant("PublishEvent")
            return
        if event.kind == "PREFIX_EVICTED":
            await self._evict(event)
        elif event.kind == "ALL_CLEARED":
            removed = await self._store.clear(event.model, event.replica_id, fence_ms=self._fence(event))
            self._metrics.removed(event.kind, removed)
        elif event.kind == "REPLICA_UPDATED":
            alive_ms, moved = clamp_us(event.timestamp_us, self._store.now_ms())
            self._count_moved(event, moved)
            await self._touch(event, alive_ms)
        elif event.kind != "PREFIX_ADDED":
            self._metrics.event_ignored("unknown_type")
        self._metrics.event(event.kind)

    async def _evict(self, event: Event) -> None:
        empty = sum(not each for each in event.hashes)
        if empty:
            self._metrics.event_ignored(reasons.EMPTY_HASH, empty)
        keys = join_keys(event.hashes)
        if keys:
            await self._evictions.evict(
                event.model, event.replica_id, keys, fence_ms=self._fence(event), adapter_id=event.adapter_id
            )

    async def _touch(self, event: Event, alive_ms: int) -> None:
        if not await self._store.touch(event.model, event.replica_id, alive_ms=alive_ms):
            self._metrics.event_ignored("no_stats")

    def _fence(self, event: Event) -> int | None:
        fence, moved = fence_ms(event.timestamp_us, self._store.now_ms())
        self._count_moved(event, moved)
        return fence

    def _count_moved(self, event: Event, moved: bool) -> None:
        if moved:
            self._metrics.clamped("event", event.timestamp_us)
