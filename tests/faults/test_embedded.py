"""The embedded Valkey of a running server dies: nobody has to do anything about it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.support.process import Serving, serving
from tests.support.servers import wait_until
from tests.test_app import health, reason, report

WORKERS = ("1", "2")


def valkey_of(server: Serving) -> int:
    """Return the process id of a server's Valkey, 0 while it has none."""
    mine = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
    named = ((int(pid), Path(f"/proc/{pid}/comm").read_text()) for pid in mine)
    return next((pid for pid, name in named if "valkey" in name), 0)


def kill_valkey(server: Serving) -> None:
    """Kill the Valkey and return when another one is there and the server is ready again."""
    killed = valkey_of(server)
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: valkey_of(server) not in {0, killed}, "another Valkey")
    wait_until(lambda: "inferencecache_store_restarts_total 1.0\n" in server.get("/metrics")[1], "it to be counted")
    wait_until(lambda: server.get("/readyz")[0] == 200, "readiness")


@pytest.mark.slow
@pytest.mark.parametrize("workers", WORKERS)
def test_in_memory_the_index_is_cold(tmp_path: Path, workers: str) -> None:
    """The same server goes on, knows nothing, and learns again from the next reports."""
    with serving(tmp_path, "--workers", workers, "--lookup-timeout-ms", "5000") as server:
        report(server.grpc)
        assert reason(server.grpc) == "PREFIX_MATCH"
        kill_valkey(server)
        wait_until(lambda: health(server.grpc) == "SERVING", "health")
        assert reason(server.grpc) == "NO_HINT"
        report(server.grpc)
        assert reason(server.grpc) == "PREFIX_MATCH"
        assert any("was ended by SIGKILL" in str(event) for event in server.events())


@pytest.mark.slow
def test_with_a_directory_the_index_is_back(tmp_path: Path) -> None:
    """The same server answers as before."""
    data = tmp_path / "data"
    with serving(tmp_path, "--embedded-dir", str(data), "--lookup-timeout-ms", "5000") as server:
        report(server.grpc)
        files = data / "appendonlydir"
        wait_until(lambda: any(b"pod-1" in each.read_bytes() for each in files.glob("*.aof")), "the report to be filed")
        kill_valkey(server)
        assert reason(server.grpc) == "PREFIX_MATCH"
