"""The same prompts under every routing: through the service, round robin, least loaded and the yardstick."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Protocol
from uuid import uuid4

import grpc

from inference_cache._pb.inferencecache_pb2_grpc import InferenceCacheStub
from inference_cache.sim.engine import Engine, Prefill
from inference_cache.sim.figures import Figures, ideal_token_hit_rate, percentile, token_hit_rate
from inference_cache.sim.gateway import CacheAware, Gateway, Scope
from inference_cache.sim.report import ServiceReporter
from inference_cache.sim.routing import LeastLoaded, LoadRule, RoundRobin, Routing, Yardstick
from inference_cache.sim.simulate import Reporter, Silent, play
from inference_cache.sim.trace import BLOCK_TOKENS, Request

if TYPE_CHECKING:  # the class exists for type checkers only
    from inference_cache._pb.inferencecache_pb2_grpc import InferenceCacheAsyncStub

CACHE_AWARE = "cache-aware"
ROUND_ROBIN = "round robin"
LEAST_LOADED = "least loaded"
YARDSTICK = "yardstick"


@dataclass(frozen=True, slots=True)
class Fleet:
    """The engines and gateways of a run.

    Attributes:
        cache_blocks: blocks of 16 tokens that one engine caches.
        engines: how many engines there are.
        gateways: how many gateways there are; each asks one of the servers.
        prefill: how long a prefill takes.
        rule: the gateways' load rule.
    """

    cache_blocks: int
    engines: int = 8
    gateways: int = 2
    prefill: Prefill = field(default_factory=Prefill)
    rule: LoadRule = field(default_factory=LoadRule)

    def build(self) -> list[Engine]:
        """Return new, empty engines."""
        return [Engine(f"engine-{n}", self.cache_blocks, self.prefill) for n in range(self.engines)]

    @property
    def cache_tokens(self) -> int:
        """Tokens that one engine caches."""
        return self.cache_blocks * BLOCK_TOKENS

    def as_dict(self) -> dict[str, object]:
        """Return all of it for JSON."""
        return {**asdict(self), "cache_tokens": self.cache_tokens}


class Progress(Protocol):
    """Shows how far a run is."""

    def begin(self, stage: str, steps: int) -> None:
        """A stage of so many steps begins; the one before is over."""
        ...

    def advance(self) -> None:
        """One step is done."""
        ...


async def compare(
    requests: Sequence[Request], fleet: Fleet, servers: Sequence[str], progress: Progress
) -> list[Figures]:
    """Play the prompts once under every routing and return the figures, the service's first.

    Args:
        requests: prompts in the order of their arrival.
        fleet: engines and gateways; every routing gets new ones.
        servers: gRPC addresses; gateways and engines are spread over them.
        progress: hears of every routed request.

    Raises:
        grpc.aio.AioRpcError: a server did not take reports.
    """
    ideal = ideal_token_hit_rate(requests, fleet.engines * fleet.cache_blocks)
    figures = [await _through_service(requests, fleet, servers, progress, ideal)]
    silent: dict[str, Routing] = {
        ROUND_ROBIN: RoundRobin(),
        LEAST_LOADED: LeastLoaded(),
        YARDSTICK: Yardstick(fleet.rule),
    }
    for name, routing in silent.items():
        progress.begin(name, len(requests))
        figures.append(await _measure(name, requests, fleet.build(), routing, Silent(), progress, ideal))
    return figures


async def _through_service(
    requests: Sequence[Request], fleet: Fleet, servers: Sequence[str], progress: Progress, ideal: float
) -> Figures:
    """Play through the service, in a tenant that no other run has and that is emptied afterwards."""
    scope = Scope(tenant_id=f"simulation-{uuid4().hex}")
    async with AsyncExitStack() as stack:
        stubs = [await _connect(stack, server) for server in servers]
        gateways = [Gateway(stubs[n % len(stubs)], scope) for n in range(fleet.gateways)]
        engines = fleet.build()
        by_engine = {engine.replica_id: stubs[n % len(stubs)] for n, engine in enumerate(engines)}
        reporter = ServiceReporter(by_engine, scope)
        progress.begin(CACHE_AWARE, len(requests))
        try:
            routing = CacheAware(gateways, fleet.rule)
            played = await _measure(CACHE_AWARE, requests, engines, routing, reporter, progress, ideal)
        finally:
            await reporter.clear(engines)
    latencies = [one for gateway in gateways for one in gateway.latencies_ms]
    reasons: Counter[str] = sum((gateway.reasons for gateway in gateways), Counter())
    return replace(
        played,
        lookup_p50_ms=percentile(latencies, 50),
        lookup_p99_ms=percentile(latencies, 99),
        reasons=dict(reasons.most_common()),
        calls=dict(reporter.calls),
        blocks_stored=reporter.stored,
        blocks_evicted=reporter.evicted,
    )


async def _connect(stack: AsyncExitStack, server: str) -> InferenceCacheAsyncStub:
    channel = await stack.enter_async_context(grpc.aio.insecure_channel(server))
    return InferenceCacheStub(channel)


async def _measure(
    name: str,
    requests: Sequence[Request],
    engines: Sequence[Engine],
    routing: Routing,
    reporter: Reporter,
    progress: Progress,
    ideal: float,
) -> Figures:
    begun = time.perf_counter()
    outcomes = await play(requests, engines, routing, reporter, progress.advance)
    waits = [outcome.ttft_ms for outcome in outcomes]
    return Figures(
        routing=name,
        token_hit_rate=token_hit_rate(outcomes),
        ideal_token_hit_rate=ideal,
        ttft_p50_ms=percentile(waits, 50),
        ttft_p99_ms=percentile(waits, 99),
        wall_s=time.perf_counter() - begun,
    )
