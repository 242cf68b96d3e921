"""The worst case: Redis stalls, lookups have no budget at all, and gateways do not stop asking."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from inference_cache._pb import inferencecache_pb2 as pb
from tests.faults.load import Chain
from tests.faults.sickbay import Sickbay, sickbay, until
from tests.support.servers import valkey_binary

LIMIT = 32
LOOKUPS = 2000
BLOCKS = 8192
GROWTH_BYTES = 280 * 2**20
"""Between what all these lookups hold when they wait, some 430 MiB, and the size of their messages, 180 MiB at most."""


@pytest.fixture
async def bay(tmp_path: Path) -> AsyncIterator[Sickbay]:
    """Yield a server without a budget and with few places for lookups."""
    flags = ("--lookup-timeout-ms", "0", "--max-lookups-in-flight", str(LIMIT))
    async with sickbay(valkey_binary(), tmp_path, *flags) as opened:
        yield opened


async def healed(bay: Sickbay) -> str:
    """Let Redis go on, and return what a lookup of a reported chain then says, once it says anything of the index."""
    chain = Chain.make("healed", 1)
    bay.redis.resume()
    while True:
        try:
            await bay.stub.ReportCacheState(iter([chain.update]))
        except grpc.aio.AioRpcError:
            await asyncio.sleep(0.05)
            continue
        answer = await bay.stub.LookupRoute(chain.question)
        if answer.reason_code != "INDEX_UNAVAILABLE":
            return str(answer.reason_code)


@pytest.mark.slow
async def test_a_stall_does_not_pile_up_memory(bay: Sickbay) -> None:
    """However many large lookups come, those beyond the limit are answered at once and hold nothing."""
    hashes = [number.to_bytes(8, "big") for number in range(BLOCKS)]
    question = pb.LookupRouteRequest(
        tenant_id="acme", model_id="m", hash_scheme="vllm", block_hashes=hashes, block_token_counts=[16] * BLOCKS
    )
    seen: Counter[str] = Counter()
    grown = [0]

    async def gateway() -> None:
        seen[(await bay.stub.LookupRoute(question)).reason_code] += 1
        grown.append(bay.resident_bytes - before)

    await asyncio.gather(*(bay.stub.LookupRoute(question) for _ in range(LIMIT)))  # whatever is made once is made now
    before = bay.resident_bytes
    bay.redis.pause()
    await asyncio.gather(*(gateway() for _ in range(LOOKUPS)))
    assert seen.total() == LOOKUPS
    assert set(seen) <= {"NO_HINT", "INDEX_UNAVAILABLE"}
    assert seen["NO_HINT"] == await bay.counted("lookup_shed_total") > 0
    assert max(grown) < GROWTH_BYTES
    assert await healed(bay) == "PREFIX_MATCH"


@pytest.mark.slow
async def test_callers_that_go_away_leave_nothing_behind(bay: Sickbay) -> None:
    """Work for a cancelled call stops while Redis still owes the reply, and its place is free for others."""
    question = Chain.make("acme", 1).question
    bay.redis.pause()
    calls = [bay.stub.LookupRoute(question) for _ in range(2 * LIMIT)]
    await until(lambda: sum(call.done() for call in calls) >= LIMIT, "those beyond the limit to be answered")
    waiting = [call for call in calls if call.cancel()]
    assert waiting
    timed_out = ("lookup_route_calls_total", 'reason_code="TIMEOUT"')
    while await bay.counted(*timed_out) < len(waiting):  # noqa: ASYNC110 - another process' counter
        await asyncio.sleep(0.02)
    shed = await bay.counted("lookup_shed_total")
    assert await healed(bay) == "PREFIX_MATCH"
    assert await bay.counted("lookup_shed_total") == shed
