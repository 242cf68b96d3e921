"""Servers of our own for a demo or a test: one embedded Valkey and processes of ``inference-cache serve`` on it.

Whatever happens to us, they do not outlive us: they are stopped on the way out, and tied to this process in case
there is no way out.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from inference_cache.errors import InferenceCacheError
from inference_cache.store.connection import tether
from inference_cache.store.connection.embedded import start_embedded

START_S = 20.0
"""How long a server may take to be ready, on a busy machine."""
STOP_S = 5.0
_STEP_S = 0.05
_LAST_WORDS = 3


@dataclass(frozen=True, slots=True)
class _Process:
    address: str
    process: subprocess.Popen[bytes]
    log: Path

    def last_words(self) -> str:
        """Return the end of what it logged, on one line."""
        lines = self.log.read_text("utf-8", "replace").strip().splitlines()
        return " | ".join(lines[-_LAST_WORDS:]) or "it said nothing"


@asynccontextmanager
async def launched(count: int, environ: Mapping[str, str], *flags: str) -> AsyncIterator[list[str]]:
    """Run ``count`` servers on one embedded Valkey and yield their gRPC addresses, all ready.

    Args:
        count: how many servers.
        environ: our environment; what it says about somebody's own server is left out.
        flags: further flags of ``serve``.

    Raises:
        InferenceCacheError: a server ended or was not ready in time; the message has its last words.
    """
    async with AsyncExitStack() as stack:
        valkey = await start_embedded()
        stack.push_async_callback(valkey.stop)
        home = Path(valkey.socket_path).parent  # private, and goes with the Valkey
        processes = []
        for number, ports in enumerate(_free_ports(count)):
            started = _start(ports, f"unix://{valkey.socket_path}", home / f"server-{number}.log", environ, flags)
            stack.push_async_callback(_stop, started.process)
            processes.append(started)
        await asyncio.gather(*(_until_ready(one) for one in processes))
        yield [one.address for one in processes]


async def check_serving(addresses: Sequence[str], patience_s: float = 5.0) -> None:
    """Return when all servers say that they serve.

    Raises:
        InferenceCacheError: one did not within ``patience_s`` seconds.
    """
    for address in addresses:
        try:
            async with asyncio.timeout(patience_s):
                while not await is_serving(address):  # noqa: ASYNC110 - another process' state has no event
                    await asyncio.sleep(_STEP_S)
        except TimeoutError:
            raise InferenceCacheError(f"no server is ready at {address}") from None


async def is_serving(address: str) -> bool:
    """Tell whether a server's health service says SERVING."""
    async with grpc.aio.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=1)
        except grpc.aio.AioRpcError:
            return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def _start(
    ports: Sequence[int], redis_url: str, log: Path, environ: Mapping[str, str], flags: Sequence[str]
) -> _Process:
    grpc_port, http_port, admin_port = ports
    serve = [
        *(sys.executable, "-m", "inference_cache", "serve", "--log-level", "warning"),
        *("--redis-url", redis_url),
        *("--grpc-bind-address", f"127.0.0.1:{grpc_port}"),
        *("--http-bind-address", f"127.0.0.1:{http_port}"),
        *("--snapshot-bind-address", f"127.0.0.1:{admin_port}"),
        *flags,
    ]
    how = "kernel" if sys.platform == "linux" else "pipe"
    tied = [sys.executable, "-I", "-S", str(tether.__file__), how, str(os.getpid()), str(int(signal.SIGTERM)), *serve]
    with log.open("wb") as out:
        process = subprocess.Popen(  # noqa: S603 - our own argv
            tied,
            stdin=subprocess.PIPE if how == "pipe" else subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=_environment(environ),
            start_new_session=True,  # Ctrl-C is for us; the servers go when we are done
        )
    return _Process(f"127.0.0.1:{grpc_port}", process, log)


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Leave out the settings of somebody's own server."""
    return {
        name: value
        for name, value in environ.items()
        if not name.startswith("INFERENCE_CACHE_") and name != "REDIS_URL"
    }


async def _until_ready(started: _Process) -> None:
    try:
        async with asyncio.timeout(START_S):
            while not await is_serving(started.address):
                if started.process.poll() is not None:
                    raise InferenceCacheError(f"a server did not start: {started.last_words()}")
                await asyncio.sleep(_STEP_S)
    except TimeoutError:
        raise InferenceCacheError(f"a server was not ready in {START_S:.0f} s: {started.last_words()}") from None


async def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        await asyncio.to_thread(process.wait, STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        await asyncio.to_thread(process.wait)
    if process.stdin is not None:
        process.stdin.close()


def _free_ports(count: int) -> list[list[int]]:
    """Return three ports of the loopback interface for each server, all different and free a moment ago."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(3 * count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        ports = [int(one.getsockname()[1]) for one in sockets]
    return [ports[at : at + 3] for at in range(0, len(ports), 3)]
