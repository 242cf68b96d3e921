"""What is indexed: chains of blocks, cut as wanted, and any number of other people's blocks around them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from random import Random

from inference_cache.domain.blocks import MAX_BATCH_BLOCKS
from inference_cache.domain.models import KEY_BYTES, Batch, ModelKey, Partition
from inference_cache.domain.policy import DEFAULT_TTL_MS
from inference_cache.store.keys import Keys
from inference_cache.store.redis import RedisStore
from loadtest.bench.redis_process import RedisProcess

MODEL = ModelKey("bench", "model")
PARTITION = Partition("vllm")
BLOCK_TOKENS = 16
CROWD = 64
"""Replicas that hold everybody else's blocks."""
_IN_FLIGHT = 12


def random_keys(blocks: int, random: Random) -> bytes:
    """Return a chain of fresh block keys."""
    return random.randbytes(blocks * KEY_BYTES)


def batches(keys: bytes, *, runs: int = 1, partition: Partition = PARTITION) -> list[Batch]:
    """Return the report of a chain; with ``runs`` it comes as so many pieces that know nothing of each other.

    A run is stored as one segment, or as several where it has more than 1,024 blocks.
    """
    blocks = len(keys) // KEY_BYTES
    starts = {blocks * run // runs for run in range(runs)}
    return [
        _batch(keys, at, min(MAX_BATCH_BLOCKS, blocks - at), starts, partition)
        for at in range(0, blocks, MAX_BATCH_BLOCKS)
    ]


def _batch(keys: bytes, at: int, size: int, starts: set[int], partition: Partition) -> Batch:
    return Batch(
        partition,
        keys[at * KEY_BYTES : (at + size) * KEY_BYTES],
        tiers=((0, 1),),
        counts=((0, BLOCK_TOKENS * (at + 1), BLOCK_TOKENS),),
        breaks=tuple(start - at for start in sorted(starts) if at < start < at + size),
        after=b"" if at in starts else keys[(at - 1) * KEY_BYTES : at * KEY_BYTES],
    )


def replicas(count: int, name: str = "r") -> list[str]:
    """Return replica ids of the length that Kubernetes gives pods."""
    return [f"vllm-engine-7d9c6b5f4-{name}{number:04d}" for number in range(count)]


async def report(
    store: RedisStore,
    keys: bytes,
    holders: Iterable[str],
    *,
    runs: int = 1,
    partition: Partition = PARTITION,
    at_ms: int | None = None,
) -> None:
    """Let replicas report a chain."""
    cut = batches(keys, runs=runs, partition=partition)
    now_ms = store.now_ms() if at_ms is None else at_ms
    for holder in holders:
        await store.ingest(MODEL, holder, cut, reported_ms=now_ms, ttl_ms=DEFAULT_TTL_MS)


async def fill(store: RedisStore, placements: int, random: Random) -> None:
    """Put in blocks of others, each held once: the most expensive kind of placement.

    The holders take turns; many reports are under way at once, so that it takes seconds, not minutes.
    """
    chain = max(1, min(MAX_BATCH_BLOCKS, placements // CROWD))  # all of them serve, however little there is
    turns = iter(range(-(-placements // chain)))
    crowd = replicas(CROWD, "crowd")

    async def work(turns: Iterator[int]) -> None:
        for turn in turns:
            await report(store, random_keys(chain, random), [crowd[turn % CROWD]])

    await asyncio.gather(*(work(turns) for _ in range(_IN_FLIGHT)))


def segments_walked(server: RedisProcess, chains: Sequence[bytes]) -> list[int]:
    """Return for each chain how many segments a lookup of it walks, as the index has them."""
    name = Keys().totals(MODEL).removesuffix(b"totals") + f"P:{Keys().partition(PARTITION)}:blocks".encode()
    walked = []
    for keys in chains:
        fields = [keys[at : at + KEY_BYTES] for at in range(0, len(keys), KEY_BYTES)]
        places = [place and place[:4] for place in server.client.hmget(name, fields)]
        steps = sum(1 for one, after in zip([None, *places], places, strict=False) if after != one)
        walked.append(steps)
    return walked
