# ruff: noqa: ASYNC240 - a test may look at files while nothing else waits
from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import redis

from inference_cache.errors import ConfigError, StoreUnavailable
from inference_cache.store.connection import embedded, open_connection, tether
from tests.support.scripts import COUNT, ECHO
from tests.support.servers import wait_until

HOST = """
import asyncio, sys
from inference_cache.store.connection.embedded import start_embedded

async def main():
    server = await start_embedded(sys.argv[1] if len(sys.argv) > 1 else None)
    print(server.pid, server.socket_path, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def alive(pid: int) -> bool:
    """Whether a process runs; a dead one that nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def host(*arguments: str) -> tuple[subprocess.Popen[str], int, str]:
    """Start another process with an embedded server; return it, the server's pid and its socket."""
    process = subprocess.Popen([sys.executable, "-c", HOST, *arguments], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    pid, socket_path = process.stdout.readline().split()
    process.stdout.close()
    return process, int(pid), socket_path


async def test_it_is_private_and_has_no_port() -> None:
    """The directory and the socket are this user's alone, nothing listens on TCP, and nothing is evicted."""
    connection = await open_connection()
    assert connection.socket_path is not None
    socket_path = Path(connection.socket_path)
    assert stat.S_IMODE(socket_path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(socket_path.stat().st_mode) == 0o700
    assert connection.eviction_policy == "noeviction"
    other = await open_connection(f"unix://{socket_path}")
    with redis.Redis(unix_socket_path=str(socket_path)) as client:
        settings = client.config_get("port", "save", "appendonly", "maxmemory-policy")
        assert settings == {"port": "0", "save": "", "appendonly": "no", "maxmemory-policy": "noeviction"}
    assert await connection.run(COUNT, b"k", []) == 1
    assert await other.run(COUNT, b"k", []) == 2
    await other.close()
    await connection.close()
    assert not socket_path.parent.exists()


async def test_closing_stops_it() -> None:
    """The child goes with the connection, and closing again does no harm."""
    server = await embedded.start_embedded()
    assert alive(server.pid)
    await server.stop()
    assert not alive(server.pid)
    await server.stop()


def test_it_dies_with_a_parent_that_is_killed() -> None:
    """SIGKILL leaves no chance to clean up: the kernel ends the server for us."""
    parent, pid, _ = host()
    assert alive(pid)
    parent.kill()
    parent.wait()
    wait_until(lambda: not alive(pid), "the embedded server to die with its parent")


def test_interrupting_the_terminal_spares_it() -> None:
    """Ctrl-C reaches a whole process group; the server is in one of its own, so that we can still drain."""
    parent, pid, _ = host()
    assert os.getpgid(pid) != os.getpgid(parent.pid)
    parent.kill()
    parent.wait()


def test_where_no_kernel_helps_a_pipe_does(tmp_path: Path) -> None:
    """Without parent-death signals a guard watches a pipe that closes when the parent is killed."""
    pid_file = tmp_path / "pid"
    child = f"import os, time; open({str(pid_file)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    tied = [sys.executable, tether.__file__, "pipe", "0", str(int(signal.SIGKILL)), sys.executable, "-c", child]
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"import subprocess, time; p = subprocess.Popen({tied!r}, stdin=subprocess.PIPE); time.sleep(600)",
        ]
    )
    wait_until(lambda: pid_file.exists() and pid_file.read_text() != "", "the program to start")
    pid = int(pid_file.read_text())
    parent.kill()
    parent.wait()
    wait_until(lambda: not alive(pid), "the program to die with its parent")


def test_a_parent_that_died_first_is_noticed() -> None:
    """Between fork and the request to the kernel the parent may die; then the program never starts."""
    done = subprocess.run(
        [sys.executable, tether.__file__, "kernel", "1", "9", sys.executable, "-c", "print('ran')"],
        capture_output=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout == b""


async def test_a_directory_makes_it_durable(tmp_path: Path) -> None:
    """What was acknowledged is there after a restart, and after the whole process was killed."""
    home = str(tmp_path / "deep" / "data")
    connection = await open_connection(embedded_dir=home)
    assert await connection.run(COUNT, b"k", []) == 1
    await connection.close()
    assert stat.S_IMODE(Path(home).stat().st_mode) == 0o700
    parent, pid, socket_path = host(home)
    other = await open_connection(f"unix://{socket_path}")
    assert await other.run(COUNT, b"k", []) == 2
    parent.kill()
    parent.wait()
    await other.close()
    wait_until(lambda: not alive(pid), "the embedded server to die with its parent")
    connection = await open_connection(embedded_dir=home)
    assert await connection.run(COUNT, b"k", []) == 3
    await connection.close()


async def test_one_directory_serves_one_server(tmp_path: Path) -> None:
    """Two servers appending to one file would ruin it: the second is told where the first listens."""
    first = await open_connection(embedded_dir=str(tmp_path))
    with pytest.raises(ConfigError, match=r"another server uses .*unix://") as caught:
        await open_connection(embedded_dir=str(tmp_path))
    shared = await open_connection("unix://" + str(caught.value).partition("unix://")[2])
    assert await shared.run(COUNT, b"k", []) == 1
    await shared.close()
    assert await first.run(COUNT, b"k", []) == 2
    await first.close()


async def test_an_unusable_directory_is_a_setting_to_mend(tmp_path: Path) -> None:
    """The message names the flag, so that nobody reads it as an outage."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="--embedded-dir"):
        await open_connection(embedded_dir=str(tmp_path / "file"))


async def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    """A ruined file stops the start, with the server's own words; the directory is free again after."""
    (tmp_path / "appendonlydir").mkdir()
    (tmp_path / "appendonlydir" / "appendonly.aof.manifest").write_text("nonsense\n")
    with pytest.raises(StoreUnavailable, match="did not start") as caught:
        await open_connection(embedded_dir=str(tmp_path))
    assert "manifest" in str(caught.value)
    (tmp_path / "appendonlydir" / "appendonly.aof.manifest").unlink()
    connection = await open_connection(embedded_dir=str(tmp_path))
    await connection.ping()
    await connection.close()


async def test_a_long_path_still_gets_a_socket(tmp_path: Path) -> None:
    """Socket names are limited to about a hundred bytes, directories are not."""
    connection = await open_connection(embedded_dir=str(tmp_path / ("long" * 25)))
    assert connection.socket_path is not None
    assert len(connection.socket_path) < 100
    assert await connection.run(ECHO, b"k", [b"x"]) == [b"k", b"x"]
    await connection.close()


async def test_what_killed_processes_left_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Private directories of killed processes do not pile up; those in use and young ones stay."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    connection = await open_connection()
    assert connection.socket_path is not None
    long_ago = time.time() - 3600
    in_use = Path(connection.socket_path).parent
    os.utime(in_use, (long_ago, long_ago))
    for name in ("inference-cache-old", "inference-cache-young", "somebody-else"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "inference-cache.lock").touch()
    for name in ("inference-cache-old", "somebody-else"):
        os.utime(tmp_path / name, (long_ago, long_ago))
    await asyncio.to_thread(embedded._remove_abandoned)
    assert {path.name for path in tmp_path.iterdir()} == {in_use.name, "inference-cache-young", "somebody-else"}
    await connection.close()
