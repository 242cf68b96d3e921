from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_cache.domain.columns import Equal
from inference_cache.domain.float32 import f32
from inference_cache.domain.models import MAX_TOKENS, ExactEvidence
from inference_cache.domain.ranking import Score, leading_tokens, rank_chain, rank_exact, rank_warm
from inference_cache.domain.scoring import Scale, distinguishing_power, freshness, pressure_factor
from inference_cache.domain.tuning import Tuning
from tests.domain.evidence import MINUTE, NOW, chain, exact, holder, points, run, stats

HALF_HOUR = 30 * MINUTE
PRESSURES = st.none() | st.sampled_from([0.0, 0.25, 1.0, 1.5]) | st.floats(-1, 2, width=32)


def scale(*, ttft_ms: int = 0, ttl_ms: int = HALF_HOUR, tuning: Tuning | None = None) -> Scale:
    """Return the scale of a request."""
    return Scale.for_request(ttft_ms, NOW, ttl_ms, tuning or Tuning())


def near(**scores: float) -> object:
    """Return scores by replica to compare with."""
    return pytest.approx({name.replace("_", "-"): score for name, score in scores.items()}, rel=1e-6)


@pytest.mark.parametrize(
    ("matching", "total", "power"),
    [(1, 1, 1), (0, 1, 1), (0, 0, 1), (-1, 3, 1), (3, 3, 0), (10, 10, 0), (5, 3, 0), (1, 3, 2 / 3), (2, 3, 1 / 3)],
)
def test_distinguishing_power(matching: int, total: int, power: float) -> None:
    """A match that everybody has tells nothing; a lone replica needs no telling apart."""
    assert distinguishing_power(matching, total) == f32(power)


@pytest.mark.parametrize(
    ("total", "holders", "tokens", "score"),
    [(3, 1, 64, 42.6667), (3, 2, 48, 16.0), (3, 3, 16, 0.0), (3, 3, 1500, 0.0), (1, 1, 64, 64.0)],
)
def test_holders_of_one_block_share_its_power(total: int, holders: int, tokens: int, score: float) -> None:
    """All fresh holders are answered, by id when equal, and score less the more of them there are."""
    found = rank_exact(exact(total, *(holder(f"r{at}", tokens) for at in range(holders))), scale())
    assert [one.replica_id for one in found] == [f"r{at}" for at in range(holders)]
    assert [one.score for one in found] == pytest.approx([score] * holders, rel=1e-5)
    assert {one.matched_tokens for one in found} == {tokens}


def test_more_tokens_rank_first() -> None:
    """80 and 40 tokens on two of three replicas."""
    found = rank_exact(exact(3, holder("a", 40), holder("b", 80)), scale())
    assert list(points(found)) == ["b", "a"]
    assert points(found) == near(b=80 / 3, a=40 / 3)


def test_equal_scores_are_ordered_by_the_bytes_of_the_id() -> None:
    """pod-10 comes before pod-2, and a letter beyond ASCII after both."""
    found = rank_exact(exact(9, *(holder(pod, 64) for pod in ("pod-é", "pod-2", "pod-10"))), scale())
    assert list(points(found)) == ["pod-10", "pod-2", "pod-é"]


def test_depths_of_a_chain() -> None:
    """Depths 4, 2 and 1 of a chain of 64-token blocks on three replicas."""
    found = rank_chain(chain(3, run("a", 4), run("b", 2), run("c", 1)), [64] * 4, scale())
    assert [one.matched_tokens for one in found] == [256, 128, 64]
    assert points(found) == near(a=256 * 2 / 3, b=128 / 3, c=0)


def test_replicas_that_match_the_same_head_all_score_zero() -> None:
    """Three replicas that hold only the head are not told apart."""
    found = rank_chain(chain(3, *(run(f"r{at}", 1) for at in range(3))), [16, 16], scale())
    assert [one.score for one in found] == [0, 0, 0]


def test_a_lone_replica_keeps_its_tokens() -> None:
    """Two blocks of 64 tokens on the only replica."""
    assert points(rank_chain(chain(1, run("a", 2)), [64, 64], scale())) == near(a=128)


def test_groups_are_formed_on_tokens_not_on_depth() -> None:
    """A replica that is one block deeper but matches no token more is no better."""
    found = rank_chain(chain(4, run("a", 2), run("b", 1)), [64, 0], scale())
    assert points(found) == near(a=32, b=32)


def test_runs_without_tokens_are_no_match() -> None:
    """A chain of zero counts matches nobody."""
    assert rank_chain(chain(2, run("a", 2)), [0, 0], scale()) == ()


def test_a_block_without_tokens_is_answered_exactly() -> None:
    """An exact holder is answered whatever its stored count; floors decide whether it ships."""
    assert rank_exact(exact(2, holder("a", 0)), scale()) == (Score("a", 0.0, 0, 1.0, 1),)


def test_pressure_is_subtracted_in_single_precision() -> None:
    """A pressure of 0.9 leaves what float32 makes of 1 - 0.9."""
    found = rank_exact(exact(1, holder("a", 100, stats=stats(pressure=f32(0.9)))), scale())
    assert found[0].score == f32(10.000002)


@pytest.mark.parametrize(("pressure", "factor"), [(1.5, 0.0), (1.0, 0.0), (0.0, 1.0), (-3.0, 1.0), (0.25, 0.75)])
def test_the_pressure_factor_is_clamped(pressure: float, factor: float) -> None:
    """No pressure turns a score negative or raises it."""
    assert pressure_factor(pressure, 1.0) == factor


def test_an_overloaded_replica_ranks_behind_a_token() -> None:
    """Pressure beyond 1 is worth less than one matched token elsewhere."""
    found = rank_exact(exact(3, holder("dead", 100, stats=stats(pressure=1.5)), holder("live", 1)), scale())
    assert list(points(found)) == ["live", "dead"]


def test_idle_beats_busy_and_small_beats_hot() -> None:
    """Pressure outweighs equal and even larger matches, unless its weight is 0."""
    busy = stats(pressure=f32(0.9))
    equal = exact(3, holder("busy", 100, stats=busy), holder("idle", 100, stats=stats()))
    assert list(points(rank_exact(equal, scale()))) == ["idle", "busy"]
    larger = exact(3, holder("busy", 100, stats=busy), holder("idle", 50, stats=stats()))
    assert list(points(rank_exact(larger, scale()))) == ["idle", "busy"]
    assert list(points(rank_exact(larger, scale(tuning=Tuning(pressure_weight=0.0))))) == ["busy", "idle"]
    runs = chain(3, run("busy", 3, stats=busy), run("idle", 2, stats=stats()))
    assert list(points(rank_chain(runs, [16] * 3, scale()))) == ["idle", "busy"]


def test_pressure_as_old_as_the_ttl_is_ignored() -> None:
    """Statistics count for the tenant's TTL by the time of their payload, whatever kept the replica alive since."""
    old = exact(1, holder("a", 50, stats=stats(pressure=f32(0.9), age_ms=HALF_HOUR)))
    assert points(rank_exact(old, scale())) == near(a=50)
    younger = exact(1, holder("a", 50, stats=stats(pressure=f32(0.9), age_ms=HALF_HOUR - 1)))
    assert points(rank_exact(younger, scale())) == near(a=5)


def test_all_factors_together() -> None:
    """128 tokens, half the TTL old, pressure 0.25, a tight objective, one of four replicas."""
    held = holder("a", 128, age_ms=15 * MINUTE, stats=stats(pressure=0.25))
    found = rank_exact(exact(4, held), scale(ttft_ms=100))
    assert found == (Score("a", 54.0, 128, 0.5, 1),)


def test_a_tight_objective_favours_the_fresh() -> None:
    """A fresh half-size match nearly reaches an old one under a tight objective."""
    found = exact(3, holder("A", 100, age_ms=20 * MINUTE), holder("B", 50))
    assert points(rank_exact(found, scale(ttft_ms=50, ttl_ms=60 * MINUTE))) == pytest.approx(
        {"A": 37.04, "B": 33.33}, abs=0.01
    )


@pytest.mark.parametrize(("ttft_ms", "first"), [(0, "old"), (500, "old"), (200, "old"), (199, "new"), (1, "new")])
def test_only_tight_objectives_turn_the_order(ttft_ms: int, first: str) -> None:
    """Objectives are tight strictly between 0 and 200 ms."""
    found = exact(3, holder("old", 100, age_ms=10 * MINUTE), holder("new", 60))
    assert next(iter(points(rank_exact(found, scale(ttft_ms=ttft_ms))))) == first


@pytest.mark.parametrize(("bias", "first"), [(5.0, "new"), (0.0, "old")])
def test_threshold_and_bias_are_tunable(bias: float, first: str) -> None:
    """A threshold of 100 ms and another bias work as their defaults do."""
    tuning = Tuning(tight_slo_ms=100, tight_slo_bias=bias)
    found = exact(3, holder("old", 100, age_ms=20 * MINUTE), holder("new", 50))
    within = scale(ttft_ms=50, ttl_ms=60 * MINUTE, tuning=tuning)
    beyond = scale(ttft_ms=100, ttl_ms=60 * MINUTE, tuning=tuning)
    assert next(iter(points(rank_exact(found, within)))) == first
    assert next(iter(points(rank_exact(found, beyond)))) == "old"


def test_a_run_is_as_fresh_as_its_oldest_block() -> None:
    """Eight of ten minutes leave a fifth, which is also the estimated probability of a hit."""
    found = rank_chain(chain(2, run("a", 3, age_ms=8 * MINUTE)), [16] * 3, scale(ttl_ms=10 * MINUTE))
    assert found[0].hit_prob == pytest.approx(0.2)
    assert found[0].score == pytest.approx(48 * 0.2 / 2)


def test_tiers_are_answered_and_do_not_score() -> None:
    """The tier is told, an unknown one as unspecified, and plays no role in the order."""
    found = rank_exact(exact(9, *(holder(f"t{tier}", 64, tier=tier) for tier in (1, 2, 3, 4))), scale())
    assert [(one.replica_id, one.tier) for one in found] == [("t1", 1), ("t2", 2), ("t3", 3), ("t4", 0)]
    assert len({one.score for one in found}) == 1
    assert rank_chain(chain(2, run("a", 1, tier=4)), [16], scale())[0].tier == 0


def test_holdings_from_the_future_are_new() -> None:
    """A clock that runs ahead gives a freshness of exactly 1."""
    assert freshness(-5, 100) == 1.0
    assert rank_exact(exact(1, holder("a", 64, age_ms=-MINUTE)), scale())[0].hit_prob == 1.0


def test_expired_evidence_neither_ranks_nor_matches() -> None:
    """Only fresh holders count, in the list and in the denominator's numerator."""
    found = rank_exact(exact(3, holder("a", 64), holder("b", 64, age_ms=HALF_HOUR)), scale())
    assert points(found) == near(a=64 * 2 / 3)
    runs = rank_chain(chain(3, run("a", 1), run("b", 1, age_ms=HALF_HOUR)), [64], scale())
    assert points(runs) == near(a=64 * 2 / 3)


@given(st.integers(0, 2**31 - 1), st.lists(st.integers(1, 12), max_size=5))
def test_leading_tokens_of_equal_counts_need_no_list(value: int, depths: list[int]) -> None:
    """A column of one number gives the sums that its list gives, saturated alike."""
    runs = [run("a", depth) for depth in depths]
    assert leading_tokens(Equal(value, 12), runs) == leading_tokens([value] * 12, runs)


@given(
    st.lists(st.tuples(st.integers(0, 2**31 - 1), st.integers(0, HALF_HOUR - 1), PRESSURES), min_size=1, max_size=9),
    st.integers(0, 4),
    st.sampled_from([0, 100]),
    st.floats(0, 3, width=32),
)
def test_scores_are_single_precision_step_by_step(
    held: list[tuple[int, int, float | None]], others: int, ttft_ms: int, weight: float
) -> None:
    """Scores are bit for bit what multiplying float32 values left to right, one replica at a time, gives."""
    holders = [
        holder(f"r{at}", tokens, age_ms=age_ms, stats=None if pressure is None else stats(pressure=pressure))
        for at, (tokens, age_ms, pressure) in enumerate(held)
    ]
    found = rank_exact(
        exact(len(holders) + others, *holders), scale(ttft_ms=ttft_ms, tuning=Tuning(pressure_weight=weight))
    )
    expected = {}
    for one in holders:
        fresh = f32(1 - (NOW - one.reported_ms) / HALF_HOUR)
        score = f32(f32(one.token_count) * fresh)
        if one.stats is not None:
            score = f32(score * min(1.0, max(0.0, f32(1 - f32(weight * one.stats.pressure)))))
        if ttft_ms:
            score = f32(score * f32(1 + fresh))
        total = len(holders) + others
        expected[one.replica_id] = f32(score * f32(1 - len(holders) / total)) if total > 1 else score
    assert points(found) == expected


@given(st.lists(st.integers(0, 2**31 - 1) | st.just(16), min_size=1, max_size=12), st.data())
def test_leading_tokens_are_saturated_sums(counts: list[int], data: st.DataObject) -> None:
    """Matched tokens are the sum of the request's leading counts and never wrap."""
    depths = data.draw(st.lists(st.integers(1, len(counts)), max_size=5))
    runs = [run("a", depth) for depth in depths]
    assert leading_tokens(counts, runs) == [min(sum(counts[:depth]), MAX_TOKENS) for depth in depths]


@given(
    st.lists(st.integers(0, 40) | st.just(16), min_size=1, max_size=8),
    st.lists(st.tuples(st.integers(1, 8), st.integers(0, HALF_HOUR + 5), st.floats(-1, 2, width=32)), max_size=6),
    st.integers(0, 4),
    st.sampled_from([0, 100, 300]),
)
def test_chain_scores_agree_with_the_formula(
    counts: list[int], held: list[tuple[int, int, float]], others: int, ttft_ms: int
) -> None:
    """Ranking many runs at once is the published formula, replica by replica."""
    runs = [
        run(f"r{at}", min(depth, len(counts)), age_ms=age_ms, stats=stats(pressure=pressure))
        for at, (depth, age_ms, pressure) in enumerate(held)
    ]
    found = rank_chain(chain(len(runs) + others, *runs), counts, scale(ttft_ms=ttft_ms))
    matched = {one.replica_id: sum(counts[: one.blocks]) for one in runs if NOW - one.oldest_ms < HALF_HOUR}
    matched = {replica_id: tokens for replica_id, tokens in matched.items() if tokens}
    expected = {}
    for one in runs:
        if one.replica_id not in matched or one.stats is None:
            continue
        tokens = matched[one.replica_id]
        fresh = 1 - (NOW - one.oldest_ms) / HALF_HOUR
        peers = sum(other >= tokens for other in matched.values())
        total = len(runs) + others
        power = 1 if total == 1 else max(0.0, 1 - peers / total)
        factor = min(1.0, max(0.0, 1 - one.stats.pressure))
        bias = 1 + fresh if ttft_ms == 100 else 1
        expected[one.replica_id] = tokens * fresh * factor * bias * power
    assert points(found) == pytest.approx(expected, rel=1e-3, abs=1e-4)
    assert [(-one.score, one.replica_id) for one in found] == sorted((-one.score, one.replica_id) for one in found)
    assert {one.replica_id: one.matched_tokens for one in found} == matched


def test_warm_replicas_score_by_hit_rate_recency_and_pressure() -> None:
    """Hit rate 0.8, pressure 0.1, 30 s old: 0.648, and 1.2312 under a tight objective."""
    warm = [("a", stats(hit_rate=f32(0.8), pressure=f32(0.1), age_ms=30_000))]
    assert points(rank_warm(warm, scale(), Tuning())) == near(a=0.648)
    assert points(rank_warm(warm, scale(ttft_ms=100), Tuning())) == near(a=1.2312)
    only = rank_warm(warm, scale(), Tuning())[0]
    assert (only.matched_tokens, only.hit_prob, only.tier) == (0, f32(0.8), 0)


@pytest.mark.parametrize(("hit_rate", "warm"), [(f32(0.1), True), (0.05, False), (f32(0.09999), False), (7.5, True)])
def test_warm_begins_at_the_threshold(hit_rate: float, warm: bool) -> None:
    """A hit rate of exactly the threshold is warm; rates beyond 1 are taken as reported."""
    found = rank_warm([("a", stats(hit_rate=hit_rate))], scale(), Tuning())
    assert [one.hit_prob for one in found] == ([hit_rate] if warm else [])


@pytest.mark.parametrize(("age_ms", "warm"), [(5 * MINUTE, False), (5 * MINUTE - 1, True), (-2 * MINUTE, True)])
def test_statistics_tell_warmth_for_five_minutes(age_ms: int, warm: bool) -> None:
    """The age limit is exclusive and independent of the TTL; a clock that runs ahead never raises the score."""
    found = rank_warm([("a", stats(hit_rate=0.5, age_ms=age_ms))], scale(ttl_ms=1000), Tuning())
    assert bool(found) is warm
    assert all(0 < one.score <= 0.5 for one in found)


def test_warmth_can_be_tuned_away() -> None:
    """An age limit of 0 switches the fallback off; the threshold is an operator's."""
    warm = [("a", stats(hit_rate=0.25))]
    assert rank_warm(warm, scale(), Tuning(hot_max_age_ms=0)) == ()
    assert rank_warm(warm, scale(), Tuning(hot_min_hit_rate=0.5)) == ()
    assert len(rank_warm(warm, scale(), Tuning(hot_min_hit_rate=0.25))) == 1


def test_nobody_is_ranked_without_evidence() -> None:
    """No holders, no scores."""
    assert rank_exact(ExactEvidence(), scale()) == ()
    assert rank_chain(chain(3), [16], scale()) == ()


def test_scores_are_single_precision() -> None:
    """What is compared with a floor is the number that the client sees."""
    found = rank_exact(exact(7, holder("a", 12_345, age_ms=98_765, stats=stats(pressure=f32(0.3)))), scale(ttft_ms=9))
    assert found[0].score == f32(found[0].score)
    assert math.isclose(found[0].score, 12_345 * (1 - 98.765 / 1800) * 0.7 * (2 - 98.765 / 1800) * 6 / 7, rel_tol=1e-6)
