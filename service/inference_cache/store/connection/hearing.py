"""Listening to a channel of Redis, on a socket of its own.

What is published while nobody is connected is lost, so this serves hints only; whoever listens must also look.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hiredis

from inference_cache.store.connection.pool import Socket


async def listen(socket: Socket, channel: bytes, heard: Callable[[], None]) -> None:
    """Subscribe to a channel, then call ``heard`` once and again at every message, until the link is lost.

    Raises whatever the client library raises. The socket is closed in the end.
    """
    command: Any = ("SUBSCRIBE", channel)  # the packer's stub means a tuple of any length
    try:
        await socket.connect()  # type: ignore[no-untyped-call]
        await socket.send_packed_command(hiredis.pack_command(command), check_health=False)
        while True:
            await socket.read_response()  # first the confirmation: what was published before it went unheard
            heard()
    finally:
        await socket.disconnect(nowait=True)
