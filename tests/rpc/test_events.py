"""What events remove, what they keep alive, and whom they leave alone."""

from __future__ import annotations

from typing import Any

import pytest

from inference_cache._pb import inferencecache_pb2 as pb
from inference_cache.rpc.handlers import FEATURES
from tests.rpc.wire import AFFINITY_OFF, FLOORS_OFF, MINUTE, Wire, asks, chain, exact, h, hs, ids, update


@pytest.fixture(autouse=True)
def plain(wire: Wire) -> None:
    """Keep misses misses."""
    wire.policy(AFFINITY_OFF)


async def test_an_eviction_is_one_replicas(wire: Wire) -> None:
    """The evicted block is gone from its replica, and stays with the others; other blocks stay."""
    await wire.report("r1", exact(h("p1"), 64), exact(h("p2"), 64))
    await wire.report("r2", exact(h("p1"), 64))
    ack = await wire.event("PREFIX_EVICTED", "r1", h("p1"))
    assert (ack.accepted, ack.reason_code) == (True, "")
    assert ids(await wire.lookup(h("p1"))) == ["r2"]
    assert ids(await wire.lookup(h("p2"))) == ["r1"]
    assert wire.counted("event_holdings_removed_total", {"type": "PREFIX_EVICTED"}) == 1


async def test_an_eviction_covers_every_scheme(wire: Wire) -> None:
    """An event names no scheme: the same bytes go under each."""
    for scheme in ("vllm", "sglang"):
        await wire.report("r1", exact(h("p"), 64), hash_scheme=scheme)
    await wire.event("PREFIX_EVICTED", "r1", h("p"))
    assert await wire.total() == 0


@pytest.mark.parametrize(("named", "left"), [("sql", ["chat"]), ("", []), ("chat", [""])])
async def test_an_eviction_may_name_an_adapter(wire: Wire, named: str, left: list[str]) -> None:
    """With an adapter only that partition is touched, without one all of them."""
    adapters = {"sql": ["sql", "chat"], "": ["", "sql"], "chat": ["", "chat"]}[named]
    for adapter in adapters:
        await wire.report("r1", exact(h("p"), 64, adapter_id=adapter))
    await wire.event("PREFIX_EVICTED", "r1", h("p"), adapter_id=named)
    found = [adapter for adapter in adapters if ids(await wire.lookup(h("p"), adapter_id=adapter))]
    assert found == left


async def test_a_bulk_eviction(wire: Wire) -> None:
    """A list of hashes goes with the single one, or alone; empty ones are skipped."""
    await wire.report("r1", *(exact(h(at), 64) for at in range(5)))
    await wire.event("PREFIX_EVICTED", "r1", h(0), prefix_hashes=[h(1), b"", h(2)])
    assert await wire.total() == 2
    await wire.event("PREFIX_EVICTED", "r1", prefix_hashes=[h(3), h("unknown"), h(3)])
    assert await wire.total() == 1
    assert wire.counted("events_ignored_total", {"reason": "empty_hash"}) == 1


async def test_an_empty_eviction_does_nothing(wire: Wire) -> None:
    """An eviction without a hash removes nothing and is counted."""
    await wire.report("r1", exact(h("p"), 64))
    assert (await wire.event("PREFIX_EVICTED", "r1")).accepted
    assert await wire.total() == 1
    assert wire.counted("events_ignored_total", {"reason": "empty_hash"}) == 1


@pytest.mark.parametrize("where", [{"model_id": "m2"}, {"tenant_id": "team-b"}], ids=["model", "tenant"])
async def test_a_clear_is_one_replicas_in_one_model(wire: Wire, where: dict[str, Any]) -> None:
    """A clear takes all schemes and adapters and the statistics, and spares other replicas, models and tenants."""
    for scheme in ("vllm", "sglang"):
        for adapter in ("", "sql"):
            await wire.report("r1", exact(h("p"), 64, adapter_id=adapter), hash_scheme=scheme, stats={"hit_rate": 0.5})
    await wire.report("r2", exact(h("p"), 64), stats={"hit_rate": 0.5})
    await wire.report("r1", exact(h("p"), 64), stats={"hit_rate": 0.5}, **where)
    await wire.event("ALL_CLEARED", "r1", h("ignored"), adapter_id="ignored")
    state = await wire.state()
    assert ([row.replica_id for row in state.replicas], state.summary.total_prefixes) == (["r2"], 1)
    state = await wire.state(**where)
    assert ([row.replica_id for row in state.replicas], state.summary.total_prefixes) == (["r1"], 1)


@pytest.mark.parametrize("kind", ["PREFIX_EVICTED", "ALL_CLEARED"])
@pytest.mark.parametrize(
    ("event_age", "gone"),
    [
        ({"age_ms": 20 * MINUTE}, []),
        ({"age_ms": 5 * MINUTE}, ["old"]),
        ({}, ["old", "new"]),
        ({"timestamp_us": -1}, []),
    ],
    ids=["before both", "between", "without a time", "before the epoch"],
)
async def test_a_late_removal_spares_what_is_newer(
    wire: Wire, kind: str, event_age: dict[str, Any], gone: list[str]
) -> None:
    """A removal with a time takes only what was reported at or before it; one without takes everything."""
    await wire.report("r1", exact(h("old"), 64), age_ms=10 * MINUTE)
    await wire.report("r1", exact(h("new"), 64))
    await wire.event(kind, "r1", prefix_hashes=[h("old"), h("new")], **event_age)
    assert [name for name in ("old", "new") if not ids(await wire.lookup(h(name)))] == gone


@pytest.mark.parametrize("kind", ["PREFIX_EVICTED", "ALL_CLEARED"])
async def test_a_removal_from_the_future_is_of_now(wire: Wire, kind: str) -> None:
    """A removal whose time is yet to come takes what is there, and is counted."""
    await wire.report("r1", exact(h("p"), 64))
    await wire.event(kind, "r1", h("p"), age_ms=-60 * MINUTE)
    assert await wire.total() == 0
    assert wire.counted("clamped_timestamps_total", {"source": "event", "direction": "future"}) == 1


async def test_a_heartbeat_needs_a_row(wire: Wire) -> None:
    """REPLICA_UPDATED creates nothing and touches no block; without a row it is counted."""
    await wire.report("r1", exact(h("p"), 64))
    assert (await wire.event("REPLICA_UPDATED", "r1")).accepted
    state = await wire.state()
    assert (len(state.replicas), state.summary.total_prefixes) == (0, 1)
    assert wire.counted("events_ignored_total", {"reason": "no_stats"}) == 1


async def test_an_addition_does_nothing(wire: Wire) -> None:
    """PREFIX_ADDED neither stores nor refreshes."""
    wire.policy(FLOORS_OFF)
    await wire.report("r1", exact(h("p"), 64), age_ms=15 * MINUTE)
    for name in ("p", "q"):
        assert (await wire.event("PREFIX_ADDED", "r1", h(name))).accepted
    assert await wire.total() == 1
    score = (await wire.lookup(h("p"))).replica_scores[0]
    assert score.estimated_cache_hit_prob == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("number", [0, 77, -3])
async def test_unknown_types_do_nothing(wire: Wire, number: int) -> None:
    """An event of no or an unknown type is acknowledged, does nothing and is counted."""
    await wire.report("r1", exact(h("p"), 64))
    event = pb.CacheEvent(
        type=number,  # type: ignore[arg-type]
        replica_id="r1",
        tenant_id="team-a",
        model_id="m1",
        prefix_hash=h("p"),
    )
    assert (await wire.stub.PublishEvent(event)).accepted
    assert await wire.total() == 1
    assert wire.counted("events_ignored_total", {"reason": "unknown_type"}) == 1


@pytest.mark.parametrize("kind", ["PREFIX_EVICTED", "ALL_CLEARED", "REPLICA_UPDATED"])
async def test_events_of_the_reserved_tenant_are_not_applied(wire: Wire, kind: str) -> None:
    """An event for the self-test's tenant is acknowledged and counted, no more."""
    assert (await wire.event(kind, "r1", h("p"), tenant_id="inferencecache.io/probe")).accepted
    assert wire.counted("reserved_tenant_total", {"rpc": "PublishEvent"}) == 1
    assert wire.counted("events_total", {"type": kind}) == 0


async def test_evicted_blocks_can_come_back(wire: Wire) -> None:
    """A block that is stored again after its eviction is found again, in its place."""
    wire.policy(FLOORS_OFF)
    await wire.report("r1", chain(hs(1, 2, 3)))
    await wire.event("PREFIX_EVICTED", "r1", h(2))
    await wire.report("r1", chain(hs(1, 2, 3)))
    assert (await wire.lookup(**asks(hs(1, 2, 3)))).replica_scores[0].matched_tokens == 48


async def test_servers_say_that_they_evict_in_bulk(wire: Wire) -> None:
    """Producers learn from the initial metadata of both their calls, before the stream of reports has ended."""
    event = wire.stub.PublishEvent(pb.CacheEvent())
    report = wire.stub.ReportCacheState()
    for call in (event, report):
        metadata = dict(await call.initial_metadata())
        assert FEATURES[0] == ("inference-cache-features", "bulk-evict")
        assert metadata["inference-cache-features"] == "bulk-evict"
    await report.write(update("r1", exact(h("p"), 64)))
    await report.done_writing()
    assert (await report).accepted
