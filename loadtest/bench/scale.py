"""How much is measured: in minutes with every size, or in less than one with a few."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from loadtest.bench.redis_process import binaries


@dataclass(frozen=True, slots=True)
class Scale:
    """Sizes and repetitions of all items.

    Attributes:
        name: of the scale.
        runs: repetitions of each measurement; their median is the figure.
        every_server: whether all is measured on each kind of Redis, or lookups only.
        calls: lookups in Redis in one repetition.
        writes: writing operations in Redis in one repetition.
        sizes: placements in the index.
        lengths: blocks of a prompt.
        holders: replicas that hold it.
        pieces: runs in which it was reported.
        around: placements of others while length, holders and pieces vary.
        others: adapter partitions of other replicas.
        clears: blocks of a replica that is cleared.
        lookups: calls in one repetition through gRPC.
        prompts: blocks of a prompt through gRPC.
        hash_bytes: widths of hashes.
        in_flight: calls at a time.
        servers: how many share one Redis, the first of them 1.
        workers: how many processes one server has.
        seconds: of one repetition under load.
        blocks: blocks ingested in one repetition through gRPC.
        ingest_sizes: placements in the index before that.
        decode_blocks: blocks that each decoding sequence grows by.
        memory_blocks: blocks whose bytes are counted.
        busy_index: placements during interference.
        busy_clear: blocks of the replica that is cleared meanwhile.
        trace_requests: how much of a trace is replayed; 0 for all.
        trace: a recorded trace; ``None`` for a generated one.
    """

    name: str = "full"
    runs: int = 5
    every_server: bool = True
    calls: int = 160
    writes: int = 24
    sizes: tuple[int, ...] = (10_000, 200_000, 1_000_000, 5_000_000)
    lengths: tuple[int, ...] = (1, 16, 128, 512, 2048, 8192)
    holders: tuple[int, ...] = (1, 4, 16, 64)
    pieces: tuple[int, ...] = (1, 8, 32)
    around: int = 200_000
    others: int = 1_000
    clears: tuple[int, ...] = (512, 10_000, 100_000)
    lookups: int = 1_500
    prompts: tuple[int, ...] = (32, 512, 2048, 8192)
    hash_bytes: tuple[int, ...] = (8, 32)
    in_flight: tuple[int, ...] = (1, 8, 32, 128)
    servers: tuple[int, ...] = (1, 2, 4)
    workers: tuple[int, ...] = (1, 2)
    seconds: float = 3.0
    blocks: int = 100_000
    ingest_sizes: tuple[int, ...] = (10_000, 200_000, 1_000_000, 3_000_000)
    decode_blocks: int = 64
    memory_blocks: int = 200_000
    busy_index: int = 1_000_000
    busy_clear: int = 100_000
    trace_requests: int = 0
    trace: Path | None = None

    @property
    def kinds(self) -> list[str]:
        """Return the kinds of Redis to measure beyond lookups."""
        return list(binaries()) if self.every_server else ["valkey"]


QUICK = Scale(
    name="quick",
    runs=3,
    every_server=False,
    calls=32,
    writes=5,
    sizes=(10_000, 50_000),
    lengths=(16, 512, 8192),
    holders=(1, 4),
    pieces=(1, 8),
    around=20_000,
    others=50,
    clears=(512, 10_000),
    lookups=160,
    prompts=(512,),
    hash_bytes=(8,),
    in_flight=(8,),
    servers=(1, 2),
    workers=(),
    seconds=0.3,
    blocks=12_000,
    ingest_sizes=(10_000,),
    decode_blocks=2,
    memory_blocks=20_000,
    busy_index=30_000,
    busy_clear=10_000,
    trace_requests=150,
)
"""Less than a minute: says whether everything runs, and roughly where it stands."""
