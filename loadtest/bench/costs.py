"""How the cost of calls to Redis is taken: in bursts for one script, call by call for operations of several.

The index is driven through :class:`~inference_cache.store.redis.RedisStore`, as a server drives it, so that what is
measured is what is served.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import cast

from inference_cache.store.connection import Connection, open_connection
from inference_cache.store.redis import RedisStore
from loadtest.bench import data
from loadtest.bench.metered import Metered
from loadtest.bench.redis_process import Cost, RedisProcess
from loadtest.bench.scale import Scale
from loadtest.bench.stats import Spread, spread

PROMPT = 512
HOLDERS = 4
COLUMNS = ("median call, µs", "mean call, µs", "process time, µs")
BURST = 16
"""Calls that are sent together."""


@asynccontextmanager
async def opened(server: RedisProcess) -> AsyncIterator[RedisStore]:
    """Empty a server and open a store on it, scripts loaded."""
    server.flush()
    store = RedisStore(await open_connection(server.url))
    try:
        await store.warm_up()
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def metered(server: RedisProcess) -> AsyncIterator[tuple[RedisStore, Metered]]:
    """Open a store whose every call is metered, on the server as it is."""
    meter = Metered(await open_connection(server.url), server)
    store = RedisStore(cast("Connection", meter))
    try:
        yield store, meter
    finally:
        await store.close()


async def measure(
    server: RedisProcess, scale: Scale, call: Callable[[int], Awaitable[object]], *, burst: int = BURST
) -> list[Cost]:
    """Call with the number of the call, some times a run, and return each run's cost.

    Calls come in bursts, since a Redis that sleeps between calls measures its cold caches.
    """
    costs = []
    for run in range(scale.runs):
        server.reset()
        for at in range(0, scale.calls, burst):
            await asyncio.gather(*(call(run * scale.calls + at + k) for k in range(min(burst, scale.calls - at))))
        costs.append(server.cost())
    return costs


async def look_up(store: RedisStore, keys: bytes) -> int:
    """Look a chain up; return how many replicas hold some of it."""
    evidence = await store.lookup_chain(data.MODEL, data.PARTITION, keys, expired_at_ms=0)
    return len(evidence.runs)


def medians(costs: Sequence[Cost]) -> Spread:
    """Return the spread of the runs' median calls."""
    return spread(cost.median_us for cost in costs)


def columns(costs: Sequence[Cost]) -> tuple[Spread, Spread, Spread]:
    """Return what stands under :data:`COLUMNS`."""
    return medians(costs), spread(cost.mean_us for cost in costs), spread(cost.cpu_us for cost in costs)
