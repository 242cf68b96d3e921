from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from inference_cache.errors import StoreCorrupt, StoreUnavailable
from inference_cache.store.connection import open_connection
from inference_cache.store.connection.cluster import ClusterConnection
from inference_cache.store.connection.topology import SLOTS, Topology, moved_to, slot_of
from tests.support.patience import until_it_runs
from tests.support.scripts import COUNT, ECHO, EXISTS_THEN_COUNT, REACH
from tests.support.servers import Cluster, Server, free_ports, valkey_binary, wait_until


@pytest.fixture
async def linked(cluster: Cluster) -> AsyncIterator[ClusterConnection]:
    """Yield a connection to the shared Cluster."""
    connection = await open_connection(cluster.url)
    assert isinstance(connection, ClusterConnection)
    yield connection
    await connection.close()


def calls(server: Server) -> int:
    """Return how many scripts a node has run or refused to run so far."""
    stats = server.ask("INFO", "commandstats").partition(b"cmdstat_evalsha:")[2].partition(b"\r\n")[0]
    counts = dict(part.split(b"=") for part in stats.split(b",") if part)
    return int(counts.get(b"calls", 0)) + int(counts.get(b"rejected_calls", 0))


async def test_each_key_is_asked_where_it_lives(linked: ClusterConnection, cluster: Cluster, key_prefix: str) -> None:
    """Keys of all nodes are served by one connection, and nobody is asked for a key of another node."""
    keys = [f"{{{key_prefix}-{number}}}".encode() for number in range(30)]
    owners = {id(cluster.owner(key)) for key in keys}
    assert len(owners) == 3
    for key in keys:
        assert await linked.run(COUNT, key, []) == 1
        assert cluster.owner(key).ask("EXISTS", key) == 1
    await linked.ping()


async def test_scripts_are_loaded_on_every_node(linked: ClusterConnection, cluster: Cluster) -> None:
    """A node's script cache is its own, so warming up visits each."""
    await linked.load([ECHO])
    assert [node.ask("SCRIPT", "EXISTS", ECHO.sha) for node in cluster.nodes] == [[1]] * 3


async def test_a_moved_slot_is_followed(linked: ClusterConnection, cluster: Cluster, key_prefix: str) -> None:
    """After a migration the old owner says where the slot went, nothing ran there, and the call goes on."""
    key = f"{{{key_prefix}}}".encode()
    assert await linked.run(COUNT, key, []) == 1
    migration = cluster.migration(key)
    migration.finish()
    assert await linked.run(COUNT, key, []) == 2
    assert migration.target.ask("GET", key) == b"2"
    before = calls(migration.source)
    assert await linked.run(COUNT, key, []) == 3
    assert calls(migration.source) == before


async def test_a_moving_slot_is_refused_and_nothing_runs(
    linked: ClusterConnection, cluster: Cluster, key_prefix: str
) -> None:
    """ASK is not followed: on the importing node a script would take keys that are still elsewhere for absent."""
    tag = f"{{{key_prefix}}}"
    key, sibling = f"{tag}:a".encode(), f"{tag}:b".encode()
    await linked.run(COUNT, key, [])
    await linked.run(COUNT, sibling, [])
    await linked.load([COUNT, EXISTS_THEN_COUNT])
    migration = cluster.migration(key)
    migration.move([key])
    before = calls(migration.target)
    with pytest.raises(StoreUnavailable) as caught:
        await linked.run(COUNT, key, [])
    assert caught.value.reason == "slot_moving"
    with pytest.raises(StoreUnavailable) as caught:
        await linked.run(EXISTS_THEN_COUNT, sibling, [key])
    assert caught.value.reason == "slot_moving"
    assert calls(migration.target) == before
    assert migration.source.ask("GET", sibling) == b"1"
    migration.finish()
    assert await linked.run(COUNT, key, []) == 2
    assert await linked.run(EXISTS_THEN_COUNT, sibling, [key]) == 2


async def test_a_call_beside_a_moving_slot_is_not_disturbed(
    linked: ClusterConnection, cluster: Cluster, key_prefix: str
) -> None:
    """Keys that have not moved yet, and other slots, are served as ever."""
    tag = f"{{{key_prefix}}}"
    key, other = f"{tag}:a".encode(), f"{{{key_prefix}-other}}".encode()
    await linked.run(COUNT, key, [])
    migration = cluster.migration(key)
    assert await linked.run(COUNT, key, []) == 2
    assert await linked.run(COUNT, other, []) == 1
    migration.abandon()
    assert await linked.run(COUNT, key, []) == 3


async def test_reaching_for_another_slot_is_refused(
    linked: ClusterConnection, cluster: Cluster, key_prefix: str
) -> None:
    """A key of another node looks like one that moved away; one of another slot here is a mistake of the script."""
    key = f"{{{key_prefix}}}".encode()
    others = [f"{{{key_prefix}-{number}}}".encode() for number in range(100)]
    owner = cluster.owner(key)
    away = next(other for other in others if cluster.owner(other) is not owner)
    with pytest.raises(StoreUnavailable) as moving:
        await linked.run(REACH, key, [away])
    assert moving.value.reason == "slot_moving"
    here = next(other for other in others if cluster.owner(other) is owner and slot_of(other) != slot_of(key))
    with pytest.raises(StoreCorrupt) as mistaken:
        await linked.run(EXISTS_THEN_COUNT, key, [here])
    assert mistaken.value.reason == "crossslot"


async def test_a_dead_node_takes_only_its_own_slots(key_prefix: str) -> None:
    """A node that is gone fails the calls to its keys by name, and is used again when it is back."""
    own = Cluster(valkey_binary(), settings={"cluster-require-full-coverage": "no"})
    try:
        own.start()
        connection = await open_connection(own.url)
        keys = [f"{{{key_prefix}-{number}}}".encode() for number in range(30)]
        victim = own.nodes[0]
        lost = next(key for key in keys if own.owner(key) is victim)
        kept = next(key for key in keys if own.owner(key) is not victim)
        await connection.run(COUNT, lost, [])
        victim.kill()
        with pytest.raises(StoreUnavailable):
            await connection.run(COUNT, lost, [])
        await connection.ping()  # the others' models are served: a server stays ready for them
        assert await connection.run(COUNT, kept, []) == 1
        assert abs(await connection.server_time_ms() - connection.now_ms()) < 1000
        victim.start()
        wait_until(lambda: b"cluster_state:ok" in bytes(victim.ask("CLUSTER", "INFO")), "the node to rejoin")
        assert await until_it_runs(connection, COUNT, lost) == 1
        await connection.close()
    finally:
        own.stop()


async def test_a_promoted_replica_takes_over(key_prefix: str) -> None:
    """When a primary is lost its replica gets the calls, although it has never seen a script."""
    own = Cluster(valkey_binary(), settings={"cluster-node-timeout": "1000"})
    try:
        own.start()
        keys = [f"{{{key_prefix}-{number}}}".encode() for number in range(30)]
        victim = own.nodes[0]
        key = next(key for key in keys if own.owner(key) is victim)
        connection = await open_connection(own.url)
        assert await connection.run(COUNT, key, []) == 1
        replica = own.add_replica(victim)
        assert victim.ask("WAIT", 1, 5000) == 1
        victim.kill()
        with pytest.raises(StoreUnavailable):
            await connection.run(COUNT, key, [])
        await asyncio.to_thread(
            wait_until, lambda: b"role:master" in replica.ask("INFO", "replication"), "the replica to be promoted"
        )
        assert await until_it_runs(connection, COUNT, key) == 2
        assert replica.ask("GET", key) == b"2"
        await connection.close()
    finally:
        own.stop()


async def test_one_living_node_is_enough_to_find_the_others(cluster: Cluster, key_prefix: str) -> None:
    """Of the nodes in the address some may be gone; an address where nobody answers is only unavailable."""
    living = cluster.nodes[1].port
    connection = await open_connection(f"redis+cluster://127.0.0.1:1,127.0.0.1:{living}")
    assert await connection.run(COUNT, key_prefix.encode(), []) == 1
    assert connection.eviction_policy == "noeviction"
    await connection.close()
    nobody = await open_connection("redis+cluster://127.0.0.1:1")
    with pytest.raises(StoreUnavailable) as caught:
        await nobody.run(COUNT, key_prefix.encode(), [])
    assert caught.value.reason == "down"
    await nobody.close()


async def test_a_server_without_cluster_mode_is_refused() -> None:
    """A Cluster address of a plain server cannot work and says so instead of failing later."""
    plain = Server(valkey_binary(), port=free_ports(1)[0]).start()
    connection = await open_connection(f"redis+cluster://127.0.0.1:{plain.port}")
    with pytest.raises(StoreUnavailable) as caught:
        await connection.ping()
    assert caught.value.reason == "refused"
    await connection.close()
    plain.stop()


def test_the_topology_fills_in_what_a_node_does_not_know() -> None:
    """A node that does not know its own address means the one it was asked at; slots without owner have none."""
    reply = [[0, 1, [b"", 7000, b"id"]], [5, 6, [b"10.0.0.2", 7001, b"id"], [b"10.0.0.3", 7002, b"id"]]]
    topology = Topology.parse(reply, ("seed", 1))
    assert topology.owner(1) == ("seed", 7000)
    assert topology.owner(2) is None
    assert topology.owner(5) == ("10.0.0.2", 7001)
    assert topology.primaries == (("10.0.0.2", 7001), ("seed", 7000))
    assert topology.with_owner(2, ("x", 1)).owner(2) == ("x", 1)
    assert topology.owner(2) is None


def test_slots_follow_the_hash_tag(cluster: Cluster) -> None:
    """The slot is that of the first tag, as Redis computes it."""
    assert slot_of(b"{user1000}.following") == slot_of(b"user1000") == 3443
    assert slot_of(b"foo{}{bar}") == 8363
    for key in (b"", b"a", b"{", b"}{a}", b"a{b", b"a{b}c}", b"a{{b}}", b"{}", b"\xff{\x00\r\n}\xfe", b"a" * 1000):
        assert slot_of(key) == cluster.nodes[0].ask("CLUSTER", "KEYSLOT", key)


def test_moved_names_the_owner() -> None:
    """The address in the reply may be IPv6, or empty where the node asked is meant."""
    assert moved_to("MOVED 3999 10.0.0.2:6381", ("seed", 1)) == (3999, ("10.0.0.2", 6381))
    assert moved_to("MOVED 3999 fd00::2:6381", ("seed", 1)) == (3999, ("fd00::2", 6381))
    assert moved_to("MOVED 3999 :6381", ("seed", 1)) == (3999, ("seed", 6381))


async def test_what_a_node_has_under_way_ends_when_it_leaves(
    linked: ClusterConnection, cluster: Cluster, key_prefix: str
) -> None:
    """A node that owns nothing any more gets no new calls, but those under way have their replies."""
    key = f"{{{key_prefix}}}".encode()
    await linked.run(ECHO, key, [b"warm"])
    owner = cluster.owner(key)
    host = ("127.0.0.1", owner.port)
    node, others = linked._nodes[host], tuple(other for other in linked._topology.primaries if other != host)
    under_way = [asyncio.create_task(linked.run(ECHO, key, [number])) for number in range(300)]
    await asyncio.sleep(0)
    linked._adopt(Topology([others[0]] * SLOTS))
    assert [reply[1] for reply in await asyncio.gather(*under_way)] == [b"%d" % number for number in range(300)]
    with pytest.raises(StoreUnavailable):
        await node.call("PING")
    assert linked.traffic()["reads"].in_flight == 0
