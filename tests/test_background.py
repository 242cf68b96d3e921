from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import pytest

from inference_cache.background import StoreWatch, Sweeper
from inference_cache.capacity import Capacity
from inference_cache.domain.models import Batch, Expired, ModelKey, Partition, Retention
from inference_cache.domain.policy import DefaultPolicies, Policy
from inference_cache.errors import StoreError, StoreUnavailable
from inference_cache.metrics import Metrics
from inference_cache.store.base import Store
from inference_cache.store.connection import Connection, open_connection
from inference_cache.store.model import ModelStore
from tests.contract.stores import opened
from tests.rpc.serving import until
from tests.support.servers import Server

MODEL = ModelKey("tenant", "model")
TTL_MS = 1000
_Store = TypeVar("_Store", bound=Store)


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"inferencecache_{name}", labels)


class Broken(ModelStore):
    """A store whose sweep fails."""

    def __init__(self, error: Exception, tried: asyncio.Semaphore) -> None:
        super().__init__(lambda: 0)
        self._error = error
        self._tried = tried

    async def expire(self, *_: object) -> Expired:
        self._tried.release()
        raise self._error


class Partial(ModelStore):
    """A store of which one node does not answer."""

    async def expire(
        self, expired_at: Callable[[str], int], retention: Callable[[str], Retention] | None = None
    ) -> Expired:
        found = await super().expire(expired_at, retention)
        found.failed = 1
        return found


def sweeper(store: ModelStore, metrics: Metrics, *, certain: bool = True) -> Sweeper:
    policies = DefaultPolicies(Policy(ttl_ms=TTL_MS))
    capacity = Capacity(store, policies, metrics)
    return Sweeper(store, policies, metrics, capacity, period_ms=1, clock_is_certain=lambda: certain)


async def filled(store: _Store, reported_ms: int) -> _Store:
    batch = Batch(Partition("vllm"), b"a" * 8 + b"b" * 8, tiers=((0, 1),), counts=((0, 16, 16),))
    await store.ingest(MODEL, "pod", [batch], reported_ms=reported_ms, ttl_ms=TTL_MS)
    return store


async def test_sweep_removes_by_the_tenants_ttl_and_shows_what_is_left() -> None:
    """What is older than the TTL goes and is counted, what is younger stays and is on the gauge."""
    now_ms = 5000
    store, metrics = await filled(ModelStore(lambda: now_ms), 4001), Metrics()
    await sweeper(store, metrics).sweep()
    assert value(metrics, "index_entries", model="model") == 2
    now_ms = 5001
    await sweeper(store, metrics).sweep()
    assert value(metrics, "index_entries", model="model") == 0
    assert value(metrics, "index_evictions_total", algorithm="lru", reason="ttl") == 2
    assert value(metrics, "index_sweeps_total", result="ok") == 2


async def test_nothing_is_swept_while_the_clock_is_uncertain() -> None:
    """A server that does not know the shared time must not remove what may be alive."""
    store, metrics = await filled(ModelStore(lambda: 10_000), 1), Metrics()
    await sweeper(store, metrics, certain=False).sweep()
    assert (await store.state(MODEL)).total_prefixes == 2
    assert value(metrics, "index_sweeps_total", result="clock_uncertain") == 1


@pytest.mark.parametrize("error", [StoreUnavailable("away"), StoreError("odd"), ZeroDivisionError()])
async def test_failing_sweep_is_counted_and_the_next_one_comes(error: Exception) -> None:
    """Neither a Redis that is away nor a bug of ours ends sweeping for good."""
    metrics, tried = Metrics(), asyncio.Semaphore(0)
    task = asyncio.create_task(sweeper(Broken(error, tried), metrics).run())
    for _ in range(3):
        await tried.acquire()
    task.cancel()
    assert value(metrics, "index_sweeps_total", result="failed") == 3


async def test_partial_sweep_says_so_and_keeps_gauges_of_models_it_did_not_see() -> None:
    """A node that does not answer must not make its models look empty."""
    metrics = Metrics()
    await sweeper(await filled(ModelStore(lambda: 5000), 4900), metrics).sweep()
    await sweeper(Partial(lambda: 5000), metrics).sweep()
    assert value(metrics, "index_sweeps_total", result="partial") == 1
    assert value(metrics, "index_entries", model="model") == 2


def sweeping(store: Store, metrics: Metrics, period_ms: int, *, certain: Callable[[], bool] = lambda: True) -> Sweeper:
    policies = DefaultPolicies(Policy(ttl_ms=TTL_MS))
    capacity = Capacity(store, policies, metrics)
    return Sweeper(store, policies, metrics, capacity, period_ms=period_ms, clock_is_certain=certain)


def sweeps(metrics: Metrics, result: str = "ok") -> float:
    return value(metrics, "index_sweeps_total", result=result) or 0.0


async def test_one_sweeps_for_all() -> None:
    """Of two servers one sweeps, and both show who does."""
    store, both = await filled(ModelStore(lambda: 0), 0), [Metrics(), Metrics()]
    tasks = [asyncio.create_task(sweeping(store, metrics, 20).run()) for metrics in both]
    await until(lambda: sum(map(sweeps, both)) > 5 and sum(sweeps(each, "standby") for each in both) > 5)
    idle, busy = sorted(both, key=sweeps)
    assert sweeps(idle) == 0
    assert [value(each, "sweeper") for each in (idle, busy)] == [0, 1]
    for task in tasks:
        task.cancel()


async def test_the_others_know_as_much(own_valkey: Server, key_prefix: str) -> None:
    """What the index holds is on the gauges of all servers, also of those that did not sweep or change anything."""
    async with opened(own_valkey.url, key_prefix) as one, opened(own_valkey.url, key_prefix) as other:
        await filled(one, one.now_ms() + 3_600_000)
        both = [Metrics(), Metrics()]
        stores = zip((one, other), both, strict=True)
        tasks = [asyncio.create_task(sweeping(store, metrics, 100).run()) for store, metrics in stores]
        await until(lambda: [value(each, "index_entries", model="model") for each in both] == [2, 2])
        await one.clear(MODEL, "pod", fence_ms=None)
        await until(lambda: [value(each, "index_entries", model="model") for each in both] == [0, 0])
        await until(lambda: sum(sweeps(each, "standby") for each in both) > 0)
        for task in tasks:
            task.cancel()


async def test_when_the_one_dies_another_goes_on() -> None:
    """The lease ends with its owner, a period after its last word; until then nobody else sweeps."""
    now_ms = 0
    store, both = ModelStore(lambda: now_ms), [Metrics(), Metrics()]
    first = asyncio.create_task(sweeping(store, both[0], 20).run())
    await until(lambda: sweeps(both[0]) > 0)
    second = asyncio.create_task(sweeping(store, both[1], 20).run())
    await until(lambda: sweeps(both[1], "standby") > 2)
    first.cancel()
    await until(lambda: sweeps(both[1], "standby") > 4)
    assert sweeps(both[1]) == 0
    now_ms = 20
    await until(lambda: sweeps(both[1]) > 2)
    second.cancel()


async def test_the_lease_lasts_a_period_and_is_kept_during_a_long_sweep() -> None:
    """A sweep that takes longer than the lease does not lose it, because it is asked for beside the sweep."""

    class Slow(ModelStore):
        leases: ClassVar[list[tuple[str, int]]] = []

        async def lease(self, owner: str, ttl_ms: int) -> int | None:
            self.leases.append((owner, ttl_ms))
            return await super().lease(owner, ttl_ms)

        async def expire(self, *args: Any) -> Expired:
            asked = len(self.leases)
            await until(lambda: len(self.leases) > asked + 5)
            return await super().expire(*args)

    metrics, store = Metrics(), Slow(lambda: 0)
    task = asyncio.create_task(sweeping(store, metrics, 15).run())
    await until(lambda: sweeps(metrics) > 0)
    task.cancel()
    assert {ttl_ms for _, ttl_ms in store.leases} == {15}
    assert len({owner for owner, _ in store.leases}) == 1


async def test_who_does_not_know_the_time_leaves_the_sweep_to_others() -> None:
    """A server whose clock is uncertain gives the lease up, and takes it again when it knows."""
    certain = True
    now_ms = 0
    store, one, other = ModelStore(lambda: now_ms), Metrics(), Metrics()
    first = asyncio.create_task(sweeping(store, one, 20, certain=lambda: certain).run())
    await until(lambda: sweeps(one) > 0)
    certain = False
    second = asyncio.create_task(sweeping(store, other, 20).run())
    await until(lambda: value(one, "sweeper") == 0)
    now_ms = 20
    await until(lambda: sweeps(other) > 0)
    first.cancel()
    second.cancel()


@pytest.mark.parametrize("error", [StoreUnavailable("away"), ZeroDivisionError()])
async def test_a_lease_that_cannot_be_had_is_asked_for_again(error: Exception) -> None:
    """While Redis is away nobody sweeps; when it is back somebody does."""

    class Away(ModelStore):
        error: Exception | None = None
        asked = 0

        async def lease(self, owner: str, ttl_ms: int) -> int | None:
            self.asked += 1
            if self.error is not None:
                raise self.error
            return await super().lease(owner, ttl_ms)

    store, metrics = Away(lambda: 0), Metrics()
    store.error = error
    task = asyncio.create_task(sweeping(store, metrics, 10).run())
    await until(lambda: store.asked > 3)
    assert sweeps(metrics) == 0
    store.error = None
    await until(lambda: sweeps(metrics) > 0)
    task.cancel()


async def test_a_sweep_tells_the_store_what_policies_say_now() -> None:
    """TTL and algorithm of each tenant go along, so that a raised TTL takes effect within one sweep."""

    class Curious(ModelStore):
        told: Retention | None = None

        async def expire(
            self, expired_at: Callable[[str], int], retention: Callable[[str], Retention] | None = None
        ) -> Expired:
            assert retention is not None
            self.told = retention("anybody")
            return await super().expire(expired_at, retention)

    store, metrics = Curious(lambda: 0), Metrics()
    policies = DefaultPolicies(Policy(ttl_ms=5, eviction="lfu"))
    capacity = Capacity(store, policies, metrics)
    await Sweeper(store, policies, metrics, capacity, period_ms=1, clock_is_certain=lambda: True).sweep()
    assert store.told == Retention(5, lfu=True)


async def watched(connection: Connection, metrics: Metrics) -> tuple[StoreWatch, list[bool]]:
    told: list[bool] = []

    async def on_change(answers: bool) -> None:
        told.append(answers)

    return StoreWatch(connection, metrics, on_change), told


async def test_watch_tells_each_change_once(own_valkey: Server) -> None:
    """Health hears when Redis goes and when it comes back, not at every look in between."""
    metrics = Metrics()
    connection = await open_connection(own_valkey.url)
    try:
        watch, told = await watched(connection, metrics)
        assert not watch.answers
        await watch.look()
        await watch.look()
        assert (told, watch.answers, value(metrics, "store_up")) == ([True], True, 1)
        assert value(metrics, "store_noeviction") == 1
        own_valkey.kill()
        await watch.look()
        await watch.look()
        for _ in range(10):
            await watch.look()
        assert value(metrics, "store_circuits_open", lane="reads") == 1
        assert (told, watch.answers, value(metrics, "store_up")) == ([True, False], False, 0)
        own_valkey.start()
        while not watch.answers:
            await watch.look()
        assert told == [True, False, True]
        assert value(metrics, "store_circuits_open", lane="reads") == 0
        assert value(metrics, "store_circuit_openings_total", lane="reads") == 1
        assert value(metrics, "store_reconnects_total", lane="reads") == 1
    finally:
        await connection.close()


async def test_error_of_a_listener_does_not_end_the_watch(own_valkey: Server) -> None:
    """Whoever is told and fails is told again, and Redis stays watched."""
    tried = asyncio.Semaphore(0)

    async def on_change(_answers: bool) -> None:
        tried.release()
        raise ZeroDivisionError

    connection = await open_connection(own_valkey.url)
    try:
        watch = StoreWatch(connection, Metrics(), on_change)
        task = asyncio.create_task(watch.run())
        await tried.acquire()
        await tried.acquire()
        task.cancel()
    finally:
        await connection.close()


async def test_frozen_redis_counts_as_away(own_valkey: Server) -> None:
    """A Redis that accepts and never answers does not leave the server ready."""
    connection = await open_connection(own_valkey.url)
    try:
        watch, told = await watched(connection, Metrics())
        await watch.look()
        own_valkey.pause()
        await watch.look()
        assert told == [True, False]
    finally:
        own_valkey.resume()
        await connection.close()
