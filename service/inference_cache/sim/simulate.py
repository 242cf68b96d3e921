"""Plays prompts on engines in simulated time, with whatever calls the routing and the reporter make in between.

Simulated time stands still during a call, however long it takes. What engines did before a request arrives is
reported and acknowledged before that request is routed, so an index knows what the engines know.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from inference_cache.sim.engine import Engine, Outcome
from inference_cache.sim.routing import Routing
from inference_cache.sim.trace import Request

Step = tuple[Engine, Outcome]


class Reporter(Protocol):
    """Hears what engines stored and dropped."""

    async def report(self, steps: Sequence[Step]) -> None:
        """Pass on finished prefills, given in the order of their ends; return when they are acknowledged."""
        ...


class Silent:
    """Reports to nobody: for routings that ask nobody."""

    async def report(self, steps: Sequence[Step]) -> None:
        """Do nothing."""


async def play(
    requests: Iterable[Request],
    engines: Sequence[Engine],
    routing: Routing,
    reporter: Reporter,
    on_request: Callable[[], None] = lambda: None,
) -> list[Outcome]:
    """Play all requests and return their outcomes in the order in which prefills ended.

    Args:
        requests: prompts in the order of their arrival.
        engines: idle engines; they keep what they cached.
        routing: chooses an engine for each request.
        reporter: hears of each finished prefill.
        on_request: called after each routed request, for a progress bar.
    """
    outcomes: list[Outcome] = []
    ends: list[tuple[float, int]] = []
    numbers = {engine.replica_id: number for number, engine in enumerate(engines)}

    async def run_until(now_ms: float) -> None:
        steps = _finish_until(now_ms, engines, ends)
        outcomes.extend(outcome for _, outcome in steps)
        if steps:
            await reporter.report(steps)

    for request in requests:
        await run_until(request.arrival_ms)
        engine = await routing.choose(request, engines, request.arrival_ms)
        idle = engine.done_ms is None
        engine.submit(request, request.arrival_ms)
        if idle and engine.done_ms is not None:
            heapq.heappush(ends, (engine.done_ms, numbers[engine.replica_id]))
        on_request()
    await run_until(float("inf"))
    return outcomes


def _finish_until(now_ms: float, engines: Sequence[Engine], ends: list[tuple[float, int]]) -> list[Step]:
    """Finish all prefills that end by ``now_ms``; ``ends`` is the heap of running ones."""
    steps: list[Step] = []
    while ends and ends[0][0] <= now_ms:
        _, number = heapq.heappop(ends)
        engine = engines[number]
        steps.append((engine, engine.finish()))
        if engine.done_ms is not None:
            heapq.heappush(ends, (engine.done_ms, number))
    return steps
