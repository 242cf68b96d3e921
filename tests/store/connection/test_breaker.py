from __future__ import annotations

import asyncio
import logging

import pytest

from inference_cache.errors import StoreUnavailable
from inference_cache.store.connection.breaker import FAILURES_TO_OPEN, Breaker
from inference_cache.store.connection.faults import ErrorReply
from tests.support.patience import until


class Probed:
    """A server that is asked: what it does next, and how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0
        self.at_once = 0
        self.most_at_once = 0
        self.failure: Exception | None = StoreUnavailable("away", "down")

    async def __call__(self) -> None:
        self.asked += 1
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await _turn()
        finally:
            self.at_once -= 1
        if self.failure is not None:
            raise self.failure


async def _turn() -> None:
    """Let everybody else have a go."""
    for _ in range(3):
        await asyncio.sleep(0)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Let pauses of the breaker pass at once; return their lengths."""
    seen: list[float] = []

    async def pause(seconds: float) -> None:
        seen.append(seconds)
        await _turn()

    monkeypatch.setattr("inference_cache.store.connection.breaker._pause", pause)
    return seen


def fail(breaker: Breaker, times: int = FAILURES_TO_OPEN) -> None:
    for _ in range(times):
        breaker.failed("down")


async def test_it_opens_on_consecutive_failures_only() -> None:
    """A reply between two failures proves that the server answers, so the count begins anew."""
    breaker = Breaker("it", Probed())
    fail(breaker, FAILURES_TO_OPEN - 1)
    breaker.answered()
    fail(breaker, FAILURES_TO_OPEN - 1)
    assert not breaker.is_open
    fail(breaker, 1)
    assert breaker.is_open
    assert breaker.openings == 1
    await breaker.end()


async def test_it_probes_one_by_one_until_an_answer(pauses: list[float]) -> None:
    """However many calls fail meanwhile there is one probe at a time, after pauses that grow up to a second."""
    probed = Probed()
    breaker = Breaker("it", probed)
    fail(breaker, 100)
    await until(lambda: probed.asked > 20)
    fail(breaker, 100)
    assert probed.most_at_once == 1
    assert 0.025 <= pauses[0] <= 0.05
    assert max(pauses) <= 1
    assert min(pauses[10:]) >= 0.5
    assert len(set(pauses[10:])) > 1
    probed.failure = None
    await until(lambda: not breaker.is_open)
    fail(breaker, FAILURES_TO_OPEN - 1)
    assert not breaker.is_open
    await breaker.end()


async def test_an_error_reply_is_an_answer(pauses: list[float]) -> None:
    """A server that refuses a probe by name answers: what it refuses calls with, it shall tell them itself."""
    probed = Probed()
    probed.failure = ErrorReply("NOAUTH Authentication required.")
    breaker = Breaker("it", probed)
    fail(breaker)
    await until(lambda: not breaker.is_open)
    assert len(pauses) == 1
    await breaker.end()


async def test_a_relapse_keeps_the_long_pause(pauses: list[float]) -> None:
    """Who answers a probe and nothing else is not asked every fifty milliseconds."""
    probed = Probed()
    probed.failure = None
    breaker = Breaker("it", probed)
    for _ in range(8):
        fail(breaker)
        await until(lambda: not breaker.is_open)
    assert breaker.openings == 8
    assert pauses[-1] >= 0.5
    await breaker.end()


@pytest.mark.usefixtures("pauses")
async def test_who_opens_it_again_finds_no_probe_left_over() -> None:
    """A circuit that something else closed, and that opens again, is probed by one and not by two."""
    probed = Probed()
    breaker = Breaker("it", probed)
    for _ in range(20):
        fail(breaker)
        await asyncio.sleep(0)
        breaker.close()
    fail(breaker)
    await until(lambda: probed.asked > 10)
    assert probed.most_at_once == 1
    await breaker.end()


@pytest.mark.usefixtures("pauses")
async def test_changes_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """One line when it opens and one when it closes, however many calls fail and probes are sent."""
    caplog.set_level(logging.DEBUG, "inference_cache")
    probed = Probed()
    breaker = Breaker("Redis at there", probed)
    fail(breaker, 50)
    await until(lambda: probed.asked > 10)
    breaker.close()
    breaker.close()
    assert [record.getMessage().partition(",")[0] for record in caplog.records] == [
        "circuit open: Redis at there",
        "circuit closed: Redis at there",
    ]
    await breaker.end()


async def test_an_ended_one_does_not_probe() -> None:
    """After the end no task is left and none begins."""
    probed = Probed()
    breaker = Breaker("it", probed)
    fail(breaker)
    await breaker.end()
    fail(breaker)
    assert len(asyncio.all_tasks()) == 1
