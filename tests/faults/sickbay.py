"""A server process on a Redis behind a relay, both at the mercy of the test, and the server's own view of things."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from inference_cache._pb.inferencecache_pb2_grpc import InferenceCacheStub
from tests.support.process import Serving, serving
from tests.support.proxy import Proxy
from tests.support.servers import Server

_WAIT_S = 30.0
_STEP_S = 0.02
_DURABLE = {"appendonly": "yes", "appendfsync": "always"}


@dataclass(frozen=True, slots=True)
class Sickbay:
    """Where Redis is made ill.

    Attributes:
        redis: the process.
        line: what the server believes to be Redis.
        server: the process under test.
        stub: a client of it.
    """

    redis: Server
    line: Proxy
    server: Serving
    stub: Any

    async def ready(self) -> bool:
        """Whether `/readyz` says so."""
        return (await asyncio.to_thread(self.server.get, "/readyz"))[0] == 200

    async def counted(self, name: str, label: str = "") -> float:
        """Return the sum of a metric over its labels, or over those series that have one."""
        text = (await asyncio.to_thread(self.server.get, "/metrics"))[1]
        series = (line.rpartition(" ") for line in text.splitlines() if line.startswith(f"inferencecache_{name}"))
        return sum(float(value) for labels, _, value in series if label in labels)

    @property
    def resident_bytes(self) -> int:
        """How much memory the server process has."""
        pages = int(Path(f"/proc/{self.server.process.pid}/statm").read_text().split()[1])
        return pages * resource.getpagesize()

    async def told(self, section: str, line: str) -> None:
        """Wait until a section of Redis' INFO has a line."""
        await until(lambda: line.encode() in self.redis.ask("INFO", section), line)


async def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition without holding up anybody; fail loudly when it does not come true."""
    try:
        async with asyncio.timeout(_WAIT_S):
            while not condition():  # noqa: ASYNC110 - a condition tells nobody
                await asyncio.sleep(_STEP_S)
    except TimeoutError:
        raise TimeoutError(f"waited {_WAIT_S:.0f} s for {what}") from None


@asynccontextmanager
async def sickbay(binary: str, home: Path, *flags: str) -> AsyncIterator[Sickbay]:
    """Run all of it for as long as the block does."""
    redis = Server(binary, settings=_DURABLE)
    try:
        redis.start()
        async with Proxy(redis.socket_path) as line:
            running = serving(home, "--redis-url", f"redis://127.0.0.1:{line.port}", *flags)
            server = await asyncio.to_thread(running.__enter__)  # it speaks to the relay while it starts
            try:
                async with grpc.aio.insecure_channel(server.grpc) as channel:
                    yield Sickbay(redis, line, server, InferenceCacheStub(channel))
            finally:
                await asyncio.to_thread(running.__exit__, None, None, None)
    finally:
        redis.stop()
