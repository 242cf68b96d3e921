"""Streams of reports: order, back-pressure, acknowledgement, and what a producer hears when the index fails."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable

import grpc
import pytest

from inference_cache._pb import inferencecache_pb2 as pb
from inference_cache.errors import StoreCorrupt, StoreError, StoreFull, StoreUnavailable
from tests.rpc.serving import GatedStore, serving, until
from tests.rpc.wire import FLOORS_OFF, Wire, exact, h, ids, update


async def failure(call: Awaitable[object]) -> grpc.aio.AioRpcError:
    """Return the error that a call ends with."""
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await call
    return failed.value


async def test_a_long_stream_is_applied_in_order(wire: Wire) -> None:
    """Every update of a stream counts, and the last one about a block wins."""
    wire.policy(FLOORS_OFF)
    updates = [update("A", exact(h("p"), at), exact(h(at), 1)) for at in range(1, 501)]
    assert (await wire.stream(*updates)).accepted
    assert await wire.total() == 501
    assert (await wire.lookup(h("p"))).replica_scores[0].matched_tokens == 500
    assert wire.counted("report_updates_total") == 500


async def test_updates_are_visible_before_the_acknowledgement(wire: Wire) -> None:
    """A lookup sees an update while its stream is still open."""
    stream = wire.stub.ReportCacheState()
    await stream.write(update("A", exact(h("p"), 64)))
    await until(lambda: wire.counted("report_updates_total"))
    assert ids(await wire.lookup(h("p"))) == ["A"]
    assert not stream.done()
    await stream.done_writing()
    assert (await stream).accepted


async def test_one_update_at_a_time() -> None:
    """While one update is being stored the next is not begun, and nothing is acknowledged."""
    store = GatedStore()
    store.gate.clear()
    async with serving(store) as wire:
        call = wire.stub.ReportCacheState(iter([update("A", exact(h(at), 64)) for at in range(3)]))
        await store.called(1)
        await asyncio.sleep(0.05)
        assert len(store.calls) == 1
        assert not call.done()
        store.gate.set()
        assert (await call).accepted
        assert await wire.total() == 3


async def test_a_fast_producer_is_held_back() -> None:
    """What the index has not taken stays with the producer: writes stop instead of piling up in the server."""
    store = GatedStore()
    store.gate.clear()
    async with serving(store) as wire:
        stream = wire.stub.ReportCacheState()
        big = update("A", *(exact(h(at), 64) for at in range(50_000)))

        async def write() -> None:
            for _ in range(100):
                await stream.write(big)

        writer = asyncio.ensure_future(write())
        await store.called(1)
        _, held_back = await asyncio.wait([writer], timeout=0.5)
        assert held_back
        stream.cancel()
        await asyncio.gather(writer, return_exceptions=True)


async def test_a_producer_that_cancels() -> None:
    """A cancelled stream is not acknowledged; what was stored before stays, what was under way is cut."""
    store = GatedStore()
    async with serving(store) as wire:
        stream = wire.stub.ReportCacheState()
        await stream.write(update("A", exact(h("p"), 64)))
        await store.called(1)
        store.gate.clear()
        await stream.write(update("A", exact(h("q"), 64)))
        await store.called(2)
        stream.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stream
        await until(lambda: store.cut)
        store.gate.set()
        assert await stream.code() is grpc.StatusCode.CANCELLED
        assert (ids(await wire.lookup(h("p"))), await wire.total()) == (["A"], 1)


@pytest.mark.parametrize(
    ("error", "code", "detail"),
    [
        (
            StoreUnavailable("redis at 10.0.0.7"),
            grpc.StatusCode.UNAVAILABLE,
            "the index does not answer for now; keep this and send it again (unavailable)",
        ),
        (
            StoreFull("OOM command not allowed"),
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "the index has no memory left; removals still work (full)",
        ),
        (
            StoreCorrupt("ic:1:{a/b}"),
            grpc.StatusCode.INTERNAL,
            "the index holds something this server cannot read (corrupt)",
        ),
    ],
)
@pytest.mark.parametrize(
    "rpc", ["ReportCacheState", "PREFIX_EVICTED", "ALL_CLEARED", "REPLICA_UPDATED", "GetCacheState"]
)
async def test_an_index_that_fails(error: StoreError, code: grpc.StatusCode, detail: str, rpc: str) -> None:
    """A producer hears that it should keep what it has, by status and in a sentence of ours; both are counted."""
    store = GatedStore()
    store.error = error
    async with serving(store) as wire:
        failed = await failure(_call(wire, rpc))
        assert (failed.code(), failed.details()) == (code, detail)
        name = rpc if rpc[1].islower() else "PublishEvent"
        assert wire.counted("store_errors_total", {"rpc": name, "reason": error.reason}) == 1
        assert wire.counted("rpc_errors_total", {"rpc": name, "code": code.name}) == 1
        store.error = None
        await _call(wire, rpc)


@pytest.mark.parametrize(
    "rpc", ["ReportCacheState", "PREFIX_EVICTED", "ALL_CLEARED", "REPLICA_UPDATED", "GetCacheState"]
)
async def test_an_error_that_nobody_foresaw(rpc: str, caplog: pytest.LogCaptureFixture) -> None:
    """The caller gets an opaque id and the log the same id with the place, neither the error's text."""
    store = GatedStore()
    store.error = RuntimeError("secret prompt")
    async with serving(store) as wire:
        failed = await failure(_call(wire, rpc))
    assert failed.code() is grpc.StatusCode.INTERNAL
    found = re.fullmatch(r"internal error, id ([0-9a-f]{16})", failed.details() or "")
    assert found is not None
    logged = str([vars(record) for record in caplog.records])
    assert found[1] in logged
    assert "secret prompt" not in logged


async def test_what_was_stored_before_an_error_stays() -> None:
    """An update that fails ends the stream without an Ack; those before it are stored."""
    store = GatedStore()
    async with serving(store) as wire:
        stream = wire.stub.ReportCacheState()
        await stream.write(update("A", exact(h("p"), 64)))
        await store.called(1)
        store.error = StoreUnavailable("away")
        await stream.write(update("A", exact(h("q"), 64)))
        assert (await failure(stream)).code() is grpc.StatusCode.UNAVAILABLE
        store.error = None
        assert (ids(await wire.lookup(h("p"))), await wire.total()) == (["A"], 1)


async def test_an_update_without_anything_to_store_does_not_need_the_index() -> None:
    """Updates that leave nothing to store are acknowledged while the index is away."""
    store = GatedStore()
    store.error = StoreUnavailable("away")
    async with serving(store) as wire:
        assert (await wire.report("A", exact(b"", 64))).accepted
        assert (await wire.event("PREFIX_ADDED", "A", h("p"))).accepted
    assert store.calls == []


async def test_the_state_of_a_model(wire: Wire) -> None:
    """Statistics by replica id, distinct prefixes over all schemes and adapters; an unknown model is empty."""
    for replica in ("pod-2", "pod-10"):
        await wire.report(replica, exact(h("p"), 64), stats={"cache_memory_bytes": 2048, "t2_hit_tokens": 600})
    await wire.report("quiet", exact(h("p"), 64, adapter_id="sql"), hash_scheme="sglang")
    state = await wire.state()
    assert [(row.replica_id, row.cache_memory_bytes, row.t2_hit_tokens) for row in state.replicas] == [
        ("pod-10", 2048, 600),
        ("pod-2", 2048, 600),
    ]
    assert (state.summary.total_prefixes, state.summary.hot_prefixes) == (2, 0)
    for where in ({"model_id": "m2"}, {"tenant_id": "inferencecache.io/probe"}):
        empty = await wire.state(**where)
        assert empty.HasField("summary")
        assert (list(empty.replicas), empty.summary) == ([], pb.CacheSummary())
    assert wire.counted("reserved_tenant_total", {"rpc": "GetCacheState"}) == 1


def _call(wire: Wire, rpc: str) -> Awaitable[object]:
    if rpc == "ReportCacheState":
        return wire.report("A", exact(h("p"), 64))
    if rpc == "GetCacheState":
        return wire.state()
    return wire.event(rpc, "A", h("p"))
