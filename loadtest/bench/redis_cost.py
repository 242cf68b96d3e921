"""What a lookup costs Redis: against the prompt's length, its holders and the runs in which it was reported."""

from __future__ import annotations

from functools import partial
from random import Random

from inference_cache.store.redis import RedisStore
from loadtest.bench import data
from loadtest.bench.costs import COLUMNS, HOLDERS, PROMPT, columns, look_up, measure, medians, opened
from loadtest.bench.redis_process import Cost, RedisProcess, binaries, started
from loadtest.bench.result import Curve, Item, Table
from loadtest.bench.scale import Scale
from loadtest.bench.stats import Spread

_SEED = 20_240
_BLOCKS = 16_384
"""Of all prompts of one shape together."""
_METHOD = (
    "Microseconds that Redis itself counts for an EVALSHA. A run is a series of calls in bursts; its figure is the "
    "median call (`INFO latencystats`, two digits), which an interruption by other work does not move. Beside it "
    "stand the mean (`INFO commandstats`) and the processor time of the whole Redis process a call, which includes "
    "reading the request and sending the reply. Every lookup matches the whole prompt unless the row says "
    "otherwise; some prompts take turns."
)
Lines = dict[str, list[tuple[float, Spread]]]


async def run(scale: Scale) -> Item:
    """Measure on every server of this machine."""
    item = Item("redis_cost", "What a lookup costs Redis", _METHOD)
    lines: Lines = {}
    for kind in binaries():
        with started(kind) as server:
            async with opened(server) as store:
                lines |= await _lookups(server, store, scale, item)
    item.curves.append(Curve("lookup", "Redis time of a lookup, 4 holders", "blocks of the prompt", "µs", "xy", lines))
    return item


def shapes(scale: Scale) -> list[tuple[int, int, int]]:
    """Return the (blocks, holders, runs) to measure: each varied alone, around a usual prompt."""
    found = [(length, HOLDERS, 1) for length in scale.lengths]
    found += [(PROMPT, holders, 1) for holders in scale.holders if holders != HOLDERS]
    longest = max(scale.lengths)
    return found + [(blocks, HOLDERS, pieces) for blocks in (PROMPT, longest) for pieces in scale.pieces if pieces > 1]


async def _lookups(server: RedisProcess, store: RedisStore, scale: Scale, item: Item) -> Lines:
    random = Random(_SEED)
    await data.fill(store, scale.around, random)
    title = f"Lookup on {server.label}, {scale.around:,} placements of others"
    table = Table(title, ("blocks", "holders", "reported in runs", "segments walked", *COLUMNS), [])
    line: list[tuple[float, Spread]] = []
    for blocks, holders, pieces in shapes(scale):
        costs, segments = await _lookup(server, store, scale, random, (blocks, holders, pieces))
        table.rows.append((blocks, holders, pieces, segments, *columns(costs)))
        if (holders, pieces) == (HOLDERS, 1):
            line.append((blocks, medians(costs)))
            item.figures[f"lookup_{blocks}_us_{server.kind}"] = medians(costs)
    unknown = data.random_keys(PROMPT, random)
    nobody = await measure(server, scale, lambda _: look_up(store, unknown))
    table.rows.append((PROMPT, "nobody", 0, 0, *columns(nobody)))
    item.tables.append(table)
    return {server.label: line}


async def _lookup(
    server: RedisProcess, store: RedisStore, scale: Scale, random: Random, shape: tuple[int, int, int]
) -> tuple[list[Cost], int]:
    """Report chains of one shape and look them up in turn; also return how many segments one of them walks."""
    blocks, holders, pieces = shape
    chains = [data.random_keys(blocks, random) for _ in range(max(2, min(8, _BLOCKS // blocks)))]
    for keys in chains:
        await data.report(store, keys, data.replicas(holders), runs=pieces)
    costs = await measure(server, scale, partial(_in_turn, store, chains))
    return costs, data.segments_walked(server, chains[:1])[0]


async def _in_turn(store: RedisStore, chains: list[bytes], turn: int) -> int:
    return await look_up(store, chains[turn % len(chains)])
