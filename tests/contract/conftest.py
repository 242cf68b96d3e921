"""The stores that must all keep the same contract."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from inference_cache.store.base import Store
from inference_cache.store.connection import open_connection
from inference_cache.store.model import ModelStore
from inference_cache.store.redis import RedisStore
from tests.contract.build import NOW, Client
from tests.support.servers import kinds


@pytest.fixture(params=["model", *kinds()])
async def store(request: pytest.FixtureRequest, key_prefix: str) -> AsyncIterator[Store]:
    """Yield an empty store of each kind in turn."""
    if request.param == "model":
        yield ModelStore(lambda: NOW)
        return
    server = request.getfixturevalue(request.param)
    opened = RedisStore(await open_connection(server.url), key_prefix=key_prefix)
    yield opened
    await opened.close()


@pytest.fixture
def client(store: Store) -> Client:
    """Return one model of the store."""
    return Client(store)
