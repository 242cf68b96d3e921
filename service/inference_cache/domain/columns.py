"""Columns of a prompt's blocks that cost no Python object a block: what a lookup of thousands of blocks is made of.

Both are sequences, so that whoever does not know them reads them like a list; whoever does asks for what they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar, overload

from inference_cache.domain.models import KEY_BYTES

_T = TypeVar("_T")


class _Column(Sequence[_T]):
    """A sequence that equals every other one with the same items."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]  # it equals lists, which have none

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self)})"


class PackedHashes(_Column[bytes]):
    """Hashes that are all as wide as a block key, concatenated.

    Args:
        keys: the hashes, which are their own block keys.

    >>> list(PackedHashes(b"12345678abcdefgh"))
    [b'12345678', b'abcdefgh']
    """

    __slots__ = ("keys",)

    def __init__(self, keys: bytes) -> None:
        self.keys = keys

    def __len__(self) -> int:
        return len(self.keys) // KEY_BYTES

    @overload
    def __getitem__(self, at: int) -> bytes: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[bytes]: ...
    def __getitem__(self, at: int | slice) -> bytes | Sequence[bytes]:
        if isinstance(at, slice):
            return [self[each] for each in range(*at.indices(len(self)))]
        start = range(len(self))[at] * KEY_BYTES
        return self.keys[start : start + KEY_BYTES]


class Equal(_Column[int]):
    """One number, as often as there are blocks.

    Args:
        value: the number.
        length: how often.

    >>> list(Equal(16, 3))
    [16, 16, 16]
    """

    __slots__ = ("length", "value")

    def __init__(self, value: int, length: int) -> None:
        self.value = value
        self.length = length

    def __len__(self) -> int:
        return self.length

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[int]: ...
    def __getitem__(self, at: int | slice) -> int | Sequence[int]:
        if isinstance(at, slice):
            return Equal(self.value, len(range(*at.indices(self.length))))
        range(self.length)[at]  # raises as a list does
        return self.value

    def count(self, value: Any) -> int:
        """Return how often a number occurs."""
        return self.length if value == self.value else 0
