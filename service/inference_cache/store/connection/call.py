"""One command on its way to Redis and back, and the bounded queue in which commands wait for their turn."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TypeAlias

from inference_cache.store.connection.transport import Reply

Command: TypeAlias = tuple[bytes | int | str, ...]

_SWEEP_FROM = 64


class Call:
    """A command and the future of its reply.

    Attributes:
        reply: what the caller waits for; cancelled when the caller gave up.
        command: what to send; ``None`` once it was sent or given up, so that large arguments are not kept.
        since: when it began to wait, for its turn and then for its reply; seconds of the event loop's clock.
        queued: whether it waits in a backlog.
    """

    __slots__ = ("command", "queued", "reply", "since")

    def __init__(self, reply: asyncio.Future[Reply], command: Command, since: float) -> None:
        self.reply = reply
        self.command: Command | None = command
        self.since = since
        self.queued = False


class Backlog:
    """Calls that wait for their turn, first come first served, at most ``limit`` of them.

    A call that is given up lets go of its arguments at once, and of its place soon.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._calls: deque[Call] = deque()
        self._given_up = 0

    def __len__(self) -> int:
        """Return how many callers wait."""
        return len(self._calls) - self._given_up

    def put(self, call: Call) -> bool:
        """Add a call at the end; return whether there was a place."""
        if len(self) >= self._limit:
            return False
        call.queued = True
        self._calls.append(call)
        return True

    def give_up(self, call: Call) -> None:
        """Forget a call whose caller has gone; one that has left the queue already is none of ours."""
        if not call.queued:
            return
        call.command = None
        call.queued = False
        self._given_up += 1
        if self._given_up >= _SWEEP_FROM and self._given_up * 2 > len(self._calls):
            self._calls = deque(waiting for waiting in self._calls if waiting.queued)
            self._given_up = 0

    def take(self) -> Call | None:
        """Return the next call that somebody still waits for."""
        while self._calls:
            call = self._calls.popleft()
            if not call.queued:
                self._given_up -= 1
                continue
            call.queued = False
            if not call.reply.done():
                return call
        return None

    def take_older(self, moment: float) -> list[Call]:
        """Return and remove the calls that have waited since before ``moment``."""
        old: list[Call] = []
        while self._calls and (self._calls[0].since < moment or not self._calls[0].queued):
            call = self._calls.popleft()
            if not call.queued:
                self._given_up -= 1
            else:
                call.queued = False
                if not call.reply.done():
                    old.append(call)
        return old

    def oldest(self) -> float | None:
        """Return since when the first in the queue waits, ``None`` when it is empty."""
        return self._calls[0].since if self._calls else None
