"""Why a lookup found nothing: the outermost key that the index does not know."""

from __future__ import annotations

from inference_cache.domain import reasons
from inference_cache.domain.models import Presence


def diagnose(presence: Presence) -> str:
    """Name what is unknown to the index, for a request whose own scope holds nothing.

    In an index without any content everybody is unknown; that is a cold start and no mistake of the caller's.

    >>> diagnose(Presence(index=True, tenant=True, model=False))
    'UNKNOWN_MODEL'
    """
    if not presence.index:
        return reasons.NO_HINT
    if not presence.tenant:
        return reasons.UNKNOWN_TENANT
    if not presence.model:
        return reasons.UNKNOWN_MODEL
    return reasons.UNKNOWN_HASH_SCHEME
