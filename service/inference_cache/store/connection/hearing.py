"""Listening to a channel of Redis, on a link of its own.

What is published while nobody is connected is lost, so this serves hints only; whoever listens must also look.
"""

from __future__ import annotations

from collections.abc import Callable

from inference_cache.store.connection.faults import DOWN
from inference_cache.store.connection.link import Link


async def listen(link: Link, channel: bytes, heard: Callable[[], None]) -> None:
    """Subscribe to a channel, then call ``heard`` once and again at every message, until the link is lost.

    The link is closed in the end.

    Raises:
        ErrorReply: Redis refuses.
        StoreUnavailable: the link is lost.
    """
    link.unasked = lambda _: heard()
    try:
        await link.ask("SUBSCRIBE", channel)
        heard()  # what was published before the confirmation went unheard
        await link.closed
        raise link.fault.as_error()
    finally:
        link.cut(DOWN)
