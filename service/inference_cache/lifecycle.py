"""How a server process announces itself, runs what runs beside it, and ends: alone, as a parent or as a worker.

Ending, on SIGTERM or SIGINT: calls in flight get ``--shutdown-grace``, then they are cut. A second signal cuts at once.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, Protocol

import inference_cache
from inference_cache import log
from inference_cache.config import ServeConfig
from inference_cache.settings import Address
from inference_cache.store.keys import LAYOUT

logger = logging.getLogger(__name__)

MS = 1000

_GC_THRESHOLDS = (10_000, 10, 10)
"""New objects before a collection looks for cycles, and how often older ones are looked at; Python's own is 700."""


class Drainable(Protocol):
    """Something that serves calls and can be told to stop."""

    async def drain(self, grace_s: float | None) -> None:
        """Stop taking calls; let those in flight finish for ``grace_s`` seconds, ``None`` = cut them now.

        Returns when the last has ended; another call with ``None`` cuts a drain short.
        """
        ...


class Signals:
    """The first SIGTERM or SIGINT asks for an end, the second for one at once."""

    def __init__(self) -> None:
        self.first, self.second = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.arrived)

    def arrived(self) -> None:
        """Take note of a signal."""
        (self.second if self.first.is_set() else self.first).set()


def settle_memory() -> None:
    """Tell the garbage collector that what is there stays: to be called once, by a process that has started.

    Modules, classes and functions are some 60,000 objects. Collecting them all takes 50 to 90 ms, longer than a lookup
    may take, and finds nothing; frozen they are left alone, and a full collection takes microseconds. Calls leave
    hardly any cycles behind, so that looking for them at every 700 objects (1 to 8 us a lookup, pauses of
    milliseconds) finds nothing either.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


async def drained(server: Drainable, signals: Signals, grace_ms: int) -> None:
    """Drain a server whose first signal has come; a second one cuts what is still in flight."""
    log.event(logger, logging.INFO, "graceful_shutdown_started", grace_ms=grace_ms)
    draining = asyncio.create_task(server.drain(grace_ms / MS))
    hurry = asyncio.create_task(signals.second.wait())
    await asyncio.wait({draining, hurry}, return_when=asyncio.FIRST_COMPLETED)
    if not draining.done():
        await server.drain(None)
    await draining
    hurry.cancel()


@asynccontextmanager
async def beside(*work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run background work for as long as the block does."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task


def announce(config: ServeConfig, grpc_address: Address, http_address: Address, admin_address: Address) -> None:
    """Log that the server serves, where, and what was asked of it in vain or at a risk."""
    log.event(
        logger,
        logging.INFO,
        "startup",
        version=inference_cache.__version__,
        grpc_addr=str(grpc_address),
        grpc_tls=False,
        http_addr=str(http_address),
        snapshot_addr=str(admin_address),
        redis=config.redis.redis_url.partition(":")[0],
        layout=LAYOUT,
        workers=config.process.workers,
    )
    if config.listen.insecure_disable_auth:
        log.event(logger, logging.WARNING, "controller_auth_disabled", snapshot_addr=str(admin_address))
