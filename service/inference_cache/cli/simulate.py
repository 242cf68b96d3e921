"""`inference-cache simulate engine | gateway`: simulated ones that run until they are told to stop."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
import time
from collections.abc import Callable, Coroutine
from random import Random
from typing import Annotated, Any

import grpc
import orjson
import typer

from inference_cache._pb.inferencecache_pb2_grpc import InferenceCacheStub
from inference_cache.cli.client import check_server
from inference_cache.cli.output import FAILED, USAGE, fail
from inference_cache.settings import Address, address
from inference_cache.sim.demo import GENERATED_CACHE_BLOCKS
from inference_cache.sim.engine import Engine, Prefill
from inference_cache.sim.gateway import Gateway, Scope
from inference_cache.sim.live.channel import balanced
from inference_cache.sim.live.engine import LiveEngine, engine_running
from inference_cache.sim.live.gateway import KEPT_DURATIONS, LiveGateway
from inference_cache.sim.live.prompts import SEEDS, endless
from inference_cache.sim.report import ServiceReporter
from inference_cache.sim.routing import LoadRule

EPILOG = """\b
Examples:
  inference-cache simulate engine --server dns:///server:9090 --bind-address :9100
  inference-cache simulate gateway --server dns:///server:9090 --engines engine:9100 --rate 8

Both write a line of JSON with their counters to stdout, every --every seconds.
Exit status: 0 after SIGTERM or SIGINT, 1 when a port could not be had, 2 wrong usage."""

Server = Annotated[
    str,
    typer.Option(
        "--server",
        help="The servers: a gRPC target. All addresses of a dns:/// name are used in turn.",
        envvar="INFERENCE_CACHE_SERVER",
    ),
]
Tenant = Annotated[str, typer.Option("--tenant", help="Whose index.")]
Every = Annotated[float, typer.Option("--every", min=0.1, help="Seconds between two lines of counters.")]
DEFAULT_TARGET = "dns:///localhost:9090"
DEFAULT_TENANT = "simulation"


def engine(
    server: Server = DEFAULT_TARGET,
    bind_address: Annotated[str, typer.Option(help="Where prompts are taken; the host may be empty.")] = ":9100",
    replica_id: Annotated[
        str, typer.Option(help="The engine's name in the index; by default its address.", show_default=False)
    ] = "",
    cache_blocks: Annotated[
        int, typer.Option(min=1, help="Blocks of 16 tokens that it caches.")
    ] = GENERATED_CACHE_BLOCKS,
    tenant: Tenant = DEFAULT_TENANT,
    every: Every = 5.0,
) -> None:
    """Run one engine: it takes prompts, and reports the blocks that it stores and drops."""
    check_server(server)
    listen = _address(bind_address, "--bind-address")
    name = replica_id or _own_name(listen)

    async def run(stop: asyncio.Event) -> None:
        simulated = Engine(name, cache_blocks, Prefill())
        async with balanced(server) as channel:
            reporter = ServiceReporter({name: InferenceCacheStub(channel)}, Scope(tenant))
            live = LiveEngine(simulated, reporter)
            async with engine_running(live, listen):
                await _tell(live.figures, every, stop)
            await reporter.clear([simulated])

    _run(run)


def gateway(
    server: Server = DEFAULT_TARGET,
    engines: Annotated[str, typer.Option(help="Name and port of the engines; all addresses of the name are used.")] = (
        "localhost:9100"
    ),
    rate: Annotated[float, typer.Option(min=0.01, max=1000, help="Prompts a second.")] = 8.0,
    seed: Annotated[int, typer.Option(min=0, max=SEEDS - 1, help="Which chats are made up.")] = 7,
    tenant: Tenant = DEFAULT_TENANT,
    every: Every = 5.0,
) -> None:
    """Run one gateway: it looks up each prompt of made-up chats and sends it where the hint says."""
    check_server(server)
    name = _address(engines, "--engines")

    async def run(stop: asyncio.Event) -> None:
        async with balanced(server) as channel:
            asks = Gateway(InferenceCacheStub(channel), Scope(tenant), keep=KEPT_DURATIONS)
            live = LiveGateway(asks, name, LoadRule(), Prefill())
            playing = live.play(endless(seed), rate, Random(seed))  # noqa: S311 - simulated, not secret
            tasks = [asyncio.create_task(live.follow_engines()), asyncio.create_task(playing)]
            telling = asyncio.create_task(_tell(live.figures, every, stop))
            await asyncio.wait([telling, *tasks], return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            await live.close()
            for result in results:
                if not isinstance(result, asyncio.CancelledError) and isinstance(result, BaseException):
                    raise result
            await telling

    _run(run)


def build_simulate_app() -> typer.Typer:
    """Build the sub-commands."""
    app = typer.Typer(
        help="Run a simulated engine or gateway until it is told to stop.", no_args_is_help=True, rich_markup_mode=None
    )
    app.command("engine", epilog=EPILOG)(engine)
    app.command("gateway", epilog=EPILOG)(gateway)
    return app


def _run(main: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> None:
    async def until_signal() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        await main(stop)

    try:
        asyncio.run(until_signal())
    except (OSError, grpc.aio.UsageError) as error:
        fail(str(error), FAILED)


async def _tell(figures: Callable[[], dict[str, object]], every_s: float, stop: asyncio.Event) -> None:
    """Write the counters now and then, and once more at the end."""
    while not stop.is_set():
        try:
            async with asyncio.timeout(every_s):
                await stop.wait()
        except TimeoutError:
            pass
        line = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **figures()}
        sys.stdout.buffer.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
        sys.stdout.flush()


def _address(text: str, flag: str) -> Address:
    try:
        return address(text)
    except ValueError as error:
        fail(f"{flag} {error}", USAGE)


def _own_name(listen: Address) -> str:
    """Return the address under which others reach us: the one that our host's name stands for."""
    host = listen.host
    if not host:
        try:
            host = socket.gethostbyname(socket.gethostname())
        except OSError:
            fail("this host's name has no address: say --replica-id HOST:PORT", USAGE)
    return str(Address(host, listen.port))
