"""Questions and answers between a parent and one worker, in both directions, over a socket that only they have.

A frame is its length in four bytes and a pickled (number, what, body): both ends are this very program, the
socket has no name, and who could write to it is this user already.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, TypeAlias

logger = logging.getLogger(__name__)

Handlers: TypeAlias = Mapping[str, Callable[[Any], Awaitable[Any]]]
"""What answers which question: from body to answer. What it raises is raised at the other end, as ``Refused``."""

_LENGTH_BYTES = 4
_CLOSE_S = 1.0
_ANSWER, _REFUSAL = "answer", "refusal"


class Gone(ConnectionError):
    """The other end has closed, or ended."""


class Refused(RuntimeError):
    """The other end could not do what it was asked; the message says why."""


class Channel:
    """One end. Any number of questions may be open at once; answers come as they are ready.

    Args:
        reader: of the socket.
        writer: of the socket.
        handlers: what this end can be asked.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handlers: Handlers) -> None:
        self._reader = reader
        self._writer = writer
        self._handlers = handlers
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._number = 0
        self._answering: set[asyncio.Task[None]] = set()
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def over(cls, end: socket.socket, handlers: Handlers) -> Channel:
        """Talk over one end of a socket pair."""
        reader, writer = await asyncio.open_unix_connection(sock=end)
        return cls(reader, writer, handlers)

    async def ask(self, what: str, body: Any = None, *, timeout_s: float) -> Any:
        """Ask the other end and return its answer.

        Raises:
            Gone: the other end has ended.
            Refused: it answered with an error.
            TimeoutError: it did not answer in time.
        """
        self._number += 1
        number, future = self._number, asyncio.get_running_loop().create_future()
        future.add_done_callback(lambda done: done.cancelled() or done.exception())  # heard, even if nobody waits
        self._waiting[number] = future
        try:
            if self._reading.done():
                raise Gone
            async with asyncio.timeout(timeout_s):
                await self._send(number, what, body)
                return await future
        finally:
            del self._waiting[number]

    async def closed(self) -> None:
        """Return when the other end is gone."""
        await asyncio.wait({self._reading})

    async def close(self) -> None:
        """Close this end; who waits here for an answer gets ``Gone``, and answers under way get a moment to leave."""
        self._reading.cancel()
        await asyncio.wait({self._reading, *self._answering}, timeout=_CLOSE_S)
        for task in self._answering:
            task.cancel()
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()

    async def _send(self, number: int, what: str, body: Any) -> None:
        data = pickle.dumps((number, what, body))
        self._writer.writelines((len(data).to_bytes(_LENGTH_BYTES), data))
        try:
            await self._writer.drain()
        except OSError:
            raise Gone from None

    async def _read(self) -> None:
        try:
            while True:
                length = int.from_bytes(await self._reader.readexactly(_LENGTH_BYTES))
                self._take(*pickle.loads(await self._reader.readexactly(length)))  # noqa: S301 - see above
        except (OSError, EOFError):
            pass
        finally:
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(Gone())

    def _take(self, number: int, what: str, body: Any) -> None:
        if what not in {_ANSWER, _REFUSAL}:
            task = asyncio.create_task(self._answer(number, what, body))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)
            return
        future = self._waiting.get(number)  # none: nobody waits any more
        if future is not None and not future.done():
            if what == _ANSWER:
                future.set_result(body)
            else:
                future.set_exception(Refused(body))

    async def _answer(self, number: int, what: str, body: Any) -> None:
        try:
            answer = (number, _ANSWER, await self._handlers[what](body))
        except Exception as error:
            logger.debug("a question could not be answered", exc_info=True)
            answer = (number, _REFUSAL, f"{error}" or type(error).__name__)
        with suppress(Gone):
            await self._send(*answer)
