"""How many lookups a server answers, how long they take, and what a second server or a second worker adds."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from loadtest.bench.client import Sample, connected, keep_busy
from loadtest.bench.lookup_cpu import indexed
from loadtest.bench.redis_process import RedisProcess, started
from loadtest.bench.result import Curve, Item, Table
from loadtest.bench.scale import Scale
from loadtest.bench.servers import ServerProcess, has_flag, held, serving, several
from loadtest.bench.stats import Spread, ratios, spread

PROMPT = 512
SHARE = 0.25
"""Of one core, for each server when servers are compared: so that the machine is not what is measured."""
_CONNECTIONS = 8
_IN_FLIGHT = 32
_HEADS = (
    "in flight",
    "calls/s",
    "p50, ms",
    "p99, ms",
    "p99.9, ms",
    "server, µs a call",
    "Redis, µs a call",
    "unmatched",
)
_METHOD = (
    "Lookups of 512 blocks that 4 replicas hold whole, from a client that keeps so many in flight and shares the "
    "machine's cores with the servers and Redis; absolute rates belong to this machine and its other work. When "
    f"servers are compared, each is held to {SHARE:g} of a core by stopping it when it is ahead, so that latencies "
    "there say nothing."
)
_WARM_S = 0.2
_GRANTED = 0.8
"""Least part of its share that a server must have got."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run: what the client saw, and the processor microseconds of all servers and of Redis for each call."""

    sample: Sample
    server_us: float
    redis_us: float


async def run(scale: Scale) -> Item:
    """Measure one server, several, and several workers."""
    item = Item("throughput", "Throughput and latency", _METHOD)
    with started("valkey") as redis:
        with serving(redis.url) as server:
            async with connected(server.address) as (client,):
                request = await indexed(client, PROMPT)
            await _one(redis, server, request, scale, item)
        await _several(redis, request, scale, item)
        await _workers(redis, request, scale, item)
    return item


async def _one(redis: RedisProcess, server: ServerProcess, request: bytes, scale: Scale, item: Item) -> None:
    table = Table("One server", _HEADS, [])
    lines: dict[str, list[tuple[float, Spread]]] = {"p50": [], "p99": []}
    for in_flight in scale.in_flight:
        runs = await load(redis, [server], request, scale, in_flight)
        table.rows.append((in_flight, *_cells(runs)))
        for name, share in (("p50", 0.5), ("p99", 0.99)):
            lines[name].append((in_flight, spread(run.sample.at(share) for run in runs)))
    item.tables.append(table)
    item.curves.append(Curve("latency", "One server: latency of a lookup", "lookups in flight", "ms", "xy", lines))


async def _several(redis: RedisProcess, request: bytes, scale: Scale, item: Item) -> None:
    """Compare one, two and four servers, each held to the same share of a core; all are up, and take turns."""
    title = f"Servers on one Redis, each held to {SHARE:g} of a core"
    table = Table(title, ("servers", *_HEADS, "share of a core that each got", "calls/s against one"), [])
    found: dict[int, list[Run]] = {count: [] for count in scale.servers}
    with several(max(scale.servers), redis.url) as servers, ExitStack() as stack:
        for server in servers:
            stack.enter_context(held(server, SHARE))
        for _ in range(scale.runs):
            for count, runs in found.items():
                runs.append(await once(redis, servers[:count], request, 8 * count, 2 * scale.seconds))
    one = found[1]
    for count, runs in found.items():
        against = ratios([run.sample.rate for run in runs], [run.sample.rate for run in one])
        shares = spread(run.server_us * run.sample.rate / 1e6 / count for run in runs)
        table.rows.append((count, 8 * count, *_cells(runs), shares, against))
        costs = ratios([run.server_us + run.redis_us for run in runs], [run.server_us + run.redis_us for run in one])
        if shares.median < _GRANTED * SHARE:
            item.notes.append(f"The machine was too busy to give {count} servers their share: their rate says nothing.")
        elif count == 2:  # noqa: PLR2004 - the figure
            item.figures["two_servers_ratio"] = against
        if count == 2:  # noqa: PLR2004 - the figure
            item.figures["two_servers_cost_ratio"] = costs
    item.tables.append(table)


async def _workers(redis: RedisProcess, request: bytes, scale: Scale, item: Item) -> None:
    if not scale.workers:
        return
    if not has_flag("--workers"):
        item.notes.append("This version has no `--workers`: left out.")
        return
    table = Table(f"Workers of one server, {_IN_FLIGHT} in flight", ("workers", *_HEADS), [])
    for count in scale.workers:
        with serving(redis.url, "--workers", str(count)) as server:
            runs = await load(redis, [server], request, scale, _IN_FLIGHT)
        table.rows.append((count, _IN_FLIGHT, *_cells(runs)))
    item.tables.append(table)


async def load(
    redis: RedisProcess, servers: Sequence[ServerProcess], request: bytes, scale: Scale, in_flight: int
) -> list[Run]:
    """Keep servers busy for some runs."""
    return [await once(redis, servers, request, in_flight, scale.seconds) for _ in range(scale.runs)]


async def once(
    redis: RedisProcess, servers: Sequence[ServerProcess], request: bytes, in_flight: int, seconds: float
) -> Run:
    """Keep servers busy for one run, warmed up; on many connections, so that workers all get some."""
    addresses = [server.address for server in servers] * (_CONNECTIONS // len(servers))
    async with connected(*addresses) as clients:
        await keep_busy(clients, [request], in_flight, seconds=_WARM_S)
        before = sum(server.cpu_s() for server in servers), redis.cpu_s()
        sample = await keep_busy(clients, [request], in_flight, seconds=seconds)
        calls = len(sample.latencies_ms)
        spent = sum(server.cpu_s() for server in servers) - before[0], redis.cpu_s() - before[1]
    return Run(sample, 1e6 * spent[0] / calls, 1e6 * spent[1] / calls)


def _cells(runs: Sequence[Run]) -> tuple[Spread | int, ...]:
    samples = [run.sample for run in runs]
    return (
        spread(sample.rate for sample in samples),
        *(spread(sample.at(share) for sample in samples) for share in (0.5, 0.99, 0.999)),
        spread(run.server_us for run in runs),
        spread(run.redis_us for run in runs),
        sum(sample.unmatched for sample in samples),
    )
