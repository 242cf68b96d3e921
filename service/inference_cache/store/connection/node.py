"""One Redis server, asked with a deadline and without hidden repetitions.

A call is repeated only when the error proves that nothing ran: the server is loading its data, wants the call
again later, or does not know the script. All else is the caller's to decide.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from redis.exceptions import BusyLoadingError, NoScriptError, TryAgainError

from inference_cache.store.connection.address import Address
from inference_cache.store.connection.hearing import listen
from inference_cache.store.connection.pool import Pool, socket_maker
from inference_cache.store.connection.transport import Limits, Reply, ScriptLike

_PAUSES_S = (0.05, 0.1)


class Node:
    """One server; raises what the client library raises, see :mod:`inference_cache.store.connection.faults`.

    Attributes:
        host: (host, port), or ``None`` behind a Unix socket.
    """

    def __init__(self, address: Address, host: tuple[str, int] | None, limits: Limits) -> None:
        self.host = host
        self._make = socket_maker(address, host, limits)
        self._pool = Pool(self._make, limits.connections)
        self._call_s = limits.call_ms / 1000

    async def call(self, *command: bytes | int | str) -> Reply:
        """Send one command and return its reply, undecoded."""
        async with asyncio.timeout(self._call_s):
            return await self._patiently(command)

    async def run(self, script: ScriptLike, key: bytes, args: Sequence[bytes | int | str]) -> Reply:
        """Run a script; where the server has lost it, load it and run it then."""
        command = ("EVALSHA", script.sha, 1, key, *args)
        async with asyncio.timeout(self._call_s):
            try:
                return await self._patiently(command)
            except NoScriptError:
                await self._pool.call("SCRIPT", "LOAD", script.text)
                return await self._patiently(command)

    async def load(self, script: ScriptLike) -> None:
        """Put a script into the server's cache."""
        await self.call("SCRIPT", "LOAD", script.text)

    async def time_ms(self) -> float:
        """Return the server's clock in milliseconds since 1970."""
        seconds, microseconds = await self.call("TIME")
        return int(seconds) * 1000 + int(microseconds) / 1000

    async def hear(self, channel: bytes, heard: Callable[[], None]) -> None:
        """Call ``heard`` once subscribed to a channel and at every message, until the link is lost."""
        await listen(self._make(), channel, heard)

    async def close(self) -> None:
        """Close the sockets."""
        await self._pool.close()

    async def _patiently(self, command: Sequence[bytes | int | str]) -> Reply:
        for pause_s in _PAUSES_S:
            try:
                return await self._pool.call(*command)
            except (BusyLoadingError, TryAgainError):
                await asyncio.sleep(pause_s)
        return await self._pool.call(*command)
