from __future__ import annotations

from hashlib import blake2b

from hypothesis import given
from hypothesis import strategies as st

from inference_cache.domain.blocks import block_key, block_keys, join_keys, split_keys
from inference_cache.domain.models import KEY_BYTES

HASHES = st.lists(st.binary(max_size=40) | st.binary(min_size=KEY_BYTES, max_size=KEY_BYTES), max_size=20)


@given(st.binary(min_size=KEY_BYTES, max_size=KEY_BYTES))
def test_eight_bytes_are_their_own_key(block_hash: bytes) -> None:
    """Engines' eight-byte hashes are found again without any conversion."""
    assert block_key(block_hash) == block_hash


def test_other_widths_are_reduced_by_blake2b() -> None:
    """Every server reduces a wide or narrow hash to the same key, so that they share an index."""
    assert block_key(b"any other width").hex() == "1780cd52b62e4d90"
    for width in (1, 7, 9, 32, 64):
        block_hash = bytes(range(width))
        assert block_key(block_hash) == blake2b(block_hash, digest_size=8).digest()


def test_hashes_that_begin_alike_have_different_keys() -> None:
    """A hash is never confused with one that it is a prefix of."""
    keys = {block_key(bytes(range(1, 1 + width))) for width in range(1, 40)}
    assert len(keys) == 39


@given(HASHES)
def test_joined_keys_are_the_single_keys_in_order(hashes: list[bytes]) -> None:
    """Joining is the same as reducing one by one; empty hashes have no key."""
    singles = [block_key(block_hash) for block_hash in hashes]
    assert block_keys(hashes) == singles
    assert join_keys(hashes) == b"".join(singles)
    assert split_keys(join_keys(hashes)) == [key for key in singles if key]


def test_an_empty_hash_has_no_key() -> None:
    """An empty hash matches nothing, not even another empty one."""
    assert block_key(b"") == b""
    assert join_keys([b"", b""]) == b""
