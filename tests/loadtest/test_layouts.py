"""The layouts that the index is compared with give the same answers, or the comparison would be of nothing."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest
import redis

from inference_cache.domain.models import KEY_BYTES
from inference_cache.store.connection import open_connection
from inference_cache.store.redis import RedisStore
from loadtest.bench import data
from loadtest.bench.costs import look_up, metered, opened
from loadtest.bench.layouts import LAYOUTS, Layout
from loadtest.bench.redis_process import binaries, started
from tests.support.servers import Server


@pytest.fixture
def client(own_valkey: Server) -> Iterator[redis.Redis]:
    """Yield a plain client of an empty server."""
    with own_valkey.admin() as client:
        yield client


def held(keys: bytes, blocks: int) -> bytes:
    """Return the head of a chain."""
    return keys[: blocks * KEY_BYTES]


@pytest.mark.parametrize("kind", LAYOUTS)
async def test_layouts_answer_as_the_index_does(kind: type, own_valkey: Server, client: redis.Redis) -> None:
    """The same reports give the same depths for the same questions: whole, in part, beyond the end, from the middle."""
    random = Random(7)
    layout: Layout = kind(client)
    store = RedisStore(await open_connection(own_valkey.url))
    chains = [data.random_keys(length, random) for length in (1, 40, 300, 700)]
    for number, keys in enumerate(chains):
        holders = data.replicas(1 + number)
        layout.write(keys, holders)
        await data.report(store, keys, holders)
    questions = [*chains, *(keys[: len(keys) // 16 * 8] for keys in chains), chains[1] + data.random_keys(9, random)]
    questions += [chains[2][8:], data.random_keys(5, random), chains[3] + chains[1]]
    for keys in questions:
        evidence = await store.lookup_chain(data.MODEL, data.PARTITION, keys, expired_at_ms=0)
        expected = {run.replica_id: run.blocks for run in evidence.runs}
        assert layout.lookup(keys) == expected
        assert layout.lookup(keys, 3) == expected
    await store.close()


@pytest.mark.parametrize("kind", LAYOUTS)
def test_runs_end_where_a_replica_stops_holding(kind: type, client: redis.Redis) -> None:
    """A replica that holds only the head is left behind there and never comes back."""
    random = Random(8)
    head, tail = data.random_keys(3, random), data.random_keys(300, random)
    layout: Layout = kind(client)
    layout.write(head, ["a", "b"])
    layout.write(tail, ["b", "c"])
    assert layout.lookup(head + tail) == {"a": 3, "b": 303}
    assert layout.lookup(tail + head) == {"b": 303, "c": 300}


@pytest.mark.parametrize(
    ("blocks", "runs", "segments"), [(1, 1, 1), (512, 1, 1), (512, 8, 8), (700, 4, 4), (2048, 1, 2)]
)
async def test_chains_are_cut_as_asked(blocks: int, runs: int, segments: int) -> None:
    """A benchmark that says "eight segments" has eight: runs are stored apart, and long ones at 1,024 blocks."""
    random = Random(9)
    with started("valkey") as server:
        async with opened(server) as store:
            keys = data.random_keys(blocks, random)
            await data.report(store, keys, data.replicas(2), runs=runs)
            assert data.segments_walked(server, [keys]) == [segments]


async def test_a_filled_index_holds_what_it_says() -> None:
    """The size of the index around a measurement is the one on its label, to one chain."""
    with started("valkey") as server:
        async with opened(server) as store:
            await data.fill(store, 10_000, Random(10))
            state = await store.state(data.MODEL)
            assert 10_000 <= state.total_prefixes < 10_000 + 512


@pytest.mark.parametrize("kind", binaries())
async def test_costs_are_those_of_the_calls_made(kind: str) -> None:
    """The meter counts the calls since it was reset, and no others."""
    with started(kind) as server:
        async with opened(server) as store:
            keys = data.random_keys(20, Random(11))
            await data.report(store, keys, ["r"])
            server.reset()
            assert server.cost().calls == 0
            for _ in range(7):
                await look_up(store, keys)
            cost = server.cost()
    assert cost.calls == 7
    assert 0 < cost.median_us <= cost.longest_us
    assert cost.cpu_us > 0


async def test_operations_are_metered_call_by_call() -> None:
    """Each script of an operation is named and has its own cost, and the next operation begins at nothing."""
    with started("valkey") as server:
        async with opened(server) as store, metered(server) as (writer, meter):
            keys = data.random_keys(1100, Random(12))
            await data.report(store, keys, ["r"])
            told = await meter.operation(data.report(writer, keys, ["s"]))
            asked = await meter.operation(look_up(writer, keys))
    assert len(told.calls_us["ingest"]) == 3
    assert {name: len(calls) for name, calls in asked.calls_us.items()} == {"lookup_chain": 1}
    assert 0 < told.longest_us < told.total_us
    assert asked.longest_us == asked.total_us > 0
