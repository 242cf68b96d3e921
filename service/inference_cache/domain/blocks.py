"""Block keys: hashes of any width reduced to eight bytes, and many of them as one ``bytes`` object.

One fixed width keeps every script of the index free of framing. Engines mostly send eight bytes, which are their
own key; the functions are shaped so that this case costs no Python step per block.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from inference_cache.domain.columns import PackedHashes
from inference_cache.domain.models import KEY_BYTES

MAX_BATCH_BLOCKS = 512
"""Blocks that one writing call to the index may carry: what keeps it below two milliseconds."""


def block_key(block_hash: bytes) -> bytes:
    """Return the key of one hash; an empty hash has the empty key, which matches nothing.

    >>> block_key(b"8 bytes!")
    b'8 bytes!'
    >>> len(block_key(b"any other width"))
    8
    """
    if len(block_hash) == KEY_BYTES or not block_hash:
        return block_hash
    return blake2b(block_hash, digest_size=KEY_BYTES).digest()


def block_keys(hashes: Sequence[bytes]) -> list[bytes]:
    """Return the key of each hash, in order; an empty hash gives an empty key in its place."""
    keys = list(hashes)
    if set(map(len, keys)) <= {KEY_BYTES}:
        return keys
    return [block_key(key) for key in keys]


def join_keys(hashes: Sequence[bytes]) -> bytes:
    """Return the keys of all non-empty hashes as one object, in order.

    >>> join_keys([b"12345678", b"", b"abcdefgh"])
    b'12345678abcdefgh'
    """
    return hashes.keys if isinstance(hashes, PackedHashes) else b"".join(block_keys(hashes))


def split_keys(keys: bytes) -> list[bytes]:
    """Return the single keys of a concatenation.

    >>> split_keys(b"12345678abcdefgh")
    [b'12345678', b'abcdefgh']
    """
    return [keys[at : at + KEY_BYTES] for at in range(0, len(keys), KEY_BYTES)]
