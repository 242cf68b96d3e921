"""Block hashes made from token ids, byte for byte as engines' event adapters and gateways make them.

Every full block of tokens gets a *content hash*: XXH3-64, seed 1337, over its ids as little-endian uint32. Its
*prefix hash* stands for the block and everything before it: XXH3-64, same seed, over the previous prefix hash and the
content hash, both as little-endian uint64; the first block without a parent takes its content hash. On the wire a
prefix hash is 8 bytes, big-endian. Model, tenant and adapter are no part of it.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence
from struct import Struct

from xxhash import xxh3_64_intdigest

SEED = 1337
_TOKEN_BYTES = 4
_LINK = Struct("<QQ")
_WIRE = Struct(">Q")


def content_hashes(token_ids: Iterable[int], block_size: int) -> list[int]:
    """Return the content hash of each full block; a last partial block has none.

    Args:
        token_ids: unsigned 32-bit ids.
        block_size: tokens a block; 0 or less gives no blocks.

    Raises:
        OverflowError: an id does not fit in 32 bits.
    """
    if block_size <= 0:
        return []
    tokens = _little_endian(token_ids)
    width = block_size * _TOKEN_BYTES
    return [xxh3_64_intdigest(tokens[at : at + width], SEED) for at in range(0, len(tokens) - width + 1, width)]


def prefix_hashes(contents: Iterable[int], parent: int | None = None) -> list[int]:
    """Chain content hashes: each result stands for a block and all before it.

    Args:
        contents: content hashes in order.
        parent: prefix hash of what precedes the first block, ``None`` when nothing does.
    """
    hashes: list[int] = []
    for content in contents:
        parent = content if parent is None else xxh3_64_intdigest(_LINK.pack(parent, content), SEED)
        hashes.append(parent)
    return hashes


def block_hashes(token_ids: Sequence[int], block_size: int) -> list[bytes]:
    """Return the wire's block hashes of a prompt, none when it has less than one full block.

    >>> [block.hex() for block in block_hashes(range(1, 33), 16)]
    ['ea06fc71a5ee6e88', 'ad01835a37dd294c']
    """
    return [_WIRE.pack(prefix) for prefix in prefix_hashes(content_hashes(token_ids, block_size))]


def _little_endian(token_ids: Iterable[int]) -> memoryview:
    tokens = array("I", token_ids)
    if sys.byteorder == "big":
        tokens.byteswap()
    return memoryview(tokens).cast("B")
