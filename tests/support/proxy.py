"""A relay between a connection and a server that can speak TLS, and spoil the replies in every way a network may."""

from __future__ import annotations

import asyncio
import ssl
from typing import Self


class Proxy:
    """Relays a loopback port to a Unix socket.

    Args:
        target: path of the server's socket.
        tls: certificate to show, ``None`` for plain TCP.

    Attributes:
        cutting: while set, a request still reaches the server, but its connection ends instead of the reply.
        swallowing: while set, requests reach the server, and nothing comes back: a line that is open on one side only.
        delay_s: every reply comes so much later; seconds.
        stalling: while set, nothing is read from either side: the callers' own buffers fill.
        garbage: while not empty, it comes instead of every reply.
        cut_after: while not ``None``, a connection ends after so many bytes of its next reply.
        accepted: connections so far.
    """

    def __init__(self, target: str, tls: ssl.SSLContext | None = None) -> None:
        self.cutting = False
        self.swallowing = False
        self.stalling = False
        self.delay_s = 0.0
        self.garbage = b""
        self.cut_after: int | None = None
        self.accepted = 0
        self._target = target
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._port = 0
        self._links: set[asyncio.Task[None]] = set()
        self._pumps: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        """Where it listens on 127.0.0.1."""
        return self._port

    async def __aenter__(self) -> Self:
        await self.listen()
        return self

    async def listen(self) -> None:
        """Accept connections, at the same port each time."""
        self._server = await asyncio.start_server(self._relay, "127.0.0.1", self._port, ssl=self._tls)
        self._port = int(self._server.sockets[0].getsockname()[1])

    def refuse(self) -> None:
        """Cut every connection and accept none, until told to :meth:`listen`."""
        assert self._server is not None
        self._server.close()
        self.cut()

    def cut(self) -> None:
        """Cut every connection."""
        for pump in self._pumps:
            pump.cancel()

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self.refuse()
        await asyncio.gather(*self._links, return_exceptions=True)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        link = asyncio.current_task()
        assert link is not None
        self._links.add(link)
        try:
            far_reader, far_writer = await asyncio.open_unix_connection(self._target)
        except OSError:  # the server is gone: a relay in front of it can only hang up
            writer.transport.abort()
            self._links.discard(link)
            return
        pumps = {
            asyncio.create_task(self._pump(reader, far_writer, replies=False)),
            asyncio.create_task(self._pump(far_reader, writer, replies=True)),
        }
        self._pumps |= pumps
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        self._pumps -= pumps
        for one in (writer, far_writer):
            one.transport.abort()
        self._links.discard(link)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, replies: bool) -> None:
        while data := await source.read(65_536):
            while self.stalling:  # noqa: ASYNC110 - an attribute that a test sets tells nobody
                await asyncio.sleep(0.01)
            if replies:
                if self.cutting:
                    return
                if self.swallowing:
                    continue
                await asyncio.sleep(self.delay_s)
                data = self.garbage or data
                if self.cut_after is not None:
                    sink.write(data[: self.cut_after])
                    sink.close()
                    await sink.wait_closed()
                    return
            sink.write(data)
            await sink.drain()
