"""Producers and gateways of a running server, and what each of them was told."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from typing import NamedTuple, Self

import grpc

from inference_cache._pb import inferencecache_pb2 as pb
from inference_cache._pb.inferencecache_pb2_grpc import InferenceCacheStub
from tests.rpc.wire import MODEL, SCHEME, asks, chain, hs, ids, update

BLOCKS = 8
_PRODUCERS, _GATEWAYS = 3, 3
_PAUSE_S = 0.005
_CALL_S = 60.0
_PATIENCE_S = 90.0


class Report(NamedTuple):
    """One chain that a producer reported for a replica of its own."""

    tenant: str
    number: int

    @property
    def hashes(self) -> list[bytes]:
        """The blocks of the chain."""
        return hs(*((self.tenant, self.number, block) for block in range(BLOCKS)))


class Load:
    """Load on a server for as long as the block runs.

    Producers send an update until it is acknowledged, then the next. Gateways ask for what was acknowledged.

    Args:
        address: of the server.
        tenants: whose models are used in turn.

    Attributes:
        acknowledged: what was acknowledged, in that order.
        refused: gRPC codes that producers got instead.
        answers: reason codes of lookups, by tenant.
        broken: gRPC errors of lookups; there must never be any.
    """

    def __init__(self, address: str, tenants: Iterable[str]) -> None:
        self.acknowledged: list[Report] = []
        self.refused: Counter[str] = Counter()
        self.answers: Counter[tuple[str, str]] = Counter()
        self.broken: list[str] = []
        self._address = address
        self._reports = map(Report._make, zip(itertools.cycle(tenants), itertools.count()))
        self._channels = AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        channel = await self._channels.enter_async_context(grpc.aio.insecure_channel(self._address))
        self._stub = InferenceCacheStub(channel)
        work = [self._produce] * _PRODUCERS + [self._ask] * _GATEWAYS
        self._tasks = [asyncio.create_task(each()) for each in work]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
        await self._channels.aclose()

    async def stop(self) -> None:
        """End the load, and fail if a part of it had ended by itself; the channel stays for :meth:`lost`."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(end, asyncio.CancelledError) for end in ends), ends

    async def until(self, condition: Callable[[], bool]) -> None:
        """Let the load run until a condition holds."""
        async with asyncio.timeout(_PATIENCE_S):
            while not condition():  # noqa: ASYNC110 - a condition tells nobody
                await asyncio.sleep(_PAUSE_S)

    async def more_acknowledged(self, number: int) -> None:
        """Let the load run until so many further updates were acknowledged."""
        target = len(self.acknowledged) + number
        await self.until(lambda: len(self.acknowledged) >= target)

    async def more_hits(self, number: int, tenants: Iterable[str]) -> None:
        """Let the load run until so many further lookups of some tenants have found their replica."""
        of = list(tenants)
        target = self._hits(of) + number
        await self.until(lambda: self._hits(of) >= target)

    async def lost(self, reports: Iterable[Report]) -> list[Report]:
        """Return those of the reports that lookups do not find now; a busy machine's timeouts are asked again."""
        return [report for report in reports if ids(await self._answer(report)) != [_replica(report)]]

    async def _answer(self, report: Report) -> pb.LookupRouteResponse:
        async with asyncio.timeout(_PATIENCE_S):
            while (answer := await self._look_up(report)).reason_code == "TIMEOUT":
                pass
        return answer

    def _hits(self, tenants: Iterable[str]) -> int:
        return sum(self.answers[tenant, "PREFIX_MATCH"] for tenant in tenants)

    async def _produce(self) -> None:
        for report in self._reports:
            told = update(_replica(report), chain(report.hashes), tenant_id=report.tenant)
            while True:
                try:
                    await self._stub.ReportCacheState(iter([told]), timeout=_CALL_S)
                    break
                except grpc.aio.AioRpcError as error:
                    self.refused[error.code().name] += 1
                    await asyncio.sleep(_PAUSE_S)
            self.acknowledged.append(report)
            await asyncio.sleep(_PAUSE_S)

    async def _ask(self) -> None:
        while True:
            if self.acknowledged:
                report = random.choice(self.acknowledged)
                try:
                    answer = await self._look_up(report)
                except grpc.aio.AioRpcError as error:
                    self.broken.append(error.code().name)
                else:
                    self.answers[report.tenant, answer.reason_code] += 1
            await asyncio.sleep(_PAUSE_S)

    async def _look_up(self, report: Report) -> pb.LookupRouteResponse:
        request = pb.LookupRouteRequest(
            tenant_id=report.tenant, model_id=MODEL, hash_scheme=SCHEME, **asks(report.hashes)
        )
        answer: pb.LookupRouteResponse = await self._stub.LookupRoute(request, timeout=_CALL_S)
        return answer


def _replica(report: Report) -> str:
    return f"replica-{report.number}"
