"""Which replica a miss goes to: always the same one for the same prompt, so that the next request hits.

Everything hangs on one digest, SHA-256 of the prompt's *seed*; neither load nor statistics play a role.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import sha256
from struct import Struct

from inference_cache.domain.columns import PackedHashes
from inference_cache.domain.models import KEY_BYTES
from inference_cache.domain.tuning import AffinityMode

_LENGTH = Struct(">I")
_LEADING_BYTES = 8
_WORD = next(code for code in "IL" if array(code).itemsize == _LENGTH.size)


def chain_seed(hashes: Sequence[bytes]) -> bytes:
    """Return the seed of a chain: each hash after its length as big-endian uint32.

    The lengths keep chains apart whose concatenated hashes are equal, and one-block chains from exact hashes. Empty
    hashes count: a gateway's seed must not depend on what the index can match.

    >>> chain_seed([b"ab", b""]).hex()
    '00000002616200000000'
    """
    if isinstance(hashes, PackedHashes):
        return _packed_seed(hashes)
    if len(set(map(len, hashes))) == 1:
        length = _LENGTH.pack(len(hashes[0]))
        return length + length.join(hashes)
    return b"".join(_LENGTH.pack(len(block)) + block for block in hashes)


def pick(seed: bytes, candidates: Sequence[str], mode: AffinityMode) -> str | None:
    """Return the stable replica for a seed, ``None`` without seed or candidates.

    ``modulo``: the digest's first eight bytes, big-endian, modulo the number of candidates, index the candidates in the
    order of their UTF-8 bytes. One replica more or less moves nearly every prompt.

    ``rendezvous``: the candidate with the highest weight wins, the weight being the first eight bytes, big-endian, of
    SHA-256(digest, then the replica id in UTF-8); on a tie the first in that order. One replica more or less
    moves only its own share. (Highest random weight: Thaler and Ravishankar, 1998.)
    """
    if not seed or not candidates:
        return None
    digest = sha256(seed).digest()
    # Code points sort as their UTF-8 bytes do.
    ordered = sorted(candidates)
    if mode == "rendezvous":
        return max(ordered, key=lambda replica_id: _leading(sha256(digest + replica_id.encode()).digest()))
    return ordered[_leading(digest) % len(ordered)]


def _packed_seed(hashes: PackedHashes) -> bytes:
    # A length is one word of four bytes and a hash two, so three strides place all of them; their bytes never change.
    seed = array(_WORD, _LENGTH.pack(KEY_BYTES) * (3 * len(hashes)))
    words = array(_WORD, hashes.keys)
    seed[1::3] = words[0::2]
    seed[2::3] = words[1::2]
    return seed.tobytes()


def _leading(digest: bytes) -> int:
    return int.from_bytes(digest[:_LEADING_BYTES], "big")
