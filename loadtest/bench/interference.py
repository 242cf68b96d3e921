"""Whether lookups are kept waiting while an index is being changed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from random import Random

from inference_cache.domain.models import KEY_BYTES
from inference_cache.store.connection import open_connection
from inference_cache.store.redis import RedisStore
from loadtest.bench import data
from loadtest.bench.client import Client, Sample, chain_update, clearing, connected, eviction, keep_pace
from loadtest.bench.costs import PROMPT
from loadtest.bench.lookup_cpu import indexed
from loadtest.bench.redis_process import RedisProcess, started
from loadtest.bench.result import Item, Table
from loadtest.bench.scale import Scale
from loadtest.bench.servers import serving
from loadtest.bench.stats import ratios, spread

RATE = 200
"""Lookups a second."""
EVICTIONS = 20
"""Single evictions a second."""
INGEST = 50_000
"""New blocks a second."""
DOOMED = "vllm-engine-7d9c6b5f4-doomed"
BUSY = tuple(data.replicas(4, "busy"))
"""Who holds what a phase puts in."""
_SEED = 20_246
_RESTLESS = 8
"""Idle p99 over idle median beyond which a machine is too busy to tell."""
_METHOD = (
    "200 lookups a second of 512 blocks that 4 replicas hold, through one server, latencies counted from the moment "
    "a call was due. Each phase is preceded by an idle one, and its figure is the ratio of the two p99. The phases: "
    "20 evictions of one block a second; one replica cleared; 50,000 new blocks a second in updates of 512. Client, "
    "server and Redis share the machine's cores."
)


class Scene:
    """The index under test, and the clients that disturb it, on connections of their own."""

    def __init__(self, redis: RedisProcess, clients: list[Client], random: Random) -> None:
        self.redis = redis
        self.clients = clients
        self.random = random
        self.tails: list[bytes] = []
        self.sent = 0


Disturb = Callable[[Scene], Coroutine[None, None, None]]
Prepare = Callable[[Scene, RedisStore, Scale], Coroutine[None, None, None]]


async def run(scale: Scale) -> Item:
    """Measure on the package's Valkey."""
    item = Item("interference", "Lookups while the index changes", _METHOD)
    heads = ("meanwhile", "p50, ms", "p99, ms", "p99 idle, ms", "p99 against idle", "done meanwhile")
    table = Table(f"Lookups at {RATE}/s, {scale.busy_index:,} placements", heads, [])
    random = Random(_SEED)
    with started("valkey") as redis, serving(redis.url) as server:
        store = RedisStore(await open_connection(redis.url))
        await data.fill(store, scale.busy_index, random)
        async with connected(*[server.address] * (1 + len(BUSY))) as (client, *others):
            scene = Scene(redis, others, random)
            request = await indexed(client, PROMPT)
            await keep_pace(client, [request], RATE, 0.5)
            for name, word, prepare, disturb in (
                (f"{EVICTIONS} evictions/s", "evictions", _prepare_evictions, _evict),
                (f"one replica of {scale.busy_clear:,} blocks cleared", "clear", _prepare_clear, _clear),
                (f"ingest at {INGEST:,} blocks/s", "ingest", _prepare_nothing, _ingest),
            ):
                idle, busy = [], []
                for _ in range(scale.runs):
                    idle.append(await _phase(scene, client, request, scale))
                    await prepare(scene, store, scale)
                    scene.sent = 0
                    busy.append(await _phase(scene, client, request, scale, disturb))
                    await _forget(client)
                _judge(item, table, (name, word, scene.sent), idle, busy)
        await store.close()
    item.tables.append(table)
    return item


def _judge(
    item: Item, table: Table, done: tuple[str, str, int], idle: Sequence[Sample], busy: Sequence[Sample]
) -> None:
    """Add what one kind of disturbance did."""
    name, word, sent = done
    against = ratios([one.at(0.99) for one in busy], [one.at(0.99) for one in idle])
    cells = [spread(one.at(share) for one in busy) for share in (0.5, 0.99)]
    table.rows.append((name, *cells, spread(one.at(0.99) for one in idle), against, f"{sent:,}"))
    item.figures[f"interference_{word}_ratio"] = against
    restless = spread(one.at(0.99) / one.at(0.5) for one in idle).median
    if restless > _RESTLESS:
        item.notes.append(
            f"Beside {word}, the idle p99 was {restless:.0f} times the idle median: other work on the machine, not the "
            "index, decided it, and the ratio says little."
        )


async def _forget(client: Client) -> None:
    """Take out what a phase has put in, so that the index keeps its size."""
    for name in (DOOMED, *BUSY):
        await client.publish(clearing(name))


async def _phase(scene: Scene, client: Client, request: bytes, scale: Scale, disturb: Disturb | None = None) -> Sample:
    task = asyncio.create_task(disturb(scene)) if disturb else None
    sample = await keep_pace(client, [request], RATE, scale.seconds)
    if task:
        task.cancel()
        (outcome,) = await asyncio.gather(task, return_exceptions=True)
        if isinstance(outcome, Exception):
            raise outcome
    return sample


async def _prepare_evictions(scene: Scene, store: RedisStore, scale: Scale) -> None:
    """Let a replica hold what will be evicted, from the tails of its chains."""
    needed = int(EVICTIONS * (scale.seconds + 1))
    chains = [data.random_keys(PROMPT, scene.random) for _ in range(needed)]
    for keys in chains:
        await data.report(store, keys, [DOOMED])
    scene.tails = [keys[-KEY_BYTES:] for keys in chains]


async def _evict(scene: Scene) -> None:
    for sent, key in enumerate(scene.tails, 1):
        await scene.clients[0].publish(eviction(DOOMED, key))
        scene.sent = sent
        await asyncio.sleep(1 / EVICTIONS)


async def _prepare_clear(scene: Scene, store: RedisStore, scale: Scale) -> None:
    """Let a replica hold much."""
    for _ in range(scale.busy_clear // PROMPT):
        await data.report(store, data.random_keys(PROMPT, scene.random), [DOOMED])


async def _clear(scene: Scene) -> None:
    await scene.clients[0].publish(clearing(DOOMED))
    scene.sent = 1


async def _prepare_nothing(scene: Scene, store: RedisStore, scale: Scale) -> None:
    pass


async def _ingest(scene: Scene) -> None:
    """Send updates on a stream a client, evenly, so many blocks a second in all; count what was handed to gRPC."""
    loop = asyncio.get_running_loop()
    began = loop.time()

    async def updates(number: int) -> AsyncIterator[bytes]:
        while True:
            due = began + (scene.sent + PROMPT) / INGEST
            await asyncio.sleep(max(0.0, due - loop.time()))
            scene.sent += PROMPT
            yield chain_update(BUSY[number], data.random_keys(PROMPT, scene.random))

    await asyncio.gather(*(client.stream(updates(number)) for number, client in enumerate(scene.clients)))
