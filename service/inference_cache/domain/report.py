"""From reported prefixes to the batches that a store takes.

A store takes few calls with many blocks each. This module flattens the entries of one update into runs of blocks per
partition, drops what is unusable and says why, and has the rest packed into batches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate, compress

from inference_cache.domain import reasons
from inference_cache.domain.blocks import MAX_BATCH_BLOCKS, block_key, block_keys
from inference_cache.domain.models import MAX_TOKENS, Batch, Partition
from inference_cache.domain.packing import Packer
from inference_cache.domain.requests import UpdateEntry
from inference_cache.domain.tiers import stored_tier


def batches_of(
    entries: Iterable[UpdateEntry], *, hash_scheme: str, adapter_id: str = "", max_blocks: int = MAX_BATCH_BLOCKS
) -> tuple[list[Batch], Counter[str]]:
    """Return what to ingest, and how much was dropped for which reason.

    Batches of one partition keep the order of the report, so that applied in order the last word on a block
    stays. Whole entries are dropped and counted, except for empty hashes inside a chain: these are counted one by
    one and the chain goes on without them.

    Args:
        entries: the update's prefixes, in order.
        hash_scheme: the update's scheme; without one every entry is dropped.
        adapter_id: adapter of the entries that name none.
        max_blocks: most blocks of one batch.
    """
    dropped: Counter[str] = Counter()
    lanes: dict[str, _Lane] = {}
    for entry in entries:
        flaw = reasons.EMPTY_SCHEME if not hash_scheme else _flaw(entry)
        if flaw:
            dropped[flaw] += 1
            continue
        adapter = entry.adapter_id or adapter_id
        lane = lanes.get(adapter)
        if lane is None:
            lane = lanes[adapter] = _Lane(Packer(Partition(hash_scheme, adapter), max_blocks))
        skipped = lane.take(entry)
        if skipped:
            dropped[reasons.EMPTY_HASH] += skipped
    return [batch for lane in lanes.values() for batch in lane.finish()], dropped


def cumulative(counts: Sequence[int]) -> Sequence[int]:
    """Return running token sums, as a ``range`` where the counts are equal; sums saturate.

    >>> cumulative([16, 16, 16]), cumulative([16, 8]), cumulative([2**31 - 2, 3])
    (range(16, 49, 16), [16, 24], [2147483646, 2147483647])
    """
    first, size = counts[0], len(counts)
    if 0 < first * size <= MAX_TOKENS and counts.count(first) == size:
        return range(first, first * size + 1, first)
    return [min(total, MAX_TOKENS) for total in accumulate(counts)]


def _flaw(entry: UpdateEntry) -> str:
    counts = entry.block_token_counts
    if len(entry.block_hashes) != len(counts):
        return reasons.MISMATCHED_ARRAYS
    if entry.token_count < 0 or (len(counts) and min(counts) < 0):
        return reasons.NEGATIVE_COUNT
    return "" if len(counts) or entry.prefix_hash else reasons.EMPTY_HASH


class _Lane:
    """The entries of one partition on their way into a packer.

    Consecutive single-hash entries are usually one chain that the producer reports block by block, so they are placed
    as one run for as long as their token counts grow by the same step. Equal counts are no chain: unrelated prefixes of
    one length stay apart, because the end of a run gives way before its head.
    """

    def __init__(self, packer: Packer) -> None:
        self._packer = packer
        self._keys: list[bytes] = []
        self._counts: list[int] = []
        self._tier = 0
        self._last: int | None = None
        """Token count of the run's last single-hash entry, ``None`` outside such a run."""
        self._step: int | None = None

    def take(self, entry: UpdateEntry) -> int:
        """Take a sound entry; return how many of its blocks had an empty hash."""
        tier = stored_tier(entry.tier)
        if not len(entry.block_hashes):
            self._take_single(block_key(entry.prefix_hash), entry.token_count, tier)
            return 0
        self._end_singles()
        return self._take_chain(entry, tier)

    def finish(self) -> list[Batch]:
        self._end_singles()
        return self._packer.finish()

    def _take_chain(self, entry: UpdateEntry, tier: int) -> int:
        keys = block_keys(entry.block_hashes)
        sums = cumulative(list(entry.block_token_counts))
        empty = keys.count(b"")
        if empty:
            keys, sums = list(compress(keys, keys)), list(compress(sums, keys))
        self._packer.begin()
        self._packer.add(keys, sums, tier)
        if entry.prefix_hash:
            self._packer.begin()
            self._packer.add((block_key(entry.prefix_hash),), (entry.token_count,), tier)
        return empty

    def _take_single(self, key: bytes, count: int, tier: int) -> None:
        step = None if self._last is None else count - self._last
        if step is None or step <= 0 or self._step not in (None, step):
            self._end_singles()
            self._packer.begin()
        else:
            self._step = step
        if tier != self._tier:
            self._push()
            self._tier = tier
        self._keys.append(key)
        self._counts.append(count)
        self._last = count

    def _end_singles(self) -> None:
        self._push()
        self._last = self._step = None

    def _push(self) -> None:
        if self._keys:
            self._packer.add(self._keys, self._counts, self._tier)
            self._keys, self._counts = [], []
