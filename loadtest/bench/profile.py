"""Where a lookup's time goes inside the server, by a sampling profile of the real process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from loadtest.bench.client import connected, keep_busy
from loadtest.bench.profiled import OUT
from loadtest.bench.redis_process import started
from loadtest.bench.result import Table
from loadtest.bench.scale import Scale
from loadtest.bench.servers import serving

PLACES = (
    ("/inference_cache/_pb/", "generated classes"),
    ("/inference_cache/rpc/", "ours: rpc"),
    ("/inference_cache/domain/", "ours: domain"),
    ("/inference_cache/store/", "ours: store"),
    ("/inference_cache/", "ours: the rest"),
    ("/prometheus_client/", "metrics library"),
    ("/redis/", "Redis client library"),
    ("/grpc/", "grpc's Python part"),
    ("/asyncio/runners.py", "event loop and grpc's compiled part"),
    ("/uvloop/", "event loop and grpc's compiled part"),
    ("/asyncio/", "asyncio"),
    ("", "other libraries"),
)
"""What a function's file belongs to; the first match counts."""

_PROMPT = 512
_FUNCTIONS = 12
_WAIT_S = 10.0


def place_of(point: str) -> str:
    """Return what a profile's point belongs to.

    >>> place_of("/x/inference_cache/rpc/lookup.py:Lookups.answer")
    'ours: rpc'
    """
    return next(place for part, place in PLACES if part in point)


def shares(points: Mapping[str, int]) -> list[tuple[str, float]]:
    """Return each place's per cent of all points, largest first, then that of the busiest functions."""
    total = sum(points.values())
    places: Counter[str] = Counter()
    for point, count in points.items():
        places[place_of(point)] += count
    rows = [(f"**{place}**", 100 * count / total) for place, count in places.most_common()]
    functions = Counter(points).most_common(_FUNCTIONS)
    return rows + [(_short(point), 100 * count / total) for point, count in functions]


async def table(scale: Scale, in_flight: int) -> Table:
    """Profile a server under lookups of 512 blocks."""
    from loadtest.bench.lookup_cpu import indexed  # noqa: PLC0415 - it shows this table

    with tempfile.TemporaryDirectory(prefix="ic-bench-") as home, started("valkey") as redis:
        out = Path(home) / "points"
        with serving(redis.url, module="loadtest.bench.profiled", environ={OUT: str(out)}) as server:
            async with connected(server.address) as (client,):
                request = await indexed(client, _PROMPT)
                await keep_busy([client], [request], in_flight, calls=scale.lookups // 4)
                os.kill(server.pid, signal.SIGUSR1)
                await keep_busy([client], [request], in_flight, calls=8 * scale.lookups)
                os.kill(server.pid, signal.SIGUSR1)
                async with asyncio.timeout(_WAIT_S):
                    while not out.exists() or not out.read_text():  # noqa: ASYNC110 - another process' file
                        await asyncio.sleep(0.05)
                points: dict[str, int] = json.loads(out.read_text())
    title = f"Where a lookup of {_PROMPT} blocks spends the server's time ({sum(points.values()):,} points)"
    return Table(
        title, ("place, then functions", "per cent"), [(name, round(share, 1)) for name, share in shares(points)]
    )


def _short(point: str) -> str:
    """Return file and function without the way to the file.

    >>> _short("/x/inference_cache/rpc/lookup.py:Lookups.answer")
    'rpc/lookup.py Lookups.answer'
    """
    path, _, function = point.rpartition(":")
    return f"{'/'.join(Path(path).parts[-2:])} {function}"
