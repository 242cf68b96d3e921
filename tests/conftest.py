"""Servers and connections that any test may ask for."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator

import pytest

from inference_cache.store.connection import Connection, open_connection
from tests.support.servers import Cluster, Server, Watched, binary_of, kinds, redis_binary, valkey_binary


@pytest.fixture(scope="session")
def valkey() -> Iterator[Server]:
    """Yield one Valkey for the whole session; tests keep to keys of their own and leave its settings alone."""
    server = Server(valkey_binary())
    yield server.start()
    server.stop()


@pytest.fixture(scope="session")
def redis7() -> Iterator[Server]:
    """Yield the system's redis-server, likewise."""
    binary = redis_binary()
    assert binary is not None
    server = Server(binary)
    yield server.start()
    server.stop()


@pytest.fixture(scope="session")
def another() -> Iterator[Server]:
    """Yield the server that the environment names, likewise."""
    server = Server(binary_of("another"))
    yield server.start()
    server.stop()


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Yield a three-node Cluster of Valkey, likewise; who moves a slot brings it to an end."""
    nodes = Cluster(valkey_binary())
    yield nodes.start()
    nodes.stop()


@pytest.fixture
def own_valkey() -> Iterator[Server]:
    """Yield a Valkey that the test may pause, kill and reconfigure."""
    server = Server(valkey_binary())
    yield server.start()
    server.stop()


@pytest.fixture
def watched() -> Iterator[Watched]:
    """Yield a primary with a replica and three Sentinels, all the test's own."""
    servers = Watched(valkey_binary())
    yield servers.start()
    servers.stop()


@pytest.fixture(params=kinds())
def redis_url(request: pytest.FixtureRequest) -> str:
    """Return the address of each kind of Redis in turn."""
    return str(request.getfixturevalue(request.param).url)


@pytest.fixture
async def connection(redis_url: str) -> AsyncIterator[Connection]:
    """Yield an open connection to each kind of Redis in turn."""
    opened = await open_connection(redis_url)
    yield opened
    await opened.close()


@pytest.fixture
def key_prefix() -> str:
    """Return a prefix that no other test uses, for keys on a shared server."""
    return f"t{uuid.uuid4().hex}"
