from __future__ import annotations

import asyncio
import logging
import os
import random
import ssl
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import redis
import trustme

from inference_cache.errors import ConfigError, StoreCorrupt, StoreError, StoreFull, StoreUnavailable
from inference_cache.store.connection import Connection, Limits, open_connection, watch
from inference_cache.store.connection.standalone import StandaloneConnection
from tests.support.patience import until_it_runs
from tests.support.proxy import Proxy
from tests.support.scripts import CORRUPT, COUNT, ECHO, FAIL, PUSH
from tests.support.servers import Server, free_ports, redis_binary, valkey_binary, wait_until

IMPATIENT = Limits(connect_ms=500, call_ms=300)


@asynccontextmanager
async def opened(url: str, limits: Limits | None = None) -> AsyncIterator[Connection]:
    connection = await open_connection(url, limits=limits)
    try:
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def serving(**settings: str) -> AsyncIterator[Server]:
    server = Server(valkey_binary(), settings={name.replace("_", "-"): value for name, value in settings.items()})
    try:
        server.start()
        yield server
    finally:
        server.stop()


async def reason_of(connection: Connection, key: bytes = b"k") -> str:
    with pytest.raises(StoreError) as caught:
        await connection.run(COUNT, key, [])
    return caught.value.reason


async def test_replies_come_as_redis_gives_them(connection: Connection, key_prefix: str) -> None:
    """Bytes stay bytes, whatever is in them, and numbers are numbers."""
    odd = b"\x00\r\n\xff{}" + bytes(10_000)
    key = key_prefix.encode()
    assert await connection.run(ECHO, key, [odd]) == [key, odd]
    assert await connection.run(ECHO, key, [-5]) == [key, b"-5"]
    assert await connection.run(ECHO, key, ["é"]) == [key, "é".encode()]
    assert await connection.run(COUNT, key, []) == 1


async def test_a_lost_script_is_loaded_again(connection: Connection, key_prefix: str, request: object) -> None:
    """A flushed script cache costs one call more and nobody notices."""
    assert await connection.run(COUNT, key_prefix.encode(), []) == 1
    assert isinstance(request, pytest.FixtureRequest)
    holder = request.getfixturevalue(request.node.callspec.params["redis_url"])
    for node in getattr(holder, "nodes", [holder]):
        node.ask("SCRIPT", "FLUSH")
    assert await connection.run(COUNT, key_prefix.encode(), []) == 2


async def test_the_clock_is_that_of_redis(connection: Connection) -> None:
    """Right after opening, the time without asking agrees with the time by asking, and is certain."""
    assert connection.clock.certain
    before = connection.now_ms()
    asked = await connection.server_time_ms()
    assert before - connection.clock.uncertainty_ms - 2 <= asked
    assert asked <= connection.now_ms() + connection.clock.uncertainty_ms + 2
    assert abs(connection.clock.offset_ms) < 1000
    await connection.ping()


async def test_failures_of_our_scripts_are_corruption(connection: Connection, key_prefix: str) -> None:
    """A script that finds a layout it does not know, or breaks, is no outage and is told as such."""
    key = key_prefix.encode()
    with pytest.raises(StoreCorrupt, match="a segment is missing") as caught:
        await connection.run(CORRUPT, key, [])
    assert caught.value.reason == "corrupt"
    with pytest.raises(StoreCorrupt, match="user_script:2") as caught:
        await connection.run(FAIL, key, [])
    assert caught.value.reason == "script"
    await connection.run(COUNT, key, [])
    with pytest.raises(StoreCorrupt) as caught:
        await connection.run(PUSH, key, [])
    assert caught.value.reason == "wrongtype"


async def test_loading_scripts_ahead_spares_the_first_call(own_valkey: Server) -> None:
    """After warming up no call finds its script missing."""
    async with opened(own_valkey.url) as connection:
        await connection.load([ECHO, COUNT])
        await connection.run(COUNT, b"k", [])
        await connection.run(ECHO, b"k", [b"x"])
    assert b"NOSCRIPT" not in bytes(own_valkey.ask("INFO", "errorstats"))


async def test_many_callers_share_two_sockets(own_valkey: Server) -> None:
    """A burst of calls of both kinds opens one socket for lookups and one for writes, and everybody is served."""
    before = sockets_so_far(own_valkey)
    async with opened(own_valkey.url) as connection:
        counts = await asyncio.gather(*(connection.run(COUNT, b"k", []) for _ in range(300)))
        await asyncio.gather(*(connection.run(ECHO, b"k", [b"x"]) for _ in range(300)))
    assert counts == list(range(1, 301))
    assert sockets_so_far(own_valkey) - before == 2 + 1  # one asks


def sockets_so_far(server: Server) -> int:
    """Return how many connections a server has accepted, the asking one included."""
    return int(server.ask("INFO", "stats").partition(b"total_connections_received:")[2].split()[0])


async def test_a_cancelled_call_keeps_its_reply(own_valkey: Server) -> None:
    """The reply to a call that was given up never reaches the next call, on the same socket."""
    async with opened(own_valkey.url) as connection:
        await connection.run(ECHO, b"k", [b"warm"])
        own_valkey.pause()
        given_up = asyncio.create_task(connection.run(ECHO, b"k", [b"old"]))
        await asyncio.sleep(0.05)
        given_up.cancel()
        next_one = asyncio.create_task(connection.run(ECHO, b"k", [b"new"]))
        await asyncio.sleep(0.05)
        own_valkey.resume()
        assert await next_one == [b"k", b"new"]
        assert given_up.cancelled()


async def test_cancelling_at_any_moment_mixes_nothing_up(own_valkey: Server) -> None:
    """Hundreds of calls given up after random delays: every call that ends gets the reply to its own question."""
    seeded = random.Random(7)

    async def one(number: int) -> bool:
        call = asyncio.create_task(connection.run(ECHO, b"k", [number]))
        if seeded.random() < 0.5:
            await asyncio.sleep(seeded.random() * 0.003)
            call.cancel()
        await asyncio.wait([call])
        assert call.cancelled() or call.result() == [b"k", b"%d" % number]
        return call.cancelled()

    async with opened(own_valkey.url, Limits(in_flight=16)) as connection:
        given_up = 0
        for start in range(0, 1000, 50):
            given_up += sum(await asyncio.gather(*(one(number) for number in range(start, start + 50))))
        assert given_up
        assert await connection.run(ECHO, b"k", [b"after"]) == [b"k", b"after"]


async def test_a_frozen_redis_is_a_timeout(own_valkey: Server) -> None:
    """A Redis that accepts and never answers costs a call its deadline and no more, and is well again after."""
    async with opened(own_valkey.url, IMPATIENT) as connection:
        own_valkey.pause()
        assert await reason_of(connection) == "timeout"
        own_valkey.resume()
        assert await connection.run(ECHO, b"k", [b"x"]) == [b"k", b"x"]


async def test_a_write_that_may_have_run_is_not_repeated(own_valkey: Server) -> None:
    """Losing the reply proves nothing about the call, so the caller decides: Redis sees each write once."""
    async with Proxy(own_valkey.socket_path) as proxy, opened(f"redis://127.0.0.1:{proxy.port}") as connection:
        assert await connection.run(COUNT, b"k", []) == 1
        proxy.cutting = True
        assert await reason_of(connection) == "down"
        proxy.cutting = False
        await asyncio.to_thread(wait_until, lambda: own_valkey.ask("GET", "k") == b"2", "the lost call to have run")
        assert await until_it_runs(connection, COUNT, b"k") == 3


async def test_a_killed_redis_is_down_and_comes_back(own_valkey: Server) -> None:
    """While nobody listens calls fail at once; a restarted server is used again without a new connection object."""
    async with opened(own_valkey.url) as connection:
        await connection.run(COUNT, b"k", [])
        own_valkey.kill()
        assert await reason_of(connection) == "down"
        with pytest.raises(StoreUnavailable):
            await connection.ping()
        own_valkey.start()
        assert await until_it_runs(connection, COUNT, b"k") == 1


async def test_idle_sockets_of_a_restarted_server_do_not_fail_a_call(own_valkey: Server) -> None:
    """Nothing was sent on a socket that the server closed, so a call opens another instead of failing."""
    async with opened(own_valkey.url) as connection:
        await asyncio.gather(*(connection.run(ECHO, b"k", [n]) for n in range(5)))
        own_valkey.kill()
        own_valkey.start()
        await asyncio.sleep(0.05)
        assert len(await asyncio.gather(*(connection.run(ECHO, b"k", [n]) for n in range(5)))) == 5


async def test_opening_does_not_need_redis(caplog: pytest.LogCaptureFixture) -> None:
    """A server may start before its Redis: that is logged, calls fail by name, and the clock is not certain."""
    async with serving() as server:
        server.kill()
        async with opened(server.url) as connection:
            assert "not available yet" in caplog.text
            assert not connection.clock.certain
            assert abs(connection.now_ms() - time.time() * 1000) < 1000
            assert await reason_of(connection) == "down"
            server.start()
            assert isinstance(connection, StandaloneConnection)
            await until_it_runs(connection, COUNT, b"k")
            await connection.look()
            assert connection.clock.certain


async def test_a_full_redis_is_full() -> None:
    """Out of memory is its own error: removals still work, so it is not an outage."""
    async with serving(maxmemory="1mb") as server, opened(server.url) as connection:
        with pytest.raises(StoreFull) as caught:
            await connection.run(COUNT, b"k", [])
        assert caught.value.reason == "full"


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"replicaof": "127.0.0.1 1"}, "readonly"),
        ({"min_replicas_to_write": "1"}, "noreplicas"),
        ({"requirepass": "secret"}, "auth"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
async def test_refusals_are_told_by_name(settings: dict[str, str], reason: str) -> None:
    """Each state in which a real server refuses a write has its own reason."""
    async with serving(**settings) as server, opened(server.url) as connection:
        assert await reason_of(connection) == reason


async def test_a_replica_without_primary_refuses_to_read() -> None:
    """A replica that lost its primary and may not serve old data says so, and so do we."""
    async with (
        serving(replicaof="127.0.0.1 1", replica_serve_stale_data="no") as server,
        opened(server.url) as connection,
    ):
        with pytest.raises(StoreUnavailable) as caught:
            await connection.run(ECHO, b"k", [b"x"])
        assert caught.value.reason == "masterdown"


async def test_a_redis_that_cannot_persist_refuses() -> None:
    """With a failed snapshot Redis stops writes; that is its operator's to mend and has a reason of its own."""
    async with serving(save="3600 1000") as server, opened(server.url) as connection:
        (server.directory / "dump.rdb" / "in the way").mkdir(parents=True)
        server.ask("SET", "x", "1")
        server.ask("BGSAVE")
        wait_until(lambda: b"rdb_last_bgsave_status:err" in server.ask("INFO", "persistence"), "the snapshot to fail")
        assert await reason_of(connection) == "misconf"


async def test_a_loading_redis_is_loading() -> None:
    """While Redis reads its file back it does not serve; a write tries again for a moment, a lookup does not."""
    async with serving() as server:
        for number in range(1000):
            server.ask("SET", f"k{number}", os.urandom(100))
        server.ask("SAVE")
        server.kill()
        server.start(key_load_delay="10000", loading_process_events_interval_bytes="1024")
        async with opened(server.url) as connection:
            assert await reason_of(connection) == "loading"
            tried = refusals(server)
            assert tried > 1
            with pytest.raises(StoreUnavailable, match="loading"):
                await connection.run(ECHO, b"k", [b"x"])
            assert refusals(server) == tried + 1
            with pytest.raises(StoreUnavailable):
                await connection.ping()


def refusals(server: Server) -> int:
    """Return how many scripts a server has refused to run so far."""
    stats = server.ask("INFO", "commandstats").partition(b"cmdstat_evalsha:")[2].partition(b"\r\n")[0]
    return int(stats.partition(b"rejected_calls=")[2].split(b",")[0] or 0)


async def test_a_busy_redis_is_busy() -> None:
    """A foreign script that does not end makes Redis refuse everybody else, by name."""
    async with serving(busy_reply_threshold="50") as server, opened(server.url) as connection:
        foreign = asyncio.create_task(asyncio.to_thread(_run_for_ever, server))
        await asyncio.to_thread(wait_until, lambda: "BUSY" in _reply_to_ping(server), "the script to be noticed")
        assert await reason_of(connection) == "busy"
        await asyncio.to_thread(server.ask, "SCRIPT", "KILL")
        assert "killed" in await foreign


def _run_for_ever(server: Server) -> str:
    try:
        return str(server.ask("EVAL", "while true do end", 0))
    except redis.ResponseError as error:
        return str(error)


def _reply_to_ping(server: Server) -> str:
    try:
        return str(server.ask("PING"))
    except redis.ResponseError as error:
        return str(error)


async def test_what_is_watched_is_watched_all_the_time(
    own_valkey: Server, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without any call, a Redis that goes, comes back or is reconfigured is noticed and told in the log."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(watch, "PERIOD_S", 0.01)
    monkeypatch.setattr(watch, "_AWAY_PERIOD_S", 0.01)
    async with opened(own_valkey.url) as connection:
        own_valkey.kill()
        await asyncio.to_thread(wait_until, lambda: "Redis went away" in caplog.text, "the loss to be noticed")
        caplog.clear()
        own_valkey.start(maxmemory_policy="volatile-ttl")
        await asyncio.to_thread(wait_until, lambda: "Redis answers" in caplog.text, "the return to be noticed")
        assert connection.eviction_policy == "volatile-ttl"
        assert "volatile-ttl" in caplog.text


async def test_a_policy_that_evicts_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    """Any policy but noeviction drops parts of the index: it is shown, logged once, and seen when it changes."""
    async with serving(maxmemory_policy="allkeys-lru") as server, opened(server.url) as connection:
        assert connection.eviction_policy == "allkeys-lru"
        assert isinstance(connection, StandaloneConnection)
        await connection.look()
        assert caplog.text.count("allkeys-lru") == 1
        server.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
        await connection.look()
        assert connection.eviction_policy == "noeviction"


@pytest.fixture
def guarded() -> Iterator[Server]:
    """Yield a server where `ann` may run scripts but not read the configuration, and nobody else anything."""
    server = Server(valkey_binary(), port=free_ports(1)[0]).start()
    with server.admin() as client:
        client.execute_command("ACL", "SETUSER", "ann", "on", ">hun@ter2", "~*", "+@all", "-config")  # type: ignore[no-untyped-call]
        client.execute_command("ACL", "SETUSER", "bob", "on", ">hun@ter2", "~*", "+time", "+select")  # type: ignore[no-untyped-call]
        client.execute_command("CONFIG", "SET", "requirepass", "other")  # type: ignore[no-untyped-call]
    yield server
    server.stop()


def addresses(server: Server, account: str, database: int = 0) -> list[str]:
    return [
        f"redis://{account}127.0.0.1:{server.port}/{database}",
        f"unix://{account}{server.socket_path}?db={database}",
    ]


async def test_user_password_and_database_are_used(guarded: Server) -> None:
    """Both kinds of socket introduce themselves; a forbidden look at the configuration is no error, only unknown."""
    for place, url in enumerate(addresses(guarded, "ann:hun%40ter2@", 3)):
        async with opened(url) as connection:
            assert await connection.run(COUNT, b"k", []) == place + 1
            assert connection.eviction_policy is None
    with guarded.admin(password="other", db=3) as client:  # noqa: S106 - of this test only
        assert client.get("k") == b"2"


@pytest.mark.parametrize(
    ("account", "reason"),
    [("", "auth"), ("ann:hunter2@", "auth"), (":hunter2@", "auth"), ("bob:hun%40ter2@", "noperm")],
)
async def test_refused_accounts_are_told_and_never_shown(
    guarded: Server, account: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A wrong or missing password is told from a missing right, and no message, log or repr shows a password."""
    caplog.set_level(logging.DEBUG)
    for url in addresses(guarded, account):
        async with opened(url) as connection:
            with pytest.raises(StoreUnavailable) as caught:
                await connection.run(COUNT, b"k", [])
            assert caught.value.reason == reason
            shown = [
                str(caught.value),
                repr(caught.value.__cause__),
                caplog.text,
                repr(connection),
                repr(vars(connection)),
            ]
            assert not any("hunter2" in text or "hun@ter2" in text for text in shown)


async def test_a_database_that_is_not_there(own_valkey: Server) -> None:
    """A database number beyond the server's is refused with its own reason."""
    async with opened(f"{own_valkey.url}?db=99") as connection:
        assert await reason_of(connection) == "database"


@pytest.fixture
def authority(tmp_path: Path) -> tuple[trustme.CA, Path]:
    """Return a certificate authority and the file with its certificate."""
    made = trustme.CA()
    made.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    return made, tmp_path / "ca.pem"


def _context(authority: trustme.CA, name: str) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert(name).configure_cert(context)
    return context


async def test_tls_reaches_a_trusted_server(own_valkey: Server, authority: tuple[trustme.CA, Path]) -> None:
    """With the authority's certificate the connection is encrypted and works like any other."""
    made, file = authority
    async with (
        Proxy(own_valkey.socket_path, _context(made, "localhost")) as proxy,
        opened(f"rediss://localhost:{proxy.port}?ssl_ca_certs={file}") as connection,
    ):
        assert await connection.run(COUNT, b"k", []) == 1


async def test_tls_refuses_who_is_not_trusted(own_valkey: Server, authority: tuple[trustme.CA, Path]) -> None:
    """An unknown authority, another name and a server without TLS all mean that nothing is sent."""
    made, file = authority
    async with Proxy(own_valkey.socket_path, _context(made, "elsewhere.example")) as proxy:
        for url in (f"rediss://localhost:{proxy.port}", f"rediss://localhost:{proxy.port}?ssl_ca_certs={file}"):
            async with opened(url) as connection:
                assert await reason_of(connection) == "tls"
    async with (
        Proxy(own_valkey.socket_path) as plain,
        opened(f"rediss://localhost:{plain.port}?ssl_ca_certs={file}", IMPATIENT) as connection,
    ):
        assert await reason_of(connection) in {"tls", "down", "timeout"}
    assert own_valkey.ask("EXISTS", "k") == 0


@pytest.mark.parametrize("binary", [found for found in [redis_binary()] if found] or [pytest.param(None, id="proxy")])
async def test_tls_of_a_real_server_with_client_certificates(
    binary: str | None, own_valkey: Server, authority: tuple[trustme.CA, Path], tmp_path: Path
) -> None:
    """A server that wants certificates from its clients accepts ours and refuses a client without one."""
    made, file = authority
    certificate = made.issue_cert("localhost")
    certificate.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "both.pem"))
    mine = f"ssl_ca_certs={file}&ssl_certfile={tmp_path / 'both.pem'}"
    async with _tls_server(binary, own_valkey, made, tmp_path) as port:
        async with opened(f"rediss://localhost:{port}?{mine}") as connection:
            assert await connection.run(COUNT, b"k", []) == 1
        async with opened(f"rediss://localhost:{port}?ssl_ca_certs={file}") as connection:
            assert await reason_of(connection) in {"tls", "down"}


@asynccontextmanager
async def _tls_server(binary: str | None, behind: Server, authority: trustme.CA, directory: Path) -> AsyncIterator[int]:
    if binary is None:
        context = _context(authority, "localhost")
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(directory / "ca.pem")
        async with Proxy(behind.socket_path, context) as proxy:
            yield proxy.port
        return
    port = free_ports(1)[0]
    both = str(directory / "both.pem")
    files = {"tls-cert-file": both, "tls-key-file": both, "tls-ca-cert-file": str(directory / "ca.pem")}
    server = Server(binary, settings={"tls-port": str(port), **files}).start()
    try:
        yield port
    finally:
        server.stop()


async def test_an_embedded_directory_needs_the_embedded_server(valkey: Server, tmp_path: Path) -> None:
    """A directory beside somebody else's Redis would silently keep nothing."""
    with pytest.raises(ConfigError, match="--embedded-dir"):
        await open_connection(valkey.url, embedded_dir=str(tmp_path))


async def test_closing_twice_is_fine_and_ends_calls(own_valkey: Server) -> None:
    """After closing, calls fail by name; nothing is left open."""
    connection = await open_connection(own_valkey.url)
    await connection.run(COUNT, b"k", [])
    await connection.close()
    await connection.close()
    assert await reason_of(connection) == "down"
    assert len(bytes(own_valkey.ask("CLIENT", "LIST")).splitlines()) == 1
