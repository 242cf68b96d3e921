from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_cache.domain.blocks import join_keys
from inference_cache.domain.columns import Equal, PackedHashes

HASHES = st.lists(st.binary(min_size=8, max_size=8), max_size=12)
SLICES = st.slices(14)


@given(HASHES, SLICES)
def test_packed_hashes_read_like_their_list(hashes: list[bytes], part: slice) -> None:
    """Whoever does not know the column finds in it what a list would have."""
    packed = PackedHashes(b"".join(hashes))
    assert packed == hashes
    assert [len(packed), list(packed), list(packed[part])] == [len(hashes), hashes, hashes[part]]
    assert [packed[at] for at in range(-len(hashes), len(hashes))] == hashes * 2
    assert join_keys(packed) == join_keys(hashes)


@given(st.integers(-5, 2**31 - 1), st.integers(1, 12), SLICES)
def test_equal_numbers_read_like_their_list(value: int, length: int, part: slice) -> None:
    """A number and how often it occurs are the list they stand for, slices included."""
    column, same = Equal(value, length), [value] * length
    assert column == same
    assert [len(column), list(column), list(column[part])] == [length, same, same[part]]
    assert [column.count(value), column.count(value + 1)] == [length, 0]


@pytest.mark.parametrize("column", [PackedHashes(b"12345678"), Equal(16, 1)])
def test_beyond_its_end_a_column_has_nothing(column: PackedHashes | Equal) -> None:
    """An index that is no block's is an error, as a list's is."""
    for at in (1, -2):
        with pytest.raises(IndexError):
            column[at]


def test_columns_with_other_items_differ() -> None:
    """Neither other items nor another length nor something that is no column is equal."""
    assert PackedHashes(b"12345678") != [b"12345679"]
    assert Equal(16, 2) != [16]
    assert Equal(16, 2) != 16
