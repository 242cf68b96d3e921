from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from inference_cache._pb import inferencecache_pb2 as pb
from inference_cache._pb.inferencecache_pb2_grpc import (
    InferenceCacheServicer,
    InferenceCacheStub,
    add_InferenceCacheServicer_to_server,
)
from inference_cache.sim import report
from inference_cache.sim.blocks import id_hashes, prompt_hashes
from inference_cache.sim.engine import Engine, Outcome, Prefill
from inference_cache.sim.gateway import Scope
from inference_cache.sim.report import ServiceReporter, evicted_hashes, stored_chain
from inference_cache.sim.trace import Request

SCOPE = Scope(tenant_id="simulation")


def outcomes_of(blocks: int, *requests: Request) -> list[Outcome]:
    engine = Engine("e0", blocks, Prefill())
    for request in requests:
        engine.submit(request, 0)
    return [engine.finish() for _ in requests]


def test_a_new_prompt_is_reported_whole() -> None:
    """A chain from the first block on, 16 tokens each."""
    request = Request(0, 600, 0, (1, 2))
    (outcome,) = outcomes_of(100, request)
    entry = stored_chain(outcome)
    assert entry is not None
    assert list(entry.block_hashes) == prompt_hashes(request)
    assert list(entry.block_token_counts) == [16] * 37


def test_a_continued_prompt_is_reported_from_its_last_known_block() -> None:
    """The block before the new ones tells where they belong, its count how many tokens led there."""
    request = Request(0, 1040, 0, (1, 2, 3))
    outcome = outcomes_of(100, Request(0, 512, 0, (1,)), request)[1]
    entry = stored_chain(outcome)
    assert entry is not None
    assert list(entry.block_hashes) == prompt_hashes(request)[31:]
    assert list(entry.block_token_counts) == [512, *[16] * 33]


def test_a_prompt_that_was_all_there_stores_nothing() -> None:
    """No new block, no entry."""
    outcome = outcomes_of(100, Request(0, 512, 0, (1,)), Request(0, 512, 0, (1,)))[1]
    assert stored_chain(outcome) is None


def test_of_a_prompt_that_does_not_fit_only_the_head_is_reported() -> None:
    """A report never claims a block that the engine had no room for."""
    request = Request(0, 2048, 0, (1, 2, 3, 4))
    (outcome,) = outcomes_of(50, request)
    entry = stored_chain(outcome)
    assert entry is not None
    assert list(entry.block_hashes) == prompt_hashes(request)[:50]


def test_evicted_blocks_are_named_one_by_one() -> None:
    """A tail that went is told by the hashes of exactly its blocks."""
    outcome = outcomes_of(40, Request(0, 512, 0, (1,)), Request(0, 512, 0, (2,)))[1]
    assert evicted_hashes(outcome) == id_hashes(1)[8:]


class _Recorder(InferenceCacheServicer):
    """A server that writes down what it hears, may refuse a few reports first, and may know bulk evictions."""

    def __init__(self, *, bulk: bool, refusals: int = 0) -> None:
        self.heard: list[str] = []
        self.updates: list[pb.CacheStateUpdate] = []
        self.events: list[pb.CacheEvent] = []
        self.refusals = refusals
        self._metadata = ((report.FEATURES_HEADER, f"other,{report.BULK_EVICT}"),) if bulk else ()

    async def ReportCacheState(  # noqa: N802 - the protocol's name
        self, request_iterator: AsyncIterator[pb.CacheStateUpdate], context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.Ack:
        await context.send_initial_metadata(self._metadata)
        updates = [update async for update in request_iterator]
        if self.refusals > 0:
            self.refusals -= 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "not now")
        self.updates += updates
        self.heard.append("store")
        return pb.Ack(accepted=True)

    async def PublishEvent(  # noqa: N802 - the protocol's name
        self, request: pb.CacheEvent, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.Ack:
        await context.send_initial_metadata(self._metadata)
        self.events.append(request)
        self.heard.append("evict")
        return pb.Ack(accepted=True)


def recorder_that(*, bulk: bool, refusals: int = 0) -> _Recorder:
    return _Recorder(bulk=bulk, refusals=refusals)  # type: ignore[abstract] # the other calls answer UNIMPLEMENTED


async def run_against(recorder: _Recorder) -> ServiceReporter:
    """Report two prompts of which the second pushes out ten blocks of the first, then go away."""
    server = grpc.aio.server()
    add_InferenceCacheServicer_to_server(recorder, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    engine = Engine("e0", 54, Prefill())
    engine.submit(Request(0, 512, 0, (1,)), 0)
    engine.submit(Request(0, 512, 0, (2,)), 0)
    steps = [(engine, engine.finish()), (engine, engine.finish())]
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            reporter = ServiceReporter({"e0": InferenceCacheStub(channel)}, SCOPE)
            await reporter.report(steps)
            await reporter.clear([engine])
    finally:
        await server.stop(None)
    return reporter


async def test_evictions_go_out_in_bulk_and_before_what_they_made_room_for() -> None:
    """One event names all evicted blocks; reports keep the order in which things happened."""
    recorder = recorder_that(bulk=True)
    reporter = await run_against(recorder)
    assert recorder.heard == ["store", "evict", "store", "evict"]
    evicted, cleared = recorder.events
    assert evicted.type == pb.CacheEvent.PREFIX_EVICTED
    assert list(evicted.prefix_hashes) == id_hashes(1)[22:]
    assert (cleared.type, cleared.replica_id) == (pb.CacheEvent.ALL_CLEARED, "e0")
    assert (reporter.stored, reporter.evicted) == (64, 10)


async def test_a_server_without_bulk_evictions_gets_single_ones() -> None:
    """Another implementation of the contract hears of the same blocks, one an event."""
    recorder = recorder_that(bulk=False)
    await run_against(recorder)
    evicted = recorder.events[:-1]
    assert [event.prefix_hash for event in evicted] == id_hashes(1)[22:]
    assert all(not event.prefix_hashes for event in evicted)


async def test_reports_carry_no_simulated_time() -> None:
    """Simulated time is not the wall's: the server is left to say when a report arrived."""
    recorder = recorder_that(bulk=True)
    await run_against(recorder)
    assert {update.timestamp_us for update in recorder.updates} == {0}
    assert {event.timestamp_us for event in recorder.events} == {0}


async def test_a_report_that_was_not_taken_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an acknowledgement a report is kept and resent, in its place."""
    monkeypatch.setattr(report, "PAUSE_S", 0.0)
    recorder = recorder_that(bulk=True, refusals=2)
    reporter = await run_against(recorder)
    assert recorder.heard == ["store", "evict", "store", "evict"]
    assert reporter.calls["retries"] == 2


async def test_a_server_that_never_takes_a_report_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A comparison with a lost report would be worthless, so it ends."""
    monkeypatch.setattr(report, "PAUSE_S", 0.0)
    with pytest.raises(grpc.aio.AioRpcError, match="not now"):
        await run_against(recorder_that(bulk=True, refusals=100))
