"""Evictions that arrive while one is under way share the next call to the index.

An engine under pressure evicts thousands of blocks a second, and the baseline's producers send each as an event of
its own. Events of one (tenant, model, replica) therefore queue in a lane: one call is in flight, what arrives
meanwhile goes with the next, in the order of arrival. An event is acknowledged when its own call has returned.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from inference_cache.domain.blocks import MAX_BATCH_BLOCKS
from inference_cache.domain.models import KEY_BYTES, ModelKey, Removal
from inference_cache.errors import StoreUnavailable
from inference_cache.metrics import Metrics
from inference_cache.store.base import Store

MAX_WAITING_BYTES = 64 * 1024 * 1024
"""How many bytes of block keys may wait, over all lanes. An engine that is refused keeps its events and resends."""

ITEM_BYTES = 256
"""What one waiting event counts for beside its keys."""


@dataclass(slots=True)
class _Item:
    keys: bytes
    fence_ms: int | None
    adapter_id: str
    done: asyncio.Future[None]

    @property
    def weight(self) -> int:
        """How much of :data:`MAX_WAITING_BYTES` the event takes."""
        return ITEM_BYTES + len(self.keys)


@dataclass(slots=True)
class _Lane:
    waiting: deque[_Item] = field(default_factory=deque)


class Evictions:
    """The lanes of a server.

    Args:
        store: the index.
        metrics: counts removed holdings and what waits.
        max_waiting_bytes: see :data:`MAX_WAITING_BYTES`.
    """

    def __init__(self, store: Store, metrics: Metrics, max_waiting_bytes: int = MAX_WAITING_BYTES) -> None:
        self._store = store
        self._metrics = metrics
        self._room = max_waiting_bytes
        self._lanes: dict[tuple[ModelKey, str], _Lane] = {}
        self._workers: set[asyncio.Task[None]] = set()

    async def evict(
        self, model: ModelKey, replica_id: str, keys: bytes, *, fence_ms: int | None, adapter_id: str = ""
    ) -> None:
        """Remove blocks of a replica; return when they are gone.

        Args:
            model: whose index.
            replica_id: who dropped them.
            keys: block keys, concatenated, at least one.
            fence_ms: only what was reported at or before it goes; ``None`` = everything.
            adapter_id: the only adapter to touch; ``""`` = every adapter.

        Raises:
            StoreUnavailable: too much waits already.
            StoreError: the index did not take it.
        """
        item = _Item(keys, fence_ms, adapter_id, asyncio.get_running_loop().create_future())
        if item.weight > self._room:
            raise StoreUnavailable("too many evictions wait for the index", reason="evictions_waiting")
        self._room -= item.weight
        self._metrics.evictions_waiting(1)
        lane = self._lanes.get((model, replica_id))
        if lane is None:
            lane = self._lanes[model, replica_id] = _Lane()
            worker = asyncio.create_task(self._work(model, replica_id, lane))
            self._workers.add(worker)
            worker.add_done_callback(self._workers.discard)
        lane.waiting.append(item)
        await item.done

    async def _work(self, model: ModelKey, replica_id: str, lane: _Lane) -> None:
        """Serve a lane until nothing waits in it."""
        try:
            while batch := self._next_batch(lane):
                await self._call(model, replica_id, batch)
        finally:
            del self._lanes[model, replica_id]
            for item in lane.waiting:  # only when the worker itself was cancelled
                self._leave(item)
                item.done.cancel()

    def _next_batch(self, lane: _Lane) -> list[_Item]:
        """Take what one call can carry off a lane: events of one adapter, in order, few enough blocks."""
        batch: list[_Item] = []
        size = 0
        while lane.waiting:
            item = lane.waiting[0]
            size += len(item.keys)
            if batch and (item.adapter_id != batch[0].adapter_id or size > MAX_BATCH_BLOCKS * KEY_BYTES):
                break
            lane.waiting.popleft()
            self._leave(item)
            if item.done.done():  # its caller went away
                size -= len(item.keys)
            else:
                batch.append(item)
        return batch

    async def _call(self, model: ModelKey, replica_id: str, batch: Sequence[_Item]) -> None:
        """Send one call and tell everyone in it what came of it."""
        try:
            removed = await self._store.evict(model, replica_id, _removal(batch))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer of each event in the call
            for item in batch:
                if not item.done.done():
                    item.done.set_exception(error)
        except asyncio.CancelledError:
            for item in batch:
                item.done.cancel()
            raise
        else:
            self._metrics.removed("PREFIX_EVICTED", removed)
            for item in batch:
                if not item.done.done():
                    item.done.set_result(None)

    def _leave(self, item: _Item) -> None:
        self._room += item.weight
        self._metrics.evictions_waiting(-1)


def _removal(batch: Sequence[_Item]) -> Removal:
    """Join events of one adapter; neighbours of equal fence share a run."""
    fences: list[tuple[int, int | None]] = []
    at = 0
    for item in batch:
        if not fences or fences[-1][1] != item.fence_ms:
            fences.append((at, item.fence_ms))
        at += len(item.keys) // KEY_BYTES
    return Removal(b"".join(item.keys for item in batch), tuple(fences), batch[0].adapter_id)
