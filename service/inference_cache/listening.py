"""Why an address cannot be listened on, for listeners that only say that they failed."""

from __future__ import annotations

import errno
import os
import socket

from inference_cache.settings import Address

_UNKNOWN = "taken by another process at that moment"


def why_not(address: Address) -> str:
    """Try to listen for a moment, and return what the system says against it; an empty host is every interface."""
    try:
        found = socket.getaddrinfo(address.host or "::", address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        return error.strerror or str(error)
    for family, _, _, _, where in found:
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do
                probe.bind(where)
                probe.listen(1)
        except OSError as error:
            if error.errno and error.errno != errno.EAFNOSUPPORT:
                return os.strerror(error.errno)
    return _UNKNOWN
