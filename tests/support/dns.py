"""A name service on the loopback interface that knows one name, whose addresses a test may change."""

from __future__ import annotations

import socket
import socketserver
import struct
import threading
from typing import Self

NAME = "servers.test"
_HEADER = struct.Struct(">6H")
_ANSWERED = 0x8580
"""A response, authoritative, recursion as asked and available, no error."""
_NO_SUCH_NAME = 0x8583
_A, _IN = 1, 1
_TTL_S = 0


class NameServer:
    """Answers questions for the IPv4 addresses of :data:`NAME` over UDP; nobody else's name exists.

    Attributes:
        addresses: what the name stands for now.
        asked: how many questions for addresses it has answered.
    """

    def __init__(self, *addresses: str) -> None:
        self.addresses = list(addresses)
        self.asked = 0
        names = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                question, sock = self.request
                sock.sendto(names.answer(question), self.client_address)

        self._server = socketserver.UDPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def target(self, port: int) -> str:
        """Return the name with a port, as a gRPC target that is resolved here."""
        return f"dns://127.0.0.1:{self._server.server_address[1]}/{NAME}:{port}"

    def answer(self, question: bytes) -> bytes:
        """Return the answer to a message with one question."""
        number = _HEADER.unpack_from(question)[0]
        end = question.index(b"\0", _HEADER.size) + 5  # the name's end, its type and its class
        asked, kind = _name(question), struct.unpack_from(">H", question, end - 4)[0]
        known = asked.lower() == NAME
        found = self.addresses if known and kind == _A else []
        self.asked += bool(found)
        records = b"".join(
            struct.pack(">HHHIH", 0xC000 | _HEADER.size, _A, _IN, _TTL_S, 4) + socket.inet_aton(one) for one in found
        )
        flags = _ANSWERED if known else _NO_SUCH_NAME
        return _HEADER.pack(number, flags, 1, len(found), 0, 0) + question[_HEADER.size : end] + records


def _name(question: bytes) -> str:
    labels, at = [], _HEADER.size
    while length := question[at]:
        labels.append(question[at + 1 : at + 1 + length].decode())
        at += 1 + length
    return ".".join(labels)
