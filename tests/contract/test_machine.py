"""Any sequence of calls leaves every store knowing exactly what the oracle knows."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import Iterator
from itertools import count

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from inference_cache.store.base import Store
from inference_cache.store.connection import open_connection
from inference_cache.store.redis import RedisStore
from tests.contract.machine import Ground, Walk
from tests.contract.shapes import LARGE, SMALL, Shape
from tests.contract.stores import check_at_rest, forget
from tests.support.servers import Cluster, Server

LONG = os.environ.get("HYPOTHESIS_PROFILE") == "long"
"""Walk for :data:`MINUTES` each instead of a few seconds."""
MINUTES = float(os.environ.get("INFERENCE_CACHE_MACHINE_MINUTES", "60"))
QUICK = settings(
    stateful_step_count=40,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(0 if LONG else 900)]


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """Return a loop of the walks' own: it is driven from outside, step by step."""
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.mark.parametrize(("shape", "examples"), [(SMALL, 25), (LARGE, 8)], ids=["small", "large"])
def test_every_walk_ends_alike(
    loop: asyncio.AbstractEventLoop,
    server: Server | Cluster,
    shape: Shape,
    examples: int,
) -> None:
    """Stores agree in all evidence after every step of random walks, and their layout keeps its rules."""
    connection = loop.run_until_complete(open_connection(server.url))
    prefixes = (f"w{uuid.uuid4().hex}-{number}" for number in count())
    prefix = next(prefixes)

    async def make() -> Store:
        nonlocal prefix
        forget(server, prefix)
        prefix = next(prefixes)
        return RedisStore(connection, key_prefix=prefix)

    async def check(_store: Store) -> None:
        check_at_rest(server, prefix)

    class Here(Walk):
        ground = Ground(shape, loop, make, check)

    until = time.monotonic() + MINUTES * 60
    try:
        run_state_machine_as_test(Here, settings=settings(QUICK, max_examples=examples))
        while LONG and time.monotonic() < until:
            run_state_machine_as_test(Here, settings=settings(QUICK, max_examples=5 * examples))
    finally:
        loop.run_until_complete(connection.close())
