"""Sockets to one Redis server: so many at most, and whoever comes beyond that waits.

The client library's own pools either raise when all sockets are taken or hold locks across awaits; this one is a
stack and a semaphore, and its rule is simple to check: a socket goes back only after a whole reply was read
from it. Whatever else ends a call (an error, a timeout, a cancelled task) costs the socket, so that no reply
ever reaches another call than its own.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import hiredis
from redis.asyncio import connection as redis_connection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from inference_cache.store.connection.address import Address
from inference_cache.store.connection.transport import Limits, Reply

Socket: TypeAlias = redis_connection.AbstractConnection


class _TlsSocket(redis_connection.Connection):
    """TCP with one TLS context for all sockets: building one reads the trusted certificates again."""

    def __init__(self, *, tls: ssl.SSLContext, **settings: Any) -> None:
        self._tls = tls
        super().__init__(**settings)

    def _connection_arguments(self) -> dict[str, Any]:
        return {**super()._connection_arguments(), "ssl": self._tls}


class _UnixSocket(redis_connection.UnixDomainSocketConnection):
    """A Unix socket that introduces itself once; the library's does it twice and hides a refused password."""

    async def _connect(self) -> None:
        async with asyncio.timeout(self.socket_connect_timeout):
            self._reader, self._writer = await asyncio.open_unix_connection(path=self.path)


def socket_maker(address: Address, host: tuple[str, int] | None, limits: Limits) -> Callable[[], Socket]:
    """Return what makes one socket, not yet connected, to a server.

    Args:
        address: who we are, how to trust the server, and the path of a Unix socket.
        host: of a TCP server; a Cluster has several.
        limits: how long connecting may take.
    """
    settings: dict[str, Any] = {
        "db": address.database,
        "username": address.username,
        "password": address.password,
        # The whole call has one deadline (see Node), which costs less than one for each read and write.
        "socket_timeout": None,
        "socket_connect_timeout": limits.connect_ms / 1000,
        "protocol": 2,
        "driver_info": None,
    }
    if host is None:
        return partial(_UnixSocket, path=address.path, **settings)
    settings |= {"host": host[0], "port": host[1], "socket_keepalive": True}
    if address.tls is not None:
        return partial(_TlsSocket, tls=address.tls, **settings)
    return partial(redis_connection.Connection, **settings)


class Pool:
    """At most ``size`` sockets to one server, opened when first needed."""

    def __init__(self, make: Callable[[], Socket], size: int) -> None:
        self._make = make
        self._turns = asyncio.Semaphore(size)
        self._idle: list[Socket] = []
        self._closed = False

    async def call(self, *command: bytes | int | str) -> Reply:
        """Send one command, once, and return its reply.

        Raises whatever the client library raises; an error reply is a ``ResponseError``.
        """
        async with self._turns:
            if self._closed:
                raise RedisConnectionError("closed")
            socket = self._idle.pop() if self._idle else self._make()
            whole = False
            try:
                await _make_ready(socket)
                await socket.send_packed_command(_packed(command), check_health=False)
                reply = await socket.read_response()
                whole = True
            except ResponseError:
                whole = True
                raise
            finally:
                await self._give_back(socket, whole=whole)
            return reply

    async def close(self) -> None:
        """Close idle sockets now and the others when their calls end."""
        self._closed = True
        while self._idle:
            await self._idle.pop().disconnect()

    async def _give_back(self, socket: Socket, *, whole: bool) -> None:
        if whole and not self._closed:
            self._idle.append(socket)
        else:
            await socket.disconnect(nowait=True)


async def _make_ready(socket: Socket) -> None:
    """Connect a socket that never was, or that the server has closed while it was idle."""
    if socket.is_connected and await socket.can_read():
        await socket.disconnect(nowait=True)
    if not socket.is_connected:
        await socket.connect()  # type: ignore[no-untyped-call]


def _packed(command: tuple[bytes | int | str, ...]) -> bytes:
    packed: bytes = hiredis.pack_command(command)  # type: ignore[arg-type] # its stub means a tuple of any length
    return packed
