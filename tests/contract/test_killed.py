"""A server that is killed between two calls leaves nothing that a sweep of another one does not finish."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from inference_cache.store.redis import RedisStore
from tests.contract.build import NOW, TTL, Client
from tests.contract.mortal import ACTS, LONG, SHORT, furnish, live
from tests.contract.stores import check_at_rest, forget, opened
from tests.support.servers import Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
async def survivor(valkey: Server, key_prefix: str) -> AsyncIterator[RedisStore]:
    """Yield the store of a server that lives on."""
    async with opened(valkey.url, key_prefix) as store:
        yield store
    forget(valkey, key_prefix)


@pytest.mark.parametrize("act", sorted(ACTS))
async def test_a_sweep_finishes_what_the_dead_began(
    valkey: Server, survivor: RedisStore, key_prefix: str, act: str
) -> None:
    """Wherever it was killed, a sweep leaves an index at rest, others' blocks untouched, and clears empty it."""
    client = Client(survivor)
    calls, came_through = 0, False
    while not came_through:
        await furnish(client)
        came_through = await asyncio.to_thread(live, valkey.url, key_prefix, act, calls)
        swept = await survivor.expire(lambda _: ACTS[act].expired_at_ms)
        assert swept.failed == 0
        check_at_rest(valkey, key_prefix)
        assert (await client.depths(LONG))["other"] == 700
        assert (await client.depths(SHORT[3]))["other"] == 12
        assert (await client.presence()).model
        for replica_id in ("fixed", "other", "mortal"):
            await client.clear(replica_id)
        assert not (await client.presence(expired=0)).index
        check_at_rest(valkey, key_prefix)
        calls += 1
    assert calls > 4


async def test_what_the_dead_stored_is_a_prefix_of_its_report(
    valkey: Server, survivor: RedisStore, key_prefix: str
) -> None:
    """Batches are stored in order and each whole: after any number of calls, so many batches are found."""
    client = Client(survivor)
    depths = []
    for calls in range(12):
        await asyncio.to_thread(live, valkey.url, key_prefix, "report", calls)
        depths.append((await client.depths(LONG)).get("mortal", 0))
        await client.clear("mortal")
    assert set(depths) == {0, 512, 1024, 1536, 1900}
    assert depths == sorted(depths)


async def test_a_cleared_replica_is_invisible_before_it_is_freed(
    valkey: Server, survivor: RedisStore, key_prefix: str
) -> None:
    """The first step of a clear hides everything; dead after it, the sweep takes out what is left."""
    client = Client(survivor)
    await furnish(client)
    seen = []
    for calls in range(5):
        await asyncio.to_thread(live, valkey.url, key_prefix, "clear", calls)
        seen.append(await client.depths(LONG))
    assert seen[0] == {"fixed": 1900, "other": 700}
    assert seen[-1] == {"other": 700}
    assert set(map(len, seen)) == {1, 2}
    assert await client.serving() == ("other",)
    await survivor.expire(lambda _: NOW - TTL)
    assert await client.prefixes() == 700 + 9 + 12
    check_at_rest(valkey, key_prefix)


async def test_a_clear_sent_again_is_exact_at_its_ack(valkey: Server, survivor: RedisStore, key_prefix: str) -> None:
    """A producer whose clear died with its server sends it again: once acknowledged, nothing of it is counted."""
    client = Client(survivor)
    for calls in range(5):
        await furnish(client)
        await asyncio.to_thread(live, valkey.url, key_prefix, "clear", calls)
        await client.clear("fixed")
        assert await client.prefixes() == 700 + 9 + 12
        check_at_rest(valkey, key_prefix)
