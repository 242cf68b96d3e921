from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from typing import Any

import pytest

from inference_cache.config import ServeConfig, read_config
from inference_cache.metrics import Metrics
from inference_cache.settings import Address
from inference_cache.workers.crew import Crew, pause_s
from inference_cache.workers.port import reserve
from tests.support.servers import Server, valkey_binary

ANY_PORT = Address("127.0.0.1", 0)
WAIT_S = 30.0


def config(redis: Server, address: Address) -> ServeConfig:
    read = read_config({"redis_url": redis.url}, {})
    return replace(read, listen=replace(read.listen, grpc_bind_address=address))


@pytest.fixture
def redis() -> Any:
    server = Server(valkey_binary())
    server.start()
    yield server
    server.stop()


@asynccontextmanager
async def crew_of(size: int, orders: ServeConfig, metrics: Metrics | None = None, **how: float) -> AsyncIterator[Crew]:
    crew = Crew(size, orders, metrics or Metrics(), **how)
    try:
        yield crew
    finally:
        await crew.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110 - what is waited for happens in another process
            await asyncio.sleep(0.01)


def ends(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """Return the fields of every logged end of a worker."""
    return [record.event_fields for record in caplog.records if record.message == "worker_ended"]  # type: ignore[attr-defined]


def test_pauses_grow_and_are_bounded() -> None:
    """A worker that keeps ending young is tried ever more rarely, and for ever."""
    pauses = [pause_s(young) for young in range(20)]
    assert pauses == sorted(pauses)
    assert pauses[0] <= 0.1
    assert pauses[-1] == pauses[-2] == 30
    assert pause_s(10**9) == 30


async def test_a_first_start_that_fails_says_what_the_worker_said(redis: Server) -> None:
    """The server's start fails with the worker's own words, and no worker is left."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = Address("127.0.0.1", other.getsockname()[1])
        async with crew_of(2, config(redis, taken)) as crew:
            with pytest.raises(ChildProcessError, match=f"a worker did not start: cannot listen on {taken}"):
                await crew.start()
        assert crew.ready == 0


async def test_every_worker_is_asked(redis: Server) -> None:
    """A question reaches all workers before it is answered: the way in which a change takes effect everywhere."""
    with closing(reserve(ANY_PORT)) as port:
        async with crew_of(2, config(redis, port.address)) as crew:
            assert await crew.ask("state") == []
            await crew.start()
            assert (crew.size, crew.ready, crew.not_ready) == (2, 2, "")
            assert await crew.ask("state") == [None, None]
            refusals = await crew.ask("nonsense")
            assert [type(each).__name__ for each in refusals] == ["Refused", "Refused"]


async def test_a_worker_that_dies_at_start_again_and_again_does_not_spin(
    redis: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """Each failed start waits longer than the one before, is counted and told; when it can, it serves again."""
    caplog.set_level(logging.INFO)
    metrics = Metrics()
    port = reserve(ANY_PORT)
    async with crew_of(1, config(redis, port.address), metrics) as crew:
        await crew.start()
        port.close()
        os.kill(pids(caplog)[-1], signal.SIGKILL)
        await until(lambda: crew.ready == 0)
        with socket.create_server(("127.0.0.1", port.address.port)):
            await until(lambda: len(ends(caplog)) >= 4)
        await until(lambda: crew.ready == 1)
    told = ends(caplog)
    assert told[0]["reason"] == "killed"
    assert [each["reason"] for each in told[1:4]] == ["start"] * 3
    assert "cannot listen on" in told[1]["detail"]
    assert told[0]["pause_ms"] < told[1]["pause_ms"] < told[2]["pause_ms"] < told[3]["pause_ms"]
    assert json.dumps(told)
    labels = {"reason": "start"}
    assert metrics.registry.get_sample_value("inferencecache_worker_restarts_total", labels) == len(told) - 1


def pids(caplog: pytest.LogCaptureFixture) -> list[int]:
    """Return the pid of every worker that started."""
    return [record.event_fields["pid"] for record in caplog.records if record.message == "worker_started"]  # type: ignore[attr-defined]


async def test_a_worker_that_hangs_for_long_is_replaced(redis: Server, caplog: pytest.LogCaptureFixture) -> None:
    """The kernel goes on giving connections to a stopped process, so one that stays silent is ended."""
    caplog.set_level(logging.INFO)
    metrics = Metrics()
    with closing(reserve(ANY_PORT)) as port:
        async with crew_of(1, config(redis, port.address), metrics, hung_s=0.1) as crew:
            await crew.start()
            os.kill(pids(caplog)[0], signal.SIGSTOP)
            await until(lambda: len(pids(caplog)) == 2)
            assert [each["reason"] for each in ends(caplog)] == ["hung"]
            assert metrics.registry.get_sample_value("inferencecache_worker_restarts_total", {"reason": "hung"}) == 1


async def test_a_worker_that_ignores_the_signal_is_killed(redis: Server, caplog: pytest.LogCaptureFixture) -> None:
    """A drain ends even when a worker does not take part in it."""
    caplog.set_level(logging.INFO)
    with closing(reserve(ANY_PORT)) as port:
        async with crew_of(2, config(redis, port.address)) as crew:
            await crew.start()
            os.kill(pids(caplog)[0], signal.SIGSTOP)
            await crew.drain(0.1)
            assert crew.ready == 0
