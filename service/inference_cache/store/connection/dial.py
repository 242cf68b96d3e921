"""Connecting to one server: the socket, TLS, and saying who we are."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass
from typing import Protocol

from inference_cache.store.connection.address import Address
from inference_cache.store.connection.call import Command
from inference_cache.store.connection.faults import ErrorReply, fault_of
from inference_cache.store.connection.link import Link
from inference_cache.store.connection.transport import Limits

_CLIENT_NAME = "inference-cache"
_KEEPALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""Seconds of silence before the kernel asks whether the peer still lives, between questions, and how many."""


class Dial(Protocol):
    """Makes links to a server, or to whichever server has its part now."""

    @property
    def name(self) -> str:
        """Where the server is, for the log."""
        ...

    @property
    def host(self) -> tuple[str, int] | None:
        """(host, port) of the server; ``None`` for a Unix socket, or while it is not known."""
        ...

    @property
    def limits(self) -> Limits:
        """How long connecting may take, and how many calls a link may carry."""
        ...

    async def __call__(self) -> Link:
        """Return a link that is ready for calls.

        Raises:
            OSError: nobody listens, or not in time.
            ErrorReply: the server does not want us.
            StoreUnavailable: the server hung up, does not speak the protocol, or nobody says where it is.
        """
        ...


@dataclass(frozen=True, slots=True)
class Dialer:
    """Makes links to one server.

    Attributes:
        address: who we are, how to trust the server, and the path of a Unix socket.
        host: of a TCP server, ``None`` for a Unix socket; a Cluster has several.
        limits: how long connecting may take, and how many calls a link may carry.
        of_replica: whether the server is a replica of a Cluster, which answers questions only to those who say that
            they know it.
    """

    address: Address
    host: tuple[str, int] | None
    limits: Limits
    of_replica: bool = False

    @property
    def name(self) -> str:
        """Where the server is, for the log."""
        return f"Redis at {self.address.path}" if self.host is None else f"Redis at {self.host[0]}:{self.host[1]}"

    async def __call__(self) -> Link:
        """Return a link that is ready for calls; raises as :meth:`Dial.__call__` does."""
        link = Link(self.limits.in_flight)
        try:
            async with asyncio.timeout(self.limits.connect_ms / 1000):
                await self._connect(link)
                await _introduce(link, _introduction(self.address, of_replica=self.of_replica))
        except BaseException as failure:
            link.cut(fault_of(failure))
            raise
        return link

    async def _connect(self, link: Link) -> None:
        loop = asyncio.get_running_loop()
        if self.host is None:
            await loop.create_unix_connection(lambda: link, self.address.path)
            return
        host, port = self.host
        tls = self.address.tls.context() if self.address.tls is not None else None
        transport, _ = await loop.create_connection(
            lambda: link, host, port, ssl=tls, server_hostname=host if tls is not None else None
        )
        _tune(transport.get_extra_info("socket"))


def _tune(sock: socket.socket) -> None:
    """Send small commands at once, and have the kernel notice a peer that is gone."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE.items():
        if hasattr(socket, option):  # macOS has other names
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def _introduction(address: Address, *, of_replica: bool) -> list[Command]:
    commands: list[Command] = []
    if address.username is not None:
        commands.append(("AUTH", address.username, address.password or ""))
    elif address.password is not None:
        commands.append(("AUTH", address.password))
    if address.database:
        commands.append(("SELECT", address.database))
    if of_replica:
        commands.append(("READONLY",))
    # The name is for operators, and its reply proves that the server answers. A server that does not let this user
    # choose one is as good.
    return [*commands, ("CLIENT", "SETNAME", _CLIENT_NAME)]


async def _introduce(link: Link, commands: list[Command]) -> None:
    replies = await asyncio.gather(*(link.ask(*command) for command in commands), return_exceptions=True)
    for command, reply in zip(commands, replies, strict=True):
        optional = command[0] == "CLIENT" and isinstance(reply, ErrorReply) and fault_of(reply).reason != "clients"
        if isinstance(reply, BaseException) and not optional:
            raise reply
