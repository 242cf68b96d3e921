"""A server for one test, with the store and the limits that the test wants, and stores that misbehave on purpose."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc

from inference_cache.capacity import Capacity
from inference_cache.domain.models import (
    Batch,
    CacheState,
    ChainEvidence,
    Credit,
    ExactEvidence,
    Ingested,
    ModelKey,
    Partition,
    Presence,
    Removal,
    Trimmed,
)
from inference_cache.metrics import Metrics
from inference_cache.rpc.credits import Credits
from inference_cache.rpc.health import Health
from inference_cache.rpc.server import build_server
from inference_cache.store.base import Store
from inference_cache.store.model import ModelStore
from tests.rpc.wire import Policies, Wire


def now_ms() -> int:
    """Return the wall's time."""
    return time.time_ns() // 1_000_000


async def until(true: Callable[[], object]) -> None:
    """Wait until something is true; the test's own timeout bounds it."""
    while not true():  # noqa: ASYNC110 - what is waited for has no event
        await asyncio.sleep(0.01)


@asynccontextmanager
async def serving(
    store: Store, *, policies: Policies | None = None, max_entries: int = 0, **options: Any
) -> AsyncIterator[Wire]:
    """Run a server on a store, with policies that it may share with others; yield a client of it.

    Hits are counted at once, so that a test need not wait for the end of an interval.
    """
    policies, metrics = policies or Policies(), Metrics()
    options = {
        "health": Health(),
        "lookup_timeout_ms": 0,
        "capacity": Capacity(store, policies, metrics, max_entries=max_entries),
        "hits": Credits(store, metrics, interval_s=0),
        **options,
    }
    server = build_server(store=store, policies=policies, metrics=metrics, **options)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield Wire.over(channel, policies, metrics)
    finally:
        await server.stop(None)


class GatedStore(ModelStore):
    """A store whose every call waits for a gate, then does as told.

    Attributes:
        gate: open from the start; closed it holds calls up.
        error: what calls raise once they are through.
        calls: what was called with what, as it came in.
        cut: calls that were cancelled while they waited.
    """

    def __init__(self, clock: Callable[[], int] = now_ms) -> None:
        super().__init__(clock)
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: Exception | None = None
        self.calls: list[tuple[str, Any]] = []
        self.cut: list[str] = []
        self.arrived = asyncio.Condition()

    async def called(self, number: int) -> None:
        """Wait until so many calls have come in."""
        async with self.arrived:
            await self.arrived.wait_for(lambda: len(self.calls) >= number)

    async def _pass(self, name: str, what: Any = None) -> None:
        async with self.arrived:
            self.calls.append((name, what))
            self.arrived.notify_all()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cut.append(name)
            raise
        if self.error is not None:
            raise self.error

    async def lookup_chain(self, model: ModelKey, partition: Partition, keys: bytes, **more: Any) -> ChainEvidence:
        """Look up, behind the gate."""
        await self._pass("lookup_chain", more)
        return await super().lookup_chain(model, partition, keys, **more)

    async def lookup_exact(self, model: ModelKey, partition: Partition, key: bytes, **more: Any) -> ExactEvidence:
        """Look up, behind the gate."""
        await self._pass("lookup_exact", more)
        return await super().lookup_exact(model, partition, key, **more)

    async def credit(self, model: ModelKey, partition: Partition, hits: Sequence[Credit], *, hot_threshold: int) -> int:
        """Count hits, behind the gate."""
        await self._pass("credit", list(hits))
        return await super().credit(model, partition, hits, hot_threshold=hot_threshold)

    async def presence(self, model: ModelKey, expired_at: Callable[[str], int]) -> Presence:
        """Tell what is present, behind the gate."""
        await self._pass("presence")
        return await super().presence(model, expired_at)

    async def ingest(self, model: ModelKey, replica_id: str, batches: Sequence[Batch], **more: Any) -> Ingested:
        """Ingest, behind the gate."""
        await self._pass("ingest", batches)
        return await super().ingest(model, replica_id, batches, **more)

    async def trim_tenant(self, tenant_id: str, max_prefixes: int, expired_at_ms: int, *, lfu: bool = False) -> Trimmed:
        """Make room for a quota, behind the gate."""
        await self._pass("trim_tenant", max_prefixes)
        return await super().trim_tenant(tenant_id, max_prefixes, expired_at_ms, lfu=lfu)

    async def trim_index(
        self, max_holdings: int, expired_at: Callable[[str], int], lfu: Callable[[str], bool]
    ) -> Trimmed:
        """Make room for the cap, behind the gate."""
        await self._pass("trim_index", max_holdings)
        return await super().trim_index(max_holdings, expired_at, lfu)

    async def evict(self, model: ModelKey, replica_id: str, removal: Removal) -> int:
        """Evict, behind the gate."""
        await self._pass("evict", removal)
        return await super().evict(model, replica_id, removal)

    async def clear(self, model: ModelKey, replica_id: str, *, fence_ms: int | None) -> int:
        """Clear, behind the gate."""
        await self._pass("clear", fence_ms)
        return await super().clear(model, replica_id, fence_ms=fence_ms)

    async def touch(self, model: ModelKey, replica_id: str, *, alive_ms: int) -> bool:
        """Touch, behind the gate."""
        await self._pass("touch", alive_ms)
        return await super().touch(model, replica_id, alive_ms=alive_ms)

    async def state(self, model: ModelKey) -> CacheState:
        """Tell the state, behind the gate."""
        await self._pass("state")
        return await super().state(model)
