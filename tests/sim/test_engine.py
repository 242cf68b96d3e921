from __future__ import annotations

import pytest

from inference_cache.sim.engine import Engine, Prefill
from inference_cache.sim.trace import Request

PREFILL = Prefill(fixed_ms=10, token_ms=0.1)


def make_engine(blocks: int = 1000) -> Engine:
    return Engine("one", blocks, PREFILL)


def test_a_prefill_takes_its_fixed_part_and_its_uncached_tokens() -> None:
    """The first token of a prompt comes after 10 ms and 0.1 ms for each token that is not cached."""
    engine = make_engine()
    engine.submit(Request(100, 1024, 0, (1, 2)), 100)
    assert engine.done_ms == pytest.approx(100 + 10 + 102.4)
    assert engine.finish().ttft_ms == pytest.approx(112.4)
    engine.submit(Request(500, 1040, 0, (1, 2, 3)), 500)
    outcome = engine.finish()
    assert outcome.hit_tokens == 1024
    assert outcome.ttft_ms == pytest.approx(10 + 1.6)


def test_requests_wait_for_those_before_them() -> None:
    """One prefill runs at a time, in the order of arrival, and waiting counts into the time to first token."""
    engine = make_engine()
    engine.submit(Request(0, 1000, 0, (1, 2)), 0)
    engine.submit(Request(10, 500, 0, (3,)), 10)
    assert engine.finish().ttft_ms == pytest.approx(110)
    assert engine.finish().ttft_ms == pytest.approx(110 + 60 - 10)
    assert engine.done_ms is None


def test_the_cache_counts_when_a_prefill_starts() -> None:
    """A request that waited behind one with the same prefix finds it cached."""
    engine = make_engine()
    for _ in range(2):
        engine.submit(Request(0, 512, 0, (1,)), 0)
    assert [engine.finish().hit_tokens, engine.finish().hit_tokens] == [0, 512]


def test_the_backlog_is_the_work_ahead() -> None:
    """A queue is as long as the prefill that is left of the running request and that of the waiting ones."""
    engine = make_engine()
    assert engine.backlog_ms(0) == 0
    engine.submit(Request(0, 1000, 0, (1, 2)), 0)
    engine.submit(Request(0, 500, 0, (3,)), 0)
    assert engine.backlog_ms(30) == pytest.approx(110 - 30 + 60)
    engine.finish()
    assert engine.backlog_ms(110) == pytest.approx(60)
    engine.finish()
    assert engine.backlog_ms(170) == 0


def test_an_outcome_tells_what_was_stored_and_dropped() -> None:
    """An engine reports from what a prefill changed: new blocks of the prompt, evicted ones of others."""
    engine = make_engine(blocks=40)
    engine.submit(Request(0, 512, 0, (1,)), 0)
    engine.submit(Request(0, 512, 0, (2,)), 0)
    assert engine.finish().change.evicted == []
    change = engine.finish().change
    assert (change.first_new, change.held, change.evicted) == (0, 32, [(1, 8, 32)])


def test_an_idle_engine_has_nothing_to_finish() -> None:
    """Asking an idle engine for a result is a mistake of the simulation and says so."""
    with pytest.raises(RuntimeError, match="idle"):
        make_engine().finish()
