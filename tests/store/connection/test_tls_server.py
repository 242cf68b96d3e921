"""Redis behind TLS, with an authority of its own, whose certificates are replaced while everything runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme

from inference_cache.errors import StoreUnavailable
from inference_cache.store.connection import Connection, Limits, open_connection
from tests.support.authority import Keys
from tests.support.patience import until_it_runs
from tests.support.scripts import COUNT
from tests.support.servers import Sentinel, Server, free_ports, redis_binary


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    """Return an authority with one certificate."""
    return Keys(tmp_path)


@pytest.fixture
def served(keys: Keys) -> Iterator[tuple[Server, int]]:
    """Yield a Redis that speaks TLS only, and its port; the tests' own Valkey has no TLS."""
    binary = redis_binary()
    assert binary is not None
    port = free_ports(1)[0]
    server = Server(binary, settings={"tls-port": str(port), **keys.directives}).start()
    yield server, port
    server.stop()


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Connection]:
    connection = await open_connection(url, limits=Limits(connect_ms=2_000))
    try:
        yield connection
    finally:
        await connection.close()


def cut_all(server: Server) -> None:
    """End the connections of all clients but the one that asks."""
    server.ask("CLIENT", "KILL", "TYPE", "NORMAL", "SKIPME", "YES")


async def test_a_renewed_certificate_needs_nobody(served: tuple[Server, int], keys: Keys) -> None:
    """Redis takes a new certificate of the same authority while it runs; connections stay, and new ones use it."""
    server, port = served
    async with opened(f"rediss://localhost:{port}?{keys.options}") as connection:
        assert await connection.run(COUNT, b"k", []) == 1
        keys.issue()
        server.ask("CONFIG", "SET", "tls-cert-file", str(keys.certificate), "tls-key-file", str(keys.certificate))
        assert await connection.run(COUNT, b"k", []) == 2
        cut_all(server)
        assert await until_it_runs(connection, COUNT, b"k") == 3


async def test_a_new_authority_is_trusted_once_its_file_says_so(served: tuple[Server, int], keys: Keys) -> None:
    """Until then nothing is sent to the server and the reason is `tls`; then calls go on without a restart."""
    server, port = served
    async with opened(f"rediss://localhost:{port}?{keys.options}") as connection:
        assert await connection.run(COUNT, b"k", []) == 1
        old, keys.authority = keys.authority, trustme.CA()
        keys.issue()
        server.ask("CONFIG", "SET", "tls-cert-file", str(keys.certificate), "tls-key-file", str(keys.certificate))
        cut_all(server)
        async with asyncio.timeout(20):
            while True:
                with pytest.raises(StoreUnavailable) as caught:
                    await connection.run(COUNT, b"k", [])
                if caught.value.reason == "tls":
                    break
        keys.publish(old, keys.authority)
        assert await until_it_runs(connection, COUNT, b"k") == 2


async def test_sentinels_and_what_they_watch_speak_tls(served: tuple[Server, int], keys: Keys) -> None:
    """With `rediss+sentinel` both the Sentinels and the primary are reached by TLS, with the same authorities."""
    server, port = served
    server.port = port
    sentinel_port = free_ports(1)[0]
    lines = [f"tls-port {sentinel_port}", *(f"{name} {value}" for name, value in keys.directives.items())]
    sentinel = Sentinel(str(redis_binary()), server, lines)
    try:
        sentinel.start()
        async with opened(f"rediss+sentinel://127.0.0.1:{sentinel_port}/index?{keys.options}") as connection:
            assert await connection.run(COUNT, b"k", []) == 1
        async with opened(f"rediss+sentinel://127.0.0.1:{sentinel_port}/index") as connection:
            with pytest.raises(StoreUnavailable) as caught:
                await connection.run(COUNT, b"k", [])
            assert caught.value.reason == "tls"
    finally:
        sentinel.stop()
