"""Which stretches of blocks a delivered answer has hit: what LFU counts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from inference_cache.domain.models import ChainEvidence, Credit, ExactEvidence, Path
from inference_cache.domain.ranking import Score


@dataclass(frozen=True, slots=True)
class Delivery:
    """A delivered prefix match, as short as it can be kept until it is counted.

    Attributes:
        path: where its blocks were found.
        blocks: how many leading blocks of it each delivered replica holds.
    """

    path: Path
    blocks: tuple[tuple[str, int], ...]

    @property
    def size(self) -> int:
        """The most credits that it can become."""
        return len(self.path.places) * len(self.blocks)


def delivery(evidence: ChainEvidence | ExactEvidence, scores: Iterable[Score]) -> Delivery | None:
    """Return what a prefix match with these scores has hit, ``None`` when nothing counts.

    Only replicas that were delivered count. A block that was reported without tokens is nobody's saving, so an exact
    match of one does not.
    """
    if evidence.path is None:
        return None
    delivered = {score.replica_id for score in scores}
    if isinstance(evidence, ChainEvidence):
        held = tuple((run.replica_id, run.blocks) for run in evidence.runs if run.replica_id in delivered)
    else:
        found = (one for one in evidence.holders if one.replica_id in delivered and one.token_count > 0)
        held = tuple((one.replica_id, 1) for one in found)
    return Delivery(evidence.path, held) if held else None


def credits_of(delivered: Delivery) -> Iterator[Credit]:
    """Yield a credit for each place and replica whose run covers blocks of the place, as often as the path has it."""
    version = delivered.path.version
    for replica_id, blocks in delivered.blocks:
        for place, depth in _covered(delivered.path.places, blocks):
            yield Credit(place, replica_id, depth, version)


def _covered(places: Sequence[tuple[bytes, int, int]], blocks: int) -> Iterator[tuple[bytes, int]]:
    """Yield the places of a run's blocks and how deep into each it reaches."""
    left = blocks
    for place, offset, size in places:
        if left <= 0:
            return
        yield place, offset + min(size, left)
        left -= size
