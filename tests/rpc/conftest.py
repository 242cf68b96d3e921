"""A server of the contract on a loopback port, on each kind of store, and a client of it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc
import pytest

from inference_cache.domain.tuning import Tuning
from inference_cache.metrics import Metrics
from inference_cache.rpc.health import Health
from inference_cache.rpc.server import build_server
from inference_cache.store.base import Store
from inference_cache.store.connection import open_connection
from inference_cache.store.model import ModelStore
from inference_cache.store.redis import RedisStore
from tests.rpc.serving import now_ms
from tests.rpc.wire import Policies, Wire
from tests.support.servers import Server


@pytest.fixture(params=["model", "valkey"])
async def store(request: pytest.FixtureRequest, key_prefix: str) -> AsyncIterator[Store]:
    """Yield an empty store of each kind in turn, by the clock on the wall."""
    if request.param == "model":
        yield ModelStore(now_ms)
        return
    server: Server = request.getfixturevalue(request.param)
    store = RedisStore(await open_connection(server.url), key_prefix=key_prefix)
    yield store
    await store.close()


@pytest.fixture
def tuning() -> Tuning:
    """Return the server's tuning; a test module overrides it to change it."""
    return Tuning()


@pytest.fixture
def health() -> Health:
    """Return what the server answers about its health."""
    return Health()


@pytest.fixture
async def server(store: Store, tuning: Tuning, health: Health) -> AsyncIterator[tuple[str, Policies, Metrics]]:
    """Run a server; return its address, its policies and its metrics."""
    policies, metrics = Policies(), Metrics()
    # No budget: a stalled test machine must not turn answers into timeouts. Tests of budgets set their own.
    server = build_server(
        store=store, policies=policies, metrics=metrics, health=health, tuning=tuning, lookup_timeout_ms=0
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}", policies, metrics
    await server.stop(None)


@pytest.fixture
async def channel(server: tuple[str, Policies, Metrics]) -> AsyncIterator[grpc.aio.Channel]:
    """Return a channel to the server."""
    async with grpc.aio.insecure_channel(server[0]) as channel:
        yield channel


@pytest.fixture
def wire(server: tuple[str, Policies, Metrics], channel: grpc.aio.Channel) -> Wire:
    """Return a client of the server."""
    return Wire.over(channel, server[1], server[2])
