"""How good each replica is for a prompt: evidence in, ordered scores out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import accumulate, count, repeat
from operator import itemgetter, mul
from typing import Any, NamedTuple

from inference_cache.domain.columns import Equal
from inference_cache.domain.float32 import f32, f32s
from inference_cache.domain.models import MAX_TOKENS, ChainEvidence, ExactEvidence, Holder, ReplicaStats, Run
from inference_cache.domain.scoring import Scale, distinguishing_power, freshness
from inference_cache.domain.tiers import UNSPECIFIED, wire_tier
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


_make = partial(tuple.__new__, Score)
"""``Score._make`` without its Python frame."""


def rank_exact(evidence: ExactEvidence, scale: Scale) -> tuple[Score, ...]:
    """Rank the holders of one block by the token count they reported for it."""
    fresh = scale.freshness([holder.reported_ms for holder in evidence.holders])
    held = [entry for entry in zip(evidence.holders, fresh, strict=True) if entry[1]]
    powers = distinguishing_power([len(held)] * len(held), len(evidence.serving))
    return _ranked([(holder, holder.token_count, prob) for holder, prob in held], powers, scale)


def rank_chain(evidence: ChainEvidence, counts: Sequence[int], scale: Scale) -> tuple[Score, ...]:
    """Rank replicas by how many tokens of the requested chain their leading run covers.

    A run is as fresh as its oldest block and as cold as its coldest. Its power to distinguish counts the
    replicas that match at least as many tokens.

    Args:
        evidence: the runs and who serves the scope.
        counts: the request's token counts, block by block; what was reported plays no role.
        scale: what the scores have in common.
    """
    runs = evidence.runs
    tokens = leading_tokens(counts, [run.blocks for run in runs])
    fresh = scale.freshness([run.oldest_ms for run in runs])
    matches = [entry for entry in zip(runs, tokens, fresh, strict=True) if entry[1] > 0 and entry[2]]
    return _ranked(matches, _powers([entry[1] for entry in matches], len(evidence.serving)), scale)


def leading_tokens(counts: Sequence[int], depths: Sequence[int]) -> list[int]:
    """Return the tokens of the first ``depth`` blocks, for each depth; sums saturate.

    >>> leading_tokens([16, 16, 16], [1, 3]), leading_tokens([10, 0, 5], [1, 2, 3])
    ([16, 48], [10, 10, 15])
    """
    if isinstance(counts, Equal):
        return [min(counts.value * depth, MAX_TOKENS) for depth in depths]
    head = counts[: max(depths, default=0)]
    sums = [0, *accumulate(head)]
    return [min(sums[depth], MAX_TOKENS) for depth in depths]


def rank_warm(warm: Iterable[tuple[str, ReplicaStats]], scale: Scale, tuning: Tuning) -> tuple[Score, ...]:
    """Rank the replicas with warm caches, by their own recent hit rate, for a prompt that nobody holds.

    Statistics are judged by their own age limit, not by the tenant's TTL; the distinguishing power plays no role.
    """
    limit, least = tuning.hot_max_age_ms, f32(tuning.hot_min_hit_rate)
    known = list(warm)
    if limit <= 0 or not known:
        return ()
    recency = freshness([scale.now_ms - stats.reported_ms for _, stats in known], limit)
    rates = f32s(stats.hit_rate for _, stats in known)
    found = [entry for entry in zip(known, rates, recency, strict=True) if entry[2] and entry[1] >= least]
    if not found:
        return ()
    known, rates, recency = map(list, zip(*found, strict=True))
    scores = scale.weigh(rates, recency, [stats.pressure for _, stats in known])
    return _ordered([replica_id for replica_id, _ in known], scores, repeat(0), rates, repeat(UNSPECIFIED))


def _ranked(
    matches: Sequence[tuple[Run | Holder, int, float]], powers: Sequence[float], scale: Scale
) -> tuple[Score, ...]:
    """Score what matches: evidence, matched tokens and freshness, each with its power to distinguish."""
    if not matches:
        return ()
    held, tokens, fresh = zip(*matches, strict=True)
    scores = f32s(map(mul, scale.weigh(tokens, fresh, [scale.pressure(each.stats) for each in held]), powers))
    return _ordered([each.replica_id for each in held], scores, tokens, fresh, [wire_tier(each.tier) for each in held])


def _powers(matched: Sequence[int], total: int) -> list[float]:
    # Of equal levels the last one's place counts all of them.
    at_least = dict(zip(sorted(matched, reverse=True), count(1)))
    return distinguishing_power([at_least[tokens] for tokens in matched], total)


def _ordered(*columns: Iterable[Any]) -> tuple[Score, ...]:
    """Return the scores whose fields are given as columns, best first, equal ones by replica id."""
    scores = list(map(_make, zip(*columns)))  # noqa: B905 - some repeat one value for ever
    # Code points sort as their UTF-8 bytes do. Sorting is stable, so the last key counts first.
    scores.sort(key=_REPLICA_ID)
    scores.sort(key=_SCORE, reverse=True)
    return tuple(scores)
