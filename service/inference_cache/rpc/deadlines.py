"""Deadlines of many waits at a time by one timer.

A timer of the event loop's own for each call costs more than all else that a lookup does about time. Waits end long
before their deadline, mostly, so here a wait only puts itself on a list, and one timer looks at the list when the
first deadline on it has come.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self


class Deadlines:
    """The waits of one event loop that have a deadline."""

    def __init__(self) -> None:
        self._waits: set[Wait] = set()
        self._timer: asyncio.TimerHandle | None = None

    def until(self, when: float | None) -> Wait:
        """Return a context that is cut at a time of the loop's clock, ``None`` = never.

        When that happens, what the task awaits in it is cancelled and the context raises TimeoutError.
        """
        return Wait(self, when)

    def add(self, wait: Wait) -> None:
        """Watch a wait that has begun."""
        self._waits.add(wait)
        if self._timer is None or self._timer.when() > wait.when:
            self._arm(wait.when)

    def remove(self, wait: Wait) -> None:
        """Forget a wait that has ended."""
        self._waits.discard(wait)

    def _arm(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(when, self._ring)

    def _ring(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        for wait in [wait for wait in self._waits if wait.when <= now]:
            self._waits.remove(wait)
            wait.cut()
        if self._waits:
            self._arm(min(wait.when for wait in self._waits))


class Wait:
    """One wait, to be entered once. Cancelling its task from elsewhere stays a cancellation.

    Attributes:
        when: its deadline, infinite when it has none.
        expired: whether it was cut.
    """

    __slots__ = ("_cancelling", "_deadlines", "_task", "expired", "when")

    def __init__(self, deadlines: Deadlines, when: float | None) -> None:
        self._deadlines = deadlines
        self.when = float("inf") if when is None else when
        self.expired = False

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a wait with a deadline belongs to a task")
        self._task = task
        self._cancelling = task.cancelling()
        if self.when < float("inf"):
            self._deadlines.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._deadlines.remove(self)
        if self.expired and self._task.uncancel() <= self._cancelling and isinstance(error, asyncio.CancelledError):
            raise TimeoutError from error

    def cut(self) -> None:
        """Cancel what is awaited."""
        self.expired = True
        self._task.cancel()
