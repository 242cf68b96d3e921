"""Servers to measure, each a process of its own: the real one, and a bare gRPC server that stands for the least."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from loadtest.bench.machine import tree_cpu_s
from loadtest.bench.redis_process import tied

_START_S = 30.0
_STOP_S = 20.0
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
    with _launched(command, environ) as launched:
        yield launched()


@contextmanager
def several(count: int, redis_url: str) -> Iterator[list[ServerProcess]]:
    """Run some servers on one Redis."""
    command = [sys.executable, "-m", "inference_cache", "serve", "--redis-url", redis_url, *_ANY_PORTS, *_UNLIMITED]
    with ExitStack() as stack:
        starting = [stack.enter_context(_launched(command)) for _ in range(count)]
        yield [launched() for launched in starting]


@contextmanager
def bare(response: bytes) -> Iterator[ServerProcess]:
    """Run the bare server, which answers every lookup with ``response``."""
    with tempfile.NamedTemporaryFile(prefix="ic-bench-") as answer:
        answer.write(response)
        answer.flush()
        with _launched([sys.executable, "-m", "loadtest.bench.bare", answer.name]) as launched:
            yield launched()


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
def _launched(
    command: Sequence[str], environ: Mapping[str, str] | None = None
) -> Iterator[Callable[[], ServerProcess]]:
    """Start a server; what is yielded waits until it is ready. The environment's own settings are left out."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("INFERENCE_CACHE_")}
    kept.pop("REDIS_URL", None)
    with tempfile.NamedTemporaryFile(prefix="ic-bench-") as log:
        process = subprocess.Popen(  # noqa: S603 - our own argv
            [*tied(signal.SIGTERM), *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**kept, **(environ or {})},
        )
        try:
            yield lambda: ServerProcess(str(_event(process, Path(log.name), "startup")["grpc_addr"]), process.pid)
        finally:
            process.terminate()
            try:
                process.wait(_STOP_S)
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
