"""What reports and clears cost Redis, against the length of a report and what a cleared replica holds."""

from __future__ import annotations

from functools import partial

from loadtest.bench.costs import PROMPT
from loadtest.bench.redis_process import started
from loadtest.bench.result import Item, Table
from loadtest.bench.scale import Scale
from loadtest.bench.stats import ratios, spread
from loadtest.bench.writer import Series, Writer, series, writing

REPORTS = (1, 4, 16, 64, 128, 512)
"""Blocks of one report."""
_CLEARS = 3
METHOD = (
    "An operation of the store is one or more scripts, the word to the catalog included; its cost is their sum by "
    "Redis' own clock (`INFO commandstats` after each call), or the processor time of the whole Redis process "
    "meanwhile where that is less, since then the call was interrupted. The longest call is what others wait for. A "
    "run is a series of operations, its figure their median; calls come one at a time, which is when they cost most."
)


async def run(scale: Scale) -> Item:
    """Measure on every server of this machine."""
    item = Item("write_cost", "What writing costs Redis", METHOD)
    for kind in scale.kinds:
        with started(kind) as server:
            async with writing(server, scale.writes) as writer:
                await writer.fill(scale.around)
                await _reports(writer, scale, item)
                await _clears(writer, scale, item)
    return item


async def _reports(writer: Writer, scale: Scale, item: Item) -> None:
    heads = ("blocks", "new, µs a block", "again, µs a block", "by another replica, µs a block", "longest call, µs")
    title = f"Reports on {writer.server.label}, {scale.around:,} placements of others"
    table = Table(title, heads, [])
    for blocks in REPORTS:
        new, again, held = Series([]), Series([]), Series([])
        for _ in range(scale.runs):
            chains, one = writer.chains(blocks), writer.name()
            new.runs.append(await writer.reports(chains, one))
            again.runs.append(await writer.reports(chains, one))
            held.runs.append(await writer.reports(chains, writer.name()))
        table.rows.append((blocks, *(one_kind.cost(blocks) for one_kind in (new, again, held)), new.longest))
        item.figures[f"ingest_{blocks}_us_{writer.server.kind}"] = new.cost(blocks)
    item.tables.append(table)


async def _clears(writer: Writer, scale: Scale, item: Item) -> None:
    heads = ("blocks held", "until invisible, µs", "all steps, µs a block", "calls", "longest call, µs")
    table = Table(f"Clear of a replica on {writer.server.label}", heads, [])
    acts = [partial(writer.clear, blocks, _CLEARS) for blocks in scale.clears]
    found = await series(scale.runs, *acts)
    for blocks, kind in zip(scale.clears, found, strict=True):
        blocks -= blocks % PROMPT  # noqa: PLW2901 - whole chains are held
        calls = spread(float(sum(map(len, run[0].calls_us.values()))) for run in kind.runs)
        table.rows.append((blocks, spread(_invisible(kind)), kind.cost(blocks), calls, kind.longest))
    item.tables.append(table)
    server = writer.server.kind
    item.figures[f"clear_flat_ratio_{server}"] = ratios(_invisible(found[-1]), _invisible(found[0]))
    item.figures[f"clear_longest_us_{server}"] = max((kind.longest for kind in found), key=lambda one: one.median)


def _invisible(kind: Series) -> list[float]:
    """Return each run's median time of the first call, after which nobody sees the replica's blocks."""
    return [spread(operation.calls_us["clear"][0] for operation in run).median for run in kind.runs]
