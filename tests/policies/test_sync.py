"""Servers that share policies through Redis: they agree soon, and what Redis loses comes back."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time

import pytest

from inference_cache.domain.policy_set import PolicySet
from inference_cache.errors import StoreUnavailable
from inference_cache.policies.live import Held
from inference_cache.store.keys import Keys
from inference_cache.store.policies import NOTHING
from tests.policies.conftest import DEFAULT, Host, hosts, ttl
from tests.support.servers import Server, free_ports, valkey_binary, wait_until


async def until_read(host: Host) -> None:
    """Look until Redis can be read again."""
    while True:
        with contextlib.suppress(StoreUnavailable):
            await host.sync.refresh()
            return
        await asyncio.sleep(0.01)


async def settled(made: list[Host]) -> None:
    """Wait until all servers hold the same generation with the same content."""
    while len({(host.generation, host.live.held.snapshot.digest) for host in made}) > 1:  # noqa: ASYNC110
        await asyncio.sleep(0.005)


async def test_a_push_is_in_force_when_it_returns(host: Host) -> None:
    """The next request on this server uses it."""
    assert host.ttl_ms() == DEFAULT.ttl_ms
    assert await host.sync.push(ttl(1000), "api")
    assert (host.ttl_ms(), host.generation) == (1000, 1)
    assert host.ttl_ms("other") == DEFAULT.ttl_ms


async def test_an_identical_push_changes_nothing(host: Host) -> None:
    """Neither the generation nor the time since when it is in force: controllers repeat themselves."""
    await host.sync.push(ttl(1000), "api")
    before = host.live.held
    assert not await host.sync.push(ttl(1000), "cli")
    assert host.live.held == before
    assert before.snapshot.source == "api"


async def test_a_generation_in_use_stays_as_it_was(host: Host) -> None:
    """Who holds one generation can finish with it while another comes into force."""
    await host.sync.push(ttl(1000), "api")
    mine: Held = host.live.held
    await host.sync.push(ttl(2000), "api")
    assert (mine.for_tenant("t").ttl_ms, host.ttl_ms()) == (1000, 2000)


async def test_every_server_follows_within_a_second(redis_url: str, key_prefix: str) -> None:
    """Whoever took the push, the others apply it; the bound is the promise itself."""
    async with hosts(redis_url, key_prefix, 3) as made:
        for turn, pusher in enumerate(made, 1):
            await pusher.sync.push(ttl(turn * 1000), "api")
            began = time.monotonic()
            async with asyncio.timeout(10):
                await asyncio.gather(*(other.until_ttl_ms(turn * 1000) for other in made))
            assert time.monotonic() - began < 1
        assert {host.generation for host in made} == {3}


async def test_the_poll_alone_is_enough(valkey: Server, key_prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that hears nothing still applies within a second."""
    async with hosts(valkey.url, key_prefix, 2, follow=False) as made:
        monkeypatch.setattr(made[1].store, "wait_for_news", lambda _heard: asyncio.sleep(3600))
        following = asyncio.create_task(made[1].sync.run())
        await made[0].sync.push(ttl(1000), "api")
        began = time.monotonic()
        async with asyncio.timeout(10):
            await made[1].until_ttl_ms(1000)
        assert time.monotonic() - began < 1
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def test_a_hint_alone_is_enough(valkey: Server, key_prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With no poll before the test would time out, the channel brings the change."""
    monkeypatch.setattr("inference_cache.policies.sync.POLL_S", 3600.0)
    async with hosts(valkey.url, key_prefix, 2) as made:
        for turn in range(1, 4):
            await made[0].sync.push(ttl(turn * 1000), "api")
            async with asyncio.timeout(20):
                await made[1].until_ttl_ms(turn * 1000)


async def test_pushes_through_all_servers_at_once_converge(redis_url: str, key_prefix: str) -> None:
    """Each is accepted, the last one by generation holds, and everybody ends with that one."""
    async with hosts(redis_url, key_prefix, 3) as made:
        pushes = (made[at % 3].sync.push(ttl(1000 + at), "api") for at in range(30))
        assert all(await asyncio.gather(*pushes))
        async with asyncio.timeout(20):
            while {host.generation for host in made} != {30}:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.005)
        assert len({host.live.held.snapshot.digest for host in made}) == 1


@pytest.mark.parametrize("how", ["FLUSHALL", "DEL"])
async def test_policies_survive_an_emptied_redis(own_valkey: Server, key_prefix: str, how: str) -> None:
    """A server writes them back with their generation and author, and one that starts then has them."""
    async with hosts(own_valkey.url, key_prefix, 2) as made:
        await made[0].sync.push(ttl(1000), "cli")
        await settled(made)
        own_valkey.ask(how, *([] if how == "FLUSHALL" else [Keys(key_prefix).policy]))
        async with asyncio.timeout(20), hosts(own_valkey.url, key_prefix, 1) as (late,):
            await late.until_ttl_ms(1000)
        assert late.live.held.snapshot == made[0].live.held.snapshot
        assert sum(host.counted("policy_restored_total") for host in made) == 1
        assert {host.generation for host in made} == {1}


async def test_an_empty_push_is_no_loss(redis_url: str, key_prefix: str) -> None:
    """Clearing is explicit: nobody writes the old ones back."""
    async with hosts(redis_url, key_prefix, 2) as made:
        await made[0].sync.push(ttl(1000), "api")
        await settled(made)
        await made[1].sync.push(PolicySet(), "api")
        async with asyncio.timeout(20):
            await asyncio.gather(*(host.until_ttl_ms(DEFAULT.ttl_ms) for host in made))
            await asyncio.gather(*(host.sync.refresh() for host in made))
        assert {host.generation for host in made} == {2}
        assert sum(host.counted("policy_restored_total") for host in made) == 0


async def test_a_promoted_replica_without_the_last_push_gets_it_back() -> None:
    """The primary dies with a push that its replica has not seen; the servers that applied it bring it back."""
    port, other_port = free_ports(2)
    primary = Server(valkey_binary(), port=port).start()
    replica = Server(valkey_binary(), port=other_port).start()
    try:
        replica.ask("REPLICAOF", "127.0.0.1", port)
        wait_until(lambda: b"master_link_status:up" in replica.ask("INFO", "replication"), "the replica")
        async with hosts(primary.url, "p", 2) as made:
            await made[0].sync.push(ttl(1000), "api")
            await settled(made)
            wait_until(lambda: replica.ask("HGET", Keys("p").policy, "generation") == b"1", "the first push")
            replica.ask("REPLICAOF", "NO", "ONE")  # from here on it hears nothing
            await made[0].sync.push(ttl(2000), "api")
            await settled(made)
            primary.kill()
            replica.kill()
            assert {host.ttl_ms() for host in made} == {2000}
        promoted = Server(valkey_binary(), port=port)
        try:
            promoted.start()
            async with hosts(promoted.url, "p", 2, follow=False) as after:
                await after[0].sync.push(ttl(1000), "api")  # what the replica had: generation 1
                after[1].live.apply(made[0].live.held.snapshot, ttl(2000), 0)
                await after[1].sync.refresh()
                await after[0].sync.refresh()
                assert [(host.generation, host.ttl_ms()) for host in after] == [(2, 2000), (2, 2000)]
        finally:
            promoted.stop()
    finally:
        primary.stop()
        replica.stop()


async def test_at_equal_generations_redis_is_right(valkey: Server, key_prefix: str) -> None:
    """After a loss another push was accepted under the same number: it is the later one, and everybody takes it."""
    async with hosts(valkey.url, key_prefix, 2, follow=False) as (one, other):
        await one.sync.push(ttl(1000), "api")
        valkey.ask("DEL", Keys(key_prefix).policy)
        await other.sync.push(ttl(2000), "api")
        assert (one.generation, other.generation) == (1, 1)
        await one.sync.refresh()
        await other.sync.refresh()
        assert (one.ttl_ms(), other.ttl_ms()) == (2000, 2000)


async def test_a_push_outranks_what_redis_lost(valkey: Server, key_prefix: str) -> None:
    """It is accepted after the loss, so it is what holds, not what the other server remembers."""
    async with hosts(valkey.url, key_prefix, 2, follow=False) as (one, other):
        for at in range(1, 6):
            await one.sync.push(ttl(at * 1000), "api")
        await other.sync.refresh()
        valkey.ask("DEL", Keys(key_prefix).policy)
        await one.sync.push(ttl(9000), "api")
        await other.sync.refresh()
        await one.sync.refresh()
        assert [(host.generation, host.ttl_ms()) for host in (one, other)] == [(6, 9000), (6, 9000)]


async def test_without_redis_a_push_fails_and_the_last_policies_stay(own_valkey: Server) -> None:
    """It says why, counts it, and recovers by itself with what it held."""
    async with hosts(own_valkey.url, "p", 1, follow=False) as (host,):
        await host.sync.push(ttl(1000), "api")
        own_valkey.kill()
        with pytest.raises(StoreUnavailable):
            await host.sync.push(ttl(2000), "api")
        with pytest.raises(StoreUnavailable):
            await host.sync.refresh()
        assert (host.ttl_ms(), host.generation) == (1000, 1)
        told = re.fullmatch(
            r"policies: not read for \d+ s \((\w+)\), generation 1 stays in force", host.sync.problem() or ""
        )
        assert told is not None
        assert host.counted("policy_read_errors_total", reason=told[1]) == 1
        own_valkey.start()
        await until_read(host)
        assert host.sync.problem() is None
        assert await host.store.get(NOTHING) == host.live.held.snapshot


async def test_a_frozen_redis_holds_nobody_for_long(own_valkey: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exchange has a deadline, its turn included."""
    monkeypatch.setattr("inference_cache.policies.sync._DEADLINE_S", 0.1)
    async with hosts(own_valkey.url, "p", 1, follow=False) as (host,):
        own_valkey.pause()
        try:
            results = await asyncio.gather(
                *(host.sync.push(ttl(at), "api") for at in range(1, 4)), return_exceptions=True
            )
        finally:
            own_valkey.resume()
        assert [getattr(result, "reason", result) for result in results] == ["timeout"] * 3


@pytest.mark.parametrize("body", [b"not json", b'{"version":8}', b'{"version":7,"unknown":1}'])
async def test_a_snapshot_of_another_version_is_left_alone(
    host: Host, valkey: Server, key_prefix: str, body: bytes
) -> None:
    """What this version cannot read stays in Redis, is told once, and the last policies stay in force here."""
    await host.sync.push(ttl(1000), "api")
    key = Keys(key_prefix).policy
    valkey.ask("HSET", key, "generation", 5, "digest", "x", "body", body)
    for _ in range(3):
        await host.sync.refresh()
    assert host.ttl_ms() == 1000
    assert host.sync.problem() == "policies: this version cannot read generation 5, generation 1 stays in force"
    assert host.counted("policy_read_errors_total", reason="unreadable") == 1
    assert valkey.ask("HGET", key, "body") == body
    await host.sync.push(ttl(2000), "api")
    assert (host.generation, host.ttl_ms(), host.sync.problem()) == (6, 2000, None)


async def test_somebody_elses_key_is_an_error_with_a_reason(host: Host, valkey: Server, key_prefix: str) -> None:
    """A key of another type is neither read nor overwritten."""
    valkey.ask("SET", Keys(key_prefix).policy, "mine")
    with pytest.raises(Exception, match="another type") as wrong:
        await host.sync.refresh()
    assert host.counted("policy_read_errors_total", reason=wrong.value.reason) == 1  # type: ignore[attr-defined]
    assert valkey.ask("GET", Keys(key_prefix).policy) == b"mine"


async def test_gauges_tell_the_generation_and_when(host: Host) -> None:
    """Dashboards see which generation a server uses, since when, and when it last looked."""
    began = time.time() - 1
    await host.sync.push(ttl(1000), "api")
    assert host.counted("policy_generation") == 1
    applied = host.counted("policy_applied_timestamp_seconds")
    await host.sync.refresh()
    assert began < applied <= host.counted("policy_read_timestamp_seconds")
    assert host.counted("policy_applied_timestamp_seconds") == applied


async def test_following_survives_an_outage(own_valkey: Server) -> None:
    """Polling and listening go on after Redis was away, on new connections."""
    async with hosts(own_valkey.url, "p", 2) as made:
        await made[0].sync.push(ttl(1000), "api")
        await settled(made)
        own_valkey.kill()
        while not all(host.sync.problem() for host in made):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
        own_valkey.start()
        async with asyncio.timeout(30):
            while any(host.sync.problem() for host in made):  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.01)
            await made[1].sync.push(ttl(2000), "api")
            await made[0].until_ttl_ms(2000)
        assert {host.generation for host in made} == {2}
