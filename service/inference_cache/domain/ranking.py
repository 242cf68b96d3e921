"""How good each replica is for a prompt: evidence in, ordered scores out.

score = tokens x freshness x pressure factor x SLO bias x distinguishing power
"""

from __future__ import annotations

from typing import NamedTuple


class Score(NamedTuple):
    """One ranked replica.

    Attributes:
        replica_id: which one.
        score: comparable within one answer only; a float32 value.
        matched_tokens: tokens of the prompt's head that it holds.
        hit_prob: estimated probability of a hit; a float32 value.
        tier: the wire's number: 1 to 3, 0 = unspecified.
    """

    replica_id: str
    score: float = 0.0
    matched_tokens: int = 0
    hit_prob: float = 0.0
    tier: int = 0
