"""How much is measured: in minutes with every size, or in less than one with a few."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Scale:
    """Sizes and repetitions of all items.

    Attributes:
        name: of the scale.
        runs: repetitions of each measurement; their median is the figure.
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
        in_flight: calls at a time.
        servers: how many share one Redis.
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
    calls: int = 160
    writes: int = 24
    sizes: tuple[int, ...] = (10_000, 200_000, 1_000_000, 5_000_000)
    lengths: tuple[int, ...] = (1, 16, 128, 512, 2048, 8192)
    holders: tuple[int, ...] = (1, 4, 16, 64)
    pieces: tuple[int, ...] = (1, 8, 32)
    around: int = 200_000
    others: tuple[int, ...] = (0, 1_000)
    clears: tuple[int, ...] = (512, 10_000, 100_000)
    lookups: int = 1_500
    prompts: tuple[int, ...] = (32, 512, 2048, 8192)
    in_flight: tuple[int, ...] = (1, 8, 32, 128)
    servers: tuple[int, ...] = (1, 2, 4)
    seconds: float = 3.0
    blocks: int = 100_000
    ingest_sizes: tuple[int, ...] = (10_000, 200_000, 1_000_000, 3_000_000)
    decode_blocks: int = 64
    memory_blocks: int = 200_000
    busy_index: int = 1_000_000
    busy_clear: int = 100_000
    trace_requests: int = 0
    trace: Path | None = None


QUICK = Scale(
    name="quick",
    runs=3,
    calls=32,
    writes=5,
    sizes=(10_000, 50_000),
    lengths=(16, 512, 8192),
    holders=(1, 4),
    pieces=(1, 8),
    around=20_000,
    others=(0, 50),
    clears=(512, 10_000),
    lookups=250,
    prompts=(512,),
    in_flight=(8,),
    servers=(1, 2),
    seconds=0.5,
    blocks=15_000,
    ingest_sizes=(10_000,),
    decode_blocks=4,
    memory_blocks=20_000,
    busy_index=30_000,
    busy_clear=10_000,
    trace_requests=150,
)
"""Less than a minute: says whether everything runs, and roughly where it stands."""
