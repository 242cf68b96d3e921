"""Reports and evictions through one server: new blocks, known blocks, short and long updates, decode-like traffic."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from random import Random
from typing import NamedTuple

from inference_cache.domain.models import KEY_BYTES
from inference_cache.store.connection import open_connection
from inference_cache.store.redis import RedisStore
from loadtest.bench import data
from loadtest.bench.client import Client, chain_update, clearing, connected, eviction
from loadtest.bench.redis_process import RedisProcess, started
from loadtest.bench.result import Curve, Item, Table
from loadtest.bench.scale import Scale
from loadtest.bench.servers import ServerProcess, serving
from loadtest.bench.stats import ratios, spread

UPDATES = (512, 16)
"""Blocks of one update."""
_STREAMS = 8
_EVENTS_IN_FLIGHT = 32
_SEED = 20_244
_METHOD = (
    "Updates go through gRPC on 8 streams of 8 replicas, serialized beforehand, until all are acknowledged, which "
    "means stored in Redis. Evictions are 32 `PublishEvent` calls in flight, of one block each or of 512 in the "
    "bulk list. Rates are on the wall and share the cores with the client; beside them is the processor time of "
    "server and Redis a block."
)
Work = Callable[[Sequence[Client]], Awaitable[None]]


async def run(scale: Scale) -> Item:
    """Measure on the package's Valkey."""
    item = Item("ingest", "Reports and evictions through a server", _METHOD)
    found: dict[int, list[list[_Sample]]] = {size: [] for size in UPDATES}
    heads = ("placements", "what", "blocks/s", "server, µs a block", "Redis, µs a block")
    table = Table("Through one server", heads, [])
    random = Random(_SEED)
    with started("valkey") as redis, serving(redis.url) as server:
        bench = Traffic(redis, server, scale, random)
        for size in scale.ingest_sizes:
            await bench.fill(size)
            async with connected(*[server.address] * _STREAMS) as clients:
                for blocks in UPDATES:
                    found[blocks].append(await bench.reports(clients, blocks, table))
                await bench.evictions(clients, table, item)
    item.tables.append(table)
    lines = {}
    for blocks, sizes in found.items():
        rates = [[one.rate for one in runs] for runs in sizes]
        costs = [[one.server_us + one.redis_us for one in runs] for runs in sizes]
        item.figures[f"ingest_e2e_{blocks}_rate"] = spread(rates[-1])
        if len(sizes) > 1:
            item.figures[f"ingest_e2e_{blocks}_flat"] = ratios(rates[-1], rates[0])
            item.figures[f"ingest_e2e_{blocks}_cost_flat"] = ratios(costs[-1], costs[0])
        points = zip(scale.ingest_sizes, map(spread, rates), strict=True)
        lines[f"updates of {blocks} blocks"] = [(float(size), rate) for size, rate in points]
    item.curves.append(Curve("ingest", "New blocks through one server", "placements", "blocks/s", "xy", lines))
    return item


class _Sample(NamedTuple):
    """Blocks a second, and processor time of the server and of Redis for each block."""

    rate: float
    server_us: float
    redis_us: float


class Traffic:
    """Producers of one server."""

    def __init__(self, redis: RedisProcess, server: ServerProcess, scale: Scale, random: Random) -> None:
        self._redis = redis
        self._server = server
        self._scale = scale
        self._random = random
        self._placements = 0

    async def fill(self, placements: int) -> None:
        """Put in blocks of others, past the server, until the index has so many."""
        store = RedisStore(await open_connection(self._redis.url))
        await data.fill(store, max(0, placements - self._placements), self._random)
        self._placements = max(self._placements, placements)
        await store.close()

    async def reports(self, clients: Sequence[Client], blocks: int, table: Table) -> list[_Sample]:
        """Report new blocks, then the same again, then take them out; return the samples of new ones."""
        total = self._scale.blocks if blocks > 16 else self._scale.blocks // 4  # noqa: PLR2004 - a few seconds each
        new, again = [], []
        for _ in range(self._scale.runs):
            streams = self._streams(total, blocks)
            new.append(await self._timed(clients, total, partial(_send, streams)))
            again.append(await self._timed(clients, total, partial(_send, streams)))
            await self._forget(clients, "producer")
        self._rows(table, f"new blocks, updates of {blocks}", new)
        self._rows(table, f"the same again, updates of {blocks}", again)
        return new

    async def evictions(self, clients: Sequence[Client], table: Table, item: Item) -> None:
        """Evict blocks that were reported before, one by one and in bulk."""
        for blocks, name in ((1, "single"), (512, "bulk")):
            total = self._scale.blocks // (20 if blocks == 1 else 2)
            found = []
            for _ in range(self._scale.runs):
                events = await self._evictable(clients, total, blocks)
                found.append(await self._timed(clients, total, partial(_publish, events)))
                await self._forget(clients, "evictee")
            self._rows(table, f"evictions of {blocks}", found)
            item.figures[f"evict_e2e_{name}_rate"] = spread(one.rate for one in found)

    async def _forget(self, clients: Sequence[Client], kind: str) -> None:
        """Take out what was put in for a run, so that the index keeps its size."""
        for holder in data.replicas(max(_STREAMS, len(clients)), kind):
            await clients[0].publish(clearing(holder))

    async def _evictable(self, clients: Sequence[Client], total: int, blocks: int) -> list[bytes]:
        """Report chains of 512 blocks and return the events that drop ``total`` of their blocks, from the tail."""
        holders = data.replicas(len(clients), "evictee")
        wanted = -(-total // blocks)
        events: list[bytes] = []
        chains = 0
        while len(events) < wanted:
            holder, keys = holders[chains % len(holders)], data.random_keys(512, self._random)
            await clients[chains % len(clients)].report([chain_update(holder, keys)])
            tail = len(keys) if blocks > 1 else 64 * KEY_BYTES
            events += [
                eviction(holder, keys[len(keys) - at - blocks * KEY_BYTES : len(keys) - at])
                for at in range(0, tail, blocks * KEY_BYTES)
            ]
            chains += 1
        return events[:wanted]

    def _streams(self, total: int, blocks: int) -> list[list[bytes]]:
        """Return the updates of each stream; an update is one chain, new to the index."""
        holders = data.replicas(_STREAMS, "producer")
        each = total // blocks // _STREAMS
        return [[chain_update(one, data.random_keys(blocks, self._random)) for _ in range(each)] for one in holders]

    async def _timed(self, clients: Sequence[Client], blocks: int, work: Work) -> _Sample:
        """Do the work and return what it took."""
        before = time.perf_counter(), self._server.cpu_s(), self._redis.cpu_s()
        await work(clients)
        seconds, server, redis = (
            now - then
            for now, then in zip((time.perf_counter(), self._server.cpu_s(), self._redis.cpu_s()), before, strict=True)
        )
        return _Sample(blocks / seconds, 1e6 * server / blocks, 1e6 * redis / blocks)

    def _rows(self, table: Table, what: str, runs: Sequence[_Sample]) -> None:
        table.rows.append((f"{self._placements:,}", what, *(spread(column) for column in zip(*runs, strict=True))))


async def _send(streams: Sequence[list[bytes]], clients: Sequence[Client]) -> None:
    await asyncio.gather(*(client.report(updates) for client, updates in zip(clients, streams, strict=True)))


async def _publish(events: Sequence[bytes], clients: Sequence[Client]) -> None:
    left = iter(events)

    async def publisher(client: Client) -> None:
        for event in left:
            await client.publish(event)

    await asyncio.gather(*(publisher(clients[at % len(clients)]) for at in range(_EVENTS_IN_FLIGHT)))
