"""`inference-cache demo`: what cache-aware routing gains, on simulated engines and real servers."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Self

import grpc
import orjson
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from inference_cache.cli.client import check_server
from inference_cache.cli.demo_tables import print_result
from inference_cache.cli.output import FAILED, USAGE, Output, OutputOption, fail, print_json
from inference_cache.errors import ConfigError, InferenceCacheError
from inference_cache.sim.compare import Fleet, compare
from inference_cache.sim.demo import SLICE, Prompts, Result, fleet_for, prompts_for
from inference_cache.sim.launch import check_serving, launched

EPILOG = """\b
Examples:
  inference-cache demo
  inference-cache demo --trace conversation_trace.jsonl --full --out results
  inference-cache demo --server 10.0.0.1:9090,10.0.0.2:9090 --output json

Exit status: 0 played, 1 a server could not be had or failed, 2 wrong usage, 130 interrupted."""

SERVERS = 2
INTERRUPTED = 130
JSON_NAME, PICTURE_NAME = "demo.json", "demo.png"


def demo(
    trace: Annotated[
        Path | None, typer.Option("--trace", help="A recorded trace in the Mooncake format instead of made-up chats.")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help=f"Play all requests, not only the first {SLICE:,}.")] = False,
    seed: Annotated[int, typer.Option("--seed", help="Which chats are made up.")] = 7,
    server: Annotated[
        str, typer.Option("--server", help="Running servers to use, HOST:PORT[,HOST:PORT], instead of our own two.")
    ] = "",
    engine_blocks: Annotated[
        int | None,
        typer.Option("--engine-blocks", min=1, help="Blocks of 16 tokens that one engine caches.", show_default=False),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help=f"Directory for {JSON_NAME} and {PICTURE_NAME}, made if need be.")
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Play chats on eight simulated engines, under four routings, and show what each one gained.

    Starts an embedded Valkey and two servers on it. Two gateways route through them; the same requests are then
    routed round robin, to the least loaded engine, and by a yardstick that sees every cache.
    """
    try:
        prompts = prompts_for(trace, full=full, seed=seed)
        _make(out)
    except ConfigError as error:
        fail(str(error), USAGE)
    servers = [one.strip() for one in server.split(",") if one.strip()]
    for one in servers:
        check_server(one)
    try:
        result = asyncio.run(_run(prompts, fleet_for(trace, engine_blocks), servers))
    except (InferenceCacheError, OSError) as error:
        fail(str(error), FAILED)
    except grpc.aio.AioRpcError as error:
        fail(f"a server did not take a report: {error.code().name}: {error.details()}", FAILED)
    except (KeyboardInterrupt, asyncio.CancelledError):
        fail("interrupted; everything that was started has been stopped", INTERRUPTED)
    if out is not None:
        _write(result, out)
    if output is Output.JSON:
        print_json(result.as_dict())
    else:
        print_result(result)


async def _run(prompts: Prompts, fleet: Fleet, servers: Sequence[str]) -> Result:
    """Play everything; SIGTERM ends it as Ctrl-C does, with the servers stopped."""
    task = asyncio.current_task()
    if task is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    with _Bars() as bars:
        bars.say(f"{prompts.source}: {prompts.part}")
        async with _servers(servers, bars) as addresses:
            bars.say(f"servers ready: {', '.join(addresses)}")
            figures = await compare(prompts.requests, fleet, addresses, bars)
    return Result(prompts, fleet, figures)


@asynccontextmanager
async def _servers(given: Sequence[str], bars: _Bars) -> AsyncIterator[Sequence[str]]:
    """Yield the servers to use: those given, once they serve, or our own."""
    if given:
        await check_serving(given)
        yield given
        return
    bars.say(f"starting an embedded Valkey and {SERVERS} servers")
    async with launched(SERVERS, os.environ) as addresses:
        yield addresses


class _Bars:
    """Progress on stderr: one bar a stage."""

    def __init__(self) -> None:
        self._progress = Progress(
            TextColumn("{task.description:<14}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=Console(stderr=True, highlight=False),
        )
        self._stage: TaskID | None = None

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def say(self, line: str) -> None:
        """Print a line above the bars."""
        self._progress.console.print(line, markup=False)

    def begin(self, stage: str, steps: int) -> None:
        """Begin a bar."""
        self._stage = self._progress.add_task(stage, total=steps)

    def advance(self) -> None:
        """Move the newest bar by one step."""
        if self._stage is not None:
            self._progress.advance(self._stage)


def _make(out: Path | None) -> None:
    try:
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {out}: {error.strerror or error}") from error


def _write(result: Result, out: Path) -> None:
    """Write the JSON and the picture."""
    from inference_cache.sim.plot import draw  # noqa: PLC0415 - loading it takes a second that nobody else should pay

    document: dict[str, Any] = result.as_dict()
    try:
        (out / JSON_NAME).write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
        draw(result, out / PICTURE_NAME)
    except OSError as error:
        fail(f"--out {out}: {error.strerror or error}", FAILED)
    Console(stderr=True, highlight=False).print(f"written: {out / JSON_NAME}, {out / PICTURE_NAME}", markup=False)
