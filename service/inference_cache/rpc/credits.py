"""Counting hits for LFU off the way of the lookups that had them.

A delivered answer only joins a queue. Once an interval the queue becomes credits, equal ones merged, one script call a
partition. Hits may get lost, with a server or when the queue is full: they only order what gives way.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress

from inference_cache.domain.credits import Delivery, credits_of
from inference_cache.domain.models import Credit, ModelKey, Partition
from inference_cache.errors import StoreError
from inference_cache.metrics import Metrics
from inference_cache.store.base import Store

logger = logging.getLogger(__name__)

DEFAULT_HOT_THRESHOLD = 2
FLUSH_INTERVAL_S = 0.2
MAX_WAITING = 65_536
"""Credits that wait at most, before equal ones are merged; hits beyond them are dropped and counted."""

_MERGED_A_TURN = 2_048
"""Credits merged before other work of the event loop goes on."""
_CALLS_AT_A_TIME = 8
_FAREWELL_S = 2.0

_Merged = dict[tuple[ModelKey, Partition], dict[tuple[bytes, str, int], Credit]]


class Credits:
    """The hits of one process on their way to the index.

    Args:
        store: the index.
        metrics: where lost hits are counted.
        hot_threshold: hits from which a block is hot.
        interval_s: time between a first hit and the call that counts it.
        max_waiting: credits that wait at most.
    """

    def __init__(
        self,
        store: Store,
        metrics: Metrics,
        *,
        hot_threshold: int = DEFAULT_HOT_THRESHOLD,
        interval_s: float = FLUSH_INTERVAL_S,
        max_waiting: int = MAX_WAITING,
    ) -> None:
        self._store = store
        self._metrics = metrics
        self._hot_threshold = hot_threshold
        self._interval_s = interval_s
        self._max_waiting = max_waiting
        self._waiting: list[Delivery] = []
        self._size = 0
        self._flushing: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()

    def add(self, delivered: Delivery) -> None:
        """Take note of a hit; never waits."""
        if self._size + delivered.size > self._max_waiting:
            self._metrics.credits_dropped("queue_full", delivered.size)
            return
        self._waiting.append(delivered)
        self._size += delivered.size
        if self._flushing is None:
            self._flushing = asyncio.create_task(self._flush_later(), name="credits")

    async def flush(self) -> None:
        """Count what waits now; returns when the index has it, or has refused it."""
        waiting, self._waiting = self._waiting, []
        self._size = 0
        merged = await _merge(waiting)
        places = list(merged.items())
        for start in range(0, len(places), _CALLS_AT_A_TIME):
            calls = places[start : start + _CALLS_AT_A_TIME]
            await asyncio.gather(*(self._send(*where, list(hits.values())) for where, hits in calls))

    async def close(self) -> None:
        """Count what waits without waiting for its turn, for as long as a stopping server may take for it."""
        self._closing.set()
        if self._flushing is not None:
            await asyncio.wait({self._flushing}, timeout=_FAREWELL_S)

    async def _flush_later(self) -> None:
        try:
            while self._waiting:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._interval_s):
                        await self._closing.wait()
                await self.flush()
        except Exception:
            logger.exception("credits_failed")
        finally:
            self._flushing = None

    async def _send(self, model: ModelKey, partition: Partition, hits: Sequence[Credit]) -> None:
        try:
            applied = await self._store.credit(model, partition, hits, hot_threshold=self._hot_threshold)
        except StoreError as error:
            self._metrics.credits_dropped(error.reason, len(hits))
        else:
            self._metrics.credited(applied)
            self._metrics.credits_dropped("gone", len(hits) - applied)


async def _merge(waiting: Sequence[Delivery]) -> _Merged:
    """Return the credits of all deliveries, those of one stretch as one: hits add up, the deepest block counts."""
    merged: _Merged = defaultdict(dict)
    done = 0
    for delivered in waiting:
        into = merged[delivered.path.model, delivered.path.partition]
        for credit in credits_of(delivered):
            key = credit.place, credit.replica_id, credit.version
            known = into.get(key)
            hits, depth = (known.hits, known.depth) if known else (0, 0)
            into[key] = Credit(*key[:2], max(depth, credit.depth), credit.version, hits + credit.hits)
            done += 1
            if done % _MERGED_A_TURN == 0:
                await asyncio.sleep(0)
    return merged
