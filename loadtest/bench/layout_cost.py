"""This index against the layouts that others use: the same questions about the same data, in the same run."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from inference_cache.domain.models import KEY_BYTES
from loadtest.bench import data
from loadtest.bench.costs import BURST, HOLDERS, PROMPT, look_up, measure, opened
from loadtest.bench.layouts import LAYOUTS, Layout
from loadtest.bench.redis_process import RedisProcess, started
from loadtest.bench.result import Item, Table
from loadtest.bench.scale import Scale
from loadtest.bench.stats import ratios, spread

_SEED = 20_241
_METHOD = (
    "The same chains, holders and placements of others are written into this index and, in plain form, into each "
    "other layout, one after the other on one server. Redis time is the sum over all commands of a lookup (`INFO "
    "commandstats`, for scripts the median call); process time is that of the whole Redis process, which for a "
    "pipeline of reads is mostly parsing and replying. The other layouts answer less: no times, tiers, expiry or "
    "statistics."
)


@dataclass(frozen=True, slots=True)
class _Sample:
    """Redis time and process time of one lookup, a value a run."""

    times_us: list[float]
    cpu_us: list[float]


async def run(scale: Scale) -> Item:
    """Measure on every server of this machine."""
    item = Item("layouts", "Against other layouts", _METHOD)
    for kind in scale.kinds:
        with started(kind) as server:
            await _compare(server, scale, item)
    return item


async def _compare(server: RedisProcess, scale: Scale, item: Item) -> None:
    random = Random(_SEED)
    crowd = data.replicas(data.CROWD, "crowd")
    around = [(data.random_keys(PROMPT, random), crowd[at % data.CROWD]) for at in range(scale.around // PROMPT)]
    prompts = {blocks: data.random_keys(blocks, random) for blocks in scale.prompts if blocks >= PROMPT}
    title = f"{server.label}: {HOLDERS} holders, {len(around) * PROMPT:,} placements of others"
    heads = ("layout", "blocks", "Redis time, µs", "times ours", "process time, µs", "times ours", "bytes a block")
    table = Table(title, heads, [])
    ours, size = await _ours(server, scale, prompts, around)
    for blocks, sample in ours.items():
        own = (spread(sample.times_us), 1, spread(sample.cpu_us), 1, round(size, 1))
        table.rows.append(("this index", blocks, *own))
    best: dict[int, float] = {}
    for kind in LAYOUTS:
        with started(server.kind) as other:
            theirs, size = _theirs(other, scale, kind(other.client), prompts, around)
        for blocks, sample in theirs.items():
            times = ratios(sample.times_us, ours[blocks].times_us)
            cpu = ratios(sample.cpu_us, ours[blocks].cpu_us)
            cells = (spread(sample.times_us), times, spread(sample.cpu_us), cpu, round(size, 1))
            table.rows.append((kind.name, blocks, *cells))
            if cpu.median < best.get(blocks, float("inf")):
                best[blocks] = cpu.median
                item.figures[f"layouts_{blocks}_ratio_{server.kind}"] = cpu
    item.tables.append(table)


async def _ours(
    server: RedisProcess, scale: Scale, prompts: dict[int, bytes], around: list[tuple[bytes, str]]
) -> tuple[dict[int, _Sample], float]:
    """Return what lookups cost here, by length, and the bytes a block takes that one replica holds."""
    found = {}
    async with opened(server) as store:
        empty = server.used_memory()
        for keys, holder in around:
            await data.report(store, keys, [holder])
        size = (server.used_memory() - empty) / (len(around) * PROMPT)
        for blocks, keys in prompts.items():
            await data.report(store, keys, data.replicas(HOLDERS))

            async def ask(_: int, keys: bytes = keys) -> object:
                return await look_up(store, keys)

            costs = await measure(server, scale, ask)
            found[blocks] = _Sample([cost.median_us for cost in costs], [cost.cpu_us for cost in costs])
    return found, size


def _theirs(
    server: RedisProcess, scale: Scale, layout: Layout, prompts: dict[int, bytes], around: list[tuple[bytes, str]]
) -> tuple[dict[int, _Sample], float]:
    empty = server.used_memory()
    for keys, holder in around:
        layout.write(keys, [holder])
    size = (server.used_memory() - empty) / (len(around) * PROMPT)
    found = {}
    for blocks, keys in prompts.items():
        layout.write(keys, data.replicas(HOLDERS))
        if layout.lookup(keys) != dict.fromkeys(data.replicas(HOLDERS), blocks):
            raise RuntimeError(f"{layout.name} gives a wrong answer")

        found[blocks] = _sample(server, scale, layout, keys)
    return found, size


def _sample(server: RedisProcess, scale: Scale, layout: Layout, keys: bytes) -> _Sample:
    sample = _Sample([], [])
    burst = max(1, BURST * PROMPT * KEY_BYTES // len(keys))
    for _ in range(scale.runs):
        server.reset()
        for _ in range(scale.calls // BURST):
            layout.lookup(keys, burst)
        lookups = burst * (scale.calls // BURST)
        cost = server.cost(layout.command, lookups)
        commands = cost.calls / lookups
        sample.times_us.append(cost.median_us if commands == 1 else cost.mean_us * commands)
        sample.cpu_us.append(cost.cpu_us)
    return sample
