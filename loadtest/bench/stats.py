"""The few statistics that the figures need: a median, what it varied between, and percentiles."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class Spread:
    """Several runs of one measurement.

    Attributes:
        median: the figure.
        low: the smallest run.
        high: the largest run.
        runs: how many there were.
    """

    median: float
    low: float
    high: float
    runs: int


def spread(values: Iterable[float]) -> Spread:
    """Return median and extremes of at least one value.

    >>> spread([3, 1, 2])
    Spread(median=2, low=1, high=3, runs=3)
    """
    kept = list(values)
    return Spread(median(kept), min(kept), max(kept), len(kept))


def ratios(values: Sequence[float], baselines: Sequence[float]) -> Spread:
    """Return the spread of each run's value over the same run's baseline: what disturbs a run disturbs both.

    >>> ratios([2.0, 9.0], [1.0, 3.0])
    Spread(median=2.5, low=2.0, high=3.0, runs=2)
    """
    return spread(value / baseline for value, baseline in zip(values, baselines, strict=True))


def percentile(values: Iterable[float], share: float) -> float:
    """Return the smallest value that at least ``share`` of all values do not exceed (nearest rank).

    >>> percentile([4, 1, 3, 2], 0.5), percentile([4, 1, 3, 2], 0.99), percentile([7], 0.5)
    (2, 4, 7)
    """
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values")
    # Rounded first: 0.95 * 20 is a hair above 19 in binary, and would name the next rank.
    return ordered[max(0, math.ceil(round(share * len(ordered), 9)) - 1)]
