"""A connection to the primary that Sentinels watch, whichever server that is at the moment.

Every time a connection is made the Sentinels are asked anew, and who they name is believed only when it calls itself
a primary. So losing the connection leads to the successor. A primary that is cut off, or was demoted in good health,
keeps its connections: the Sentinels' word ``+switch-master`` ends those, as does a write that is refused as
``READONLY``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from inference_cache.errors import StoreError
from inference_cache.store.connection.address import Address
from inference_cache.store.connection.dial import Dialer
from inference_cache.store.connection.faults import (
    DEMOTED,
    FAILURES,
    NO_PRIMARY,
    NO_SENTINEL,
    SENTINEL_AUTH,
    Fault,
    fault_of,
)
from inference_cache.store.connection.hearing import listen
from inference_cache.store.connection.link import Link
from inference_cache.store.connection.standalone import StandaloneConnection
from inference_cache.store.connection.topology import Host
from inference_cache.store.connection.transport import Limits

_CHANNEL = b"+switch-master"
_LISTEN_AGAIN_S = 1.0


class PrimaryDialer:
    """Makes links to the primary of the moment; a :class:`~inference_cache.store.connection.dial.Dial`.

    Args:
        address: the Sentinels, their name for the primary, and who we are at the primary.
        limits: deadlines and bounds.
        username: our ACL user at the Sentinels, ``None`` for the default one.
        password: of that user.

    Attributes:
        host: the primary as last found.
        sentinels: how to reach each Sentinel; the one that was right last comes first.
    """

    def __init__(self, address: Address, limits: Limits, username: str | None, password: str | None) -> None:
        self.name = f"the primary {address.primary!r} of the Sentinels"
        self.limits = limits
        self.host: Host | None = None
        account = replace(address, database=0, username=username, password=password)
        self.sentinels = [Dialer(account, host, limits) for host in address.hosts]
        self._address = address

    async def __call__(self) -> Link:
        """Return a link to the primary; raises as :meth:`~inference_cache.store.connection.dial.Dial.__call__` does."""
        fault, tried = NO_SENTINEL, set[Host]()
        for sentinel in tuple(self.sentinels):
            try:
                host = await self.ask(sentinel)
            except (*FAILURES, StoreError) as failure:
                fault = fault if tried else _of_sentinel(failure)
                continue
            if host is None:
                fault = fault if tried else NO_PRIMARY
            if host is None or host in tried:
                continue
            tried.add(host)
            try:
                link = await self._dial(host)
            except (*FAILURES, StoreError) as failure:
                fault = fault_of(failure)
                continue
            self.host = host
            self.sentinels.sort(key=lambda each: each is not sentinel)
            return link
        raise fault.as_error()

    async def ask(self, sentinel: Dialer) -> Host | None:
        """Return the primary by one Sentinel's word, ``None`` when it knows nothing by that name.

        Raises:
            OSError, ErrorReply, StoreError: it does not answer, or refuses.
        """
        link = await sentinel()
        try:
            async with asyncio.timeout(self.limits.connect_ms / 1000):
                reply = await link.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._address.primary)
        finally:
            link.cut(NO_SENTINEL)
        return None if reply is None else (bytes(reply[0]).decode(), int(reply[1]))

    async def _dial(self, host: Host) -> Link:
        link = await Dialer(self._address, host, self.limits)()
        is_primary = False
        try:
            async with asyncio.timeout(self.limits.connect_ms / 1000):
                is_primary = (await link.ask("ROLE"))[0] == b"master"
        finally:
            if not is_primary:
                link.cut(DEMOTED)
        if not is_primary:
            raise DEMOTED.as_error()
        return link


class SentinelConnection(StandaloneConnection):
    """The primary of the moment.

    Args:
        dial: finds it.
    """

    def __init__(self, dial: PrimaryDialer) -> None:
        super().__init__(dial)
        self._finder = dial
        self._listeners: Sequence[asyncio.Task[None]] = ()

    async def start(self) -> None:
        """Look once, then keep looking and listening."""
        await super().start()
        self._listeners = [asyncio.create_task(self._follow(sentinel)) for sentinel in tuple(self._finder.sentinels)]

    async def stop(self) -> None:
        """End the background tasks."""
        for listener in self._listeners:
            listener.cancel()
        await asyncio.gather(*self._listeners, return_exceptions=True)
        self._listeners = ()
        await super().stop()

    async def _follow(self, sentinel: Dialer) -> None:
        """Listen to one Sentinel for ever; whatever it says may mean that the primary is another one."""
        while True:
            news = asyncio.Event()
            checking = asyncio.create_task(self._check_at(news, sentinel))
            try:
                with suppress(*FAILURES, StoreError):
                    await listen(await sentinel(), _CHANNEL, news.set)
            finally:
                checking.cancel()
                await asyncio.gather(checking, return_exceptions=True)
            await asyncio.sleep(_LISTEN_AGAIN_S)

    async def _check_at(self, news: asyncio.Event, sentinel: Dialer) -> None:
        while True:
            await news.wait()
            news.clear()
            with suppress(*FAILURES, StoreError):
                named = await self._finder.ask(sentinel)
                if named is not None and self._finder.host not in {named, None}:
                    self._node.renew()


def _of_sentinel(failure: BaseException) -> Fault:
    fault = fault_of(failure)
    if fault.reason in {"auth", "noperm"}:
        return SENTINEL_AUTH
    return fault if fault.reason == "tls" else NO_SENTINEL
