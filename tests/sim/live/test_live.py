"""Engines and gateways that run, against real servers."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from inference_cache._pb.inferencecache_pb2_grpc import InferenceCacheStub
from inference_cache.settings import Address, address
from inference_cache.sim.engine import Engine, Prefill
from inference_cache.sim.gateway import Gateway, Scope
from inference_cache.sim.live.channel import balanced
from inference_cache.sim.live.engine import LiveEngine, engine_running
from inference_cache.sim.live.gateway import LiveGateway
from inference_cache.sim.live.wire import caller
from inference_cache.sim.report import ServiceReporter
from inference_cache.sim.routing import LoadRule
from inference_cache.sim.trace import Request
from tests.support.patience import until
from tests.support.process import Serving, clean_environment, command, serving
from tests.support.servers import free_ports, wait_until

SCOPE = Scope("acme")
FAST = Prefill(fixed_ms=1.0, token_ms=0.001)
LOOPBACK = Address("127.0.0.1", 0)
WAIT_S = 20.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(tmp_path_factory.mktemp("live"), "--lookup-timeout-ms", "5000") as started:
        yield started


def prompt(*hash_ids: int) -> Request:
    return Request(0, len(hash_ids) * 512, 1, hash_ids)


@asynccontextmanager
async def engine(
    server: str,
    name: str,
    *,
    blocks: int = 1000,
    prefill: Prefill = FAST,
    max_waiting: int = 100,
    listen: str = "127.0.0.1:0",
) -> AsyncIterator[tuple[LiveEngine, str]]:
    """Run an engine in this process; yield it and where it takes prompts."""
    async with balanced(server) as channel:
        reporter = ServiceReporter({name: InferenceCacheStub(channel)}, SCOPE)
        live = LiveEngine(Engine(name, blocks, prefill), reporter, max_waiting)
        async with engine_running(live, address(listen), grace_s=0) as where:
            yield live, str(where)


async def matched(server: str, request: Request) -> dict[str, int]:
    async with grpc.aio.insecure_channel(server) as channel:
        scores = await Gateway(InferenceCacheStub(channel), SCOPE, deadline_s=WAIT_S).lookup(request)
    return {score.replica_id: score.matched_tokens for score in scores if score.matched_tokens}


async def test_engine_caches_prompts_and_reports_them(server: Serving) -> None:
    """A prompt's second coming is a hit, and the index says so; the answer has waited its turn."""
    async with engine(server.grpc, "one") as (live, where), grpc.aio.insecure_channel(where) as channel:
        first = await caller(channel)(prompt(1, 2))
        second = await caller(channel)(prompt(1, 2, 3))
        assert (first.hit_tokens, second.hit_tokens) == (0, 1024)
        assert first.ttft_ms >= FAST.duration_ms(1024)
        await until(lambda: live.counts["reported"] == 2)
        assert await matched(server.grpc, prompt(1, 2, 3)) == {"one": 1536}


async def test_engine_reports_what_it_drops(server: Serving) -> None:
    """A cache that overflows tells the index which blocks are gone."""
    async with engine(server.grpc, "small", blocks=32) as (live, where), grpc.aio.insecure_channel(where) as channel:
        for hash_id in (11, 12):
            await caller(channel)(prompt(hash_id))
        await until(lambda: live.counts["reported"] == 2)
        assert await matched(server.grpc, prompt(11)) == {}
        assert await matched(server.grpc, prompt(12)) == {"small": 512}
        assert live.figures()["blocks_evicted"] == 32


async def test_engine_that_starts_again_begins_with_nothing(server: Serving) -> None:
    """What an earlier engine of the same name held is forgotten before the first report."""
    async with engine(server.grpc, "phoenix") as (live, where), grpc.aio.insecure_channel(where) as channel:
        await caller(channel)(prompt(21))
        await until(lambda: live.counts["reported"] == 1)
    async with engine(server.grpc, "phoenix") as (live, _):
        await until(lambda: live.counts["cleared"] == 1)
        assert await matched(server.grpc, prompt(21)) == {}


async def test_prompts_do_not_wait_for_servers_and_reports_do(tmp_path: Path) -> None:
    """While no server is there prompts are answered, reports wait, in bounds, and arrive when one comes."""
    (port,) = free_ports(1)
    where = f"127.0.0.1:{port}"
    async with engine(where, "patient", max_waiting=2) as (live, at):
        async with grpc.aio.insecure_channel(at) as channel:
            for hash_id in range(31, 36):
                await caller(channel)(prompt(hash_id))
        assert live.counts["prompts"] == 5
        assert live.counts["reported"] == 0
        assert live.counts["reports_lost"] == 3
        with ExitStack() as stack:
            await asyncio.to_thread(
                lambda: stack.enter_context(
                    serving(tmp_path, "--grpc-bind-address", where, "--lookup-timeout-ms", "5000")
                )
            )
            await until(lambda: live.counts["reported"] == 2)
            assert await matched(where, prompt(31)) == {"patient": 512}
            assert await matched(where, prompt(35)) == {}


@asynccontextmanager
async def gateway(server: str, *engines: str) -> AsyncIterator[LiveGateway]:
    """Run a gateway that knows these engines and reaches all of them."""
    async with balanced(server) as channel:
        asks = Gateway(InferenceCacheStub(channel), SCOPE, deadline_s=WAIT_S, keep=10)
        live = LiveGateway(asks, LOOPBACK, LoadRule(), FAST)
        live._know(engines)
        await until(lambda: len(live._ready()) == len(engines))
        yield live
        await live.close()


async def test_gateway_sends_prompts_where_the_hint_says(server: Serving) -> None:
    """The engine that holds a prompt gets it, though another one idles; the index knows engines by their addresses."""
    ports = free_ports(2)
    names = [f"127.0.0.1:{port}" for port in ports]
    async with AsyncExitStack() as stack:
        lives = [await stack.enter_async_context(engine(server.grpc, name, listen=name)) for name in names]
        live = await stack.enter_async_context(gateway(server.grpc, *names))
        warm = live.engines[names[1]]
        await warm.prefill(prompt(41, 42), 0)
        await until(lambda: lives[1][0].counts["reported"] == 1)
        for _ in range(3):
            await live.send(prompt(41, 42))
        counts = live.counts
        assert (counts.prompts, counts.hinted, counts.followed, counts.failed) == (3, 3, 3, 0)
        assert counts.hit_tokens == counts.prompt_tokens == 3 * 1024
        assert (live.engines[names[0]].taken, warm.taken) == (0, 4)


async def test_prompt_in_an_engine_that_ends_reaches_another(server: Serving) -> None:
    """An engine that goes takes no prompt with it, and gets no further one although the index still names it."""
    async with engine(server.grpc, "stays") as (_, stays), AsyncExitStack() as ending:
        slow, goes = await ending.enter_async_context(engine(server.grpc, "goes", prefill=Prefill(fixed_ms=60_000)))
        async with gateway(server.grpc, goes) as live:
            sending = asyncio.create_task(live.send(prompt(51)))
            await until(lambda: slow._engine.taken == 1)
            live._know([goes, stays])
            await until(lambda: len(live._ready()) == 2)
            await ending.aclose()
            await until(lambda: len(live._ready()) == 1)
            await sending
            assert live.counts.engine_errors == {"UNAVAILABLE": 1}
            await live.send(prompt(52))
            assert (live.counts.prompts, live.counts.failed) == (2, 1)


async def test_engine_that_joins_is_not_flooded(server: Serving) -> None:
    """A newcomer counts as having had its share, else it would get everything until it has."""
    async with engine(server.grpc, "old") as (_, old), gateway(server.grpc, old) as live:
        for number in range(61, 64):
            await live.send(prompt(number))
        live._know([old, "127.0.0.1:9"])
        assert live.engines["127.0.0.1:9"].taken == live.engines[old].taken == 3


def test_both_run_as_commands_until_a_signal(server: Serving, tmp_path: Path) -> None:
    """What the containers run: an engine and a gateway with their counters on stdout, and status 0 at the end."""
    (port,) = free_ports(1)
    where = f"127.0.0.1:{port}"
    every = ("--every", "0.2", "--server", f"dns:///{server.grpc}", "--tenant", "commands")
    engine_log, gateway_log = tmp_path / "engine", tmp_path / "gateway"
    processes = []
    try:
        for log, *words in (
            (engine_log, "engine", "--bind-address", where),
            (gateway_log, "gateway", "--engines", where, "--rate", "50"),
        ):
            with log.open("wb") as out:
                processes.append(
                    subprocess.Popen(command("simulate", *map(str, words), *every), env=clean_environment(), stdout=out)
                )
        wait_until(lambda: _last(gateway_log).get("followed", 0) > 0, "the gateway to follow a hint")
        wait_until(lambda: _last(engine_log).get("reported", 0) > 0, "the engine to report")
        seen = _last(gateway_log)
        for process in processes:
            process.send_signal(signal.SIGTERM)
        assert [process.wait(30) for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert seen["failed"] == 0
    assert not [reason for reason in seen["reasons"] if reason.startswith("RPC_")]
    assert _last(engine_log)["replica_id"] == where


def _last(log: Path) -> dict[str, Any]:
    lines = [line for line in log.read_text().splitlines(keepends=True) if line.endswith("\n")]
    return dict(json.loads(lines[-1])) if lines else {}
