"""The tenant's floors: which requests and which matches are too small for a hint."""

from __future__ import annotations

from inference_cache.domain.float32 import f32
from inference_cache.domain.policy import Policy
from inference_cache.domain.ranking import Score


def too_short(effective_tokens: int, policy: Policy) -> bool:
    """Tell whether a prompt has fewer tokens than a positive hint needs."""
    return effective_tokens < policy.minimum_prefix_tokens


def apply_floors(scores: tuple[Score, ...], policy: Policy) -> tuple[Score, ...]:
    """Drop replicas that match too little; drop all when not even the best score reaches the floor.

    The distinguishing power is not computed anew for what is left, and lower scores follow a best one that passes.
    """
    floor_tokens = policy.minimum_matched_tokens
    if floor_tokens > 0:
        scores = tuple([score for score in scores if score.matched_tokens >= floor_tokens])
    floor_score = f32(policy.routing_floor_score)
    return () if floor_score > 0 and scores and scores[0].score < floor_score else scores
