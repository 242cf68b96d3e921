"""A lane to one server: one socket at a time, kept connected, on which all callers' commands share the way.

Commands apply in the order in which they were called. There are no retries here: a call gets the reply to
its own command, or an error that says why there is none. Whoever gives up stops waiting at once.

A lost connection is made again in the background, for ever. Calls wait for the first attempt, which begins at
once; when it fails they fail too, as do all further calls, until a later attempt succeeds.
"""

from __future__ import annotations

import asyncio
import logging
import random
from contextlib import suppress

from inference_cache.errors import StoreError
from inference_cache.store.connection.breaker import Breaker
from inference_cache.store.connection.call import Backlog, Call, Command
from inference_cache.store.connection.dial import Dial
from inference_cache.store.connection.faults import CIRCUIT_OPEN, CROWDED, DOWN, FAILURES, TIMEOUT, Fault, located
from inference_cache.store.connection.link import Link
from inference_cache.store.connection.transport import Reply, Traffic

_MIN_PAUSE_S = 0.05
_MAX_PAUSE_S = 2.0
SILENCE_S = 0.04
"""A call that is given up counts against the server only when it has owed a reply for this long."""
_SETTLE_S = 0.005
"""After a stall of our own process timers fire before sockets are read; so long the replies get to be read."""

logger = logging.getLogger(__name__)


class Lane:
    """One socket's worth of calls to a server, connected at the first of them.

    Args:
        dial: makes a connection.
        name: of the lane, for the log.
    """

    def __init__(self, dial: Dial, name: str) -> None:
        self._dial = dial
        self._call_s = dial.limits.call_ms / 1000
        self._breaker = Breaker(f"{dial.name}, {name}", self._probe)
        self._backlog = Backlog(dial.limits.waiting)
        self._loop = asyncio.get_running_loop()
        self._link: Link | None = None
        self._refusal: Fault | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._overdue: asyncio.TimerHandle | None = None
        self._judging: asyncio.TimerHandle | None = None
        self._given_up = 0
        self._heard = self._loop.time()
        self._reconnects = 0
        self._wake = asyncio.Event()
        self._ended = False

    async def call(self, command: Command) -> Reply:
        """Send one command, once, and return its reply.

        Raises:
            ErrorReply: the reply is an error.
            StoreUnavailable: there is no reply.
        """
        if self._breaker.is_open:
            await self._refuse(CIRCUIT_OPEN)
        return await self._call(command)

    def traffic(self) -> Traffic:
        """Return what goes on here."""
        return Traffic(
            in_flight=self._link.in_flight if self._link is not None else 0,
            waiting=len(self._backlog),
            circuits_open=int(self._breaker.is_open),
            circuit_openings=self._breaker.openings,
            reconnects=self._reconnects,
        )

    def renew(self) -> None:
        """Make a new connection at once: another server may have the part of this one by now."""
        self._wake.set()
        if self._link is not None:
            self._link.cut(DOWN)

    async def retire(self) -> None:
        """Take no more calls, let those that wait have their replies, then close."""
        self._refusal, self._ended = DOWN, True
        try:
            # No longer than call_ms; an event would cost every call.
            while (self._link is not None and self._link.in_flight) or self._backlog:  # noqa: ASYNC110
                await asyncio.sleep(_MIN_PAUSE_S)
        finally:
            await self.close()

    async def close(self) -> None:
        """Fail what is under way and close the socket; safe to call twice."""
        self._refusal, self._ended = DOWN, True
        link = self._link
        if self._keeper is not None:
            self._keeper.cancel()
            with suppress(asyncio.CancelledError):
                await self._keeper
        if link is not None:
            link.cut(DOWN)
            await link.closed
        self._fail(self._backlog.take_older(float("inf")), DOWN)
        for timer in (self._overdue, self._judging):
            if timer is not None:
                timer.cancel()
        await self._breaker.end()

    # Called by the link.

    def replied(self) -> None:
        """Note a sign of life, and send who waits."""
        self._heard = self._loop.time()
        self._given_up = 0
        self._breaker.answered()
        self.writable()

    def writable(self) -> None:
        """Send who waits, as far as there is room."""
        link = self._link
        while link is not None and link.has_room and (call := self._backlog.take()) is not None:
            call.since = self._loop.time()
            link.send(call)

    def lost(self, link: Link, fault: Fault) -> None:
        """Leave a link; one that has served earns a new one at once, and calls wait for that."""
        self._link = None
        self._heard = self._loop.time()
        if not self._ended:
            self._breaker.failed(fault.reason)
        if link.unproven:
            self._stay_down(fault)

    # The way of a call.

    async def _call(self, command: Command) -> Reply:
        if self._refusal is not None:
            await self._refuse(self._refusal)
        call = Call(self._loop.create_future(), command, self._loop.time())
        link = self._link
        if link is not None and link.has_room and not self._backlog:
            link.send(call)
        elif not self._backlog.put(call):
            raise CROWDED.as_error()
        if self._overdue is None:
            self._overdue = self._loop.call_later(self._call_s, self._look_for_overdue)
        if self._keeper is None:
            self._keeper = self._loop.create_task(self._keep_connected())
        try:
            return await call.reply
        except asyncio.CancelledError:
            self._gave_up(call)
            raise

    async def _refuse(self, fault: Fault) -> None:
        """Fail at once, but let the event loop turn: a caller that asks in a loop must not starve who reconnects."""
        if fault is not CIRCUIT_OPEN and not self._ended:
            self._breaker.failed(fault.reason)
        await asyncio.sleep(0)
        raise fault.as_error()

    async def _probe(self) -> Reply:
        return await self._call(("PING",))

    def _gave_up(self, call: Call) -> None:
        """Forget a call, and hold it against the server if that owes replies for long."""
        if not call.reply.cancelled():  # the reply came just before
            call.reply.exception()
            return
        self._backlog.give_up(call)
        if self._silence() >= SILENCE_S:
            self._given_up += 1
            if self._judging is None:
                self._judging = self._loop.call_later(_SETTLE_S, self._judge)

    def _silence(self) -> float:
        """Return for how long nothing has come although something was due; seconds."""
        link = self._link
        if link is None:
            return self._loop.time() - self._heard
        oldest = link.oldest
        return 0.0 if oldest is None else self._loop.time() - max(oldest, self._heard)

    def _judge(self) -> None:
        self._judging = None
        given_up, self._given_up = self._given_up, 0
        for _ in range(given_up):
            self._breaker.failed("timeout")

    def _look_for_overdue(self) -> None:
        """Cut a link that owes a reply for too long; fail who has waited for his turn for too long."""
        self._overdue = None
        link, overdue = self._link, self._loop.time() - self._call_s
        if link is not None and link.oldest is not None and link.oldest <= overdue:
            in_flight = link.in_flight
            link.cut(TIMEOUT)
            for _ in range(in_flight - 1):
                self._breaker.failed(TIMEOUT.reason)
        # Not held against the server: it answers others, or was cut just now.
        self._fail(self._backlog.take_older(overdue), TIMEOUT, counts=False)
        oldest = self._link.oldest if self._link is not None else None
        waits = [moment for moment in (oldest, self._backlog.oldest()) if moment is not None]
        if waits:
            self._overdue = self._loop.call_at(min(waits) + self._call_s, self._look_for_overdue)

    def _fail(self, calls: list[Call], fault: Fault, *, counts: bool = True) -> None:
        for call in calls:
            call.reply.set_exception(fault.as_error())
            if counts and not self._ended:
                self._breaker.failed(fault.reason)

    # The connection.

    async def _keep_connected(self) -> None:
        pause_s, first = 0.0, True
        while not self._ended:
            if pause_s:
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause_s * random.uniform(0.5, 1)):  # noqa: S311 - spreads load
                        await self._wake.wait()
            self._wake.clear()
            pause_s = min(max(2 * pause_s, _MIN_PAUSE_S), _MAX_PAUSE_S)
            try:
                link = await self._dial()
            except (*FAILURES, StoreError) as failure:
                self._stay_down(located(failure, self._dial.name))
                continue
            except Exception:
                logger.exception("connecting failed in a way that nobody foresaw")
                self._stay_down(DOWN)
                continue
            self._reconnects += not first
            first = False
            self._serve(link)
            await asyncio.wait([link.closed])
            if not link.unproven:
                pause_s = 0.0

    def _serve(self, link: Link) -> None:
        self._link = link
        link.owner = self
        if not self._ended:
            self._refusal = None
        self._breaker.close()
        self.writable()

    def _stay_down(self, fault: Fault) -> None:
        """Refuse calls until there is a connection again."""
        if not self._ended:
            self._refusal = fault
        self._fail(self._backlog.take_older(float("inf")), fault)
