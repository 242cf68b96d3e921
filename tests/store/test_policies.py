"""The policy snapshot in Redis: who wins, what a generation means, and how what was lost comes back."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from inference_cache.errors import StoreUnavailable
from inference_cache.store.connection import Connection, open_connection
from inference_cache.store.keys import Keys
from inference_cache.store.policies import NOTHING, PolicySnapshot, PolicyStore
from tests.support.servers import Cluster, Server


def written(body: str, source: str = "api", directory: str = "") -> PolicySnapshot:
    """Return what a server hands in."""
    return PolicySnapshot(0, f"digest of {body}", source, "host", 1000, directory, body.encode())


def of_directory(body: str) -> PolicySnapshot:
    """Return what a server hands in for its policy directory."""
    return written(body, "directory", f"digest of {body}")


@pytest.fixture
async def store(connection: Connection, key_prefix: str) -> PolicyStore:
    """Return an empty snapshot on each kind of Redis."""
    return PolicyStore(connection, key_prefix=key_prefix)


async def stored(store: PolicyStore) -> PolicySnapshot:
    """Return what is stored."""
    found = await store.get(NOTHING)
    assert isinstance(found, PolicySnapshot)
    return found


async def test_what_was_pushed_is_read_until_it_is_known(store: PolicyStore) -> None:
    """Nothing, then the whole snapshot, then only the word that it has not changed."""
    assert await store.get(NOTHING) == "ABSENT"
    new = written("a")
    assert await store.push(new, NOTHING) == (replace(new, generation=1), True)
    assert await stored(store) == replace(new, generation=1)
    known = replace(new, generation=1)
    assert await store.get(known) == "SAME"
    for other in (replace(known, digest="x"), replace(known, generation=2), replace(known, directory="x")):
        assert await store.get(other) == known


async def test_each_change_raises_the_generation_and_the_last_write_wins(store: PolicyStore) -> None:
    """Whatever the writer knew."""
    for generation, body in enumerate("abca", 1):
        assert await store.push(written(body), NOTHING) == (replace(written(body), generation=generation), True)
    assert (await stored(store)).body == b"a"


async def test_an_identical_body_keeps_the_generation_and_its_writer(store: PolicyStore) -> None:
    """A controller that repeats itself changes nothing, and does not pass as the author."""
    first, _ = await store.push(written("a"), NOTHING)
    again = replace(written("a", "cli"), host="elsewhere", written_ms=2000)
    assert await store.push(again, first) == (first, False)
    assert await stored(store) == first


async def test_pushes_at_once_get_generations_of_their_own(store: PolicyStore) -> None:
    """No two of them share a number, and what is stored is the one with the highest."""
    results = await asyncio.gather(*(store.push(written(str(at)), NOTHING) for at in range(20)))
    assert sorted(snapshot.generation for snapshot, _ in results) == list(range(1, 21))
    assert await stored(store) == max((snapshot for snapshot, _ in results), key=lambda one: one.generation)


async def test_a_push_is_above_what_its_server_holds(store: PolicyStore) -> None:
    """Redis lost generations 1 to 7: the next write is 8, also if its body was the last one."""
    held = replace(written("a", directory="d"), generation=7)
    pushed, fresh = await store.push(written("a"), held)
    assert (pushed.generation, pushed.directory, fresh) == (8, "d", True)


async def test_what_was_lost_is_written_back_as_it_was(store: PolicyStore) -> None:
    """With its own generation, writer and time, once, by whoever is first."""
    held = replace(written("a", directory="d"), generation=7)
    assert await asyncio.gather(*(store.restore(held) for _ in range(3))) == [True, False, False]
    assert await stored(store) == held


async def test_a_lower_generation_is_a_loss_and_an_equal_one_is_not(store: PolicyStore) -> None:
    """A promoted Redis that missed the last push gets it back; what it accepted itself since then stays."""
    await store.push(written("old"), NOTHING)
    assert await store.restore(replace(written("new"), generation=2))
    assert not await store.restore(replace(written("other"), generation=2))
    assert not await store.restore(replace(written("older"), generation=1))
    assert (await stored(store)).body == b"new"


async def test_a_directory_is_written_when_it_differs_from_the_last_one(store: PolicyStore) -> None:
    """Not because somebody else wrote meanwhile: that stays until the directory changes."""
    first = await store.push_directory(of_directory("a"), NOTHING)
    assert first == replace(of_directory("a"), generation=1)
    await store.push(written("by hand"), first)
    assert await store.push_directory(of_directory("a"), NOTHING) is None
    assert (await stored(store)).body == b"by hand"
    assert (await stored(store)).directory == "digest of a"
    assert await store.push_directory(of_directory("b"), NOTHING) == replace(of_directory("b"), generation=3)
    assert (await stored(store)).directory == "digest of b"


async def test_an_empty_directory_is_no_news_where_none_was_written(store: PolicyStore) -> None:
    """A mount that is not there yet wipes nothing; one that was emptied does."""
    empty = replace(of_directory("none"), directory="")
    await store.push(written("by hand"), NOTHING)
    assert await store.push_directory(empty, NOTHING) is None
    await store.push_directory(of_directory("a"), NOTHING)
    assert (await store.push_directory(empty, NOTHING)) == replace(empty, generation=3)


async def test_a_directory_with_what_is_stored_is_recorded_only(store: PolicyStore) -> None:
    """The generation stays, and who wrote it, but the directory is known from now on."""
    by_hand, _ = await store.push(written("a"), NOTHING)
    known = await store.push_directory(of_directory("a"), NOTHING)
    assert known == replace(by_hand, directory="digest of a")
    assert await stored(store) == known


async def test_the_snapshot_has_no_expiry(valkey: Server, key_prefix: str) -> None:
    """It is nobody's cache entry."""
    connection = await open_connection(valkey.url)
    try:
        await PolicyStore(connection, key_prefix=key_prefix).push(written("a"), NOTHING)
    finally:
        await connection.close()
    assert valkey.ask("PTTL", Keys(key_prefix).policy) == -1


async def test_a_change_is_told(store: PolicyStore) -> None:
    """Listeners hear of each write that changed something, and only of those."""
    heard: list[None] = []
    news = asyncio.Event()

    def hear() -> None:
        heard.append(None)
        news.set()

    async def hints(number: int) -> None:
        while len(heard) < number:
            news.clear()
            await news.wait()

    listening = asyncio.create_task(store.wait_for_news(hear))
    try:
        await hints(1)
        held, _ = await store.push(written("a"), NOTHING)
        await hints(2)
        await store.push(written("a"), held)
        await store.push(written("b"), held)
        await hints(3)
        assert len(heard) == 3
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)


async def test_a_user_who_may_not_publish_may_still_store(own_valkey: Server) -> None:
    """The hint is worth no refusal."""
    own_valkey.ask("ACL", "SETUSER", "mute", "on", ">secret", "~*", "+@all", "resetchannels")
    connection = await open_connection(own_valkey.url.replace("unix://", "unix://mute:secret@"))
    try:
        store = PolicyStore(connection)
        await store.push(written("a"), NOTHING)
        assert (await stored(store)).body == b"a"
    finally:
        await connection.close()


async def test_a_full_redis_still_takes_policies(own_valkey: Server) -> None:
    """A lower quota may be what makes room."""
    own_valkey.ask("CONFIG", "SET", "maxmemory", "1")
    connection = await open_connection(own_valkey.url)
    try:
        store = PolicyStore(connection)
        assert (await store.push(written("a"), NOTHING))[1]
    finally:
        await connection.close()


async def test_a_slot_on_the_move_is_refused_whole(cluster: Cluster, key_prefix: str) -> None:
    """With the snapshot moved already nothing is read, nor written a second time on the source."""
    connection = await open_connection(cluster.url)
    key = Keys(key_prefix).policy
    try:
        store = PolicyStore(connection, key_prefix=key_prefix)
        held, _ = await store.push(written("a"), NOTHING)
        migration = cluster.migration(key)
        try:
            migration.move([key])
            for call in (
                store.get(NOTHING),
                store.push(written("b"), held),
                store.restore(replace(held, generation=9)),
            ):
                with pytest.raises(StoreUnavailable):
                    await call
        finally:
            migration.abandon()
        assert await stored(store) == held
    finally:
        await connection.close()
