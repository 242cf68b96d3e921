"""What the figures are held against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from loadtest.bench.stats import Spread


@dataclass(frozen=True, slots=True)
class Target:
    """One figure and its bound.

    Attributes:
        figure: its name in a run.
        text: what it is.
        bound: the most, or with ``at_least`` the least, that it may be.
        unit: of both.
        at_least: whether more is better.
    """

    figure: str
    text: str
    bound: float
    unit: str
    at_least: bool = False

    def met(self, value: Spread) -> bool:
        """Tell whether a measured median meets the bound."""
        return value.median >= self.bound if self.at_least else value.median <= self.bound


def _both(figure: str, text: str, unit: str, *, valkey: float, redis: float, at_least: bool = False) -> list[Target]:
    """Return a target for each server."""
    return [
        Target(f"{figure}_valkey", f"{text}, Valkey 9", valkey, unit, at_least),
        Target(f"{figure}_redis", f"{text}, Redis 7.0", redis, unit, at_least),
    ]


TARGETS: tuple[Target, ...] = (
    *_both("lookup_512_us", "Redis per matched 512-block lookup, 4 holders", "µs", valkey=45, redis=60),
    *_both("lookup_8192_us", "Redis per lookup of 8192 blocks in 8 segments, 4 holders", "µs", valkey=250, redis=450),
    *_both("layouts_512_ratio", "best other layout against ours, 512 blocks", "x", valkey=5, redis=5, at_least=True),
    Target("lookup_512_cpu_ratio_8", "server CPU of a 512-block LookupRoute against the bare call", 1.4, "x"),
    Target("lookup_8192_cpu_ratio_8", "the same, 8192 blocks", 2, "x"),
    *_both("ingest_512_us", "Redis per new block, reports of 512-block chains", "µs", valkey=2.5, redis=2.5),
    Target("evict_e2e_bulk_rate", "evictions end to end, bulk", 60_000, "blocks/s", at_least=True),
    Target("evict_e2e_single_rate", "evictions end to end, single", 5_000, "blocks/s", at_least=True),
    *_both(
        "evict_partitions_ratio",
        "evict one block, with many adapter partitions of others against none",
        "x",
        valkey=1.2,
        redis=1.2,
    ),
    *_both(
        "clear_partitions_ratio",
        "clear, with many adapter partitions of others against none",
        "x",
        valkey=1.2,
        redis=1.2,
    ),
    Target("ingest_e2e_512_rate", "new blocks through one server, updates of 512", 120_000, "blocks/s", at_least=True),
    Target("ingest_e2e_16_rate", "new blocks through one server, updates of 16", 30_000, "blocks/s", at_least=True),
    *(
        one
        for blocks in (512, 16)
        for one in (
            Target(
                f"ingest_e2e_{blocks}_flat",
                f"the rate of updates of {blocks}, largest index against smallest",
                0.8,
                "x",
                True,
            ),
            Target(
                f"ingest_e2e_{blocks}_cost_flat",
                f"processor time of server and Redis a block, updates of {blocks}, likewise",
                1.2,
                "x",
            ),
        )
    ),
    *_both("bytes_holder_1", "bytes a block, first holder", "bytes", valkey=70, redis=90),
    *_both("bytes_holder_2", "bytes a block, a further holder", "bytes", valkey=3, redis=3),
    *_both("evict_flat_ratio", "evict one block, largest index against smallest", "x", valkey=1.2, redis=1.2),
    *_both("clear_flat_ratio", "clear until invisible, largest replica against smallest", "x", valkey=1.2, redis=1.2),
    *_both("clear_longest_us", "longest call while a replica is cleared", "µs", valkey=2_000, redis=2_000),
    Target("interference_evictions_ratio", "lookup p99 during evictions against idle", 3, "x"),
    Target("interference_clear_ratio", "lookup p99 during a clear against idle", 3, "x"),
    Target("interference_ingest_ratio", "lookup p99 during ingest against idle", 3, "x"),
    Target("two_servers_ratio", "two servers against one, each held to a quarter of a core", 1.8, "x", at_least=True),
    Target("two_servers_cost_ratio", "processor time of server and Redis a call, two servers against one", 1.1, "x"),
)


def verdicts(figures: Mapping[str, Spread]) -> list[tuple[Target, Spread | None, str]]:
    """Return each target with its figure and ``met``, ``missed`` or ``not measured``."""
    found = []
    for target in TARGETS:
        value = figures.get(target.figure)
        word = "not measured" if value is None else "met" if target.met(value) else "missed"
        found.append((target, value, word))
    return found
