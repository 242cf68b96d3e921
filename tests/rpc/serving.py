"""A server for one test, with the store and the limits that the test wants, and stores that misbehave on purpose."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc

from inference_cache.domain.models import (
    Batch,
    CacheState,
    ChainEvidence,
    ExactEvidence,
    Ingested,
    ModelKey,
    Partition,
    Presence,
    Removal,
    ReplicaStats,
)
from inference_cache.metrics import Metrics
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
async def serving(store: Store, **options: Any) -> AsyncIterator[Wire]:
    """Run a server on a store; yield a client of it."""
    policies, metrics = Policies(), Metrics()
    options = {"health": Health(), "lookup_timeout_ms": 0, **options}
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

    async def lookup_chain(
        self, model: ModelKey, partition: Partition, keys: bytes, *, expired_at_ms: int
    ) -> ChainEvidence:
        """Look up, behind the gate."""
        await self._pass("lookup_chain")
        return await super().lookup_chain(model, partition, keys, expired_at_ms=expired_at_ms)

    async def lookup_exact(
        self, model: ModelKey, partition: Partition, key: bytes, *, expired_at_ms: int, want_warm: bool
    ) -> ExactEvidence:
        """Look up, behind the gate."""
        await self._pass("lookup_exact")
        return await super().lookup_exact(model, partition, key, expired_at_ms=expired_at_ms, want_warm=want_warm)

    async def presence(self, model: ModelKey, expired_at: Callable[[str], int]) -> Presence:
        """Tell what is present, behind the gate."""
        await self._pass("presence")
        return await super().presence(model, expired_at)

    async def ingest(
        self,
        model: ModelKey,
        replica_id: str,
        batches: Sequence[Batch],
        *,
        reported_ms: int,
        ttl_ms: int,
        stats: ReplicaStats | None = None,
    ) -> Ingested:
        """Ingest, behind the gate."""
        await self._pass("ingest", batches)
        return await super().ingest(model, replica_id, batches, reported_ms=reported_ms, ttl_ms=ttl_ms, stats=stats)

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
