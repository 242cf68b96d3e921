"""One socket to Redis, shared by all who ask: commands go out in order, replies come back in the same order.

Redis answers the commands of a socket one after the other, so the only thing to remember is who asked: a queue
of calls, whose first entry is whom the next reply is for. A caller that has gone leaves its place in that queue;
its late reply is read and dropped there, and cannot reach anybody else. After anything unexpected (bytes that are no
reply, a reply that nobody asked for, a server that stays silent) the order is no longer known, and the socket is cut.

What is sent within one iteration of the event loop leaves in one write.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol, cast

import hiredis

from inference_cache.store.connection.call import Call
from inference_cache.store.connection.faults import DOWN, PROTOCOL, ErrorReply, Fault, Garbage, fault_of
from inference_cache.store.connection.transport import Reply

_PARTIAL = object()
_BATCH_BYTES = 256 * 1024
"""Most bytes that wait for the next write, and in the transport; one call may be larger by itself."""


class Owner(Protocol):
    """Who is told what happens to a link."""

    def replied(self) -> None:
        """Take note that replies came; there may be room again."""
        ...

    def writable(self) -> None:
        """Take note that there may be room again."""
        ...

    def lost(self, link: Link, fault: Fault) -> None:
        """Take note that the link is gone; its calls have failed."""
        ...


class Link(asyncio.Protocol):
    """A connected socket until it is lost; never connected again.

    Args:
        window: calls that may wait for their replies at once.

    Attributes:
        owner: who is told; a link that is still introducing itself has none.
        unasked: what to do with a reply that nobody asked for; a message of a channel is one.
        closed: done when the socket is closed.
        unproven: whether no call has been answered since the link has an owner.
    """

    def __init__(self, window: int) -> None:
        self._loop = asyncio.get_running_loop()
        self.owner: Owner | None = None
        self.unasked: Callable[[Reply], None] = _refuse
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self.unproven = True
        self._window = window
        self._transport: asyncio.Transport | None = None
        # The stub calls notEnoughData a bool; False would do, a sentinel cannot be mistaken for a reply.
        self._reader = hiredis.Reader(protocolError=Garbage, replyError=ErrorReply, notEnoughData=_PARTIAL)
        self._unanswered: deque[Call] = deque()
        self._batch: list[bytes] = []
        self._batch_bytes = 0
        self._paused = False
        self._fault: Fault | None = None

    @property
    def has_room(self) -> bool:
        """Whether another call may be sent now."""
        return len(self._unanswered) < self._window and not self._paused and self._batch_bytes < _BATCH_BYTES

    @property
    def in_flight(self) -> int:
        """How many calls wait for their replies, those that were given up included."""
        return len(self._unanswered)

    @property
    def oldest(self) -> float | None:
        """Since when the next reply is owed, ``None`` when none is."""
        return self._unanswered[0].since if self._unanswered else None

    @property
    def fault(self) -> Fault:
        """Why the link has ended."""
        return self._fault or DOWN

    def send(self, call: Call) -> None:
        """Send a call with all others of this iteration of the event loop; its future gets the reply."""
        try:
            packed = hiredis.pack_command(call.command)  # type: ignore[arg-type] # its stub means a tuple of any length
        except (TypeError, ValueError) as mistake:
            call.reply.set_exception(mistake)
            return
        call.command = None
        if not self._batch:
            self._loop.call_soon(self._flush)
        self._batch.append(packed)
        self._batch_bytes += len(packed)
        self._unanswered.append(call)

    def ask(self, *command: bytes | int | str) -> asyncio.Future[Reply]:
        """Send one command and return the future of its reply."""
        call = Call(self._loop.create_future(), command, self._loop.time())
        self.send(call)
        return call.reply

    def cut(self, fault: Fault) -> None:
        """End the link now: whoever waits for a reply gets the fault instead."""
        if self._fault is not None:
            return
        self._fault = fault
        if self._transport is not None:
            self._transport.abort()
        calls, self._unanswered = self._unanswered, deque()
        self._batch.clear()
        for call in calls:
            if not call.reply.done():
                call.reply.set_exception(fault.as_error())
        if self.owner is not None:
            self.owner.lost(self, fault)

    # What the event loop tells.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the socket."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_BATCH_BYTES)
        if self._fault is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Hand each whole reply to the call it belongs to."""
        if self._fault is not None:
            return
        self._reader.feed(data)
        gets, unanswered = self._reader.gets, self._unanswered
        before = len(unanswered)
        try:
            while (answer := gets()) is not _PARTIAL:
                if not unanswered:
                    self.unasked(answer)
                    continue
                reply = unanswered.popleft().reply
                if reply.done():
                    continue
                if isinstance(answer, ErrorReply):
                    reply.set_exception(answer)
                else:
                    reply.set_result(answer)
        except Garbage:
            self.cut(PROTOCOL)
            return
        if self.owner is not None and len(unanswered) < before:
            self.unproven = False
            self.owner.replied()

    def pause_writing(self) -> None:
        """Stop sending: the server does not keep up with reading."""
        self._paused = True

    def resume_writing(self) -> None:
        """Go on sending."""
        self._paused = False
        if self.owner is not None:
            self.owner.writable()

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail whoever waits."""
        if not self.closed.done():
            self.closed.set_result(None)
        self.cut(DOWN if exc is None else fault_of(exc))

    def _flush(self) -> None:
        batch, self._batch, self._batch_bytes = self._batch, [], 0
        if self._fault is not None or not batch or self._transport is None:
            return
        self._transport.write(batch[0] if len(batch) == 1 else b"".join(batch))
        if self.owner is not None:
            self.owner.writable()


def _refuse(_: Reply) -> None:
    raise Garbage
