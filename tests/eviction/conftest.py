"""Indexes with limits: in memory, on one server, on two that take turns, and on a Cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest

from inference_cache.store.base import Store
from inference_cache.store.model import ModelStore
from tests.contract.stores import check_at_rest, forget, opened
from tests.eviction.index import Index
from tests.rpc.serving import now_ms, serving
from tests.rpc.wire import Policies
from tests.support.servers import Cluster, Server

KINDS = {"oracle": ("", 1), "one": ("valkey", 1), "two": ("valkey", 2), "cluster": ("cluster", 2)}
"""What each kind of index is on, and how many servers take turns on it."""

CHAINS = pytest.mark.parametrize("serve", ["one", "two", "cluster"], indirect=True)
"""For what depends on which blocks stand behind which: the oracle looks at each block by itself."""

Serve = Callable[..., Awaitable[Index]]


@pytest.fixture(params=KINDS)
async def serve(request: pytest.FixtureRequest, key_prefix: str) -> AsyncIterator[Serve]:
    """Return what starts the servers of an empty index, with a cap if it is told one."""
    fixture, number = KINDS[request.param]
    async with AsyncExitStack() as stack:
        server: Server | Cluster | None = request.getfixturevalue(fixture) if fixture else None

        async def start(max_entries: int = 0) -> Index:
            policies = Policies()
            stores: list[Store] = [ModelStore(now_ms)]
            if server is not None:
                stores = [await stack.enter_async_context(opened(server.url, key_prefix)) for _ in range(number)]
            wires = [
                await stack.enter_async_context(serving(store, policies=policies, max_entries=max_entries))
                for store in stores
            ]
            return Index(stores[0], policies, wires, max_entries)

        yield start
    if server is not None:
        check_at_rest(server, key_prefix)
        forget(server, key_prefix)


@pytest.fixture
async def index(serve: Serve) -> Index:
    """Return an index without a cap."""
    return await serve()
