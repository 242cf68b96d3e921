"""The factors of a score. All results are float32 values, so that scores agree with existing servers' digit by digit.

Each factor follows the published ranking of the contract: tokens x freshness x pressure factor x SLO bias, multiplied
left to right, then by the distinguishing power.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import mul

from inference_cache.domain.float32 import f32, f32s
from inference_cache.domain.models import ReplicaStats
from inference_cache.domain.tuning import Tuning


def freshness(ages_ms: Iterable[int], ttl_ms: int) -> list[float]:
    """Return how much holdings of these ages still count: 1 when new (or from the future), 0 from the TTL on.

    >>> freshness([0, 25, 100], 100)
    [1.0, 0.75, 0.0]
    """
    return f32s(1.0 if age <= 0 else 0.0 if age >= ttl_ms else 1 - age / ttl_ms for age in ages_ms)


def pressure_factors(pressures: Sequence[float], weight: float) -> list[float]:
    """Return what each replica's pressure leaves of its score, between 0 and 1; all arguments are float32 values.

    >>> pressure_factors([0.25, 1.5, -1.0, 0.0], 1.0)
    [0.75, 0.0, 1.0, 1.0]
    """
    # Times one is no step.
    lost = pressures if weight == 1.0 else f32s(weight * pressure for pressure in pressures)
    left = f32s(1 - each for each in lost)
    return [min(1.0, max(0.0, factor)) if pressure else 1.0 for factor, pressure in zip(left, pressures, strict=True)]


def distinguishing_power(matching: Iterable[int], total: int) -> list[float]:
    """Return how much matches tell replicas apart: 1 for a lone one, 0 when every replica matches.

    Args:
        matching: for each match, the replicas that match at least as much.
        total: replicas that serve the scope.

    >>> distinguishing_power([1], 1), distinguishing_power([1, 3, 4], 4)
    ([1.0], [0.75, 0.25, 0.0])
    """
    return f32s(
        1.0 if total <= 1 or number < 0 else 0.0 if number >= total else 1 - number / total for number in matching
    )


@dataclass(frozen=True, slots=True)
class Scale:
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

    def freshness(self, times_ms: Iterable[int]) -> list[float]:
        """Return the freshness of what was reported at these times."""
        return freshness([self.now_ms - time_ms for time_ms in times_ms], self.ttl_ms)

    def weigh(self, values: Iterable[float], fresh: Sequence[float], pressures: Sequence[float]) -> list[float]:
        """Return each value weighted by freshness, pressure and the objective, left to right.

        Args:
            values: one a replica, as are all of these.
            fresh: their freshness, or what stands for it.
            pressures: their pressures, float32 values.
        """
        scores = f32s(map(mul, f32s(values), fresh))
        # Times one is no step: most requests have no objective, many replicas no pressure.
        if any(pressures):
            scores = f32s(map(mul, scores, pressure_factors(pressures, self.pressure_weight)))
        if self.fresh_bias:
            bias = f32s(1 + more for more in f32s(prob * self.fresh_bias for prob in fresh))
            scores = f32s(map(mul, scores, bias))
        return scores
