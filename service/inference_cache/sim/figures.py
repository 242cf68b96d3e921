"""What came out of a run, as numbers that can be compared."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from inference_cache.sim.cache import ideal_hit_blocks
from inference_cache.sim.engine import Outcome
from inference_cache.sim.trace import BLOCK_TOKENS, Request


@dataclass(frozen=True, slots=True)
class Figures:
    """One routing's result.

    Attributes:
        routing: its name.
        token_hit_rate: share of all prompt tokens that an engine had cached.
        ideal_token_hit_rate: the same of one cache of the engines' total size.
        ttft_p50_ms: simulated time to first token, median.
        ttft_p99_ms: the same, 99th percentile.
        lookup_p50_ms: a lookup's duration on the wall's clock, median; ``None`` without lookups.
        lookup_p99_ms: the same, 99th percentile.
        reasons: how often each reason code was answered; ``RPC_…`` are calls that failed.
        calls: producer calls by name.
        blocks_stored: blocks reported as stored.
        blocks_evicted: blocks reported as dropped.
        wall_s: how long the run took on the wall's clock.
    """

    routing: str
    token_hit_rate: float
    ideal_token_hit_rate: float
    ttft_p50_ms: float
    ttft_p99_ms: float
    lookup_p50_ms: float | None = None
    lookup_p99_ms: float | None = None
    reasons: Mapping[str, int] = field(default_factory=dict)
    calls: Mapping[str, int] = field(default_factory=dict)
    blocks_stored: int = 0
    blocks_evicted: int = 0
    wall_s: float = 0.0

    @property
    def share_of_ideal(self) -> float:
        """How much of the ideal token hit rate was reached; 1 when there was nothing to hit."""
        return share(self.token_hit_rate, self.ideal_token_hit_rate)

    def as_dict(self) -> dict[str, object]:
        """Return all of it for JSON."""
        return {**asdict(self), "share_of_ideal": self.share_of_ideal}


def share(part: float, whole: float) -> float:
    """Return ``part / whole``, 1 when both are nothing."""
    return part / whole if whole else 1.0


def token_hit_rate(outcomes: Iterable[Outcome]) -> float:
    """Return the share of prompt tokens that were cached."""
    hits = tokens = 0
    for outcome in outcomes:
        hits += outcome.hit_tokens
        tokens += outcome.request.input_tokens
    return hits / max(1, tokens)


def ideal_token_hit_rate(requests: Sequence[Request], capacity_blocks: int) -> float:
    """Return the token hit rate of one cache of ``capacity_blocks`` blocks."""
    tokens = sum(request.input_tokens for request in requests)
    return ideal_hit_blocks(requests, capacity_blocks) * BLOCK_TOKENS / max(1, tokens)


def percentile(values: Iterable[float], percent: float) -> float:
    """Return the smallest value that at least ``percent`` % of all do not exceed (nearest rank); 0 of nothing."""
    ordered = sorted(values)
    if not ordered:
        return 0.0
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]
