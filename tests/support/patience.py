"""Waiting for a connection to get well again, without blocking the event loop that mends it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from inference_cache.errors import StoreUnavailable
from inference_cache.store.connection import Connection, Reply, ScriptLike

_WAIT_S = 60.0
_STEP_S = 0.01


async def until_it_runs(connection: Connection, script: ScriptLike, key: bytes, args: Sequence[bytes] = ()) -> Reply:
    """Call until Redis answers and return the reply; who counts replies sees that failed calls have not run."""
    async with asyncio.timeout(_WAIT_S):
        while True:
            try:
                return await connection.run(script, key, args)
            except StoreUnavailable:
                await asyncio.sleep(_STEP_S)


async def until(condition: Callable[[], bool]) -> None:
    """Return when a condition has come true."""
    async with asyncio.timeout(_WAIT_S):
        while not condition():  # noqa: ASYNC110 - a condition tells nobody
            await asyncio.sleep(_STEP_S)
