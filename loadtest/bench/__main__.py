"""The command line: measure, or write the report of a run.

``python -m loadtest.bench [--quick] [--only ITEM,...] [--trace FILE] [--out DIR]`` measures;
``python -m loadtest.bench report JSON [--to FILE]`` writes the report.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path

import uvloop

from inference_cache.errors import InferenceCacheError
from loadtest.bench import (
    index_size,
    ingest,
    interference,
    layout_cost,
    lookup_cpu,
    machine,
    memory,
    redis_cost,
    report,
    result,
    throughput,
    trace,
    write_cost,
)
from loadtest.bench.redis_process import binaries, started
from loadtest.bench.scale import QUICK, Scale

ITEMS: dict[str, Callable[[Scale], Awaitable[result.Item]]] = {
    "redis_cost": redis_cost.run,
    "layouts": layout_cost.run,
    "write_cost": write_cost.run,
    "index_size": index_size.run,
    "lookup_cpu": lookup_cpu.run,
    "throughput": throughput.run,
    "ingest": ingest.run,
    "memory": memory.run,
    "interference": interference.run,
    "trace": trace.run,
}
OUT = Path("out/bench")
DOCUMENT = Path("docs/benchmarks.md")


async def measure(scale: Scale, names: Sequence[str]) -> result.Results:
    """Run items one after the other; each prints its tables when it is done."""
    described = machine.describe()
    servers = []
    for kind in binaries():
        with started(kind) as server:
            servers.append(server.label)
    items = []
    for name in names:
        began = time.perf_counter()
        item = await ITEMS[name](scale)
        item.seconds = round(time.perf_counter() - began, 1)
        items.append(item)
        show(item)
    described["load after"] = f"{os.getloadavg()[0]:.1f}"
    settings = {"scale": f"{scale.name}, {scale.runs} runs of each measurement", "servers": ", ".join(servers)}
    settings["took"] = f"{sum(item.seconds for item in items):.0f} s"
    return result.Results(described, settings, items)


def show(item: result.Item) -> None:
    """Print what an item found."""
    print(f"\n== {item.title} ({item.name}, {item.seconds:.0f} s)", *item.notes, sep="\n", flush=True)
    for table in item.tables:
        print(f"\n{table.title}", report.markdown(table), sep="\n", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says and return the exit status."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        return _report(given[1:]) if given[:1] == ["report"] else _measure(given)
    except (InferenceCacheError, OSError) as error:
        print(error, file=sys.stderr)
        return 1


def _measure(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench", description="Measure the index and the server.")
    parser.add_argument("--quick", action="store_true", help="less than a minute, few sizes")
    parser.add_argument("--only", default="", help=f"items, comma-separated: {', '.join(ITEMS)}")
    parser.add_argument("--runs", type=int, default=0, help="repetitions of each measurement")
    parser.add_argument("--trace", type=Path, default=None, help="a recorded trace; without it one is generated")
    parser.add_argument("--out", type=Path, default=OUT, help="directory of results.json and the pictures")
    options = parser.parse_args(arguments)
    names = [name for name in options.only.split(",") if name] or list(ITEMS)
    if unknown := set(names) - set(ITEMS):
        parser.error(f"--only: no such item: {', '.join(sorted(unknown))}")
    scale = QUICK if options.quick else Scale()
    scale = replace(scale, trace=options.trace, runs=options.runs or scale.runs)
    results = uvloop.run(measure(scale, names))
    result.write(results, options.out / "results.json")
    _draw(results, options.out)
    print("\nTargets", report.targets(results), f"\nwritten: {options.out / 'results.json'}", sep="\n")
    return 0


def _report(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench report", description="Write the report of a run.")
    parser.add_argument("json", type=Path, help="what a run wrote")
    parser.add_argument(
        "--to", type=Path, default=DOCUMENT, help="the Markdown file; pictures go into a folder of its name"
    )
    options = parser.parse_args(arguments)
    results = result.read(options.json)
    pictures = options.to.with_suffix("")
    _draw(results, pictures)
    options.to.write_text(report.render(results, pictures.name))
    return 0


def _draw(results: result.Results, directory: Path) -> None:
    from loadtest.bench.plot import draw  # noqa: PLC0415 - slow to import, and a failed run needs none

    draw(results, directory)


if __name__ == "__main__":
    sys.exit(main())
