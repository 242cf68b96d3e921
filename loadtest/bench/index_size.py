"""Whether costs in Redis grow with what else the index holds: placements, and adapter partitions of others."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from loadtest.bench.costs import HOLDERS, PROMPT, look_up, measure, medians
from loadtest.bench.metered import Operation
from loadtest.bench.redis_process import started
from loadtest.bench.result import Curve, Item, Table
from loadtest.bench.scale import Scale
from loadtest.bench.stats import Spread, ratios
from loadtest.bench.write_cost import METHOD
from loadtest.bench.writer import Series, Writer, series, writing

_METHOD = (
    f"{METHOD} Blocks of others lie in chains of 512 with one holder each. A small index on a second server of the "
    "same kind is the baseline: the two take turns, run by run. Single evictions take the last block of a chain, as "
    "engines do."
)
Lines = dict[str, list[tuple[float, Spread]]]
Acts = tuple[Callable[[], Awaitable[list[Operation]]], ...]


async def run(scale: Scale) -> Item:
    """Measure on every server of this machine."""
    item = Item("index_size", "Whether the index' size matters to Redis", _METHOD)
    lines: Lines = {}
    for kind in scale.kinds:
        with started(kind) as server, started(kind) as other:
            async with writing(server, scale.writes) as writer, writing(other, scale.writes) as small:
                await small.fill(scale.sizes[0])
                lines |= await _sizes(writer, small, scale, item)
        with started(kind) as server, started(kind) as other:
            async with writing(server, scale.writes) as writer, writing(other, scale.writes) as small:
                await _partitions(writer, small, scale, item)
    item.curves.append(Curve("size", "Redis time against the size of the index", "placements", "µs", "x", lines))
    return item


def _acts(writer: Writer) -> Acts:
    return writer.new, writer.evict_one, writer.evict_many, writer.clear, writer.sweep


async def _sizes(writer: Writer, small: Writer, scale: Scale, item: Item) -> Lines:
    heads = (
        "placements",
        f"lookup {PROMPT} x {HOLDERS}, µs",
        "report 512 new, µs a block",
        "evict one, µs",
        "evict one, against small",
        "evict 512, µs a block",
        "clear 512, µs",
        "sweep, µs a block",
        "longest call, µs",
        "filling, blocks a second of Redis processor time",
    )
    table = Table(f"Size of the index on {writer.server.label}, small is {scale.sizes[0]:,}", heads, [])
    label = writer.server.label
    lines: Lines = {f"lookup {PROMPT} x {HOLDERS}, {label}": [], f"evict one, {label}": []}
    for size in scale.sizes:
        rate = await writer.fill(size)
        lookup = await _lookup(writer, scale)
        found = await series(scale.runs, *_acts(writer), small.evict_one)
        new, one, many, clear, sweep, baseline = found
        against = ratios(one.medians_us, baseline.medians_us)
        longest = max((kind.longest for kind in found[:-1]), key=lambda kind: kind.median)
        costs = (new.cost(PROMPT), one.cost(), against, many.cost(PROMPT), clear.cost(), sweep.cost(PROMPT), longest)
        table.rows.append((f"{size:,}", lookup, *costs, round(rate)))
        for line, value in zip(lines.values(), (lookup, one.cost()), strict=True):
            line.append((size, value))
        item.figures[f"evict_flat_ratio_{writer.server.kind}"] = against
    item.tables.append(table)
    return lines


async def _lookup(writer: Writer, scale: Scale) -> Spread:
    chains = await writer.prompts()

    async def ask(turn: int) -> object:
        return await look_up(writer.store, chains[turn % len(chains)])

    return medians(await measure(writer.server, scale, ask))


async def _partitions(writer: Writer, small: Writer, scale: Scale, item: Item) -> None:
    """Compare an index in which others hold something in many adapter partitions with one in which they do not."""
    heads = ("adapter partitions of others", "evict one, µs", "evict 512, µs a block", "clear 512, µs")
    table = Table(f"Adapter partitions of others on {writer.server.label}", heads, [])
    for one in (writer, small):
        await one.fill(scale.sizes[0])
    await writer.add_partitions(scale.others)
    acts = [act for one in (writer, small) for act in (one.evict_one, one.evict_many, one.clear)]
    found = await series(scale.runs, *acts)
    for count, kinds in ((scale.others, found[:3]), (0, found[3:])):
        table.rows.append((count, kinds[0].cost(), kinds[1].cost(PROMPT), kinds[2].cost()))
    item.tables.append(table)
    evict, _, clear = map(_against, found[:3], found[3:])
    item.figures[f"evict_partitions_ratio_{writer.server.kind}"] = evict
    item.figures[f"clear_partitions_ratio_{writer.server.kind}"] = clear


def _against(one: Series, baseline: Series) -> Spread:
    return ratios(one.medians_us, baseline.medians_us)
