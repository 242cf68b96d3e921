from __future__ import annotations

import pytest

from inference_cache.domain.models import Tier
from inference_cache.domain.tiers import stored_tier, wire_tier


@pytest.mark.parametrize(
    ("reported", "stored", "answered"),
    [
        (0, Tier.T1, 1),
        (1, Tier.T1, 1),
        (2, Tier.T2, 2),
        (3, Tier.T3, 3),
        (4, Tier.OTHER, 0),
        (99, Tier.OTHER, 0),
        (-1, Tier.OTHER, 0),
        (2**31 - 1, Tier.OTHER, 0),
        (-(2**31), Tier.OTHER, 0),
    ],
)
def test_tiers_round_trip(reported: int, stored: Tier, answered: int) -> None:
    """An unsaid tier is the engine's own cache; one we do not know is never answered as a warm one."""
    assert stored_tier(reported) is stored
    assert wire_tier(stored) == answered


def test_an_unknown_tier_is_colder_than_every_known_one() -> None:
    """A run with one block in an unknown tier is as cold as that block."""
    assert max(Tier.T1, Tier.T2, Tier.T3, Tier.OTHER) is Tier.OTHER
