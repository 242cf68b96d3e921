"""One Redis server, asked with a deadline and without hidden repetitions.

It has two lanes: lookups have one of their own, so that they never queue behind writes, however many there are.

A call is repeated only when the error proves that nothing ran: the server is loading its data, wants the call
again later, or does not know the script. All else is the caller's to decide. A lookup is not worth waiting for:
only its missing script is loaded.

A server that calls itself a read-only replica was the primary once: the connections are made anew, which leads to its
successor where a name or Sentinels stand for "the primary".
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from inference_cache.store.connection.call import Command
from inference_cache.store.connection.dial import Dial
from inference_cache.store.connection.faults import ErrorReply
from inference_cache.store.connection.hearing import listen
from inference_cache.store.connection.lane import Lane
from inference_cache.store.connection.transport import Reply, ScriptLike, Traffic

_PAUSES_S = (0.05, 0.1)
_RENEW_S = 1.0
_LATER = frozenset({"LOADING", "TRYAGAIN"})

LANES = ("reads", "writes")


class Node:
    """One server; raises :class:`ErrorReply` as it came, and ``StoreUnavailable`` when there is no reply.

    Args:
        dial: makes connections to it.
        is_replica: whether it is only ever read from.
    """

    def __init__(self, dial: Dial, *, is_replica: bool = False) -> None:
        self._dial = dial
        self._evalsha = "EVALSHA_RO" if is_replica else "EVALSHA"
        self._reads, self._writes = (Lane(self._dial, name) for name in LANES)
        self._call_s = dial.limits.call_ms / 1000
        self._renewed_at = float("-inf")
        self._loading: dict[str, asyncio.Task[Reply]] = {}

    @property
    def host(self) -> tuple[str, int] | None:
        """(host, port), or ``None`` behind a Unix socket."""
        return self._dial.host

    async def call(self, *command: bytes | int | str) -> Reply:
        """Send one command that changes nothing, and return its reply, undecoded."""
        try:
            return await self._reads.call(command)
        except ErrorReply as refusal:
            if refusal.word not in _LATER:
                raise
        async with asyncio.timeout(self._call_s):
            return await _patiently(self._reads, command)

    async def run(self, script: ScriptLike, key: bytes, args: Sequence[bytes | int | str]) -> Reply:
        """Run a script; where the server has lost it, load it and run it then."""
        command = (self._evalsha, script.sha, 1, key, *args)
        lane = self._reads if script.read_only else self._writes
        try:
            return await lane.call(command)
        except ErrorReply as refusal:
            if refusal.word == "READONLY":
                self._renew_soon()
            if refusal.word != "NOSCRIPT" and (script.read_only or refusal.word not in _LATER):
                raise
            missing = refusal.word == "NOSCRIPT"
        async with asyncio.timeout(self._call_s):
            if missing:
                await self.load(script)
                return await lane.call(command)
            return await _patiently(lane, command)

    async def load(self, script: ScriptLike) -> None:
        """Put a script into the server's cache; callers at the same time share one command."""
        loading = self._loading.get(script.sha)
        if loading is None:
            lane = self._reads if script.read_only else self._writes
            loading = asyncio.create_task(lane.call(("SCRIPT", "LOAD", script.text)))
            self._loading[script.sha] = loading
            loading.add_done_callback(lambda task: self._loaded(script.sha, task))
        await asyncio.shield(loading)

    async def time_ms(self) -> float:
        """Return the server's clock in milliseconds since 1970."""
        seconds, microseconds = await self.call("TIME")
        return int(seconds) * 1000 + int(microseconds) / 1000

    async def ping(self) -> None:
        """Return when the server answers in both lanes."""
        for lane in (self._reads, self._writes):
            await lane.call(("PING",))

    async def hear(self, channel: bytes, heard: Callable[[], None]) -> None:
        """Call ``heard`` once subscribed to a channel and at every message, until the link is lost."""
        await listen(await self._dial(), channel, heard)

    def traffic(self) -> dict[str, Traffic]:
        """Return what goes on in each lane."""
        return dict(zip(LANES, (self._reads.traffic(), self._writes.traffic()), strict=True))

    def renew(self) -> None:
        """Leave the connections for new ones, because another server may have the part of this one by now."""
        self._renewed_at = time.monotonic()
        for lane in (self._reads, self._writes):
            lane.renew()

    def _renew_soon(self) -> None:
        """Look for the primary anew, since this is none any more; not for every refused call."""
        if time.monotonic() - self._renewed_at > _RENEW_S:
            self.renew()

    async def retire(self) -> None:
        """Take no more calls, and close when those under way have ended."""
        await asyncio.gather(self._reads.retire(), self._writes.retire())

    async def close(self) -> None:
        """Fail calls under way and close the sockets."""
        await asyncio.gather(self._reads.close(), self._writes.close())

    def _loaded(self, sha: str, task: asyncio.Task[Reply]) -> None:
        del self._loading[sha]
        if not task.cancelled():
            task.exception()  # whoever waits for it has it, and maybe nobody does


async def _patiently(lane: Lane, command: Command) -> Reply:
    """Ask again after a pause, a few times."""
    *shorter, last = _PAUSES_S
    for pause_s in shorter:
        await asyncio.sleep(pause_s)
        try:
            return await lane.call(command)
        except ErrorReply as refusal:
            if refusal.word not in _LATER:
                raise
    await asyncio.sleep(last)
    return await lane.call(command)
