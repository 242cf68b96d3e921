"""Gateways that ask the service: the routing that is being shown."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import grpc

from inference_cache._pb import inferencecache_pb2 as pb
from inference_cache.sim.blocks import prompt_hashes
from inference_cache.sim.routing import E, LoadRule
from inference_cache.sim.trace import BLOCK_TOKENS, Request

if TYPE_CHECKING:  # the class exists for type checkers only
    from inference_cache._pb.inferencecache_pb2_grpc import InferenceCacheAsyncStub

CLIENT_DEADLINE_S = 1.0
"""A gateway's own patience; the server's lookup budget is far shorter."""


@dataclass(frozen=True, slots=True)
class Scope:
    """What the simulated engines and gateways agree on: the ids under which an index knows them."""

    tenant_id: str
    model_id: str = "simulated-chat"
    hash_scheme: str = "vllm"


class Gateway:
    """One gateway and what it saw: how long lookups took on the wall's clock, and which reasons came back.

    Args:
        stub: asks the service.
        scope: the ids.
        deadline_s: the gateway's patience with one lookup.
        keep: how many of the latest durations are kept, ``None`` = all.
    """

    def __init__(
        self,
        stub: InferenceCacheAsyncStub,
        scope: Scope,
        deadline_s: float = CLIENT_DEADLINE_S,
        keep: int | None = None,
    ) -> None:
        self._stub = stub
        self._deadline_s = deadline_s
        self._scope = scope
        self.latencies_ms: deque[float] = deque(maxlen=keep)
        self.reasons: Counter[str] = Counter()

    async def lookup(self, request: Request) -> Sequence[pb.ReplicaScore]:
        """Return the ranked hints for a prompt; none when the service cannot say.

        A failed call counts as ``RPC_`` and its status code. It is no reason to fail a request.
        """
        hashes = prompt_hashes(request)
        message = pb.LookupRouteRequest(
            tenant_id=self._scope.tenant_id,
            model_id=self._scope.model_id,
            hash_scheme=self._scope.hash_scheme,
            block_hashes=hashes,
            block_token_counts=[BLOCK_TOKENS] * len(hashes),
        )
        begun = time.perf_counter()
        try:
            answer = await self._stub.LookupRoute(message, timeout=self._deadline_s)
        except grpc.aio.AioRpcError as error:
            self.reasons[f"RPC_{error.code().name}"] += 1
            return ()
        finally:
            self.latencies_ms.append((time.perf_counter() - begun) * 1000)
        self.reasons[answer.reason_code] += 1
        return answer.replica_scores


class CacheAware:
    """Gateways in turn; each asks the service and follows its hint, under its own load rule.

    Replicas that match equally long are taken by their queues: the service ranks them by age and name, which says
    little beside a queue. An AFFINITY_HINT is one replica without a match, so it is followed like any other hint.
    """

    def __init__(self, gateways: Sequence[Gateway], rule: LoadRule) -> None:
        self.gateways = gateways
        self._rule = rule
        self._turn = 0

    async def choose(self, request: Request, engines: Sequence[E], now_ms: float) -> E:
        """Return the best hinted engine that is not overloaded, the least loaded one without a hint."""
        gateway = self.gateways[self._turn % len(self.gateways)]
        self._turn += 1
        scores = await gateway.lookup(request)
        return self._rule.first_fit(ranked(scores, engines, now_ms), engines, now_ms)


def ranked(scores: Sequence[pb.ReplicaScore], engines: Iterable[E], now_ms: float) -> Iterator[tuple[E, int]]:
    """Yield hinted engines and their matched tokens, in the order of their scores, equal matches by their queues."""
    by_id: Mapping[str, E] = {engine.replica_id: engine for engine in engines}
    for matched, equals in groupby(scores, key=lambda score: score.matched_tokens):
        known = [by_id[score.replica_id] for score in equals if score.replica_id in by_id]
        yield from ((engine, matched) for engine in sorted(known, key=lambda engine: engine.load(now_ms)))
