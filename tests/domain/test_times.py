from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_cache.domain.times import clamp_us, expired_at_ms, fence_ms, floor_to_grid

NOW = 1_700_000_000_000
YEAR_ONE_US = -62_135_596_800_000_000


@pytest.mark.parametrize(
    ("timestamp_us", "expected"),
    [
        (0, (NOW, False)),
        (1, (0, False)),
        (1_999, (1, False)),
        (NOW * 1000, (NOW, False)),
        (NOW * 1000 + 999, (NOW, False)),
        (NOW * 1000 + 1000, (NOW, True)),
        (2**63 - 1, (NOW, True)),
        (-1, (0, True)),
        (YEAR_ONE_US, (0, True)),
        (-(2**63), (0, True)),
    ],
)
def test_reported_times_are_truncated_and_clamped(timestamp_us: int, expected: tuple[int, bool]) -> None:
    """No producer's clock makes a holding fresh for ever; 0 alone means now, and what had to be moved is told."""
    assert clamp_us(timestamp_us, NOW) == expected


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**45))
def test_clamped_times_lie_between_the_epoch_and_now(timestamp_us: int, now_ms: int) -> None:
    """Whatever arrives, the stored time is one that the index can order."""
    time_ms, _ = clamp_us(timestamp_us, now_ms)
    assert 0 <= time_ms <= now_ms


@pytest.mark.parametrize(
    ("timestamp_us", "expected"),
    [
        (0, (None, False)),
        (5_000_999, (5_000, False)),
        (999, (0, False)),
        (-5, (0, True)),
        ((NOW + 5) * 1000, (NOW, True)),
    ],
)
def test_only_a_missing_time_removes_everything(timestamp_us: int, expected: tuple[int | None, bool]) -> None:
    """A removal with a time, even a senseless one, spares what was reported later."""
    assert fence_ms(timestamp_us, NOW) == expected


@given(st.integers(0, 2**45), st.integers(1, 10**9))
def test_grid_times_are_the_last_step_at_or_before(time_ms: int, grid_ms: int) -> None:
    """Flooring never makes a holding younger, and older by less than a step."""
    floored = floor_to_grid(time_ms, grid_ms)
    assert floored % grid_ms == 0
    assert 0 <= time_ms - floored < grid_ms


def test_what_is_as_old_as_the_ttl_is_expired() -> None:
    """The age limit is exclusive: a report of exactly that age no longer counts."""
    assert expired_at_ms(NOW, 1000) == NOW - 1000
