"""The stores that must all keep the same contract, those on Redis with no more rights than the documentation lists."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from inference_cache.store.base import Store
from inference_cache.store.model import ModelStore
from inference_cache.store.redis import RedisStore
from tests.contract.build import NOW, Client
from tests.contract.stores import forget, opened
from tests.support.rights import grant, revoke
from tests.support.servers import Cluster, Server, kinds


@pytest.fixture(params=["model", *kinds()])
async def store(request: pytest.FixtureRequest, key_prefix: str) -> AsyncIterator[Store]:
    """Yield an empty store of each kind in turn."""
    if request.param == "model":
        yield ModelStore(lambda: NOW)
        return
    server = request.getfixturevalue(request.param)
    async with opened(grant(server, key_prefix), key_prefix) as found:
        yield found
    forget(server, key_prefix)
    revoke(server, key_prefix)


@pytest.fixture
def client(store: Store) -> Client:
    """Return one model of the store."""
    return Client(store)


@pytest.fixture(params=kinds())
def server(request: pytest.FixtureRequest) -> Server | Cluster:
    """Return each kind of Redis in turn."""
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Server | Cluster)
    return found


@pytest.fixture
async def pair(server: Server | Cluster, key_prefix: str) -> AsyncIterator[list[RedisStore]]:
    """Yield two servers' stores on one Redis."""
    url = grant(server, key_prefix)
    async with opened(url, key_prefix) as one, opened(url, key_prefix) as other:
        yield [one, other]
    forget(server, key_prefix)
    revoke(server, key_prefix)
