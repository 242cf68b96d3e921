"""Packs runs of blocks of one partition into batches, without a Python step per block where blocks are distinct.

A batch lists no block twice: within it the last occurrence of a block gives its count and tier, the first its
place. Across batches the store's order of application does the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from inference_cache.domain.models import Batch, Partition


class Packer:
    """Collects the runs of one partition; :meth:`finish` returns its batches in order."""

    def __init__(self, partition: Partition, max_blocks: int) -> None:
        self._partition = partition
        self._max_blocks = max_blocks
        self._batches: list[Batch] = []
        self._previous = b""
        """The key before the next one of the current run, ``b""`` at its start."""
        self._reset()

    def begin(self) -> None:
        """Begin a run of blocks that does not continue the one before."""
        self._previous = b""
        self._placed = False

    def add(self, keys: Sequence[bytes], counts: Sequence[int], tier: int) -> None:
        """Append blocks to the current run.

        Args:
            keys: block keys, none of them empty.
            counts: tokens of each block; a ``range`` costs nothing, however long.
            tier: tier of all of them.
        """
        at = 0
        while at < len(keys):
            if len(self._index) == self._max_blocks:
                self._flush()
            end = at + self._max_blocks - len(self._index)
            piece = keys[at:end]
            if len(set(piece)) == len(piece) and self._index.keys().isdisjoint(piece):
                self._append(piece, counts[at:end], tier)
            else:
                # Not only what fits: blocks that are there already take no room.
                end = at + self._max_blocks
                self._merge(keys[at:end], counts[at:end], tier)
            at = end

    def finish(self) -> list[Batch]:
        """Return the batches; the packer is used up."""
        self._flush()
        return self._batches

    def _reset(self) -> None:
        self._index: dict[bytes, int] = {}
        self._tiers: list[tuple[int, int]] = []
        self._counts: list[tuple[int, int, int]] = []
        self._breaks: list[int] = []
        self._changed: dict[int, tuple[int, int]] = {}
        self._after = b""
        self._last = b""
        self._placed = False

    def _append(self, keys: Sequence[bytes], counts: Sequence[int], tier: int) -> None:
        at = len(self._index)
        if at == 0:
            self._after = self._previous
        elif not self._placed and self._previous != self._last:
            self._breaks.append(at)
        self._placed = True
        self._index.update(zip(keys, range(at, at + len(keys)), strict=True))
        append_counts(self._counts, at, counts)
        if not self._tiers or self._tiers[-1][1] != tier:
            self._tiers.append((at, tier))
        self._last = self._previous = keys[-1]

    def _merge(self, keys: Sequence[bytes], counts: Sequence[int], tier: int) -> None:
        for key, count in zip(keys, counts, strict=True):
            known = self._index.get(key)
            if known is not None:
                self._changed[known] = (count, tier)
                self._previous = key
                continue
            if len(self._index) == self._max_blocks:
                self._flush()
            self._append((key,), (count,), tier)

    def _flush(self) -> None:
        if not self._index:
            return
        if self._changed:
            self._apply_changes()
        self._batches.append(
            Batch(
                partition=self._partition,
                keys=b"".join(self._index),
                tiers=tuple(self._tiers),
                counts=tuple(self._counts),
                breaks=tuple(self._breaks),
                after=self._after,
            )
        )
        self._reset()

    def _apply_changes(self) -> None:
        size = len(self._index)
        counts = expand_counts(self._counts, size)
        tiers = expand_tiers(self._tiers, size)
        for at, (count, tier) in self._changed.items():
            counts[at], tiers[at] = count, tier
        self._counts = []
        append_counts(self._counts, 0, counts)
        self._tiers = [(at, tier) for at, tier in enumerate(tiers) if at == 0 or tiers[at - 1] != tier]


def append_counts(runs: list[tuple[int, int, int]], at: int, counts: Sequence[int]) -> None:
    """Append values to a run-length coded column of ``(start, first, step)``.

    Args:
        runs: the column, changed in place.
        at: index of the first value, the column's length so far.
        counts: the values, at least one.

    >>> runs = [(0, 16, 16)]
    >>> append_counts(runs, 2, range(48, 81, 16)); append_counts(runs, 5, [7, 7]); runs
    [(0, 16, 16), (5, 7, 0)]
    """
    if isinstance(counts, range):
        _append_run(runs, at, counts[0], counts.step if len(counts) > 1 else 0, len(counts))
        return
    for offset, count in enumerate(counts):
        _append_run(runs, at + offset, count, 0, 1)


def expand_counts(runs: Sequence[tuple[int, int, int]], size: int) -> list[int]:
    """Return the values of a column of ``(start, first, step)`` runs with ``size`` values.

    >>> expand_counts([(0, 16, 16), (3, 7, 0)], 5)
    [16, 32, 48, 7, 7]
    """
    ends = [start for start, _, _ in runs[1:]] + [size]
    return [
        first + offset * step
        for (start, first, step), end in zip(runs, ends, strict=True)
        for offset in range(end - start)
    ]


def expand_tiers(runs: Sequence[tuple[int, int]], size: int) -> list[int]:
    """Return the values of a column of ``(start, value)`` runs with ``size`` values.

    >>> expand_tiers([(0, 1), (2, 3)], 4)
    [1, 1, 3, 3]
    """
    ends = [start for start, _ in runs[1:]] + [size]
    return [tier for (start, tier), end in zip(runs, ends, strict=True) for _ in range(end - start)]


def _append_run(runs: list[tuple[int, int, int]], at: int, first: int, step: int, length: int) -> None:
    if runs:
        last_start, last_first, last_step = runs[-1]
        last_length = at - last_start
        if last_length == 1 and (length == 1 or step == first - last_first):
            # A run of one value has no step yet: it takes the one that leads to its neighbour.
            runs[-1] = (last_start, last_first, first - last_first)
            return
        if first == last_first + last_length * last_step and (length == 1 or step == last_step):
            return
    runs.append((at, first, step))
