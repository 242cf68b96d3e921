from __future__ import annotations

import pytest

from inference_cache.domain.durations import duration_ns


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("0", 0),
        ("+0", 0),
        ("-0", 0),
        ("30m", 1_800_000_000_000),
        ("1h30m", 5_400_000_000_000),
        ("1m1h", 3_660_000_000_000),
        (".5h", 1_800_000_000_000),
        ("1.h", 3_600_000_000_000),
        ("-1.5us", -1500),
        ("+1ms1ns", 1_000_001),
        ("1\u00b5s", 1000),
        ("1\u03bcs", 1000),
        ("0.0000000001s", 0),
        ("1.0000000000000000000000001s", 1_000_000_000),
        ("2562047h47m16.854775807s", 2**63 - 1),
    ],
)
def test_durations_mean_what_they_mean_in_go(text: str, nanoseconds: int) -> None:
    """Values are those that Go's own parser gives for the same text."""
    assert duration_ns(text) == nanoseconds


@pytest.mark.parametrize(
    "text",
    [
        *["", "1", "00", "0.1", "h", ".h", "1d", "5 m", "1s 2s", " 1s", "1s ", "1.5.5s", "1e3s", "--1s", "+-1s"],
        *["\u00b5", "1\u0663s", "2562047h47m16.854775808s", "1" * 200 + "s"],
    ],
)
def test_what_go_refuses_is_refused(text: str) -> None:
    """A number without a unit says nothing, and no day is 24 hours everywhere."""
    with pytest.raises(ValueError, match=r"duration|number"):
        duration_ns(text)
