"""A replica that has fallen silent is left out of answers, and what it proves stays known."""

from __future__ import annotations

from dataclasses import replace

from inference_cache.domain import reasons
from inference_cache.domain.liveness import without_silent
from inference_cache.domain.models import ExactEvidence, Presence
from inference_cache.domain.times import silent_at_ms
from tests.domain.evidence import (
    MINUTE,
    NOW,
    OPEN,
    answer,
    ask_chain,
    ask_exact,
    chain,
    exact,
    holder,
    points,
    run,
    stats,
)

NOTHING = Presence(index=False, tenant=False, model=False)
AFFINE = replace(OPEN, affinity_routing=True)


def test_silent_is_who_gave_no_sign_for_longer() -> None:
    """A last sign exactly as long ago as the TTL is no silence yet; without a TTL nobody is silent."""
    border = silent_at_ms(NOW, MINUTE)
    assert border is not None
    assert (border >= NOW - MINUTE, border >= NOW - MINUTE - 1) == (False, True)
    assert silent_at_ms(NOW, 0) is None


def test_nobody_silent_changes_nothing() -> None:
    """The usual evidence is passed on as it is."""
    evidence = chain(2, run("a", 1))
    assert without_silent(evidence) is evidence


def test_silent_holders_are_not_ranked_and_do_not_count() -> None:
    """Of four replicas one is silent: one of the three others holds the block, so it distinguishes by 2/3."""
    evidence = replace(exact(4, holder("a", 90), holder("b", 90)), silent=("b",))
    assert points(answer(ask_exact(), evidence).scores) == {"a": 60.0}


def test_silent_runs_are_not_ranked_and_do_not_count() -> None:
    """The same for chains: the longest run is nobody's business while its replica is silent."""
    evidence = replace(chain(4, run("a", 1), run("b", 3)), silent=("b",))
    assert points(answer(ask_chain(90, 90, 90), evidence).scores) == {"a": 60.0}


def test_a_lone_survivor_is_certain() -> None:
    """With every other replica silent there is nothing to distinguish from."""
    evidence = replace(exact(2, holder("a", 90), holder("b", 90)), silent=("b",))
    assert points(answer(ask_exact(), evidence).scores) == {"a": 90.0}


def test_silent_replicas_are_not_warm() -> None:
    """TENANT_HOT names none of them."""
    warm = (("a", stats(hit_rate=0.5)), ("b", stats(hit_rate=0.9)))
    evidence = ExactEvidence((), ("a", "b"), warm, ("b",))
    found = answer(ask_exact(), evidence)
    assert (found.reason, list(points(found.scores))) == (reasons.TENANT_HOT, ["a"])


def test_affinity_picks_among_the_others() -> None:
    """However the pick would fall, it falls on who is not silent."""
    evidence = ExactEvidence((), ("a", "b", "c"), (), ("a", "c"))
    found = answer(ask_exact(), evidence, AFFINE)
    assert (found.reason, list(points(found.scores))) == (reasons.AFFINITY_HINT, ["b"])


def test_a_scope_of_silent_replicas_is_known() -> None:
    """Diagnostics judge what is held: nobody is named, but tenant, model and scheme are no mistake."""
    evidence = replace(exact(2, holder("a", 90), holder("b", 90)), silent=("a", "b"))
    assert answer(ask_exact(), evidence, AFFINE, presence=NOTHING).reason == reasons.NO_HINT
