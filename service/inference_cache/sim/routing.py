"""How a request finds its engine, without asking anybody: round robin, least loaded, and the yardstick.

Every cache-aware routing is under the gateway's own :class:`LoadRule`: a cached prefix is worth some waiting, not any.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from inference_cache.sim.engine import Engine
from inference_cache.sim.trace import Request


class Candidate(Protocol):
    """What a gateway knows of an engine: a simulated one of its own process, or one behind a network."""

    @property
    def replica_id(self) -> str:
        """The name under which the index knows it."""
        ...

    @property
    def taken(self) -> int:
        """Requests so far."""
        ...

    def backlog_ms(self, now_ms: float) -> float:
        """Return how long a request that arrives now would wait."""
        ...

    def load(self, now_ms: float) -> tuple[float, int]:
        """Return what engines are compared by: the queue, and among equal ones the requests taken so far."""
        ...


E = TypeVar("E", bound=Candidate)


class Routing(Protocol):
    """Chooses an engine for a request."""

    async def choose(self, request: Request, engines: Sequence[Engine], now_ms: float) -> Engine:
        """Return one of ``engines``; ``now_ms`` is simulated time."""
        ...


@dataclass(frozen=True, slots=True)
class LoadRule:
    """A gateway's say: skip an engine whose queue is far longer than the shortest one.

    An engine that holds nothing of the prompt that others do not hold too is a blind pick, stable but worth less
    waiting. It must not have taken more than its share of requests either: an index that has heard of few engines
    yet can only pick those, and whoever follows it fills their caches while the others idle.

    Attributes:
        slack_ms: how much longer the queue of an engine that holds some of the prompt may be.
        blind_slack_ms: how much longer that of a blind pick may be.
    """

    slack_ms: float = 2000.0
    blind_slack_ms: float = 100.0

    def first_fit(self, preferred: Iterable[tuple[E, int]], engines: Sequence[E], now_ms: float) -> E:
        """Return the first preferred engine that is not overloaded, else the one with the shortest queue.

        Args:
            preferred: engines, each with how much of the prompt it holds: tokens or blocks, 0 = nothing.
            engines: all of them, at least one.
            now_ms: the time of the engines.
        """
        shortest = least_loaded(engines, now_ms)
        queue_ms = shortest.backlog_ms(now_ms)
        fair = sum(engine.taken for engine in engines) / len(engines)
        for engine, matched in preferred:
            slack_ms = self.slack_ms if matched else self.blind_slack_ms
            if engine.backlog_ms(now_ms) <= queue_ms + slack_ms and (matched or engine.taken <= fair):
                return engine
        return shortest


def least_loaded(engines: Sequence[E], now_ms: float) -> E:
    """Return the engine with the shortest queue."""
    return min(engines, key=lambda engine: engine.load(now_ms))


class RoundRobin:
    """Engines in turn."""

    def __init__(self) -> None:
        self._turn = 0

    async def choose(self, request: Request, engines: Sequence[Engine], now_ms: float) -> Engine:  # noqa: ARG002
        """Return the engine whose turn it is."""
        self._turn += 1
        return engines[(self._turn - 1) % len(engines)]


class LeastLoaded:
    """The engine with the shortest queue."""

    async def choose(self, request: Request, engines: Sequence[Engine], now_ms: float) -> Engine:  # noqa: ARG002
        """Return the engine with the shortest queue."""
        return least_loaded(engines, now_ms)


class Yardstick:
    """What an index could at best do: it looks into every engine's cache.

    The longest true match wins, ties go to the shortest queue, all under the same load rule as the gateways.
    """

    def __init__(self, rule: LoadRule) -> None:
        self._rule = rule

    async def choose(self, request: Request, engines: Sequence[Engine], now_ms: float) -> Engine:
        """Return the engine with the longest cached prefix that is not overloaded."""
        spans = request.spans()
        matches = [(engine, engine.cache.match(spans)) for engine in engines]
        matches.sort(key=lambda choice: (-choice[1], choice[0].load(now_ms)))
        return self._rule.first_fit(matches, engines, now_ms)
