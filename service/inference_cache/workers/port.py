"""One port for several processes, and for nobody else's.

The kernel spreads connections over all sockets that listen on a port with SO_REUSEPORT. It would also let a second
server in by accident, so the parent first listens alone, which fails when anybody else does, and keeps the port bound:
a second server then fails, whether or not it asks to share, and even while no worker listens.
"""

from __future__ import annotations

import os
import socket
from dataclasses import replace

from inference_cache.settings import Address

_ATTEMPTS = 16


class Port:
    """A port that only processes of this user can listen on, if they set SO_REUSEPORT; made by :func:`reserve`.

    Attributes:
        address: what workers bind, with a real port.
    """

    def __init__(self, address: Address, sockets: list[socket.socket]) -> None:
        self.address = address
        self._sockets = sockets

    def close(self) -> None:
        """Give the port up."""
        for each in self._sockets:
            each.close()


def reserve(address: Address) -> Port:
    """Keep an address for the workers of this process; a port of 0 becomes a free one.

    Raises:
        OSError: somebody listens there, or the host is not ours; the message names the address.
    """
    for attempt in range(_ATTEMPTS):
        try:
            return _reserve(address if address.port else replace(address, port=_free_port(address.host)))
        except OSError as error:
            if address.port or attempt == _ATTEMPTS - 1:  # a free port may be taken while we look at it
                why = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error.strerror or error)
                raise OSError(f"cannot listen on {address}: {why}") from error
    raise AssertionError


def _reserve(address: Address) -> Port:
    held: list[socket.socket] = []
    try:
        for family, host in _where(address.host):
            held.append(_hold(family, host, address.port))
    except OSError:
        for each in held:
            each.close()
        raise
    return Port(address, held)


def _hold(family: socket.AddressFamily, host: str, port: int) -> socket.socket:
    """Listen for a moment, to be sure that nobody else does, then only hold the name."""
    held = _socket(family, host)
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of a predecessor may linger
        held.bind((host, port))
        held.listen(1)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)  # from now on nobody else binds it
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # but who shares
        held.shutdown(socket.SHUT_RDWR)  # stops listening and stays bound: the kernel must give us no connection
    except BaseException:
        held.close()
        raise
    return held


def _free_port(host: str) -> int:
    family, name = _where(host)[0]
    with _socket(family, name) as probe:
        probe.bind((name, 0))
        return int(probe.getsockname()[1])


def _socket(family: socket.AddressFamily, host: str) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    if family == socket.AF_INET6:
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if host == "::" else 1)
    return made


def _where(host: str) -> list[tuple[socket.AddressFamily, str]]:
    """Resolve a host as the gRPC server will: every address of a name; no host is every interface."""
    if host in {"", "::", "0.0.0.0"}:
        return [(socket.AF_INET6, "::") if socket.has_dualstack_ipv6() else (socket.AF_INET, "0.0.0.0")]
    found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return list(dict.fromkeys((entry[0], str(entry[4][0])) for entry in found))
