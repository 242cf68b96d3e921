from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from inference_cache.errors import ConfigError, StoreUnavailable
from inference_cache.store.connection import Connection, Limits, Replication, open_connection
from inference_cache.store.redis import RedisStore
from inference_cache.store.scripts import load
from tests.contract.build import NOW, Client, series
from tests.support.patience import until, until_it_runs
from tests.support.proxy import Proxy
from tests.support.scripts import COUNT, ECHO, LOOK
from tests.support.servers import Cluster, Server, Watched, binary_of, free_ports, single_kinds, valkey_binary

pytestmark = pytest.mark.timeout(300)

QUICK = Limits(connect_ms=500, call_ms=1_000)
NEAR_MS = 30_000
"""No replica of a healthy test is this far behind, however busy the machine."""


@asynccontextmanager
async def opened(url: str, max_replica_lag_ms: int = NEAR_MS) -> AsyncIterator[Connection]:
    connection = await open_connection(url, limits=QUICK, max_replica_lag_ms=max_replica_lag_ms)
    try:
        yield connection
    finally:
        await connection.close()


@pytest.fixture(params=single_kinds())
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[Server, Server]]:
    """Yield a primary and its replica."""
    binary = binary_of(request.param)
    settings = {"repl-diskless-sync-delay": "0", "replica-announce-ip": "127.0.0.1"}
    primary, replica = (Server(binary, port=port, settings=settings).start() for port in free_ports(2))
    replica.follow(primary)
    yield primary, replica
    replica.stop()
    primary.stop()


def told(connection: Connection) -> Replication:
    replication = connection.replication()
    assert replication is not None
    return replication


def calls(server: Server, command: str) -> int:
    """Return how many calls of a command a server has answered so far."""
    found = server.ask("INFO", "commandstats").partition(f"cmdstat_{command}:calls=".encode())[2]
    return int(found.partition(b",")[0] or 0)


async def test_only_lookups_are_asked_of_replicas(pair: tuple[Server, Server]) -> None:
    """A lookup runs on the replica, read-only; writes and every other question stay on the primary."""
    primary, replica = pair
    async with opened(primary.url) as connection:
        await until(lambda: told(connection).used == 1)
        assert await connection.run(COUNT, b"k", []) == 1
        await until(lambda: replica.ask("GET", "k") == b"1")
        before = calls(primary, "evalsha")
        assert [await connection.run(LOOK, b"k", []) for _ in range(3)] == [b"1"] * 3
        assert calls(primary, "evalsha") == before
        assert calls(replica, "evalsha_ro") >= 3
        on_replica = calls(replica, "evalsha_ro")
        await connection.run(ECHO, b"k", [b"a"])
        assert calls(replica, "evalsha_ro") == on_replica
        assert calls(replica, "evalsha") == 0
        assert (told(connection).by_replica, told(connection).by_primary) == (3, 0)


async def test_replicas_are_not_asked_unless_told_so(pair: tuple[Server, Server]) -> None:
    """Answers that lag behind acknowledgements are the operator's choice, never the default."""
    primary, replica = pair
    connection = await open_connection(primary.url)
    try:
        assert connection.replication() is None
        await connection.run(LOOK, b"k", [])
        assert calls(replica, "evalsha_ro") == 0
    finally:
        await connection.close()


async def test_lookup_scripts_are_loaded_on_replicas(pair: tuple[Server, Server]) -> None:
    """Each replica has its own script cache; what it may run is there before the first lookup, and only that."""
    primary, replica = pair
    async with opened(primary.url, 1_000) as connection:
        store = RedisStore(connection)
        await store.warm_up()
        lookups = [load("lookup_chain").sha, load("lookup_exact").sha]
        await until(lambda: replica.ask("SCRIPT", "EXISTS", *lookups) == [1, 1])
        assert replica.ask("SCRIPT", "EXISTS", load("ingest").sha, load("state").sha) == [0, 0]
        replica.ask("SCRIPT", "FLUSH")
        await until(lambda: told(connection).used == 1)
        assert await Client(store).depths(series("prompt", 8)) == {}
        assert replica.ask("SCRIPT", "EXISTS", load("lookup_chain").sha) == [1]
        assert told(connection).by_replica == 1


async def test_a_replica_that_lags_is_left_out_and_comes_back(own_valkey: Server) -> None:
    """A stream that is held up makes the replica's proof age; the primary answers until the replica has caught up."""
    port = free_ports(1)[0]
    settings = {"replica-announce-ip": "127.0.0.1", "repl-diskless-sync-delay": "0"}
    own_valkey.ask("CONFIG", "SET", "repl-diskless-sync-delay", "0")
    replica = Server(valkey_binary(), port=port, settings=settings).start()
    try:
        async with Proxy(own_valkey.socket_path) as proxy, opened(own_valkey.url, 1_000) as connection:
            replica.ask("REPLICAOF", "127.0.0.1", proxy.port)
            await until(lambda: told(connection).used == 1)
            proxy.delay_s = 3.0
            await connection.run(COUNT, b"k", [])
            await until(lambda: told(connection).skipped == 1)
            assert told(connection).lag_s > 1.0
            assert b"master_link_status:up" in replica.ask("INFO", "replication")
            assert await connection.run(LOOK, b"k", []) == b"1"
            assert told(connection).by_primary == 1
            proxy.delay_s = 0.0
            await until(lambda: told(connection).used == 1)
            assert await connection.run(LOOK, b"k", []) == b"1"
            assert told(connection).by_replica == 1
    finally:
        replica.stop()


async def test_a_replica_that_dies_costs_no_lookup(pair: tuple[Server, Server]) -> None:
    """Its calls go to the primary at once, and it is used again when it is back."""
    primary, replica = pair
    async with opened(primary.url) as connection:
        await connection.run(COUNT, b"k", [])
        await until(lambda: told(connection).used == 1)
        replica.kill()
        for _ in range(20):
            assert await connection.run(LOOK, b"k", []) == b"1"
        await until(lambda: told(connection).used == 0)
        await asyncio.to_thread(replica.start, replicaof=f"127.0.0.1 {primary.port}")
        await until(lambda: told(connection).used == 1)


async def test_a_replica_that_is_loading_is_left_out(pair: tuple[Server, Server]) -> None:
    """While it takes in a whole copy of the primary it answers nobody, and no lookup notices."""
    primary, replica = pair
    primary.ask("DEBUG", "POPULATE", 1_000)
    async with opened(primary.url) as connection:
        await connection.run(COUNT, b"k", [])
        await until(lambda: told(connection).used == 1)
        replica.kill()
        (replica.directory / "dump.rdb").unlink()
        await until(lambda: told(connection).used == 0)
        slow = {"key_load_delay": "3000", "loading_process_events_interval_bytes": "1024"}
        await asyncio.to_thread(replica.start, replicaof=f"127.0.0.1 {primary.port}", **slow)
        await until(lambda: b"loading:1" in replica.ask("INFO", "persistence"))
        assert told(connection).used == 0
        assert await connection.run(LOOK, b"k", []) == b"1"
        assert b"loading:1" in replica.ask("INFO", "persistence")
        await until(lambda: told(connection).used == 1)
        assert replica.ask("GET", "k") == b"1"


async def test_a_primary_without_replicas_may_refuse_writes(own_valkey: Server) -> None:
    """With `min-replicas-to-write` what nobody would have a copy of is refused by name, and lookups go on."""
    async with opened(own_valkey.url) as connection:
        assert await connection.run(COUNT, b"k", []) == 1
        own_valkey.ask("CONFIG", "SET", "min-replicas-to-write", 1)
        with pytest.raises(StoreUnavailable) as caught:
            await connection.run(COUNT, b"k", [])
        assert caught.value.reason == "noreplicas"
        assert await connection.run(LOOK, b"k", []) == b"1"


async def test_a_replica_without_its_primary_answers_nobody(pair: tuple[Server, Server]) -> None:
    """Nobody can prove how old its answers are: lookups fail, as they do without replicas."""
    primary, _ = pair
    async with opened(primary.url, 500) as connection:
        await until(lambda: told(connection).used == 1)
        primary.kill()
        await until(lambda: told(connection).used == 0)
        with pytest.raises(StoreUnavailable):
            await connection.run(LOOK, b"k", [])


def _names(sentinel: Server, primary: Server) -> bool:
    """Return whether a Sentinel is done with the failover; until then it may make the old primary one again."""
    state = dict(zip(*[iter(sentinel.ask("SENTINEL", "MASTER", "index"))] * 2, strict=True))
    return int(state[b"port"]) == primary.port and state[b"flags"] == b"master"


async def test_replicas_of_a_new_primary_are_found(watched: Watched) -> None:
    """After a failover the old primary's replica is the primary, and the old primary, once back, serves lookups."""
    old, new = watched.servers
    async with opened(watched.url) as connection:
        await connection.run(COUNT, b"k", [])
        await until(lambda: new.ask("GET", "k") == b"1")
        old.kill()
        assert await until_it_runs(connection, COUNT, b"k") == 2
        await until(lambda: all(_names(sentinel, new) for sentinel in watched.sentinels))
        await asyncio.to_thread(old.start, replicaof=f"127.0.0.1 {new.port}")
        async with asyncio.timeout(60):
            while not calls(old, "evalsha_ro"):
                assert await connection.run(LOOK, b"k", []) == b"2"
                await asyncio.sleep(0.05)


async def test_replicas_of_a_cluster_serve_lookups(key_prefix: str) -> None:
    """A Cluster's replica answers for its primary's slots; the other primaries' lookups stay on them."""
    own = Cluster(valkey_binary())
    try:
        await asyncio.to_thread(own.start)
        first = own.nodes[0]
        replica = await asyncio.to_thread(own.add_replica, first)
        keys = [f"{{{key_prefix}-{number}}}".encode() for number in range(30)]
        async with opened(own.url) as connection:
            for key in keys:
                await connection.run(COUNT, key, [])
            await until(lambda: told(connection).used == 1)
            near = [key for key in keys if own.owner(key) is first]
            await until(lambda: replica.ask("DBSIZE") == len(near))
            assert [await connection.run(LOOK, key, []) for key in keys] == [b"1"] * len(keys)
            assert (told(connection).by_replica, told(connection).by_primary) == (len(near), len(keys) - len(near))
            assert calls(replica, "evalsha_ro") >= len(near)
    finally:
        own.stop()


async def test_the_index_is_looked_up_on_replicas(pair: tuple[Server, Server], key_prefix: str) -> None:
    """What was reported to the primary is found on the replica, and who is present is asked of the primary."""
    primary, replica = pair
    async with opened(primary.url) as connection:
        await until(lambda: told(connection).used == 1)
        client = Client(RedisStore(connection, key_prefix=key_prefix))
        await client.tell("r", series("prompt", 8))
        reached = int(primary.ask("INFO", "replication").partition(b"master_repl_offset:")[2].partition(b"\r")[0])
        await until(
            lambda: (
                int(replica.ask("INFO", "replication").partition(b"slave_repl_offset:")[2].partition(b"\r")[0])
                >= reached
            )
        )
        assert await client.depths(series("prompt", 8)) == {"r": 8}
        assert told(connection).by_replica == 1
        before = calls(replica, "evalsha_ro")
        presence = await client.store.presence(client.model, lambda _: NOW - 1)
        assert presence.model
        assert calls(replica, "evalsha_ro") == before


async def test_an_embedded_server_has_no_replicas() -> None:
    """Asking them anyway is a mistake that is told at start."""
    with pytest.raises(ConfigError, match="--redis-read-from"):
        await open_connection(max_replica_lag_ms=1_000)
