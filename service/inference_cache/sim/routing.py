"""How a request finds its engine, without asking anybody: round robin, least loaded, and the yardstick.

Every cache-aware routing is under the gateway's own :class:`LoadRule`: a cached prefix is worth some waiting, not any.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from inference_cache.sim.engine import Engine
from inference_cache.sim.trace import Request


class Routing(Protocol):
    """Chooses an engine for a request."""

    async def choose(self, request: Request, engines: Sequence[Engine], now_ms: float) -> Engine:
        """Return one of ``engines``; ``now_ms`` is simulated time."""
        ...


@dataclass(frozen=True, slots=True)
class LoadRule:
    """A gateway's say: skip an engine whose queue is longer than the shortest one by more than ``slack_ms``."""

    slack_ms: float = 2000.0

    def first_fit(self, preferred: Iterable[Engine], engines: Sequence[Engine], now_ms: float) -> Engine:
        """Return the first preferred engine that is not overloaded, else the one with the shortest queue."""
        shortest = least_loaded(engines, now_ms)
        limit_ms = shortest.backlog_ms(now_ms) + self.slack_ms
        return next((one for one in preferred if one.backlog_ms(now_ms) <= limit_ms), shortest)


def least_loaded(engines: Sequence[Engine], now_ms: float) -> Engine:
    """Return the engine with the shortest queue, the first of several."""
    return min(engines, key=lambda engine: engine.backlog_ms(now_ms))


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
        ranked = sorted(engines, key=lambda engine: (-engine.cache.match(spans), engine.backlog_ms(now_ms)))
        return self._rule.first_fit(ranked, engines, now_ms)
