"""Servers to measure, each a process of its own: the real one, and a bare gRPC server that stands for the least."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from loadtest.bench.machine import tree_cpu_s
from loadtest.bench.redis_process import tied

_START_S = 30.0
_STEP_S = 0.02
_ANY_PORTS = (
    *("--grpc-bind-address", "127.0.0.1:0"),
    *("--http-bind-address", "127.0.0.1:0"),
    *("--snapshot-bind-address", "127.0.0.1:0"),
)
_UNLIMITED = ("--max-entries", "0", "--lookup-timeout-ms", "0")
"""Nothing is cut off: a call that takes long must show as such."""


@dataclass(frozen=True, slots=True)
class ServerProcess:
    """A running server.

    Attributes:
        address: of its gRPC service.
        pid: of its process; workers are its children.
    """

    address: str
    pid: int

    def cpu_s(self) -> float:
        """Return the processor seconds used so far, workers included."""
        return tree_cpu_s(self.pid)


@contextmanager
def serving(
    redis_url: str, *flags: str, module: str = "inference_cache", environ: Mapping[str, str] | None = None
) -> Iterator[ServerProcess]:
    """Run ``inference-cache serve`` on a Redis, ready when yielded.

    Args:
        redis_url: where its index lives.
        flags: further flags.
        module: what to run; a wrapper of the same command line may stand in.
        environ: further variables of its environment.
    """
    command = [sys.executable, "-m", module, "serve", "--redis-url", redis_url, *_ANY_PORTS, *_UNLIMITED, *flags]
    with tempfile.TemporaryDirectory(prefix="ic-bench-") as home:
        log = Path(home) / "log"
        with _process(command, log, environ or {}) as process:
            yield ServerProcess(str(_event(process, log, "startup")["grpc_addr"]), process.pid)


@contextmanager
def bare(response: bytes) -> Iterator[ServerProcess]:
    """Run the bare server, which answers every lookup with ``response``."""
    with tempfile.TemporaryDirectory(prefix="ic-bench-") as home:
        log, answer = Path(home) / "log", Path(home) / "response"
        answer.write_bytes(response)
        with _process([sys.executable, "-m", "loadtest.bench.bare", str(answer)], log, {}) as process:
            yield ServerProcess(str(_event(process, log, "startup")["grpc_addr"]), process.pid)


@contextmanager
def several(count: int, redis_url: str, *flags: str) -> Iterator[list[ServerProcess]]:
    """Run some servers on one Redis."""
    with ExitStack() as stack:
        yield [stack.enter_context(serving(redis_url, *flags)) for _ in range(count)]


@contextmanager
def held(server: ServerProcess, share: float) -> Iterator[None]:
    """Hold a server to a share of one core, whatever else the machine does."""
    command = [sys.executable, "-m", "loadtest.bench.throttle", str(server.pid), str(share)]
    process = subprocess.Popen([*tied(signal.SIGTERM), *command])  # noqa: S603 - our own argv
    try:
        yield
    finally:
        process.terminate()
        process.wait()


@cache
def has_flag(flag: str) -> bool:
    """Tell whether this version of the server knows a flag."""
    command = [sys.executable, "-m", "inference_cache", "serve", "--help"]
    return flag in subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603 - our own argv


@contextmanager
def _process(command: Sequence[str], log: Path, more: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    environ = {
        name: value
        for name, value in os.environ.items()
        if name != "REDIS_URL" and not name.startswith("INFERENCE_CACHE_")
    } | dict(more)
    with log.open("wb") as out:
        process = subprocess.Popen(  # noqa: S603 - our own argv
            [*tied(signal.SIGTERM), *command], stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environ
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(_START_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _event(process: subprocess.Popen[bytes], log: Path, name: str) -> dict[str, Any]:
    """Wait for an event in a server's log."""
    give_up = time.monotonic() + _START_S
    while time.monotonic() < give_up and process.poll() is None:
        for line in log.read_text().splitlines(keepends=True):
            if line.endswith("\n") and line.startswith("{"):
                event: dict[str, Any] = json.loads(line)
                if event.get("event") == name:
                    return event
        time.sleep(_STEP_S)
    raise ChildProcessError(f"a server did not start:\n{log.read_text()}")
