"""A simulated gateway that serves: chats without an end, each prompt looked up and sent where the hint says.

The engines are all addresses behind one name, looked up again every second. A replica's id is its address, so a hint
names an engine that can be called. A lookup or an engine that fails costs a hint or another engine, never a prompt.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

import grpc

from inference_cache.settings import Address
from inference_cache.sim.engine import Prefill
from inference_cache.sim.figures import percentile
from inference_cache.sim.gateway import Gateway, ranked
from inference_cache.sim.live.wire import caller
from inference_cache.sim.routing import LoadRule, least_loaded
from inference_cache.sim.trace import Request

RESOLVE_S = 1.0
PATIENCE_S = 60.0
"""How long a prompt may take; engines queue, so this is long."""
MAX_IN_FLIGHT = 256
"""Prompts at a time; further ones wait, so that slow engines slow the gateway down."""
KEPT_DURATIONS = 2000
"""Latest lookups of which the percentiles are told."""


class EngineLink:
    """An engine behind the network and what this gateway knows of its load: the prompts that it sent there itself.

    Args:
        replica_id: the engine's address, ``host:port``.
        taken: prompts it is taken to have had; a newcomer starts with as many as the others.
    """

    def __init__(self, replica_id: str, taken: int) -> None:
        self.replica_id = replica_id
        self.taken = taken
        self._work_ms = 0.0
        self._channel = grpc.aio.insecure_channel(replica_id)
        self._prefill = caller(self._channel)

    @property
    def ready(self) -> bool:
        """Whether it can be reached; one that cannot is tried again in the background."""
        return self._channel.get_state(try_to_connect=True) is grpc.ChannelConnectivity.READY

    def backlog_ms(self, now_ms: float) -> float:  # noqa: ARG002 - other engines know the time of their work
        """Return the work of the prompts that it has not answered yet."""
        return self._work_ms

    def load(self, now_ms: float) -> tuple[float, int]:
        """Return what engines are compared by."""
        return self.backlog_ms(now_ms), self.taken

    async def prefill(self, request: Request, work_ms: float) -> int:
        """Send a prompt and return how many of its tokens were cached.

        Raises:
            grpc.aio.AioRpcError: the engine is gone or takes too long.
        """
        self.taken += 1
        self._work_ms += work_ms
        try:
            answer = await self._prefill(request, timeout=PATIENCE_S)
        finally:
            self._work_ms -= work_ms
        return answer.hit_tokens

    async def close(self) -> None:
        """Hang up."""
        await self._channel.close(PATIENCE_S)


@dataclass(slots=True)
class Counts:
    """What a gateway saw since its start."""

    prompts: int = 0
    failed: int = 0
    hinted: int = 0
    followed: int = 0
    prompt_tokens: int = 0
    hit_tokens: int = 0
    engine_errors: Counter[str] = field(default_factory=Counter)


class LiveGateway:
    """Plays prompts at a rate.

    Args:
        gateway: asks the service; to be made with ``keep``.
        engines: name and port of the engines.
        rule: when a hint is not followed.
        prefill: how long the gateway believes a prefill takes.
    """

    def __init__(self, gateway: Gateway, engines: Address, rule: LoadRule, prefill: Prefill) -> None:
        self.counts = Counts()
        self.engines: dict[str, EngineLink] = {}
        self._gateway = gateway
        self._name = engines
        self._rule = rule
        self._prefill = prefill
        self._in_flight: set[asyncio.Task[None]] = set()
        self._leaving: set[asyncio.Task[None]] = set()

    async def follow_engines(self) -> None:
        """Keep to the engines that the name has, until cancelled."""
        while True:
            with suppress(socket.gaierror):  # no engine yet, or no name service for a moment: what is known stays
                self._know(await _addresses(self._name))
            await asyncio.sleep(RESOLVE_S)

    async def play(self, prompts: Iterator[Request], rate: float, random: Random) -> None:
        """Send prompts, ``rate`` a second at random intervals, until cancelled; then wait for those under way."""
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        try:
            while True:
                due_s += random.expovariate(rate)
                await asyncio.sleep(max(0.0, due_s - loop.time()))
                while len(self._in_flight) >= MAX_IN_FLIGHT or not self._ready():
                    await asyncio.sleep(0.05)
                    due_s = max(due_s, loop.time())
                task = asyncio.create_task(self.send(next(prompts)))
                self._in_flight.add(task)
                task.add_done_callback(self._in_flight.discard)
        finally:
            for task in self._in_flight:
                task.cancel()
            await asyncio.gather(*self._in_flight, *self._leaving, return_exceptions=True)

    async def send(self, request: Request) -> None:
        """Look a prompt up and send it to the best hinted engine, to the least loaded one without a hint."""
        scores = await self._gateway.lookup(request)
        now_ms = asyncio.get_running_loop().time() * 1000
        engines = self._ready()
        hints = dict(ranked(scores, engines, now_ms))
        self.counts.prompts += 1
        self.counts.hinted += bool(hints)
        for engine in self._two_choices(hints, engines, now_ms):
            try:
                hit_tokens = await engine.prefill(request, self._work_ms(request, hints.get(engine, 0)))
            except grpc.aio.AioRpcError as error:
                self.counts.engine_errors[error.code().name] += 1
            else:
                self.counts.prompt_tokens += request.input_tokens
                self.counts.hit_tokens += hit_tokens
                return
        self.counts.failed += 1

    def _two_choices(
        self, hints: Mapping[EngineLink, int], engines: Sequence[EngineLink], now_ms: float
    ) -> Iterator[EngineLink]:
        """Yield the engine for a prompt, and another one in case that it has just gone."""
        if not engines:
            return
        chosen = self._rule.first_fit(hints.items(), engines, now_ms)
        self.counts.followed += chosen in hints
        yield chosen
        others = [engine for engine in engines if engine is not chosen]
        if others:
            yield least_loaded(others, now_ms)

    def _ready(self) -> list[EngineLink]:
        return [engine for engine in self.engines.values() if engine.ready]

    def figures(self) -> dict[str, object]:
        """Return the counters, for a line of the log."""
        counts = self.counts
        return {
            "prompts": counts.prompts,
            "failed": counts.failed,
            "in_flight": len(self._in_flight),
            "engines": len(self._ready()),
            "hinted": counts.hinted,
            "followed": counts.followed,
            "token_hit_rate": round(counts.hit_tokens / max(1, counts.prompt_tokens), 3),
            "lookup_p50_ms": round(percentile(self._gateway.latencies_ms, 50), 2),
            "lookup_p99_ms": round(percentile(self._gateway.latencies_ms, 99), 2),
            "reasons": dict(self._gateway.reasons),
            "engine_errors": dict(counts.engine_errors),
        }

    async def close(self) -> None:
        """Hang up."""
        self._know(())
        await asyncio.gather(*self._leaving)

    def _know(self, addresses: Iterable[str]) -> None:
        found = list(addresses)
        for gone in self.engines.keys() - set(found):
            leaving = asyncio.create_task(self.engines.pop(gone).close())
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)
        taken = min((engine.taken for engine in self.engines.values()), default=0)
        for address in found:
            if address not in self.engines:
                self.engines[address] = EngineLink(address, taken)

    def _work_ms(self, request: Request, matched_tokens: int) -> float:
        return self._prefill.duration_ms(max(0, request.input_tokens - matched_tokens))


async def _addresses(name: Address) -> dict[str, None]:
    """Return the addresses behind a name, in a stable order."""
    found = await asyncio.get_running_loop().getaddrinfo(name.host, name.port, type=socket.SOCK_STREAM)
    return dict.fromkeys(str(Address(str(where[0]), int(where[1]))) for _, _, _, _, where in sorted(found))
