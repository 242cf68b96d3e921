"""One of several workers: started by the parent with a socket, told everything else over it.

It serves calls until it is told to stop, and ends at once when the parent is gone.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import uvloop

from inference_cache import log
from inference_cache.app import Service, working
from inference_cache.config import ServeConfig
from inference_cache.domain.models import ModelKey
from inference_cache.errors import InferenceCacheError
from inference_cache.lifecycle import Signals, drained, settle_memory
from inference_cache.workers.channel import Channel, Gone, Refused
from inference_cache.workers.merge import Snapshot, snapshot

_FAREWELL_S = 2.0


class Worker:
    """What the parent can ask: to start, then for state and counts, to take new policies, and to hear of sweeps."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.orders: asyncio.Future[tuple[int, ServeConfig]] = loop.create_future()
        self.serving: asyncio.Future[Service] = loop.create_future()
        self.handlers = {
            "start": self._start,
            "state": self._state,
            "counts": self._counts,
            "policies": self._policies,
            "entries": self._entries,
        }

    async def counts(self) -> Snapshot:
        """Return what was counted so far."""
        registry = (await self.serving).metrics.registry
        return await asyncio.to_thread(snapshot, registry)  # a thousand models take a while, lookups must not wait

    async def _start(self, orders: tuple[int, ServeConfig]) -> None:
        self.orders.set_result(orders)
        await self.serving

    async def _state(self, _body: Any) -> str | None:
        return (await self.serving).state.not_ready()

    async def _counts(self, _body: Any) -> Snapshot:
        return await self.counts()

    async def _policies(self, _body: Any) -> None:
        await (await self.serving).policies.sync.refresh()

    async def _entries(self, swept: tuple[Mapping[ModelKey, int], bool]) -> None:
        prefixes, complete = swept
        (await self.serving).metrics.entries(prefixes, complete=complete)


async def work(end: socket.socket) -> int:
    """Serve as the parent says; return the exit status."""
    signals, worker = Signals(), Worker()
    channel = await Channel.over(end, worker.handlers)
    orphaned = asyncio.create_task(channel.closed())
    either: set[asyncio.Future[Any]] = {worker.orders, orphaned}
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not worker.orders.done():
            return 1
        number, config = worker.orders.result()
        log.configure(config.logs.log_level, config.logs.log_format, worker=number)
        return await _serve(config, signals, worker, channel, orphaned)
    finally:
        await channel.close()
        orphaned.cancel()


async def _serve(
    config: ServeConfig, signals: Signals, worker: Worker, channel: Channel, orphaned: asyncio.Task[None]
) -> int:
    try:
        async with working(config) as service:
            settle_memory()
            worker.serving.set_result(service)
            told = asyncio.create_task(signals.first.wait())
            await asyncio.wait({told, orphaned}, return_when=asyncio.FIRST_COMPLETED)
            if not told.done():  # the parent was killed: nobody is there to wait for our calls
                told.cancel()
                return 1
            await drained(service, signals, config.process.shutdown_grace_ms)
            with suppress(Gone, Refused, TimeoutError):
                await channel.ask("farewell", await worker.counts(), timeout_s=_FAREWELL_S)
    except (InferenceCacheError, OSError) as error:
        if worker.serving.done():
            raise
        worker.serving.set_exception(error)
        return 1
    return 0


def main() -> None:
    """Run as the process that a parent started: the only argument is the number of the socket."""
    sys.exit(uvloop.run(work(socket.socket(fileno=int(sys.argv[1])))))


if __name__ == "__main__":
    main()
