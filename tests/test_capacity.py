"""Making room never fails or slows a report that needs none, and a debt is paid later."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from inference_cache.capacity import Capacity
from inference_cache.domain.models import Trimmed
from inference_cache.domain.policy import Policy
from inference_cache.errors import StoreUnavailable
from inference_cache.metrics import Metrics
from inference_cache.store.model import ModelStore
from tests.rpc.serving import GatedStore, now_ms, serving, until
from tests.rpc.wire import TENANT, Policies, exact, hs

OPEN = Policy(minimum_matched_tokens=0, routing_floor_score=0.0, affinity_routing=False)
ONE = replace(OPEN, max_index_entries=1)
A, B, C = hs(*"abc")


class Away(GatedStore):
    """A store that stores, and does not make room while it is told so."""

    away = True

    async def trim_tenant(self, *args: object, **more: object) -> Trimmed:
        if self.away:
            raise StoreUnavailable("away", "closed")
        return await super().trim_tenant(*args, **more)  # type: ignore[arg-type]

    async def trim_index(self, *args: object) -> Trimmed:
        if self.away:
            raise StoreUnavailable("away", "closed")
        return await super().trim_index(*args)  # type: ignore[arg-type]


class Half(ModelStore):
    """A store of which one node does not answer: its models are passed over."""

    async def trim_tenant(self, *_: object, **__: object) -> Trimmed:
        return Trimmed({TENANT: 2}, {TENANT: 1}, failed=1)


def failures(metrics: Metrics, limit: str, reason: str) -> float:
    labels = {"limit": limit, "reason": reason}
    return metrics.registry.get_sample_value("inferencecache_trim_failures_total", labels) or 0.0


async def test_a_report_within_its_limits_costs_one_call() -> None:
    """Nobody is asked for room while quota and cap are kept; statistics alone neither."""
    store = GatedStore()
    async with serving(store, max_entries=3) as wire:
        await wire.report("r1", exact(A, 64))
        wire.policy(replace(OPEN, max_index_entries=3))
        await wire.report("r1", exact(B, 64), exact(C, 64))
        await wire.report("r1", stats={"hit_rate": 0.5})
        assert [name for name, _ in store.calls] == ["ingest"] * 3


async def test_room_is_made_before_the_ack() -> None:
    """While the store still trims, the report is not acknowledged."""
    store = GatedStore()
    async with serving(store) as wire:
        wire.policy(ONE)
        await wire.report("r1", exact(A, 64), age_ms=60_000)

        async def trim_tenant(*args: object, **more: object) -> Trimmed:
            trimming.set()
            await go_on.wait()
            return await ModelStore.trim_tenant(store, *args, **more)  # type: ignore[arg-type]

        trimming, go_on = asyncio.Event(), asyncio.Event()
        store.trim_tenant = trim_tenant  # type: ignore[method-assign]
        report = asyncio.ensure_future(wire.report("r1", exact(B, 64)))
        await trimming.wait()
        assert not report.done()
        go_on.set()
        assert (await report).accepted
        assert await wire.total() == 1


@pytest.mark.parametrize(("limit", "cap"), [("quota", 0), ("cap", 1)])
async def test_a_report_is_acknowledged_though_no_room_could_be_made(limit: str, cap: int) -> None:
    """It is stored; that the limit is not kept for now is counted."""
    store = Away()
    async with serving(store, max_entries=cap) as wire:
        wire.policy(OPEN if cap else ONE)
        for one in (A, B):
            assert (await wire.report("r1", exact(one, 64))).accepted
        assert await wire.total() == 2
        assert failures(wire.metrics, limit, "closed") == 1
        assert wire.counted("rpc_errors_total") == 0


async def test_a_quota_that_could_not_be_kept_is_kept_later() -> None:
    """The process that owes it tries again by itself, to the quota of that time, until it succeeds; then no more."""
    store, policies, metrics = Away(), Policies({TENANT: ONE}), Metrics()
    capacity = Capacity(store, policies, metrics, retry_ms=1)
    async with serving(store, policies=policies, capacity=capacity) as wire:
        for one in (A, B, C):
            await wire.report("r1", exact(one, 64))
        running = asyncio.create_task(capacity.run())
        await until(lambda: failures(metrics, "quota", "closed") > 4)
        policies.by_tenant[TENANT] = replace(OPEN, max_index_entries=2)
        store.away = False
        while await wire.total() > 2:  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.001)
        running.cancel()
        labels = {"tenant_id": TENANT, "reason": "over_entries"}
        assert metrics.registry.get_sample_value("inferencecache_tenant_evictions_total", labels) == 1
        assert not capacity._owed


async def test_a_quota_that_was_lifted_is_owed_no_more() -> None:
    """A tenant without a quota is left alone, whatever it owed."""
    store, policies, metrics = Away(), Policies({TENANT: ONE}), Metrics()
    capacity = Capacity(store, policies, metrics)
    async with serving(store, policies=policies, capacity=capacity) as wire:
        for one in (A, B):
            await wire.report("r1", exact(one, 64))
        store.away = False
        policies.by_tenant[TENANT] = OPEN
        await capacity.settle()
        policies.by_tenant[TENANT] = ONE
        await capacity.settle()
        assert await wire.total() == 2


async def test_what_was_removed_on_the_way_is_counted_though_a_node_is_away() -> None:
    """A partial success counts as what it is: removals, and a debt."""
    metrics = Metrics()
    capacity = Capacity(Half(now_ms), Policies({TENANT: ONE}), metrics)
    capacity._owed.add(TENANT)
    await capacity.settle()
    assert failures(metrics, "quota", "models_skipped") == 1
    assert (
        metrics.registry.get_sample_value(
            "inferencecache_tenant_evictions_total", {"tenant_id": TENANT, "reason": "over_entries"}
        )
        == 2
    )
    assert (
        metrics.registry.get_sample_value("inferencecache_index_evictions_total", {"algorithm": "lru", "reason": "ttl"})
        == 1
    )
    assert capacity._owed == {TENANT}


async def test_an_error_nobody_foresaw_does_not_end_the_retries() -> None:
    """A bug of ours costs one attempt."""
    tried = asyncio.Semaphore(0)

    class Odd(ModelStore):
        async def trim_tenant(self, *_: object, **__: object) -> Trimmed:
            tried.release()
            raise ZeroDivisionError

    capacity = Capacity(Odd(now_ms), Policies({TENANT: ONE}), Metrics(), retry_ms=1)
    capacity._owed.add(TENANT)
    running = asyncio.create_task(capacity.run())
    await tried.acquire()
    capacity._owed.add(TENANT)
    await tried.acquire()
    running.cancel()


async def test_concurrent_reports_end_at_the_cap() -> None:
    """However many reports need room at once, exactly the excess goes."""
    store = ModelStore(now_ms)
    async with serving(store, max_entries=10) as wire:
        names = hs(*range(60))
        await asyncio.gather(*(wire.report(f"r{at}", exact(one, 64)) for at, one in enumerate(names)))
        assert await wire.total() == 10
        assert wire.counted("index_evictions_total", {"algorithm": "lru", "reason": "cap"}) == 50
