from __future__ import annotations

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_cache.domain.float32 import f32, finite


@given(st.floats(width=32, allow_nan=False))
def test_float32_values_stay_as_they_are(value: float) -> None:
    """What the wire carried is not changed by rounding it again."""
    assert f32(value) == value


@given(st.floats(allow_nan=False, min_value=-3e38, max_value=3e38))
def test_rounds_as_the_wire_does(value: float) -> None:
    """A score in memory is the number that the client decodes."""
    assert f32(value) == struct.unpack("<f", struct.pack("<f", value))[0]


def test_too_large_is_infinite() -> None:
    """An absurd weight gives an absurd score, not an exception."""
    assert f32(1e300) == math.inf


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e300, -1e300])
def test_rates_that_are_no_numbers_count_as_none(value: float) -> None:
    """NaN, infinities and what only double precision holds become 0 when they are stored."""
    assert finite(value) == 0.0


@pytest.mark.parametrize("value", [7.5, -1.0, 0.0])
def test_rates_are_not_clamped(value: float) -> None:
    """Rates outside of 0 to 1 are stored as reported."""
    assert finite(value) == value
