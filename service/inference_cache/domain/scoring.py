"""The factors of a score. All results are float32 values, so that scores agree with existing servers' digit by digit.

Each factor follows the published ranking of the contract: tokens x freshness x pressure factor x SLO bias, multiplied
left to right, then by the distinguishing power.
"""

from __future__ import annotations

from typing import NamedTuple

from inference_cache.domain.float32 import EXACT_INTEGERS, f32
from inference_cache.domain.models import ReplicaStats
from inference_cache.domain.tuning import Tuning


def freshness(age_ms: int, ttl_ms: int) -> float:
    """Return how much a holding of this age still counts: 1 when new (or from the future), 0 from the TTL on.

    >>> freshness(0, 100), freshness(25, 100), freshness(100, 100)
    (1.0, 0.75, 0.0)
    """
    if age_ms <= 0:
        return 1.0
    return 0.0 if age_ms >= ttl_ms else f32(1 - age_ms / ttl_ms)


def pressure_factor(pressure: float, weight: float) -> float:
    """Return what a replica's pressure leaves of its score, between 0 and 1; both arguments are float32 values.

    >>> pressure_factor(0.25, 1.0), pressure_factor(1.5, 1.0), pressure_factor(-1.0, 1.0)
    (0.75, 0.0, 1.0)
    """
    if not pressure:
        return 1.0
    factor = f32(1 - (pressure if weight == 1.0 else f32(weight * pressure)))
    return 0.0 if factor <= 0.0 else min(factor, 1.0)


def distinguishing_power(matching: int, total: int) -> float:
    """Return how much a match tells replicas apart: 1 for a lone one, 0 when every replica matches.

    Args:
        matching: replicas that match at least as much.
        total: replicas that serve the scope.

    >>> distinguishing_power(1, 1), distinguishing_power(3, 3), distinguishing_power(1, 4)
    (1.0, 0.0, 0.75)
    """
    if total <= 1 or matching < 0:
        return 1.0
    return 0.0 if matching >= total else f32(1 - matching / total)


class Scale(NamedTuple):
    """What all scores of one answer have in common.

    Attributes:
        now_ms: the present.
        ttl_ms: how long reports of the tenant count.
        pressure_weight: see :class:`~inference_cache.domain.tuning.Tuning`.
        fresh_bias: how much freshness is favoured; 0 unless the request's objective is tight.
    """

    now_ms: int
    ttl_ms: int
    pressure_weight: float
    fresh_bias: float

    @classmethod
    def for_request(cls, ttft_ms: int, now_ms: int, ttl_ms: int, tuning: Tuning) -> Scale:
        """Build the scale of a request with this objective for the time to first token."""
        tight = 0 < ttft_ms < tuning.tight_slo_ms
        return cls(now_ms, ttl_ms, f32(tuning.pressure_weight), f32(tuning.tight_slo_bias) if tight else 0.0)

    def pressure(self, stats: ReplicaStats | None) -> float:
        """Return the pressure of a replica; statistics as old as the TTL no longer count."""
        return 0.0 if stats is None or self.now_ms - stats.reported_ms >= self.ttl_ms else stats.pressure

    def weigh(self, value: float, fresh: float, pressure: float) -> float:
        """Return ``value`` weighted by freshness, pressure and the objective, left to right."""
        # A step that changes nothing is left out: rounding a small integer, times one.
        score = f32((value if value <= EXACT_INTEGERS else f32(value)) * fresh)
        if pressure:
            score = f32(score * pressure_factor(pressure, self.pressure_weight))
        return f32(score * f32(1 + f32(fresh * self.fresh_bias))) if self.fresh_bias else score
