"""A connection that tells what each single call cost Redis, by script.

``INFO commandstats`` knows only the sum over all scripts; asked after each call of a single client, it tells the cost
of each. It goes by the wall: a call that the system interrupts seems long. The processor time of the whole process
meanwhile does not know interruptions, but includes reading and replying. What a call really took is at most the
smaller of the two.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from typing import Any

from inference_cache.store.connection import Connection, Reply, ScriptLike
from loadtest.bench.redis_process import RedisProcess


@dataclass(slots=True)
class Operation:
    """What one operation of the store cost Redis, in microseconds of each call of each script."""

    calls_us: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    @property
    def total_us(self) -> float:
        """All calls together."""
        return sum(map(sum, self.calls_us.values()))

    @property
    def longest_us(self) -> float:
        """The longest time that nobody else could be served."""
        return max(map(max, self.calls_us.values()))


class Metered:
    """Passes calls on, one at a time; otherwise the connection that it wraps."""

    def __init__(self, inner: Connection, server: RedisProcess) -> None:
        self._inner = inner
        self._server = server
        self._turn = asyncio.Lock()
        self._seen_us = 0.0
        self._operation = Operation()

    async def run(self, script: ScriptLike, key: bytes, args: Sequence[bytes | int | str]) -> Reply:
        """Run a script and note its cost."""
        async with self._turn:
            began = self._server.cpu_s()
            reply = await self._inner.run(script, key, args)
            used_us = 1e6 * (self._server.cpu_s() - began)
            self._operation.calls_us[script.name].append(min(used_us, self._since()))
        return reply

    async def operation(self, work: Awaitable[object]) -> Operation:
        """Do one thing and return what it cost, all its calls by script."""
        self._since()
        self._operation = Operation()
        await work
        if not self._operation.calls_us:
            raise RuntimeError("the store did not call its connection's run()")
        return self._operation

    def _since(self) -> float:
        counted = self._server.info("commandstats")
        now_us = sum(float(counted.get(f"cmdstat_{name}", {"usec": 0})["usec"]) for name in ("evalsha", "evalsha_ro"))
        spent, self._seen_us = now_us - self._seen_us, now_us
        return spent

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
