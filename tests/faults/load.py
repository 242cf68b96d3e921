"""What a cluster does to the service all day: gateways ask, engines report and evict, and nobody waits for anybody.

Every chain has a replica and a length of its own, so that an answer which belongs to another question shows.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Self

import grpc

from inference_cache._pb import inferencecache_pb2 as pb

_GATEWAYS = 3
_PRODUCERS = 2
_THINK_S = 0.002
_REPORT_S = 0.01
_SULK_S = 0.05
_EVICT_S = 0.05
_EVICT_FROM = 10
_PATIENCE_S = 30.0
_BLOCK_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Chain:
    """A prompt that one replica holds."""

    tenant: str
    replica: str
    hashes: tuple[bytes, ...]

    @classmethod
    def make(cls, tenant: str, number: int) -> Chain:
        """Return the chain of a number: 4 to 8 blocks that no other chain has."""
        names = (f"{tenant}/{number}/{place}" for place in range(4 + number % 5))
        return cls(tenant, f"pod-{number % 7}", tuple(hashlib.sha256(name.encode()).digest()[:8] for name in names))

    @property
    def tokens(self) -> int:
        """How many tokens the whole chain has."""
        return _BLOCK_TOKENS * len(self.hashes)

    @property
    def question(self) -> pb.LookupRouteRequest:
        """The gateway's question for it."""
        return pb.LookupRouteRequest(**self._scope, **self._blocks)

    @property
    def update(self) -> pb.CacheStateUpdate:
        """The engine's report of it."""
        return pb.CacheStateUpdate(replica_id=self.replica, prefixes=[pb.PrefixEntry(**self._blocks)], **self._scope)

    @property
    def eviction(self) -> pb.CacheEvent:
        """The engine's event that its first block is gone."""
        return pb.CacheEvent(
            type=pb.CacheEvent.PREFIX_EVICTED,
            tenant_id=self.tenant,
            model_id="m",
            replica_id=self.replica,
            prefix_hash=self.hashes[0],
        )

    @property
    def _scope(self) -> dict[str, Any]:
        return {"tenant_id": self.tenant, "model_id": "m", "hash_scheme": "vllm"}

    @property
    def _blocks(self) -> dict[str, Any]:
        return {"block_hashes": self.hashes, "block_token_counts": [_BLOCK_TOKENS] * len(self.hashes)}

    def fits(self, answer: pb.LookupRouteResponse) -> bool:
        """Whether a match is the one that this chain must get."""
        found = [(score.replica_id, score.matched_tokens) for score in answer.replica_scores]
        return found == [(self.replica, self.tokens)]


@dataclass(slots=True)
class Seen:
    """What came back during one phase.

    Attributes:
        reasons: answers to lookups, by reason.
        latencies_us: of these answers, as the server says, by reason.
        refusals: calls of producers that failed, by status.
        details: what the statuses said.
        acks: reports that were acknowledged.
        evictions: evictions that were.
    """

    reasons: Counter[str] = field(default_factory=Counter)
    latencies_us: dict[str, list[int]] = field(default_factory=dict)
    refusals: Counter[str] = field(default_factory=Counter)
    details: set[str] = field(default_factory=set)
    acks: int = 0
    evictions: int = 0


class Load:
    """Constant load of one tenant, for as long as the block runs.

    Args:
        stub: of the server.
        tenant: whose prompts.

    Attributes:
        seen: the present phase; replace it to begin another one.
        broken: what must never happen: lookups that failed, answers that belong to another question.
        held: acknowledged chains, and not evicted.
        gone: chains whose eviction was acknowledged.
        timeouts: lookups that used up their budget, in all phases.
    """

    def __init__(self, stub: Any, tenant: str) -> None:
        self.seen = Seen()
        self.broken: list[str] = []
        self.held: list[Chain] = []
        self.gone: list[Chain] = []
        self.timeouts = 0
        self._doomed: set[Chain] = set()
        self._stub = stub
        self._tenant = tenant
        self._numbers = itertools.count()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        await self._report(Chain.make(self._tenant, next(self._numbers)))
        self._tasks = [asyncio.create_task(self._ask_for_ever()) for _ in range(_GATEWAYS)]
        self._tasks += [asyncio.create_task(self._report_for_ever()) for _ in range(_PRODUCERS)]
        self._tasks.append(asyncio.create_task(self._evict_for_ever()))
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        ends = await asyncio.gather(*self._tasks, return_exceptions=True)
        self.broken += [repr(end) for end in ends if not isinstance(end, asyncio.CancelledError)]

    def forget(self) -> None:
        """Count on nothing that was acknowledged so far."""
        self.held, self.gone = [], []

    async def ask(self, chain: Chain) -> str:
        """Ask for a chain and return the reason; a failure or a wrong match is noted."""
        try:
            answer = await self._stub.LookupRoute(chain.question, timeout=_PATIENCE_S)
        except grpc.aio.AioRpcError as error:
            self.broken.append(f"LookupRoute failed: {error.code().name} {error.details()}")
            return error.code().name
        reason = str(answer.reason_code)
        if chain not in self._doomed:
            self.seen.reasons[reason] += 1
            self.seen.latencies_us.setdefault(reason, []).append(answer.lookup_latency_us)
        self.timeouts += reason == "TIMEOUT"
        if reason == "PREFIX_MATCH" and not chain.fits(answer):
            self.broken.append(f"{chain} got the answer of another question: {answer}")
        if reason in {"TIMEOUT", "INDEX_UNAVAILABLE"} and (answer.replica_scores or answer.adapter_id):
            self.broken.append(f"{reason} with content: {answer}")
        return reason

    async def _ask_for_ever(self) -> None:
        while True:
            if self.held:
                await self.ask(random.choice(self.held[-100:]))
            await asyncio.sleep(_THINK_S)

    async def _report_for_ever(self) -> None:
        while True:
            try:
                await self._report(Chain.make(self._tenant, next(self._numbers)))
                await asyncio.sleep(_REPORT_S)
            except grpc.aio.AioRpcError as error:
                await self._sulk(error)

    async def _evict_for_ever(self) -> None:
        while True:
            try:
                await asyncio.sleep(_EVICT_S)
                if len(self.held) > _EVICT_FROM:
                    await self._evict()
            except grpc.aio.AioRpcError as error:
                await self._sulk(error)

    async def _sulk(self, error: grpc.aio.AioRpcError) -> None:
        self.seen.refusals[error.code().name] += 1
        self.seen.details.add(str(error.details()))
        await asyncio.sleep(_SULK_S)

    async def _report(self, chain: Chain) -> None:
        held = self.held
        await self._stub.ReportCacheState(iter([chain.update]), timeout=_PATIENCE_S)
        self.seen.acks += 1
        held.append(chain)  # not to what was begun meanwhile: this one may be lost

    async def _evict(self) -> None:
        chain = self.held.pop(random.randrange(len(self.held)))
        self._doomed.add(chain)  # whoever asks for it right now may get either answer
        gone = self.gone
        await self._stub.PublishEvent(chain.eviction, timeout=_PATIENCE_S)
        self.seen.evictions += 1
        gone.append(chain)
