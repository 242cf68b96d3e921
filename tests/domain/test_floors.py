from __future__ import annotations

import pytest

from inference_cache.domain.floors import apply_floors, too_short
from inference_cache.domain.policy import Policy
from inference_cache.domain.ranking import Score


def best(*scores: tuple[float, int]) -> tuple[Score, ...]:
    """Return ranked scores of (score, matched tokens)."""
    return tuple(Score(f"r{at}", score, tokens) for at, (score, tokens) in enumerate(scores))


@pytest.mark.parametrize(("floor", "tokens", "kept"), [(64, 63, 0), (64, 64, 1), (256, 100, 0), (0, 1, 1), (-1, 1, 1)])
def test_matches_below_the_floor_are_dropped(floor: int, tokens: int, kept: int) -> None:
    """A match of exactly the floor stays; a floor of 0 or less is off."""
    policy = Policy(minimum_matched_tokens=floor, routing_floor_score=0.0)
    assert len(apply_floors(best((50.0, tokens)), policy)) == kept


def test_the_default_floors() -> None:
    """Without a policy 64 tokens and a score of 0.1 are needed."""
    assert apply_floors(best((9.0, 63)), Policy()) == ()
    assert apply_floors(best((0.0999, 64)), Policy()) == ()
    assert len(apply_floors(best((0.10000000149011612, 64)), Policy())) == 1


def test_shallow_replicas_go_and_the_rest_keeps_its_order() -> None:
    """The floor judges each replica; scores are not computed anew."""
    scores = best((9.0, 64), (8.0, 16), (7.0, 128))
    assert apply_floors(scores, Policy()) == (scores[0], scores[2])


def test_the_score_floor_judges_the_best_only() -> None:
    """Once the best passes, lower ones ship, even with 0."""
    scores = best((5.0, 64), (0.0, 64))
    assert apply_floors(scores, Policy(routing_floor_score=5.0)) == scores
    assert apply_floors(scores, Policy(routing_floor_score=5.5)) == ()


def test_the_score_floor_judges_what_the_token_floor_left() -> None:
    """A high score that matched too little does not let the others pass."""
    assert apply_floors(best((9.0, 10), (0.05, 64)), Policy()) == ()


def test_without_a_score_floor_even_zero_ships() -> None:
    """A floor of 0 is off."""
    assert len(apply_floors(best((0.0, 64)), Policy(routing_floor_score=0.0))) == 1


@pytest.mark.parametrize(
    ("minimum", "tokens", "short"), [(0, 0, False), (50, 100, False), (50, 50, False), (50, 49, True)]
)
def test_prompts_below_the_minimum_are_too_short(minimum: int, tokens: int, short: bool) -> None:
    """A prompt of exactly the minimum is long enough; 0 is off."""
    assert too_short(tokens, Policy(minimum_prefix_tokens=minimum)) is short
