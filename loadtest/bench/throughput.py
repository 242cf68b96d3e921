"""How many lookups a server answers, how long they take, and what a second server or a second worker adds."""

from __future__ import annotations

from contextlib import ExitStack

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
Runs = list[tuple[Sample, float, float]]
"""Of each run: the sample, the servers' and Redis' microseconds a call."""


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
            lines[name].append((in_flight, spread(sample.at(share) for sample, _, _ in runs)))
    item.tables.append(table)
    item.curves.append(Curve("latency", "One server: latency of a lookup", "lookups in flight", "ms", "xy", lines))


async def _several(redis: RedisProcess, request: bytes, scale: Scale, item: Item) -> None:
    """Compare one, two and four servers, each held to the same share of a core."""
    table = Table(
        f"Servers on one Redis, each held to {SHARE:g} of a core", ("servers", *_HEADS, "calls/s against one"), []
    )
    rates: dict[int, list[float]] = {}
    costs: dict[int, list[float]] = {}
    for count in scale.servers:
        with several(count, redis.url) as servers, ExitStack() as stack:
            for server in servers:
                stack.enter_context(held(server, SHARE))
            runs = await load(redis, servers, request, scale, 8 * count, seconds=2 * scale.seconds)
        rates[count] = [sample.rate for sample, _, _ in runs]
        costs[count] = [cpu + redis_us for _, cpu, redis_us in runs]
        table.rows.append((count, 8 * count, *_cells(runs), ratios(rates[count], rates[1])))
    item.tables.append(table)
    item.figures["two_servers_ratio"] = ratios(rates[2], rates[1])
    item.figures["two_servers_cost_ratio"] = ratios(costs[2], costs[1])


async def _workers(redis: RedisProcess, request: bytes, scale: Scale, item: Item) -> None:
    if not has_flag("--workers"):
        item.notes.append("This version has no `--workers`: left out.")
        return
    table = Table(f"Workers of one server, {_IN_FLIGHT} in flight", ("workers", *_HEADS), [])
    for count in (1, 2):
        with serving(redis.url, "--workers", str(count)) as server:
            runs = await load(redis, [server], request, scale, _IN_FLIGHT)
        table.rows.append((count, _IN_FLIGHT, *_cells(runs)))
    item.tables.append(table)


async def load(
    redis: RedisProcess,
    servers: list[ServerProcess],
    request: bytes,
    scale: Scale,
    in_flight: int,
    *,
    seconds: float = 0.0,
) -> Runs:
    """Keep servers busy for some runs; many connections, so that workers on one port all get some."""
    runs: Runs = []
    addresses = [server.address for server in servers] * (_CONNECTIONS // len(servers))
    async with connected(*addresses) as clients:
        await keep_busy(clients, [request], in_flight, seconds=0.3)
        for _ in range(scale.runs):
            before = sum(server.cpu_s() for server in servers), redis.cpu_s()
            sample = await keep_busy(clients, [request], in_flight, seconds=seconds or scale.seconds)
            calls = len(sample.latencies_ms)
            spent = sum(server.cpu_s() for server in servers) - before[0], redis.cpu_s() - before[1]
            runs.append((sample, 1e6 * spent[0] / calls, 1e6 * spent[1] / calls))
    return runs


def _cells(runs: Runs) -> tuple[Spread | int, ...]:
    samples = [sample for sample, _, _ in runs]
    return (
        spread(sample.rate for sample in samples),
        *(spread(sample.at(share) for sample in samples) for share in (0.5, 0.99, 0.999)),
        spread(cpu for _, cpu, _ in runs),
        spread(redis_us for _, _, redis_us in runs),
        sum(sample.unmatched for sample in samples),
    )
