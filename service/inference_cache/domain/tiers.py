"""Cache tiers between the wire and the index."""

from __future__ import annotations

from inference_cache.domain.models import Tier

UNSPECIFIED = 0
"""The wire's number for a tier that is not said or not known."""
_COLDEST_KNOWN = int(Tier.T3)


def stored_tier(wire: int) -> Tier:
    """Return the tier to store for a reported number.

    An unspecified tier comes from producers that know only the engine's own cache, hence T1. Numbers of a
    future version and negative ones must never look warmer than they are.

    >>> [int(stored_tier(wire)) for wire in (0, 1, 2, 3, 99, -1)]
    [1, 1, 2, 3, 4, 4]
    """
    if wire == UNSPECIFIED:
        return Tier.T1
    return Tier(wire) if Tier.T1 <= wire <= Tier.T3 else Tier.OTHER


def wire_tier(stored: int) -> int:
    """Return the number to answer for a stored tier.

    >>> [int(wire_tier(tier)) for tier in Tier]
    [1, 2, 3, 0]
    """
    return stored if stored <= _COLDEST_KNOWN else UNSPECIFIED
