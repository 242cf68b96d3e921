from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.bench.stats import percentile, ratios, spread

NUMBERS = st.lists(st.floats(0.001, 1e6), min_size=1, max_size=50)


@given(NUMBERS)
def test_a_spread_holds_its_median(values: list[float]) -> None:
    """The figure lies between the extremes beside it, and as many runs lie above it as below."""
    found = spread(values)
    assert (found.low, found.high, found.runs) == (min(values), max(values), len(values))
    assert found.low <= found.median <= found.high
    assert sum(value < found.median for value in values) <= len(values) / 2
    assert sum(value > found.median for value in values) <= len(values) / 2


def test_ratios_belong_to_runs() -> None:
    """A machine that is twice as slow for one run changes no ratio: each run is compared with its own baseline."""
    assert ratios([2, 4, 40], [1, 2, 20]) == spread([2.0, 2.0, 2.0])


def test_runs_without_a_baseline_are_refused() -> None:
    """Runs and baselines that do not pair up would silently drop some."""
    with pytest.raises(ValueError, match="shorter"):
        ratios([1, 2], [1])


@given(NUMBERS, st.sampled_from([0.5, 0.9, 0.99, 0.999]))
def test_a_percentile_is_a_measured_value(values: list[float], share: float) -> None:
    """It is one of the values, enough of them do not exceed it, and no smaller one would do."""
    found = percentile(values, share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values) - 1e-9
    assert sum(value < found for value in values) < share * len(values)


def test_ranks_are_exact() -> None:
    """A share that ends on a whole rank names that rank: 95 % of twenty calls are nineteen of them."""
    assert percentile(range(1, 21), 0.95) == 19
    assert percentile(range(1, 1001), 0.999) == 999
    assert percentile(range(1, 101), 1.0) == 100


def test_no_values_have_no_percentile() -> None:
    """A run without calls is an error, not a latency of zero."""
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)
