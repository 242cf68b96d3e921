"""What each call of the index asks of Redis, counted: a guard against creeping cost that no busy machine can blur.

Scripts are loaded and the model is announced before anything is counted. A *trip* is a script that the store calls and
waits for, a *step* is a command that such a script gives.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from inference_cache._pb.inferencecache_pb2_grpc import InferenceCacheStub
from inference_cache.domain.models import Partition, Removal
from inference_cache.metrics import Metrics
from inference_cache.store.connection import open_connection
from inference_cache.store.redis import RedisStore
from tests.contract.build import BASE, Client, blocks, gone, key, long_chain, series
from tests.rpc import wire
from tests.support.process import serving
from tests.support.servers import Server

_TRIPS = {"evalsha", "evalsha_ro"}
_NOT_OURS = {"info", "config|resetstat", "config|get", "time", "ping", "client|setinfo"}
"""The count itself, and what a connection asks about its server from time to time."""


@dataclass(frozen=True)
class Cost:
    """What a call asked of Redis."""

    trips: int
    steps: int

    def within(self, trips: int, steps: int) -> bool:
        """Tell whether neither is exceeded."""
        return self.trips <= trips and self.steps <= steps


class Counted:
    """A client of the index that tells what a call asked of Redis."""

    def __init__(self, server: Server, store: RedisStore) -> None:
        self.server = server
        self.store = store
        self.client = Client(store)

    async def cost(self, work: Awaitable[object]) -> Cost:
        """Do something and return its trips and its steps."""
        self.server.ask("CONFIG", "RESETSTAT")
        await work
        asked = {name: calls for name, calls in commands(self.server).items() if name not in _NOT_OURS}
        trips = sum(asked.pop(name, 0) for name in _TRIPS)
        return Cost(trips, sum(asked.values()))

    async def lookup(self, keys: bytes) -> Cost:
        """Return the cost of a lookup."""
        return await self.cost(self.client.runs(keys))

    async def tell(self, replica_id: str, keys: bytes, partition: Partition = BASE) -> Cost:
        """Return the cost of a report."""
        return await self.cost(self.client.report(replica_id, *long_chain(keys, partition)))

    async def evict(self, replica_id: str, removal: Removal) -> Cost:
        """Return the cost of an eviction."""
        return await self.cost(self.store.evict(self.client.model, replica_id, removal))


def commands(server: Server) -> dict[str, int]:
    """Return how often each command was called since the last reset, those of scripts included."""
    with server.admin() as admin:
        counted = admin.info("commandstats")
    return {name.removeprefix("cmdstat_"): int(of["calls"]) for name, of in counted.items()}


@pytest.fixture
async def counted(own_valkey: Server) -> AsyncIterator[Counted]:
    """Yield an index in which four replicas hold a chain of 512 blocks."""
    store = RedisStore(await open_connection(own_valkey.url))
    await store.warm_up()
    found = Counted(own_valkey, store)
    for replica_id in "abcd":
        await found.tell(replica_id, series("prompt", 512))
    yield found
    await store.close()


@pytest.mark.parametrize("length", [1, 16, 512])
async def test_a_lookup_is_one_trip_of_few_steps(counted: Counted, length: int) -> None:
    """However long the matched prompt is, it takes one script, and in it three steps a segment and three more."""
    assert (await counted.lookup(blocks(series("prompt", 512), 0, length))).within(1, 8)


async def test_a_long_lookup_costs_steps_by_the_segment(counted: Counted) -> None:
    """A prompt of 8192 blocks lies in eight segments and takes one trip."""
    long = series("long", 8192)
    await counted.tell("a", long)
    assert (await counted.lookup(long)).within(1, 3 * 8 + 5)


async def test_a_prompt_that_nobody_knows_ends_at_its_first_block(counted: Counted) -> None:
    """A miss looks for one block and for who serves."""
    assert (await counted.lookup(series("unknown", 512))).within(1, 4)


async def test_one_block_is_looked_up_in_one_trip(counted: Counted) -> None:
    """An exact lookup brings the holders and, on a miss, the statistics of the others without a second trip."""
    for wanted in (key(("prompt", 7)), key("unknown")):
        work = counted.store.lookup_exact(counted.client.model, BASE, wanted, expired_at_ms=0, want_warm=True)
        assert (await counted.cost(work)).within(1, 8)


@pytest.mark.parametrize("length", [1, 512])
async def test_a_report_is_one_trip_and_a_word_to_the_catalog(counted: Counted, length: int) -> None:
    """New blocks, the same again, and those of another replica all take the same few steps, however many they are."""
    keys = series("new", length)
    for replica_id in ("a", "a", "b"):
        assert (await counted.tell(replica_id, keys)).within(2, 52)


async def test_long_reports_cost_a_trip_for_each_512_blocks(counted: Counted) -> None:
    """A chain of 4096 blocks is eight trips and one word to the catalog."""
    assert (await counted.tell("a", series("long", 4096))).trips <= 8 + 1


async def test_an_eviction_is_one_trip_and_a_word_to_the_catalog(counted: Counted) -> None:
    """One block takes few steps; a bulk of 512 takes at most one more step of removal, not one for each block."""
    keys = series("prompt", 512)
    assert (await counted.evict("a", gone(blocks(keys, 511)))).within(2, 52)
    assert (await counted.evict("a", gone(blocks(keys, 0, 511)))).within(4, 112)


async def test_evictions_do_not_see_the_adapters_of_others(counted: Counted) -> None:
    """What one eviction costs is the same beside a hundred adapter partitions in which others hold something."""
    keys = series("prompt", 512)
    alone = await counted.evict("a", gone(blocks(keys, 511)))
    for number in range(100):
        await counted.tell("z", series(number, 2), Partition("vllm", f"lora-{number}"))
    assert await counted.evict("a", gone(blocks(keys, 510, 511))) == alone


async def test_a_clear_costs_trips_by_what_is_held(counted: Counted) -> None:
    """A replica of one segment is cleared in a handful of trips, whatever others hold."""
    assert (await counted.cost(counted.client.clear("a"))).within(4, 112)


async def test_a_lookup_makes_no_object_for_a_block(counted: Counted) -> None:
    """The memory a long lookup takes on its way is a few copies of its keys, far from one object for each of them."""
    long = series("long", 8192)
    await counted.tell("a", long)
    await counted.client.runs(long)
    tracemalloc.start()
    await counted.client.runs(long)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 6 * len(long)


async def test_a_lookup_through_the_server_is_one_trip(own_valkey: Server, tmp_path: Path) -> None:
    """LookupRoute asks Redis once: policy, scope, holders and statistics come without a second question."""
    quiet = ("--sweep-period", "1h", "--log-level", "info")
    hashes = wire.hs(*range(64))
    with serving(tmp_path, "--redis-url", own_valkey.url, *quiet) as server:
        async with grpc.aio.insecure_channel(server.grpc) as channel:
            client = wire.Wire(InferenceCacheStub(channel), wire.Policies(), Metrics())
            await client.report("a", wire.chain(hashes))
            await client.report("b", wire.chain(wire.hs("other")))
            assert (await client.lookup(**wire.asks(hashes))).reason_code == "PREFIX_MATCH"
            own_valkey.ask("CONFIG", "RESETSTAT")
            for _ in range(50):
                await client.lookup(**wire.asks(hashes))
            trips = sum(calls for name, calls in commands(own_valkey).items() if name in _TRIPS)
    # The server's own upkeep may fall into the count, a second question of each lookup would double it.
    assert 50 <= trips < 60
