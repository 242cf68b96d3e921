"""A simulated engine that serves: prompts come over gRPC, what they change in its cache goes to the service.

A prompt never waits for the service. Reports wait in a queue of bounded length and are sent, in order, until they are
acknowledged, so a server that goes away or a Redis that fails over costs nothing. When the service stays away until
the queue is full, further reports are lost and counted: what the service does not hear expires by itself.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import grpc

from inference_cache.listening import why_not
from inference_cache.settings import Address
from inference_cache.sim.engine import Engine, Outcome
from inference_cache.sim.live.wire import Prefilled, handler
from inference_cache.sim.report import RETRIED, ServiceReporter
from inference_cache.sim.trace import Request

MAX_WAITING = 1000
"""Prompts whose reports may wait."""
PAUSE_S = 0.5
"""Between two attempts at the same report, after the reporter's own."""
_AWAY = (*RETRIED, grpc.StatusCode.DEADLINE_EXCEEDED)


class LiveEngine:
    """One engine in wall time.

    Attributes:
        counts: prompts, reports that were acknowledged, lost or refused, and attempts that failed.
    """

    def __init__(self, engine: Engine, reporter: ServiceReporter, max_waiting: int = MAX_WAITING) -> None:
        self.counts: Counter[str] = Counter()
        self._engine = engine
        self._reporter = reporter
        self._callers: deque[asyncio.Future[Outcome]] = deque()
        """Those whose prompts are queued, in the order of the queue."""
        self._submitted = asyncio.Event()
        self._reports: asyncio.Queue[Outcome] = asyncio.Queue(max_waiting)

    async def prefill(self, request: Request) -> Prefilled:
        """Queue a prompt and return when its first token is there."""
        self._finish_due()
        caller: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._callers.append(caller)
        now_ms = _now_ms()
        begun = Request(now_ms, request.input_tokens, request.output_tokens, request.hash_ids)
        self._engine.submit(begun, now_ms)
        self._submitted.set()
        outcome = await caller
        return Prefilled(outcome.hit_tokens, outcome.ttft_ms)

    async def work(self) -> None:
        """Finish prefills as time passes, until cancelled."""
        while True:
            done_ms = self._engine.done_ms
            if done_ms is None:
                self._submitted.clear()
                await self._submitted.wait()
            else:
                await asyncio.sleep(max(0.0, done_ms - _now_ms()) / 1000)
                self._finish_due()

    async def report(self) -> None:
        """Say that the cache is empty, then report what is stored and dropped, until cancelled."""
        await self._insist("cleared", partial(self._reporter.cleared, self._engine))
        while True:
            step = (self._engine, await self._reports.get())
            await self._insist("reported", partial(self._reporter.report, [step]))

    def figures(self) -> dict[str, object]:
        """Return the counters, for a line of the log."""
        return {
            "replica_id": self._engine.replica_id,
            **self.counts,
            "blocks_cached": self._engine.cache.used,
            "blocks_stored": self._reporter.stored,
            "blocks_evicted": self._reporter.evicted,
            "reports_waiting": self._reports.qsize(),
        }

    async def _insist(self, done: str, send: Callable[[], Awaitable[None]]) -> None:
        """Send until it is acknowledged; what the service refuses is passed over, since it would refuse it again."""
        while True:
            try:
                await send()
            except grpc.aio.AioRpcError as error:
                if error.code() not in _AWAY:
                    self.counts[f"refused_{error.code().name}"] += 1
                    return
                self.counts["attempts_failed"] += 1
                await asyncio.sleep(PAUSE_S)
            else:
                self.counts[done] += 1
                return

    def _finish_due(self) -> None:
        """End all prefills whose time has come: the engine must not take a prompt before that."""
        now_ms = _now_ms()
        while self._engine.done_ms is not None and self._engine.done_ms <= now_ms:
            outcome = self._engine.finish()
            self.counts["prompts"] += 1
            caller = self._callers.popleft()
            if not caller.done():  # the gateway may have hung up; the blocks are cached all the same
                caller.set_result(outcome)
            try:
                self._reports.put_nowait(outcome)
            except asyncio.QueueFull:
                self.counts["reports_lost"] += 1


@asynccontextmanager
async def engine_running(live: LiveEngine, listen: Address, grace_s: float = 2.0) -> AsyncIterator[Address]:
    """Take prompts and report for as long as the block runs; yield where, with the real port.

    Raises:
        OSError: the port is taken.
    """
    server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    server.add_generic_rpc_handlers((handler(live.prefill),))
    target = Address(listen.host or "::", listen.port)
    try:
        port = server.add_insecure_port(str(target))
    except RuntimeError:
        raise OSError(f"cannot listen on {listen}: {why_not(listen)}") from None
    tasks = [asyncio.create_task(live.work()), asyncio.create_task(live.report())]
    await server.start()
    try:
        yield Address(listen.host, port)
    finally:
        await server.stop(grace_s)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _now_ms() -> float:
    return time.monotonic() * 1000
