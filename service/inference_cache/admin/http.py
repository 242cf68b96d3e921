"""The two HTTP listeners: health, readiness and metrics for everybody, the operator's endpoints on their own port.

Nothing of the operator's is ever reachable on the public port, whatever it is bound to.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

from aiohttp import http_exceptions, web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from inference_cache.log import event
from inference_cache.settings import Address

logger = logging.getLogger(__name__)

NotReady = Callable[[], str | None]
"""Says in a few words why the server should get no traffic, ``None`` when it should."""

Endpoints: TypeAlias = Mapping[str, Callable[[web.Request], Awaitable[web.StreamResponse]]]
"""What answers at which path, whatever the method."""

_BACKLOG = 128
_DRAIN_S = 1.0
_NAMED_FAMILIES = (socket.AF_INET, socket.AF_INET6)


def public_app(
    not_ready: NotReady,
    registry: CollectorRegistry,
    *,
    before_scrape: Callable[[], Awaitable[None]] | None = None,
    ready: Callable[[], str] = lambda: "ok",
) -> web.Application:
    """Build the application behind ``--http-bind-address``.

    Args:
        not_ready: asked at each ``/readyz``.
        registry: what ``/metrics`` shows.
        before_scrape: awaited at each ``/metrics`` before the registry is read.
        ready: what ``/readyz`` says when nothing speaks against it.
    """

    async def healthz(_request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_request: web.Request) -> web.Response:
        reason = not_ready()
        return web.Response(text=ready() + "\n") if reason is None else web.Response(status=503, text=reason + "\n")

    async def metrics(request: web.Request) -> web.Response:
        if before_scrape is not None:
            await before_scrape()
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        body = await asyncio.to_thread(encode, registry)  # a thousand models take a while, which lookups must not wait
        return web.Response(body=body, headers={"Content-Type": content_type})

    app = web.Application()
    app.router.add_route("*", "/healthz", healthz)
    app.router.add_route("*", "/readyz", readyz)
    app.router.add_get("/metrics", metrics)
    return app


def admin_app(endpoints: Endpoints) -> web.Application:
    """Build the application behind ``--snapshot-bind-address``; every other path is 404."""
    app = web.Application()
    for path, answer in endpoints.items():
        app.router.add_route("*", path, answer)
    return app


class _NotHttp(logging.Filter):
    """Makes one line of a request that is no HTTP, which anybody can send: TLS, gRPC, a port scan."""

    def filter(self, record: logging.LogRecord) -> bool:
        failure = record.exc_info[1] if record.exc_info else None
        if not isinstance(failure, http_exceptions.HttpProcessingError):
            return True
        event(logger, logging.DEBUG, "request_is_not_http", problem=type(failure).__name__)
        return False


_server_log = logging.getLogger(f"{__name__}.server")
_server_log.addFilter(_NotHttp())


class HttpListener:
    """One application on one address; start it, learn where it listens, close it."""

    def __init__(self, app: web.Application) -> None:
        self._runner = web.AppRunner(
            app, access_log=None, logger=_server_log, handle_signals=False, shutdown_timeout=_DRAIN_S
        )

    async def start(self, address: Address) -> Address:
        """Listen, and return where: a port of 0 has become a real one.

        Raises:
            OSError: the address cannot be bound; the message names it.
        """
        await self._runner.setup()
        try:
            listening = _bind(address)
        except OSError as error:
            await self._runner.cleanup()
            raise OSError(f"cannot listen on {address}: {_why(error)}") from error
        await web.SockSite(self._runner, listening, backlog=_BACKLOG).start()
        return Address(address.host, listening.getsockname()[1])

    async def close(self) -> None:
        """Stop listening; answers under way get a moment to leave."""
        await self._runner.cleanup()


def _why(error: OSError) -> str:
    """Say what the system said; a name that does not resolve has words, but no number, of the system's own."""
    if error.errno is None or isinstance(error, socket.gaierror):
        return str(error.strerror or error)
    return os.strerror(error.errno)


def _bind(address: Address) -> socket.socket:
    """Open the listening socket; an empty host is one socket for IPv4 and IPv6, so that port 0 is one port."""
    if not address.host:
        dual = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual else socket.AF_INET
        return socket.create_server(("", address.port), family=family, dualstack_ipv6=dual)
    found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, where = next(entry for entry in found if entry[0] in _NAMED_FAMILIES)
    return socket.create_server((str(where[0]), address.port), family=family)
