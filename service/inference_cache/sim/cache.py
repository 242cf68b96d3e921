"""An engine's block cache: bounded, least recently used first, tails before heads.

Engines free a finished prompt's blocks from its tail, so that the tail is evicted first and what is cached is always
a leading run. Blocks of one trace id are touched together, in that order; so one counter an id, "leading blocks
held", is exactly a list of blocks in eviction order, at a 32nd of the work.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from inference_cache.sim.trace import Request

Span = tuple[int, int]
"""``(hash id, leading blocks)``."""


@dataclass(slots=True)
class Change:
    """What storing one prompt did to a cache.

    Attributes:
        first_new: leading blocks of the prompt that were there already.
        held: leading blocks of the prompt that are there now.
        evicted: ``(hash id, from, to)``: blocks of other prompts that had to go.
    """

    first_new: int
    held: int
    evicted: list[tuple[int, int, int]] = field(default_factory=list)


class BlockCache:
    """A set of at most ``capacity`` blocks."""

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError("a cache holds at least one block")
        self.capacity = capacity
        self.used = 0
        self._held: OrderedDict[int, int] = OrderedDict()
        """Hash id -> leading blocks held; what is evicted next comes first."""

    def match(self, spans: Iterable[Span]) -> int:
        """Return how many leading blocks of a prompt are held."""
        total = 0
        for hash_id, count in spans:
            held = min(self._held.get(hash_id, 0), count)
            total += held
            if held < count:
                break
        return total

    def store(self, spans: Sequence[Span]) -> Change:
        """Store a prompt, as much of its head as fits, and evict what is least recently used for it."""
        spans = _head(spans, self.capacity)
        change = Change(first_new=self.match(spans), held=sum(count for _, count in spans))
        for hash_id, count in reversed(spans):
            before = self._held.pop(hash_id, 0)
            self._held[hash_id] = max(before, count)
            self.used += max(before, count) - before
        while self.used > self.capacity:
            change.evicted.append(self._evict(self.used - self.capacity))
        return change

    def _evict(self, wanted: int) -> tuple[int, int, int]:
        """Drop up to ``wanted`` blocks from the tail of the least recently used id."""
        hash_id, held = next(iter(self._held.items()))
        left = max(0, held - wanted)
        if left:
            self._held[hash_id] = left
        else:
            del self._held[hash_id]
        self.used -= held - left
        return hash_id, left, held


def _head(spans: Sequence[Span], capacity: int) -> list[Span]:
    head = []
    for hash_id, count in spans:
        if capacity <= 0:
            break
        head.append((hash_id, min(count, capacity)))
        capacity -= count
    return head


def ideal_hit_blocks(requests: Iterable[Request], capacity: int) -> int:
    """Return how many blocks one cache of ``capacity`` blocks answers, prompts stored as they arrive.

    The mark that no routing over several caches of the same total size is expected to pass: nothing is stored twice.
    """
    cache = BlockCache(capacity)
    hits = 0
    for request in requests:
        spans = request.spans()
        hits += cache.match(spans)
        cache.store(spans)
    return hits
