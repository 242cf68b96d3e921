"""What the benchmarks send is what engines send: a benchmark of malformed messages would measure refusals."""

from __future__ import annotations

import time
from itertools import count
from random import Random

import pytest

from inference_cache._pb import inferencecache_pb2 as pb
from inference_cache.domain.blocks import block_key, split_keys
from loadtest.bench import data
from loadtest.bench.client import (
    Client,
    chain_update,
    clearing,
    connected,
    eviction,
    keep_busy,
    keep_pace,
    lookup_request,
    update,
    widened,
)
from loadtest.bench.lookup_cpu import indexed
from loadtest.bench.memory import grown
from loadtest.bench.redis_process import started
from loadtest.bench.servers import bare, serving


def test_hashes_are_as_wide_as_asked() -> None:
    """Wider hashes stay different from each other and from the narrow ones."""
    keys = data.random_keys(50, Random(1))
    wide = widened(keys, 32)
    assert {len(one) for one in wide} == {32}
    assert len({block_key(one) for one in wide} | set(split_keys(keys))) == 100
    assert widened(keys, 8) == split_keys(keys)


@pytest.mark.parametrize("blocks", [1, 3])
def test_evictions_name_their_blocks_once(blocks: int) -> None:
    """One block goes into the single field, several into the bulk list; nothing is named twice."""
    keys = data.random_keys(blocks, Random(2))
    event = pb.CacheEvent.FromString(eviction("r", keys))
    named = [event.prefix_hash] if event.prefix_hash else []
    assert [*named, *event.prefix_hashes] == split_keys(keys)
    assert bool(event.prefix_hash) == (blocks == 1)


async def test_a_server_takes_what_is_sent() -> None:
    """Against a real server: reports are found whole, decoded blocks continue chains, evictions and clears work."""
    keys = data.random_keys(40, Random(3))
    hashes = split_keys(keys)
    with started("valkey") as redis, serving(redis.url) as server:
        async with connected(server.address) as (client,):
            await client.report([chain_update("other", data.random_keys(4, Random(4)))])
            await client.report([chain_update("r", keys[: 38 * 8])])
            for name, at in (("[parent, new]", 38), ("lone entries", 39)):
                await client.report([update("r", [grown(name, hashes, at)])])
            assert await matched(client, keys) == 40 * data.BLOCK_TOKENS
            await client.publish(eviction("r", keys[30 * 8 : 31 * 8]))
            assert await matched(client, keys) == 30 * data.BLOCK_TOKENS
            await client.publish(eviction("r", keys[10 * 8 : 20 * 8]))
            assert await matched(client, keys) == 10 * data.BLOCK_TOKENS
            await client.publish(clearing("r"))
            assert await matched(client, keys) == 0


async def matched(client: Client, keys: bytes) -> int:
    """Return the tokens that the best hint matches."""
    answer = pb.LookupRouteResponse.FromString(await client.lookup(lookup_request(keys)))
    return max((score.matched_tokens for score in answer.replica_scores), default=0)


async def test_the_bare_server_answers_like_the_real_one() -> None:
    """The baseline sends the real response back, and the load generator counts its calls and those without a match."""
    with started("valkey") as redis, serving(redis.url) as server:
        async with connected(server.address) as (client,):
            request = await indexed(client, 20)
            response = await client.lookup(request)
            with bare(response) as plain:
                async with connected(plain.address, plain.address) as clients:
                    assert await clients[1].lookup(request) == response
                    busy = await keep_busy(clients, [request], 4, calls=30)
                    paced = await keep_pace(clients[0], [request], 500, 0.05)
            nothing = await keep_busy([client], [lookup_request(b"unknown!")], 2, calls=6)
    assert (len(busy.latencies_ms), busy.unmatched, busy.rate > 0) == (30, 0, True)
    assert (len(paced.latencies_ms), paced.unmatched) == (25, 0)
    assert (len(nothing.latencies_ms), nothing.unmatched) == (6, 6)


async def test_latencies_count_from_when_a_call_was_due() -> None:
    """A client or server that stands still is late for every call that was due meanwhile, not for one."""
    stall_s, asked = 0.05, count()

    class Stalling:
        @staticmethod
        async def lookup(_: bytes) -> bytes:
            if next(asked) == 0:
                time.sleep(stall_s)  # noqa: ASYNC251 - nobody else is served meanwhile
            return b"PREFIX_MATCH"

    sample = await keep_pace(Stalling, [b"request"], 1000, 0.02)  # type: ignore[arg-type]
    assert len(sample.latencies_ms) == 20
    assert min(sample.latencies_ms) >= 1000 * stall_s - 20
