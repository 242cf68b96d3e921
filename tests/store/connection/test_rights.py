from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from inference_cache.errors import StoreUnavailable
from inference_cache.store.connection import Connection, open_connection
from inference_cache.store.policies import NOTHING, PolicyStore
from inference_cache.store.redis import RedisStore
from inference_cache.store.scripts import load, names
from tests.contract.build import Client, series
from tests.support.patience import until
from tests.support.rights import account, further, grant, least, revoke
from tests.support.servers import Cluster, Server, Watched, free_ports, kinds, valkey_binary

pytestmark = pytest.mark.timeout(300)

SENT = {"+ping", "+time", "+evalsha", "+script|load", "+subscribe"}
"""What servers send themselves, whatever the kind of Redis."""


@asynccontextmanager
async def opened(url: str, max_replica_lag_ms: int | None = None) -> AsyncIterator[Connection]:
    connection = await open_connection(url, max_replica_lag_ms=max_replica_lag_ms)
    try:
        yield connection
    finally:
        await connection.close()


@pytest.fixture(params=kinds())
def server(request: pytest.FixtureRequest) -> Server | Cluster:
    """Return each kind of Redis in turn."""
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Server | Cluster)
    return found


def test_the_page_lists_what_is_used_and_no_more() -> None:
    """Each command of the page is one that a script calls or a server sends, and none of these is left out."""
    called = set()
    for name in names():
        code = re.sub(r"--.*", "", re.sub(r"--\[\[.*?\]\]", "", load(name).text, flags=re.DOTALL))
        called |= {f"+{word.lower()}" for word in re.findall(r"\b(?:p?call|many)\(\s*'([A-Z]+)'", code)}
    assert len(called) > 20
    commands = {rule for rule in least() if rule.startswith("+")}
    assert commands == called | SENT
    assert [rule for rule in least() if rule not in commands] == ["reset", "on", ">PASSWORD", "~ic:*", "&ic:*"]


async def test_policies_need_no_further_rights(server: Server | Cluster, key_prefix: str) -> None:
    """Policies are read, written, and heard of with the listed rights, besides the whole contract of the index."""
    async with opened(grant(server, key_prefix)) as connection:
        policies = PolicyStore(connection, key_prefix=key_prefix)
        assert await policies.get(NOTHING) == "ABSENT"
        heard: list[bool] = []
        task = asyncio.create_task(policies.wait_for_news(lambda: heard.append(True)))
        await until(lambda: len(heard) == 1)
        await policies.push(NOTHING, NOTHING)
        await until(lambda: len(heard) == 2)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    revoke(server, key_prefix)


async def test_other_prefixes_are_out_of_reach(valkey: Server, key_prefix: str) -> None:
    """Who has the rights of one index cannot read another one on the same Redis."""
    async with opened(grant(valkey, key_prefix)) as connection:
        with pytest.raises(StoreUnavailable) as caught:
            await Client(RedisStore(connection, key_prefix="other")).tell("r", series("prompt", 2))
    assert caught.value.reason == "noperm"
    revoke(valkey, key_prefix)


@pytest.mark.parametrize("missing", ["-evalsha", "-hget", "resetkeys"])
async def test_a_missing_right_is_named_and_may_be_given_later(
    server: Server | Cluster, key_prefix: str, missing: str
) -> None:
    """Without a command or its keys calls fail as `noperm`, with a message; once it is given they succeed."""
    url = grant(server, key_prefix, missing)
    async with opened(url) as connection:
        client = Client(RedisStore(connection, key_prefix=key_prefix))
        with pytest.raises(StoreUnavailable, match="may not do this") as caught:
            await client.tell("r", series("prompt", 2))
        assert caught.value.reason == "noperm"
        grant(server, key_prefix)
        await client.tell("r", series("prompt", 2))
        assert await client.depths(series("prompt", 2)) == {"r": 2}
    revoke(server, key_prefix)


async def test_the_optional_rights_are_optional_and_work(valkey: Server, key_prefix: str) -> None:
    """Without them the eviction policy is unknown and the connection nameless; with them neither is."""
    async with opened(grant(valkey, key_prefix)) as connection:
        assert connection.eviction_policy is None
    optional = ("+config|get", "+client|setname")
    async with opened(grant(valkey, key_prefix, *optional)) as connection:
        assert connection.eviction_policy == "noeviction"
        assert f"user={key_prefix}".encode() in b"".join(
            line
            for line in bytes(valkey.ask("CLIENT", "LIST")).splitlines(keepends=True)
            if b"name=inference-cache" in line
        )
    revoke(valkey, key_prefix)


async def test_another_database_needs_its_right(valkey: Server, key_prefix: str) -> None:
    """Being in a database other than 0 takes one more right, named by the page."""
    url = grant(valkey, key_prefix)
    async with opened(f"{url}?db=3") as connection:
        with pytest.raises(StoreUnavailable) as caught:
            await connection.ping()
        assert caught.value.reason == "noperm"
    grant(valkey, key_prefix, *further("a database other than 0"))
    async with opened(f"{url}?db=3") as connection:
        await connection.ping()
    revoke(valkey, key_prefix)


async def test_replicas_need_their_rights(key_prefix: str) -> None:
    """With the rights of the page's table a replica serves lookups; the user exists on both servers."""
    primary, replica = (Server(valkey_binary(), port=port).start() for port in free_ports(2))
    try:
        replica.follow(primary)
        for each in (primary, replica):
            grant(each, key_prefix, *further("replicas"))
        async with opened(account(primary.url, key_prefix, "of-a-test-only"), 30_000) as connection:
            await until(lambda: (told := connection.replication()) is not None and told.used == 1)
            assert await Client(RedisStore(connection, key_prefix=key_prefix)).depths(series("prompt", 2)) == {}
            told = connection.replication()
            assert told is not None
            assert (told.by_replica, told.by_primary) == (1, 0)
    finally:
        replica.stop()
        primary.stop()


async def test_a_primary_of_sentinels_needs_its_right(watched: Watched, key_prefix: str) -> None:
    """With the page's further right the primary's role can be checked; without it the refusal has its name."""
    primary = watched.servers[0]
    grant(primary, key_prefix)
    url = account(watched.url, key_prefix, "of-a-test-only")
    async with opened(url) as connection:
        with pytest.raises(StoreUnavailable) as caught:
            await connection.ping()
        assert caught.value.reason == "noperm"
    grant(primary, key_prefix, *further("Sentinel"))
    async with opened(url) as connection:
        await connection.ping()
