"""One owner at a time has the lease, for as long as it renews it, and every new ownership has a higher token."""

from __future__ import annotations

import asyncio

from inference_cache.store.redis import RedisStore
from tests.contract.build import Client
from tests.contract.stores import check_at_rest
from tests.support.servers import Cluster, Server

LONG_MS = 3_600_000


async def test_the_first_gets_it_and_keeps_it(client: Client) -> None:
    """The owner may ask again and has the same token; others get nothing."""
    token = await client.store.lease("a", LONG_MS)
    assert token is not None
    assert await client.store.lease("b", LONG_MS) is None
    assert await client.store.lease("a", LONG_MS) == token


async def test_two_servers_share_one(pair: list[RedisStore], server: Server | Cluster, key_prefix: str) -> None:
    """Among many that ask at once exactly one gets it, through whichever server; it is no key of a model."""
    asked = await asyncio.gather(*(pair[at % 2].lease(f"o{at}", LONG_MS) for at in range(40)))
    assert [token for token in asked if token is not None] == [1]
    check_at_rest(server, key_prefix)


async def test_it_ends_by_itself(pair: list[RedisStore]) -> None:
    """An owner that is gone loses it when its time is over, and whoever gets it has a higher token."""
    assert await pair[0].lease("a", 5) == 1
    while (token := await pair[1].lease("b", LONG_MS)) is None:  # noqa: ASYNC110 - only asking tells
        await asyncio.sleep(0.001)
    assert token == 2
    assert await pair[0].lease("a", 5) is None


async def test_renewing_makes_it_last(pair: list[RedisStore]) -> None:
    """Each word of the owner counts from its moment on, a shorter one too."""
    assert await pair[0].lease("a", 5) is not None
    await pair[0].lease("a", LONG_MS)
    await asyncio.sleep(0.02)
    assert await pair[1].lease("b", LONG_MS) is None
