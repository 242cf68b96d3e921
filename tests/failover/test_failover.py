"""Under load a primary dies or a slot moves: gateways are answered, producers resend, nobody restarts anything."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from inference_cache.domain.models import ModelKey
from inference_cache.store.keys import Keys
from tests.failover.load import Load
from tests.rpc.wire import MODEL
from tests.support.layout import check_layout
from tests.support.process import serving
from tests.support.servers import Cluster, Server, Watched, binary_of, single_kinds, valkey_binary, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SOME = 60
TENANTS = [f"tenant-{number}" for number in range(6)]


def offset(server: Server, field: str) -> int:
    """Return how far a server's stream of changes has come."""
    return int(server.ask("INFO", "replication").partition(f"{field}:".encode())[2].partition(b"\r")[0])


async def replicated(primary: Server, replica: Server) -> None:
    """Return when a replica has all that its primary has now."""
    reached = offset(primary, "master_repl_offset")
    await asyncio.to_thread(
        wait_until, lambda: offset(replica, "slave_repl_offset") >= reached, "the replica to catch up"
    )


@pytest.mark.parametrize("kind", single_kinds())
async def test_sentinels_replace_the_primary(kind: str, tmp_path: Path) -> None:
    """Only what was acknowledged shortly before the end may be lost, and what is found is whole."""
    watched = Watched(binary_of(kind))
    try:
        await asyncio.to_thread(watched.start)
        old, new = watched.servers
        with serving(tmp_path, "--redis-url", watched.url) as server:
            address = await asyncio.to_thread(lambda: server.grpc)
            async with Load(address, TENANTS[:2]) as load:
                await load.more_acknowledged(SOME)
                safe = len(load.acknowledged)
                await replicated(old, new)
                await load.more_hits(SOME, TENANTS)
                old.kill()
                await load.until(lambda: new.is_primary)
                promoted = len(load.acknowledged)
                await load.more_acknowledged(SOME)
                await load.more_hits(SOME, TENANTS)
                await load.stop()
                assert await load.lost([*load.acknowledged[:safe], *load.acknowledged[promoted:]]) == []
            assert server.process.poll() is None
            await asyncio.to_thread(wait_until, lambda: server.get("/readyz")[0] == 200, "the server to be ready again")
        assert load.broken == []
        assert set(load.refused) == {"UNAVAILABLE"}
        assert sum(load.answers[tenant, "INDEX_UNAVAILABLE"] for tenant in TENANTS) > 0
        with new.admin() as client:
            check_layout([client], "ic")
    finally:
        watched.stop()


async def test_a_cluster_promotes_a_replica(tmp_path: Path) -> None:
    """Tenants of other nodes are served all the time, those of the dead one when its replica is promoted."""
    settings = {"cluster-node-timeout": "1000", "cluster-require-full-coverage": "no", "repl-diskless-sync-delay": "0"}
    cluster = Cluster(valkey_binary(), settings=settings)
    keys = {tenant: Keys().totals(ModelKey(tenant, MODEL)) for tenant in TENANTS}
    try:
        await asyncio.to_thread(cluster.start)
        catalog = cluster.owner(Keys().catalog)
        dying = next(owner for owner in map(cluster.owner, keys.values()) if owner is not catalog)
        replica = await asyncio.to_thread(cluster.add_replica, dying)
        replica.ask("CONFIG", "SET", "cluster-replica-no-failover", "yes")
        near = [tenant for tenant in TENANTS if cluster.owner(keys[tenant]) is dying]
        far = [tenant for tenant in TENANTS if tenant not in near]
        with serving(tmp_path, "--redis-url", cluster.url) as server:
            address = await asyncio.to_thread(lambda: server.grpc)
            async with Load(address, TENANTS) as load:
                await load.more_acknowledged(SOME)
                safe = len(load.acknowledged)
                await replicated(dying, replica)
                await load.more_hits(SOME, near)
                dying.kill()
                await load.until(lambda: sum(load.answers[tenant, "INDEX_UNAVAILABLE"] for tenant in near) > SOME)
                await load.more_hits(SOME, far)
                replica.ask("CONFIG", "SET", "cluster-replica-no-failover", "no")
                await load.until(lambda: replica.is_primary)
                promoted = len(load.acknowledged)
                await load.more_acknowledged(SOME)
                await load.more_hits(SOME, near)
                await load.stop()
                kept = [
                    report
                    for place, report in enumerate(load.acknowledged)
                    if report.tenant in far or place < safe or place >= promoted
                ]
                assert await load.lost(kept) == []
            assert server.process.poll() is None
            await asyncio.to_thread(wait_until, lambda: server.get("/readyz")[0] == 200, "the server to be ready again")
        assert load.broken == []
        assert set(load.refused) == {"UNAVAILABLE"}
    finally:
        cluster.stop()


async def test_a_slot_that_moves_as_a_whole_refuses_nothing(tmp_path: Path) -> None:
    """Valkey 9's atomic slot migration: no lookup and no report of the model is refused, and nothing is lost."""
    cluster = Cluster(valkey_binary())
    key = Keys().totals(ModelKey(TENANTS[0], MODEL))
    try:
        await asyncio.to_thread(cluster.start)
        with serving(tmp_path, "--redis-url", cluster.url, "--lookup-timeout-ms", "0") as server:
            address = await asyncio.to_thread(lambda: server.grpc)
            async with Load(address, TENANTS[:1]) as load:
                await load.more_acknowledged(SOME)
                for _ in range(3):
                    target = cluster.move_at_once(key)
                    await load.until(lambda target=target: cluster.owner(key) is target)  # type: ignore[misc]
                    await load.more_acknowledged(SOME)
                    await load.more_hits(SOME, TENANTS[:1])
                await load.stop()
                assert await load.lost(load.acknowledged) == []
        assert (load.broken, load.refused) == ([], {})
        assert {reason for _, reason in load.answers} == {"PREFIX_MATCH"}
    finally:
        cluster.stop()


async def test_a_slot_that_moves_key_by_key_is_refused_until_it_has_moved(tmp_path: Path) -> None:
    """Meanwhile the model gives no hints and its producers keep what they have; others do not notice."""
    cluster = Cluster(valkey_binary())
    keys = [Keys().totals(ModelKey(tenant, MODEL)) for tenant in TENANTS]
    moving, others = TENANTS[0], TENANTS[1:]
    try:
        await asyncio.to_thread(cluster.start)
        with serving(tmp_path, "--redis-url", cluster.url, "--lookup-timeout-ms", "0") as server:
            address = await asyncio.to_thread(lambda: server.grpc)
            async with Load(address, TENANTS) as load:
                await load.more_acknowledged(SOME)
                migration = cluster.migration(keys[0])
                migration.move([keys[0]])
                await load.until(lambda: load.answers[moving, "INDEX_UNAVAILABLE"] > SOME)
                await load.more_hits(SOME, others)
                migration.finish()
                await load.more_acknowledged(SOME)
                await load.more_hits(SOME, [moving])
                await load.stop()
                assert await load.lost(load.acknowledged) == []
        assert load.broken == []
        assert set(load.refused) <= {"UNAVAILABLE"}
        assert {reason for tenant, reason in load.answers if tenant in others} == {"PREFIX_MATCH"}
    finally:
        cluster.stop()
