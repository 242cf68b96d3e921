from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry, Counter

from inference_cache.admin.http import HttpListener, admin_app, public_app
from inference_cache.settings import Address

ANY_PORT = Address("127.0.0.1", 0)


@asynccontextmanager
async def listening(app: web.Application, address: Address = ANY_PORT) -> AsyncIterator[str]:
    listener = HttpListener(app)
    bound = await listener.start(address)
    try:
        yield f"http://127.0.0.1:{bound.port}"
    finally:
        await listener.close()


async def get(url: str, method: str = "GET", **headers: str) -> tuple[int, str, str]:
    async with aiohttp.ClientSession() as session, session.request(method, url, headers=headers) as answer:
        return answer.status, await answer.text(), answer.headers["Content-Type"]


def app_without_metrics(reason: str | None = None) -> web.Application:
    return public_app(lambda: reason, CollectorRegistry())


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE"])
async def test_healthz_answers_ok_to_any_method_even_when_not_ready(method: str) -> None:
    """Liveness is about the process only: probes of any kind get `ok` while Redis is away."""
    async with listening(app_without_metrics("store does not answer")) as base:
        assert (await get(base + "/healthz", method))[:2] == (200, "ok\n")


async def test_readyz_says_ok_or_why_not() -> None:
    """Readiness follows the server's state at the time of asking, with the reason in one line."""
    reasons: list[str | None] = ["starting", None]
    async with listening(public_app(lambda: reasons[0], CollectorRegistry())) as base:
        assert (await get(base + "/readyz"))[:2] == (503, "starting\n")
        reasons.pop(0)
        assert (await get(base + "/readyz"))[:2] == (200, "ok\n")


async def test_metrics_speak_prometheus_text_and_openmetrics() -> None:
    """A scraper gets the format that it asks for."""
    registry = CollectorRegistry()
    Counter("answers", "How many.", registry=registry).inc(3)
    async with listening(public_app(lambda: None, registry)) as base:
        _, text, plain = await get(base + "/metrics")
        _, modern, openmetrics = await get(base + "/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert "answers_total 3.0" in text
    assert plain.startswith("text/plain")
    assert modern.endswith("# EOF\n")
    assert openmetrics.startswith("application/openmetrics-text")


@pytest.mark.parametrize("path", ["/snapshot", "/policy", "/probe", "/"])
async def test_public_port_has_nothing_of_the_operators(path: str) -> None:
    """The operator's endpoints do not exist on the public port."""
    async with listening(app_without_metrics()) as base:
        assert (await get(base + path))[0] == 404


@pytest.mark.parametrize("path", ["/metrics", "/healthz", "/readyz", "/snapshot", "/", "/policy/", "/policyx"])
async def test_admin_port_has_its_endpoints_and_nothing_else(path: str) -> None:
    """Paths that are not given are 404, the public port's among them."""

    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=request.method)

    async with listening(admin_app({"/policy": answer})) as base:
        assert (await get(base + "/policy", "DELETE"))[:2] == (200, "DELETE")
        assert (await get(base + path))[0] == 404


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\xfc\r\n\r\n",
        b"hello\r\n\r\n",
        b"GET / HTTP/9\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
async def test_what_is_no_http_leaves_one_debug_line(sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever knocks with another protocol fills no log with traces."""
    caplog.set_level(logging.DEBUG)
    async with listening(app_without_metrics()) as base:
        host, port = base.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(sent)
        assert b" 400 " in await reader.readline()
        writer.close()
    told = [record for record in caplog.records if record.name.startswith(("inference_cache", "aiohttp"))]
    assert [(record.levelname, record.getMessage(), record.exc_info) for record in told] == [
        ("DEBUG", "request_is_not_http", None)
    ]


async def test_taken_port_is_an_error_that_names_the_address() -> None:
    """Two servers on one port must not share it silently."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = Address("127.0.0.1", taken.getsockname()[1])
        with pytest.raises(OSError, match=f"cannot listen on {address}"):
            await HttpListener(admin_app({})).start(address)


async def test_empty_host_means_every_interface_on_one_port() -> None:
    """`:0` is a single port that answers on loopback of every family the machine has."""
    async with listening(app_without_metrics(), Address("", 0)) as base:
        assert (await get(base + "/healthz"))[0] == 200
        if socket.has_dualstack_ipv6():
            assert (await get(base.replace("127.0.0.1", "[::1]") + "/healthz"))[0] == 200
