"""The hashes of a prompt's blocks."""

from __future__ import annotations

from hashlib import shake_256

from inference_cache.sim.trace import ID_BLOCKS, Request

HASH_BYTES = 8


def id_hashes(hash_id: int, count: int = ID_BLOCKS) -> list[bytes]:
    """Return the hashes of the leading ``count`` blocks that a trace's id stands for.

    They depend on the id and a block's index alone. The id names the whole prefix, so equal prefixes have equal
    hashes and different ones do not, which is what an index without positions needs.
    """
    digest = shake_256(b"%d" % hash_id).digest(ID_BLOCKS * HASH_BYTES)
    return [digest[at : at + HASH_BYTES] for at in range(0, count * HASH_BYTES, HASH_BYTES)]


def prompt_hashes(request: Request) -> list[bytes]:
    """Return the hashes of all full blocks of a prompt, from head to tail."""
    return [one for hash_id, count in request.spans() for one in id_hashes(hash_id, count)]
