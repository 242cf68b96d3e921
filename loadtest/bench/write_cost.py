"""What writing costs Redis: reports, evictions, clears and sweeps against report length and size of the index."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from random import Random

from inference_cache.domain.models import KEY_BYTES, Partition, Removal
from inference_cache.store.redis import RedisStore
from loadtest.bench import data
from loadtest.bench.costs import HOLDERS, PROMPT, look_up, measure, medians, metered, opened
from loadtest.bench.metered import Metered, Operation
from loadtest.bench.redis_process import RedisProcess, binaries, started
from loadtest.bench.result import Curve, Item, Table
from loadtest.bench.scale import Scale
from loadtest.bench.stats import Spread, ratios, spread

REPORTS = (1, 4, 16, 64, 128, 512)
"""Blocks of one report."""
_EXPIRED_MS = 1_000
_SEED = 20_242
_METHOD = (
    "An operation of the store is one or more scripts, the word to the catalog included; its cost is their sum by "
    "Redis' own clock (`INFO commandstats` after each call), or the processor time of the whole Redis process "
    "meanwhile where that is less, since then the call was interrupted. The longest call is what others wait for. A "
    "run is a series of operations, its figure their median. Blocks of others lie in chains of 512 with one holder "
    "each. Single evictions take the last block of a chain, as engines do."
)
Act = Callable[[int], Awaitable[object]]
"""One operation, by its number."""


async def run(scale: Scale) -> Item:
    """Measure on every server of this machine."""
    item = Item("write_cost", "What writing costs Redis", _METHOD)
    lines: dict[str, list[tuple[float, Spread]]] = {}
    for kind in binaries():
        with started(kind) as server:
            async with opened(server) as store, metered(server) as (writer, meter):
                bench = _Bench(server, store, writer, meter, scale)
                await bench.reports(item)
                await bench.clears(item)
                lines |= await bench.sizes(item)
                await bench.partitions(item)
    item.curves.append(Curve("size", "Redis time against the size of the index", "placements", "µs", "x", lines))
    return item


class _Bench:
    """One server with the index on it, a plain store to fill it and a metered one to measure."""

    def __init__(
        self, server: RedisProcess, store: RedisStore, writer: RedisStore, meter: Metered, scale: Scale
    ) -> None:
        self._server = server
        self._store = store
        self._writer = writer
        self._meter = meter
        self._scale = scale
        self._random = Random(_SEED)
        self._filled = 0
        self._names = 0

    async def reports(self, item: Item) -> None:
        """Vary the length of a report."""
        await self._fill(self._scale.around)
        heads = (
            "blocks a report",
            "new, µs a block",
            "again, µs a block",
            "by another replica, µs a block",
            "longest call, µs",
        )
        table = Table(f"Reports on {self._server.label}, {self._scale.around:,} placements of others", heads, [])
        for blocks in REPORTS:
            chains = [data.random_keys(blocks, self._random) for _ in range(self._scale.runs * self._scale.writes)]
            one, other = self._name(), self._name()
            new, again, held = [await self._series(self._reporting(chains, name)) for name in (one, one, other)]
            costs = [spread(cost / blocks for cost in _medians(series)) for series in (new, again, held)]
            table.rows.append((blocks, *costs, _longest(new)))
            item.figures[f"ingest_{blocks}_us_{self._server.kind}"] = costs[0]
        item.tables.append(table)

    async def clears(self, item: Item) -> None:
        """Vary what a cleared replica holds."""
        heads = ("blocks held", "until invisible, µs", "all steps, µs a block", "calls", "longest call, µs")
        table = Table(f"Clear of a replica on {self._server.label}", heads, [])
        invisible: list[list[float]] = []
        longest: list[float] = []
        for blocks in self._scale.clears:
            series = []
            for _ in range(self._scale.runs):
                name = self._name()
                for _ in range(blocks // PROMPT):
                    await data.report(self._store, data.random_keys(PROMPT, self._random), [name])
                series.append([await self._meter.operation(self._writer.clear(data.MODEL, name, fence_ms=None))])
            first = [run[0].calls_us["clear"][0] for run in series]
            totals = spread(run[0].total_us / (blocks // PROMPT * PROMPT) for run in series)
            calls = spread(float(sum(map(len, run[0].calls_us.values()))) for run in series)
            table.rows.append((blocks // PROMPT * PROMPT, spread(first), totals, calls, _longest(series)))
            invisible.append(first)
            longest += [run[0].longest_us for run in series]
        item.tables.append(table)
        item.figures[f"clear_flat_ratio_{self._server.kind}"] = ratios(invisible[-1], invisible[0])
        item.figures[f"clear_longest_us_{self._server.kind}"] = spread(longest)

    async def sizes(self, item: Item) -> dict[str, list[tuple[float, Spread]]]:
        """Vary how much others hold."""
        heads = (
            "placements",
            "lookup 512 x 4, µs",
            "report 512 new, µs a block",
            "evict one, µs",
            "evict 512, µs a block",
            "clear 512, µs",
            "sweep, µs a block",
            "longest call, µs",
            "filling, blocks a second of Redis processor time",
        )
        table = Table(f"Size of the index on {self._server.label}", heads, [])
        lines: dict[str, list[tuple[float, Spread]]] = {"lookup 512 x 4": [], "evict one": []}
        single: list[list[float]] = []
        self._server.flush()
        self._filled = 0
        for size in self._scale.sizes:
            began, filled = self._server.cpu_s(), self._filled
            await self._fill(size)
            rate = (self._filled - filled) / max(1e-9, self._server.cpu_s() - began)
            lookup = await self._lookup()
            new, one, many, clear, sweep = [
                await act() for act in (self._new, self._evict_one, self._evict_many, self._clear, self._sweep)
            ]
            single.append(_medians(one))
            per_block = [spread(cost / PROMPT for cost in _medians(series)) for series in (new, many, sweep)]
            table.rows.append(
                (
                    f"{size:,}",
                    lookup,
                    per_block[0],
                    spread(single[-1]),
                    per_block[1],
                    spread(_medians(clear)),
                    per_block[2],
                    _longest(new + one + many + clear + sweep),
                    round(rate),
                )
            )
            lines["lookup 512 x 4"].append((size, lookup))
            lines["evict one"].append((size, spread(single[-1])))
        item.tables.append(table)
        item.figures[f"evict_flat_ratio_{self._server.kind}"] = ratios(single[-1], single[0])
        return {f"{label}, {self._server.label}": line for label, line in lines.items()}

    async def partitions(self, item: Item) -> None:
        """Vary how many adapter partitions other replicas hold something in."""
        heads = ("partitions of others", "evict one, µs", "evict 512, µs a block", "clear 512, µs")
        table = Table(f"Adapter partitions of other replicas on {self._server.label}", heads, [])
        found: dict[str, list[list[float]]] = {"evict": [], "clear": []}
        self._server.flush()
        self._filled = 0
        await self._fill(min(self._scale.sizes))
        for others in self._scale.others:
            for number in range(others):
                adapter = Partition(data.PARTITION.hash_scheme, f"lora-{number}")
                await data.report(
                    self._store, data.random_keys(16, self._random), data.replicas(1, "tenant"), partition=adapter
                )
            one, many, clear = await self._evict_one(), await self._evict_many(), await self._clear()
            per_block = spread(cost / PROMPT for cost in _medians(many))
            table.rows.append((others, spread(_medians(one)), per_block, spread(_medians(clear))))
            found["evict"].append(_medians(one))
            found["clear"].append(_medians(clear))
        item.tables.append(table)
        for name, series in found.items():
            item.figures[f"{name}_partitions_ratio_{self._server.kind}"] = ratios(series[-1], series[0])

    async def _fill(self, placements: int) -> None:
        await data.fill(self._store, placements - self._filled, self._random)
        self._filled = max(self._filled, placements)

    def _name(self) -> str:
        """Return the id of a replica that has not been here."""
        self._names += 1
        return f"vllm-engine-7d9c6b5f4-w{self._names:05d}"

    async def _series(self, act: Act) -> list[list[Operation]]:
        """Meter some operations a run."""
        each = self._scale.writes
        return [
            [await self._meter.operation(act(run * each + at)) for at in range(each)] for run in range(self._scale.runs)
        ]

    async def _report(self, keys: bytes, holder: str, at_ms: int | None = None) -> None:
        await data.report(self._writer, keys, [holder], at_ms=at_ms)

    def _reporting(self, chains: Sequence[bytes], holder: str) -> Act:
        """Return the operation that reports the chain of its number."""
        return lambda at: self._report(chains[at], holder)

    async def _lookup(self) -> Spread:
        chains = [data.random_keys(PROMPT, self._random) for _ in range(8)]
        for keys in chains:
            await data.report(self._store, keys, data.replicas(HOLDERS))
        return medians(await measure(self._server, self._scale, lambda at: look_up(self._store, chains[at % 8])))

    async def _new(self) -> list[list[Operation]]:
        name = self._name()
        return await self._series(lambda _: self._report(data.random_keys(PROMPT, self._random), name))

    async def _reported(self) -> tuple[str, list[bytes]]:
        """Let a new replica report some chains."""
        name = self._name()
        chains = [data.random_keys(PROMPT, self._random) for _ in range(self._scale.runs * self._scale.writes)]
        for keys in chains:
            await data.report(self._store, keys, [name])
        return name, chains

    async def _evict_one(self) -> list[list[Operation]]:
        name, chains = await self._reported()
        return await self._series(lambda at: self._evict(name, chains[at][-KEY_BYTES:]))

    async def _evict_many(self) -> list[list[Operation]]:
        name, chains = await self._reported()
        return await self._series(lambda at: self._evict(name, chains[at]))

    async def _evict(self, name: str, keys: bytes) -> int:
        return await self._writer.evict(data.MODEL, name, Removal(keys, ((0, None),)))

    async def _clear(self) -> list[list[Operation]]:
        names = [self._name() for _ in range(self._scale.runs * self._scale.writes)]
        for name in names:
            await data.report(self._store, data.random_keys(PROMPT, self._random), [name])
        return await self._series(lambda at: self._writer.clear(data.MODEL, names[at], fence_ms=None))

    async def _sweep(self) -> list[list[Operation]]:
        """Meter sweeps that find one expired chain each."""
        series = []
        for _ in range(self._scale.runs):
            keys = data.random_keys(PROMPT, self._random)
            await data.report(self._store, keys, [self._name()], at_ms=_EXPIRED_MS)
            series.append([await self._meter.operation(self._writer.expire(lambda _: _EXPIRED_MS))])
        return series


def _medians(series: list[list[Operation]]) -> list[float]:
    """Return each run's median operation, in microseconds."""
    return [spread(operation.total_us for operation in run).median for run in series]


def _longest(series: list[list[Operation]]) -> float:
    """Return the longest call that any operation made, in microseconds."""
    return max(operation.longest_us for run in series for operation in run)
