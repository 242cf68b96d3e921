"""From reported prefixes to the batches that a store takes.

A store takes few calls with many blocks each. This module flattens the entries of one update into runs of blocks per
partition, drops what is unusable and says why, and cuts the rest into batches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from inference_cache.domain.models import Batch
from inference_cache.domain.requests import UpdateEntry


def batches_of(
    entries: Iterable[UpdateEntry], *, hash_scheme: str, adapter_id: str = ""
) -> tuple[list[Batch], Counter[str]]:
    """Return what to ingest, and how much was dropped for which reason.

    Args:
        entries: the update's prefixes, in order.
        hash_scheme: the update's scheme; without one every entry is dropped.
        adapter_id: adapter of the entries that name none.
    """
    raise NotImplementedError
