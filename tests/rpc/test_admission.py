"""More lookups than a server wants to have under way: those beyond are answered at once and hold nothing."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

import grpc
import pytest

from inference_cache._pb import inferencecache_pb2 as pb
from inference_cache._pb.inferencecache_pb2_grpc import InferenceCacheStub
from inference_cache.domain.policy import Policy
from inference_cache.domain.reasons import NO_HINT, POLICY_REQUIRES_CHAIN
from inference_cache.domain.tuning import Tuning
from inference_cache.metrics import Metrics
from inference_cache.rpc.health import Health
from inference_cache.rpc.lookup import INLINE_TOKENS
from inference_cache.rpc.server import Limits, build_server
from tests.rpc.serving import GatedStore, serving, until
from tests.rpc.wire import MODEL, SCHEME, TENANT, Policies, Wire, asks, exact, h, hs, ids

LIMIT = 3
BURST = 3000
Call = grpc.aio.UnaryUnaryCall[pb.LookupRouteRequest, pb.LookupRouteResponse]


async def fill(wire: Wire, store: GatedStore) -> list[Call]:
    """Have as many lookups wait for the index as there may be."""
    request = pb.LookupRouteRequest(tenant_id=TENANT, model_id=MODEL, hash_scheme=SCHEME, prefix_hash=h("p"))
    store.gate.clear()
    before = len(store.calls)
    waiting: list[Call] = [wire.stub.LookupRoute(request) for _ in range(LIMIT)]
    await store.called(before + LIMIT)
    return waiting


@pytest.mark.parametrize(
    "question",
    [{"prefix_hash": h("p")}, asks(hs(1, 2), 64), {"token_ids": range(64)}, {"token_ids": range(INLINE_TOKENS + 16)}],
    ids=["exact", "chain", "tokens", "many tokens"],
)
async def test_one_too_many_is_answered_at_once(question: dict[str, Any]) -> None:
    """The lookup beyond the limit is NO_HINT without scores and adapter echo, is counted, and asks nobody."""
    store = GatedStore()
    async with serving(store, limits=Limits(lookups=LIMIT)) as wire:
        await wire.report("A", exact(h("p"), 64))
        waiting = await fill(wire, store)
        asked = len(store.calls)
        answer = await wire.lookup(**question, adapter_id="sql")
        assert (answer.reason_code, ids(answer), answer.adapter_id) == (NO_HINT, [], "")
        assert len(store.calls) == asked
        assert wire.counted("lookup_shed_total") == 1
        shed = {"model": "m1", "reason_code": NO_HINT, "hint_used": "false"}
        assert wire.counted("lookup_route_calls_total", shed) == 1
        store.gate.set()
        assert [(await each).reason_code for each in waiting] == ["PREFIX_MATCH"] * LIMIT


async def test_a_burst_is_answered_in_full() -> None:
    """Calls that come while the server is busy with something else all get an answer, none is cancelled."""
    server = build_server(
        store=GatedStore(), policies=Policies(), metrics=Metrics(), health=Health(), lookup_timeout_ms=60_000
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub, request = InferenceCacheStub(channel), pb.LookupRouteRequest(tenant_id=TENANT, prefix_hash=h("p"))
        burst = [stub.LookupRoute.future(request) for _ in range(BURST)]
        time.sleep(0.5)  # noqa: ASYNC251 - the event loop is to be held up until they have arrived
        codes = await asyncio.to_thread(lambda: Counter(call.code() for call in burst))
    await server.stop(None)
    assert codes == {grpc.StatusCode.OK: BURST}


async def test_room_comes_back() -> None:
    """Answered lookups leave room for others: the limit is on those at a time."""
    store = GatedStore()
    async with serving(store, limits=Limits(lookups=LIMIT)) as wire:
        await wire.report("A", exact(h("p"), 64))
        for _ in range(2):
            waiting = await fill(wire, store)
            store.gate.set()
            assert [(await each).reason_code for each in waiting] == ["PREFIX_MATCH"] * LIMIT
        assert wire.counted("lookup_shed_total") == 0


async def test_callers_that_go_away_leave_room() -> None:
    """A cancelled lookup stops working and gives back its place, although the index never answered it."""
    store = GatedStore()
    async with serving(store, limits=Limits(lookups=LIMIT)) as wire:
        for each in await fill(wire, store):
            each.cancel()
        await until(lambda: len(store.cut) == LIMIT)
        again = await fill(wire, store)
        assert wire.counted("lookup_shed_total") == 0
        store.gate.set()
        await asyncio.gather(*again)


async def test_budgets_leave_room() -> None:
    """Lookups whose budget ends give back their places, too."""
    store = GatedStore()
    async with serving(store, limits=Limits(lookups=LIMIT), lookup_timeout_ms=1) as wire:
        for _ in range(2):
            assert {(await each).reason_code for each in await fill(wire, store)} == {"TIMEOUT"}
        assert wire.counted("lookup_shed_total") == 0


async def test_what_needs_no_index_is_answered_as_ever() -> None:
    """Answers that hold nothing up are the right ones also while others wait."""
    store = GatedStore()
    async with serving(store, limits=Limits(lookups=LIMIT), tuning=Tuning(max_token_ids=64)) as wire:
        waiting = await fill(wire, store)
        wire.policy(Policy(require_chain=True), "strict")
        assert (await wire.lookup(h("p"), tenant_id="strict")).reason_code == POLICY_REQUIRES_CHAIN
        assert (await wire.lookup(token_ids=range(65))).reason_code == NO_HINT
        assert wire.counted("lookup_malformed_total", {"reason": "too_many_tokens"}) == 1
        assert wire.counted("lookup_shed_total") == 0
        store.gate.set()
        await asyncio.gather(*waiting)
