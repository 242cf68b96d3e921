"""How good each replica is for a prompt: evidence in, ordered scores out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, count
from operator import itemgetter
from typing import NamedTuple

from inference_cache.domain.columns import Equal
from inference_cache.domain.float32 import f32
from inference_cache.domain.models import MAX_TOKENS, ChainEvidence, ExactEvidence, Holder, ReplicaStats, Run
from inference_cache.domain.scoring import Scale, distinguishing_power, freshness
from inference_cache.domain.tiers import wire_tier
from inference_cache.domain.tuning import Tuning

_REPLICA_ID, _SCORE = itemgetter(0), itemgetter(1)


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
    found = [
        (holder, holder.token_count, prob)
        for holder in evidence.holders
        if (prob := freshness(scale.now_ms - holder.reported_ms, scale.ttl_ms))
    ]
    power = distinguishing_power(len(found), len(evidence.serving))
    return _ordered([_score(*match, power, scale) for match in found])


def rank_chain(evidence: ChainEvidence, counts: Sequence[int], scale: Scale) -> tuple[Score, ...]:
    """Rank replicas by how many tokens of the requested chain their leading run covers.

    A run is as fresh as its oldest block and as cold as its coldest. Its power to distinguish counts the
    replicas that match at least as many tokens.

    Args:
        evidence: the runs and who serves the scope.
        counts: the request's token counts, block by block; what was reported plays no role.
        scale: what the scores have in common.
    """
    found = []
    for run, tokens in zip(evidence.runs, leading_tokens(counts, evidence.runs), strict=True):
        prob = freshness(scale.now_ms - run.oldest_ms, scale.ttl_ms)
        if tokens > 0 and prob:
            found.append((run, tokens, prob))
    levels = sorted([tokens for _, tokens, _ in found], reverse=True)
    at_least = dict(zip(levels, count(1), strict=False))  # the place of a level's last one counts all of them
    total = len(evidence.serving)
    powers = {tokens: distinguishing_power(number, total) for tokens, number in at_least.items()}
    return _ordered([_score(run, tokens, prob, powers[tokens], scale) for run, tokens, prob in found])


def leading_tokens(counts: Sequence[int], runs: Sequence[Run]) -> list[int]:
    """Return the tokens of the blocks that each run covers; sums saturate.

    >>> leading_tokens([10, 0, 5], [Run("a", 1, 0, 1), Run("b", 3, 0, 1)])
    [10, 15]
    """
    if isinstance(counts, Equal):
        return [min(counts.value * run.blocks, MAX_TOKENS) for run in runs]
    head = counts[: max([run.blocks for run in runs], default=0)]
    sums = [0, *accumulate(head)]
    return [min(sums[run.blocks], MAX_TOKENS) for run in runs]


def rank_warm(warm: Iterable[tuple[str, ReplicaStats]], scale: Scale, tuning: Tuning) -> tuple[Score, ...]:
    """Rank the replicas with warm caches, by their own recent hit rate, for a prompt that nobody holds.

    Statistics are judged by their own age limit, not by the tenant's TTL; the distinguishing power plays no role.
    """
    limit, least = tuning.hot_max_age_ms, f32(tuning.hot_min_hit_rate)
    scores = []
    for replica_id, stats in warm:
        recency = freshness(scale.now_ms - stats.reported_ms, limit) if limit > 0 else 0.0
        hit_rate = f32(stats.hit_rate)
        if recency and hit_rate >= least:
            scores.append(Score(replica_id, scale.weigh(hit_rate, recency, stats.pressure), 0, hit_rate))
    return _ordered(scores)


def _score(held: Run | Holder, tokens: int, prob: float, power: float, scale: Scale) -> Score:
    """Score one replica's match, which is this fresh and has this power to distinguish."""
    score = f32(scale.weigh(tokens, prob, scale.pressure(held.stats)) * power)
    return Score(held.replica_id, score, tokens, prob, wire_tier(held.tier))


def _ordered(scores: list[Score]) -> tuple[Score, ...]:
    """Return scores best first, equal ones by replica id."""
    # Code points sort as their UTF-8 bytes do. Sorting is stable, so the last key counts first.
    scores.sort(key=_REPLICA_ID)
    scores.sort(key=_SCORE, reverse=True)
    return tuple(scores)
