"""How good each replica is for a prompt: evidence in, ordered scores out."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from inference_cache.domain.float32 import f32
from inference_cache.domain.models import MAX_TOKENS, ChainEvidence, ExactEvidence, ReplicaStats
from inference_cache.domain.scoring import Scale, distinguishing_power, freshness, pressure_factor
from inference_cache.domain.tiers import wire_tier
from inference_cache.domain.tuning import Tuning


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


def rank_exact(evidence: ExactEvidence, scale: Scale) -> tuple[Score, ...]:
    """Rank the holders of one block by the token count they reported for it."""
    fresh = [(holder, scale.freshness(holder.reported_ms)) for holder in evidence.holders]
    fresh = [(holder, prob) for holder, prob in fresh if prob]
    power = distinguishing_power(len(fresh), len(evidence.serving))
    return _ordered(
        Score(
            holder.replica_id,
            f32(scale.raw(holder.token_count, prob, scale.pressure_factor(holder.stats)) * power),
            holder.token_count,
            prob,
            wire_tier(holder.tier),
        )
        for holder, prob in fresh
    )


def rank_chain(evidence: ChainEvidence, counts: Sequence[int], scale: Scale) -> tuple[Score, ...]:
    """Rank replicas by how many tokens of the requested chain their leading run covers.

    A run is as fresh as its oldest block and as cold as its coldest. Its power to distinguish counts the
    replicas that match at least as many tokens.

    Args:
        evidence: the runs and who serves the scope.
        counts: the request's token counts, block by block; what was reported plays no role.
        scale: what the scores have in common.
    """
    matched = leading_tokens(counts, [run.blocks for run in evidence.runs])
    scored = [
        (run, tokens, scale.freshness(run.oldest_ms))
        for run, tokens in zip(evidence.runs, matched, strict=True)
        if tokens > 0
    ]
    scored = [entry for entry in scored if entry[2]]
    powers = _powers([tokens for _, tokens, _ in scored], len(evidence.serving))
    return _ordered(
        Score(
            run.replica_id,
            f32(scale.raw(tokens, prob, scale.pressure_factor(run.stats)) * powers[tokens]),
            tokens,
            prob,
            wire_tier(run.tier),
        )
        for run, tokens, prob in scored
    )


def leading_tokens(counts: Sequence[int], depths: Sequence[int]) -> list[int]:
    """Return the tokens of the first ``depth`` blocks, for each depth; sums saturate.

    >>> leading_tokens([16, 16, 16], [1, 3]), leading_tokens([10, 0, 5], [1, 2, 3])
    ([16, 48], [10, 10, 15])
    """
    head = counts[: max(depths, default=0)]
    if head and head.count(head[0]) == len(head):
        return [min(head[0] * depth, MAX_TOKENS) for depth in depths]
    sums = [0, *accumulate(head)]
    return [min(sums[depth], MAX_TOKENS) for depth in depths]


def rank_warm(warm: Iterable[tuple[str, ReplicaStats]], scale: Scale, tuning: Tuning) -> tuple[Score, ...]:
    """Rank the replicas with warm caches, by their own recent hit rate, for a prompt that nobody holds.

    Statistics are judged by their own age limit, not by the tenant's TTL; the distinguishing power plays no role.
    """
    scores = []
    for replica_id, stats in warm:
        recency = freshness(scale.now_ms - stats.reported_ms, tuning.hot_max_age_ms)
        hit_rate = f32(stats.hit_rate)
        if tuning.hot_max_age_ms > 0 and recency and hit_rate >= f32(tuning.hot_min_hit_rate):
            score = scale.raw(hit_rate, recency, pressure_factor(stats.pressure, scale.pressure_weight))
            scores.append(Score(replica_id, score, 0, hit_rate))
    return _ordered(scores)


def _powers(matched: list[int], total: int) -> dict[int, float]:
    levels = sorted(matched)
    return {tokens: distinguishing_power(len(levels) - bisect_left(levels, tokens), total) for tokens in set(levels)}


def _ordered(scores: Iterable[Score]) -> tuple[Score, ...]:
    # Code points sort as their UTF-8 bytes do.
    return tuple(sorted(scores, key=lambda score: (-score.score, score.replica_id)))
