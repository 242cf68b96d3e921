"""A server that dies in the middle: a process of its own that kills itself just before its n-th call to Redis."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from inference_cache.store.connection import Connection, Reply, ScriptLike, open_connection
from inference_cache.store.redis import RedisStore
from tests.contract.build import MODEL, NOW, TTL, Client, blocks, chain, gone, long_chain, series

LONG = series("long", 1900)
SHORT = [series(branch, 12) for branch in range(130)]
"""More chains than one step of a removal visits."""


class Mortal:
    """A connection that ends its process with SIGKILL instead of making call number ``calls``, counted from 0."""

    def __init__(self, connection: Connection, calls: int) -> None:
        self._connection = connection
        self._left = calls

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    async def run(self, script: ScriptLike, key: bytes, args: Sequence[bytes | int | str]) -> Reply:
        """Make a call while there is one left."""
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self._left -= 1
        return await self._connection.run(script, key, args)


async def report(client: Client) -> None:
    """Report a chain of several batches, some of it known, and many short ones."""
    await client.report("mortal", *long_chain(LONG), *(chain(one) for one in SHORT[:5]))


async def evict(client: Client) -> None:
    """Evict more than one call takes, with holes that make segments wasteful."""
    await client.store.evict(client.model, "fixed", gone(LONG[: 8 * 3] + blocks(LONG, 40, 1800)))


async def clear(client: Client) -> None:
    """Clear a replica with many chains."""
    await client.clear("fixed")


async def clear_fenced(client: Client) -> None:
    """Clear a replica with many chains, except for its newest."""
    await client.clear("fixed", fence=NOW - 1)


async def sweep(client: Client) -> None:
    """Sweep a replica with many expired chains."""
    await client.store.expire(lambda _: NOW - 1)


@dataclass(frozen=True, slots=True)
class Act:
    """Something a server does in several calls.

    Attributes:
        run: what it does.
        expired_at_ms: border of the sweep by which whatever it left undone is finished.
    """

    run: Callable[[Client], Awaitable[None]]
    expired_at_ms: int


ACTS = {
    "report": Act(report, NOW - TTL),
    "clear": Act(clear, NOW - TTL),
    "clear_fenced": Act(clear_fenced, NOW - TTL),
    # An eviction does not pay for a word ahead: its totals are corrected when the model's oldest block is due.
    "evict": Act(evict, NOW - 1),
    "sweep": Act(sweep, NOW - 1),
}


async def furnish(client: Client) -> None:
    """Store what the acts change: a replica with long and short chains of two times, shared with another one."""
    await client.tell("fixed", LONG, at=NOW - 1)
    for one in SHORT:
        await client.tell("fixed", one, at=NOW - 1)
    await client.tell("fixed", SHORT[7] + series("newest", 30), at=NOW)
    await client.tell("other", blocks(LONG, 0, 700) + series("fork", 9), at=NOW)
    await client.tell("other", SHORT[3], at=NOW)


def live(url: str, key_prefix: str, act: str, calls: int) -> bool:
    """Act in a process that dies before a call; return whether it came through because there was no such call."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    process = context.Process(target=_act, args=(url, key_prefix, act, calls))
    process.start()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode == 0


def _act(url: str, key_prefix: str, act: str, calls: int) -> None:
    async def whole() -> None:
        connection = await open_connection(url)
        store = RedisStore(cast("Connection", Mortal(connection, calls)), key_prefix=key_prefix)
        await ACTS[act].run(Client(store, MODEL))
        await store.close()

    asyncio.run(whole())
