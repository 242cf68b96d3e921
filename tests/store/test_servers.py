from __future__ import annotations

import shutil

import pytest

from inference_cache.store.connection.topology import slot_of
from tests.support import servers
from tests.support.servers import Cluster, Server


def test_a_missing_redis_is_a_failure_where_it_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a developer's machine the system's Redis joins where it is found; where it must be there, it must."""
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.delenv(servers.REQUIRE_REDIS, raising=False)
    monkeypatch.delenv(servers.ANOTHER, raising=False)
    assert servers.kinds() == ["valkey", "cluster"]
    monkeypatch.setenv(servers.REQUIRE_REDIS, "1")
    with pytest.raises(FileNotFoundError, match=servers.REQUIRE_REDIS):
        servers.kinds()
    monkeypatch.setattr(shutil, "which", lambda _: "/usr/bin/redis-server")
    assert servers.kinds() == ["valkey", "cluster", "redis7"]
    monkeypatch.setenv(servers.ANOTHER, "/opt/another")
    assert servers.kinds() == ["valkey", "cluster", "redis7", "another"]


def test_a_server_that_does_not_start_says_why() -> None:
    """A misconfigured test server fails its test at once, and leaves no process."""
    server = Server(servers.valkey_binary(), settings={"maxmemory-policy": "no-such-policy"})
    with pytest.raises(ChildProcessError):
        server.start()
    assert server._process is None
    server.stop()


def test_a_slot_moves_key_by_key_and_back(cluster: Cluster, key_prefix: str) -> None:
    """A begun migration leaves a slot half moved until it is told to finish or to abandon."""
    near, far = f"{{{key_prefix}}}:near".encode(), f"{{{key_prefix}}}:far".encode()
    for key in (near, far):
        cluster.owner(key).ask("SET", key, "1")
    migration = cluster.migration(near)
    migration.move([far])
    assert migration.source.ask("EXISTS", near) == 1
    assert migration.target.ask("CLUSTER", "COUNTKEYSINSLOT", slot_of(near)) == 1
    migration.abandon()
    assert cluster.owner(near) is migration.source
    assert migration.source.ask("EXISTS", near, far) == 2
    finished = cluster.migration(near)
    finished.finish()
    assert cluster.owner(near) is finished.target
    assert finished.target.ask("EXISTS", near, far) == 2
