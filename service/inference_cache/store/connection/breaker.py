"""A circuit breaker: a server that does not answer is left alone, so that no caller waits for it in vain.

Closed, it counts failures that no reply has come between. At the fifth it opens: calls are refused without
touching the socket, and one probe at a time asks whether the server is back, after a pause that doubles up to a
second. The first answer closes it. A server that fails again soon after keeps its long pause, so that one
which answers now and then is not taken for well each time.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress

from inference_cache.errors import StoreError
from inference_cache.store.connection.faults import ErrorReply

FAILURES_TO_OPEN = 5
_MIN_PAUSE_S = 0.05
_MAX_PAUSE_S = 1.0
_STEADY_S = 5.0

logger = logging.getLogger(__name__)


class Breaker:
    """Whether a server may be asked.

    Args:
        name: of what it guards, for the log.
        probe: asks the server something; raises a :class:`StoreError` when there is no answer.

    Attributes:
        is_open: whether calls are to be refused.
        openings: how often it opened so far.
    """

    def __init__(self, name: str, probe: Callable[[], Awaitable[object]]) -> None:
        self.is_open = False
        self.openings = 0
        self._name = name
        self._probe = probe
        self._failures = 0
        self._pause_s = _MIN_PAUSE_S
        self._closed_at = float("-inf")
        self._probing: asyncio.Task[None] | None = None
        self._ended = False

    def failed(self, reason: str) -> None:
        """Count a call that failed, or was given up, without an answer."""
        self._failures += 1
        if self._failures < FAILURES_TO_OPEN or self.is_open or self._ended:
            return
        self.is_open = True
        self.openings += 1
        loop = asyncio.get_running_loop()
        if loop.time() - self._closed_at > _STEADY_S:
            self._pause_s = _MIN_PAUSE_S
        logger.warning("circuit open: %s, calls are refused until it answers (%s)", self._name, reason)
        self._probing = loop.create_task(self._probe_until_answered())

    def answered(self) -> None:
        """Forget the failures so far: the server has replied to somebody."""
        self._failures = 0

    def close(self) -> None:
        """Let calls through again: the server has replied to a probe, or to the introduction of a new connection."""
        self._failures = 0
        if not self.is_open:
            return
        self.is_open = False
        self._closed_at = asyncio.get_running_loop().time()
        if self._probing is not None and self._probing is not asyncio.current_task():
            self._probing.cancel()  # or it would go on beside the next one, should the circuit open again
        logger.warning("circuit closed: %s", self._name)

    async def end(self) -> None:
        """Stop probing for good."""
        self._ended = True
        if self._probing is not None:
            self._probing.cancel()
            with suppress(asyncio.CancelledError):
                await self._probing

    async def _probe_until_answered(self) -> None:
        while self.is_open:
            await _pause(self._pause_s * random.uniform(0.5, 1))  # noqa: S311 - spreads load, guards nothing
            self._pause_s = min(2 * self._pause_s, _MAX_PAUSE_S)
            try:
                await self._probe()
            except ErrorReply:
                self.close()
            except StoreError:
                continue
            except Exception:
                logger.exception("a probe failed in a way that nobody foresaw")
            else:
                self.close()


async def _pause(seconds: float) -> None:
    await asyncio.sleep(seconds)
