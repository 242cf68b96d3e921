from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from inference_cache.errors import ConfigError, StoreUnavailable
from inference_cache.store.connection import Connection, Limits, open_connection
from tests.support.patience import until, until_it_runs
from tests.support.rights import PASSWORD, of_sentinels
from tests.support.scripts import COUNT, ECHO
from tests.support.servers import Server, Watched, binary_of, free_ports, single_kinds, valkey_binary

pytestmark = pytest.mark.timeout(300)

QUICK = Limits(connect_ms=500, call_ms=1_000)


@asynccontextmanager
async def opened(url: str, **options: str) -> AsyncIterator[Connection]:
    connection = await open_connection(url, limits=QUICK, **options)  # type: ignore[arg-type]
    try:
        yield connection
    finally:
        await connection.close()


async def reason_of(connection: Connection) -> str:
    with pytest.raises(StoreUnavailable) as caught:
        await connection.run(COUNT, b"k", [])
    return caught.value.reason


async def test_the_primary_is_found_by_the_sentinels(watched: Watched) -> None:
    """The URL names Sentinels only; calls run on the primary that they watch, in the database of the URL."""
    async with opened(watched.url + "/3") as connection:
        assert await connection.run(COUNT, b"k", []) == 1
        await connection.ping()
    with watched.servers[0].admin(db=3) as client:
        assert client.get("k") == b"1"


async def test_sentinels_that_are_away_are_passed_over(watched: Watched) -> None:
    """One Sentinel that lives is enough, wherever it stands in the URL."""
    for sentinel in watched.sentinels[:2]:
        sentinel.kill()
    async with opened(watched.url) as connection:
        assert await connection.run(COUNT, b"k", []) == 1


@pytest.mark.parametrize("kind", single_kinds())
async def test_a_killed_primary_is_replaced(kind: str) -> None:
    """After the primary's end calls fail by name until the replica is promoted, then go on there by themselves."""
    watched = Watched(binary_of(kind))
    try:
        await asyncio.to_thread(watched.start)
        async with opened(watched.url) as connection:
            assert await connection.run(COUNT, b"k", []) == 1
            await until(lambda: watched.servers[1].ask("GET", "k") == b"1")
            watched.servers[0].kill()
            assert await until_it_runs(connection, COUNT, b"k") == 2
            assert watched.servers[1].is_primary
            assert (await until_it_runs(connection, ECHO, b"k", [b"a"]))[1] == b"a"
    finally:
        watched.stop()


async def test_a_primary_that_hangs_is_left(watched: Watched) -> None:
    """A frozen primary keeps its sockets open; the Sentinels' word ends them, and both lanes go to the successor."""
    async with opened(watched.url) as connection:
        await connection.run(COUNT, b"k", [])
        await connection.run(ECHO, b"k", [b"a"])
        watched.servers[0].pause()
        await until_it_runs(connection, COUNT, b"k")
        await until_it_runs(connection, ECHO, b"k", [b"a"])
        assert watched.servers[1].is_primary
        watched.servers[0].resume()
        await connection.ping()


async def test_a_planned_failover_is_followed(watched: Watched) -> None:
    """A primary that was demoted in good health is left for the new one, which has all that was written."""
    async with opened(watched.url) as connection:
        assert await connection.run(COUNT, b"k", []) == 1
        watched.sentinels[1].ask("SENTINEL", "FAILOVER", "index")
        await until(lambda: watched.servers[1].is_primary)
        await until(lambda: not watched.servers[0].is_primary)
        assert await until_it_runs(connection, COUNT, b"k") == 2


async def test_a_server_behind_a_name_is_found_anew_after_its_demotion(own_valkey: Server) -> None:
    """READONLY ends the connections of a single server too: its name may stand for another one by now."""
    async with opened(own_valkey.url) as connection:
        await connection.run(COUNT, b"k", [])
        clients = {
            line.split(b" ")[0] for line in bytes(own_valkey.ask("CLIENT", "LIST", "TYPE", "NORMAL")).splitlines()
        }
        own_valkey.ask("REPLICAOF", "127.0.0.1", free_ports(1)[0])
        assert await reason_of(connection) == "readonly"
        await until(
            lambda: (
                not clients
                & {
                    line.split(b" ")[0]
                    for line in bytes(own_valkey.ask("CLIENT", "LIST", "TYPE", "NORMAL")).splitlines()
                }
            )
        )
        own_valkey.ask("REPLICAOF", "NO", "ONE")
        assert await until_it_runs(connection, COUNT, b"k") == 2


async def test_a_replica_is_not_taken_for_the_primary(watched: Watched) -> None:
    """While a failover goes on Sentinels may name a server that is a replica; nothing is asked of it."""
    watched.servers[0].ask("REPLICAOF", "127.0.0.1", watched.servers[1].port)
    async with opened(watched.url) as connection:
        assert await reason_of(connection) == "demoted"


async def test_each_way_to_miss_the_primary_has_its_reason(watched: Watched) -> None:
    """Operators are told whether no Sentinel answers, none knows the name, or the primary itself is away."""
    async with opened(f"redis+sentinel://127.0.0.1:{free_ports(1)[0]}/index") as connection:
        assert await reason_of(connection) == "sentinel"
    async with opened(watched.url.replace("/index", "/other")) as connection:
        assert await reason_of(connection) == "no_primary"


async def test_sentinels_have_an_account_of_their_own() -> None:
    """The URL's account is the servers'; the Sentinels' has the page's rights, and each refusal says whose it was."""
    watched = Watched(
        valkey_binary(),
        settings={"requirepass": "of-servers", "masterauth": "of-servers"},
        directives=[
            "sentinel auth-pass index of-servers",
            "user default off",
            of_sentinels(),
        ],
    )
    first = watched.servers[0]
    try:
        first.start()
        watched.sentinels[0].start()
        url = watched.url.replace("://", "://:of-servers@").replace(
            ",".join(f"127.0.0.1:{each.port}" for each in watched.sentinels), f"127.0.0.1:{watched.sentinels[0].port}"
        )
        asker = {"sentinel_username": "asker", "sentinel_password": PASSWORD}
        async with opened(url, **asker) as connection:
            assert await connection.run(COUNT, b"k", []) == 1
        async with opened(url) as connection:
            assert await reason_of(connection) == "sentinel_auth"
        async with opened(url.replace("of-servers", "wrong"), **asker) as connection:
            assert await reason_of(connection) == "auth"
    finally:
        watched.stop()


async def test_an_account_for_sentinels_needs_sentinels(own_valkey: Server) -> None:
    """Told beside another kind of URL it is a mistake, and the message does not show the password."""
    with pytest.raises(ConfigError, match="redis\\+sentinel") as caught:
        await open_connection(own_valkey.url, sentinel_password="hunter2")  # noqa: S106 - of nobody
    assert "hunter2" not in str(caught.value)
