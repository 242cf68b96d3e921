from __future__ import annotations

import math
import time

from inference_cache.store.connection.clock import ServerClock


class Ticks:
    """A monotonic and a wall clock that tests turn by hand, in seconds."""

    def __init__(self) -> None:
        self.monotonic = 100.0
        self.wall = 5_000.0

    def pass_by(self, seconds: float) -> None:
        """Let time pass on both."""
        self.monotonic += seconds
        self.wall += seconds


def clock_of(ticks: Ticks) -> ServerClock:
    return ServerClock(lambda: ticks.monotonic, lambda: ticks.wall)


def test_before_any_measurement_the_clock_is_ours_and_uncertain() -> None:
    """Until Redis has been asked, times are this machine's and nobody may remove anything by them."""
    clock = clock_of(Ticks())
    assert clock.now_ms() == 5_000_000
    assert clock.uncertainty_ms == math.inf
    assert not clock.certain


def test_it_runs_on_from_the_middle_of_the_round_trip() -> None:
    """Redis read its clock about half way between question and answer; from there local time is added."""
    ticks = Ticks()
    clock = clock_of(ticks)
    clock.observe(100.0, 100.010, 9_000_000.0)
    ticks.pass_by(1.005)
    assert clock.now_ms() == 9_001_000
    assert clock.certain


def test_the_offset_is_against_the_wall_clock() -> None:
    """The gauge tells how far this machine's clock is off Redis', whatever the monotonic clock started from."""
    ticks = Ticks()
    clock = clock_of(ticks)
    clock.observe(100.0, 100.0, 5_000_250.0)
    assert math.isclose(clock.offset_ms, 250.0)
    ticks.wall += 10
    assert math.isclose(clock.offset_ms, -9_750.0)


def test_the_uncertainty_is_half_the_round_trip_and_grows_with_age() -> None:
    """A measurement is wrong by at most half its round trip; two quartz clocks then drift apart."""
    ticks = Ticks()
    clock = clock_of(ticks)
    clock.observe(99.9, 100.0, 9_000_000.0)
    assert math.isclose(clock.uncertainty_ms, 50.0)
    ticks.pass_by(1000.0)
    assert math.isclose(clock.uncertainty_ms, 250.0)


def test_one_slow_answer_does_not_spoil_the_clock() -> None:
    """Of the last few measurements the best counts, so a stall of this process does no harm."""
    ticks = Ticks()
    clock = clock_of(ticks)
    clock.observe(99.999, 100.0, 9_000_000.0)
    ticks.pass_by(2.0)
    clock.observe(100.0, 102.0, 9_001_900.0)
    assert math.isclose(clock.uncertainty_ms, 0.9)
    assert clock.now_ms() == 9_002_000


def test_a_slow_round_trip_alone_is_uncertain() -> None:
    """Beyond a second of possible error nobody may sweep."""
    clock = clock_of(Ticks())
    clock.observe(97.9, 100.0, 9_000_000.0)
    assert not clock.certain


def test_a_clock_that_was_set_is_believed_at_once() -> None:
    """After a failover or a correction of Redis' clock older measurements contradict it and are dropped."""
    ticks = Ticks()
    clock = clock_of(ticks)
    clock.observe(99.9999, 100.0, 9_000_000.0)
    ticks.pass_by(1.0)
    clock.observe(100.98, 101.0, 9_500_000.0)
    assert clock.now_ms() == 9_500_010


def test_the_samples_kept_are_bounded() -> None:
    """A server that runs for months keeps a handful of measurements."""
    clock = ServerClock()
    for _ in range(1000):
        now = time.monotonic()
        clock.observe(now, now + 0.001, 1_000.0 + now * 1000)
    assert len(clock._samples) == 8
