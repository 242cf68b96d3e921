from __future__ import annotations

from collections.abc import Sequence

import pytest

from inference_cache.sim.engine import Engine, Prefill
from inference_cache.sim.figures import ideal_token_hit_rate, percentile, share, token_hit_rate
from inference_cache.sim.generate import ChatShape, generate
from inference_cache.sim.routing import RoundRobin
from inference_cache.sim.simulate import Silent, Step, play
from inference_cache.sim.trace import Request


def make_engines(count: int, blocks: int = 10_000) -> list[Engine]:
    return [Engine(f"e{n}", blocks, Prefill(fixed_ms=10, token_ms=0)) for n in range(count)]


class _Log:
    """Routes round robin and writes down what happens when."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._turns = RoundRobin()

    async def choose(self, request: Request, engines: Sequence[Engine], now_ms: float) -> Engine:
        self.lines.append(f"route {request.hash_ids[0]}")
        return await self._turns.choose(request, engines, now_ms)

    async def report(self, steps: Sequence[Step]) -> None:
        self.lines += [f"report {engine.replica_id} {outcome.request.hash_ids[0]}" for engine, outcome in steps]


async def test_what_happened_before_an_arrival_is_reported_before_it_is_routed() -> None:
    """An index knows what the engines know: prefills that ended by then are reported first, in that order."""
    log = _Log()
    requests = [Request(at, 512, 0, (number,)) for number, at in enumerate((0, 1, 5, 30))]
    await play(requests, make_engines(2), log, log)
    assert log.lines == [
        *("route 0", "route 1", "route 2"),
        *("report e0 0", "report e1 1", "report e0 2"),
        *("route 3", "report e1 3"),
    ]


async def test_every_request_has_one_outcome() -> None:
    """Nothing is lost or played twice, and progress is told once a request."""
    requests = generate(ChatShape(requests=200), 1)
    ticks: list[None] = []
    outcomes = await play(requests, make_engines(3), RoundRobin(), Silent(), lambda: ticks.append(None))
    assert sorted(outcome.request.arrival_ms for outcome in outcomes) == [one.arrival_ms for one in requests]
    assert len(ticks) == 200


async def test_one_engine_with_one_request_at_a_time_reaches_the_ideal() -> None:
    """The ideal is what a single cache of the same size does when nobody has to wait."""
    chats = generate(ChatShape(requests=200), 1)
    apart = [
        Request(number * 1000, one.input_tokens, one.output_tokens, one.hash_ids) for number, one in enumerate(chats)
    ]
    outcomes = await play(apart, make_engines(1, 2_000), RoundRobin(), Silent())
    ideal = ideal_token_hit_rate(apart, 2_000)
    assert 0 < ideal < ideal_token_hit_rate(apart, 10**9)
    assert token_hit_rate(outcomes) == pytest.approx(ideal)


def test_percentiles_are_values_that_occurred() -> None:
    """Nearest rank: the smallest value that at least so many percent do not exceed."""
    values = [float(n) for n in range(1, 201)]
    assert (percentile(values, 50), percentile(values, 99), percentile(values, 100)) == (100, 198, 200)
    assert percentile([7.0], 99) == 7.0
    assert percentile([], 50) == 0.0


def test_a_share_of_nothing_is_all_of_it() -> None:
    """Where nothing could be hit, nothing was missed."""
    assert share(0.0, 0.0) == 1.0
    assert share(0.1, 0.4) == 0.25
