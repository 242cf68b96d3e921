"""Evictions that wait for one another share calls to the store, in order and within bounds."""

from __future__ import annotations

import asyncio

import pytest

from inference_cache.domain.blocks import MAX_BATCH_BLOCKS
from inference_cache.domain.models import ModelKey, Removal
from inference_cache.errors import StoreUnavailable
from inference_cache.metrics import Metrics
from inference_cache.rpc.evictions import ITEM_BYTES, Evictions
from tests.rpc.serving import GatedStore, serving, until
from tests.rpc.wire import exact, h

MODEL = ModelKey("t", "m")


def removals(store: GatedStore) -> list[Removal]:
    """Return what the store was told to remove, call by call."""
    return [what for name, what in store.calls if name == "evict"]


async def started(*evictions: asyncio.Task[None]) -> None:
    """Let every task run until it waits."""
    for _ in range(3):
        await asyncio.sleep(0)
    assert not any(task.done() for task in evictions)


class Lane:
    """Evictions of one replica on a store whose gate is closed."""

    def __init__(self, max_waiting_bytes: int = 2**20) -> None:
        self.store = GatedStore()
        self.store.gate.clear()
        self.metrics = Metrics()
        self.evictions = Evictions(self.store, self.metrics, max_waiting_bytes)

    def evict(
        self, name: str, replica: str = "r", fence_ms: int | None = None, adapter: str = ""
    ) -> asyncio.Task[None]:
        """Begin an eviction."""
        return asyncio.create_task(self.evictions.evict(MODEL, replica, h(name), fence_ms=fence_ms, adapter_id=adapter))

    @property
    def waiting(self) -> float:
        """How many evictions wait, as the gauge says."""
        return self.metrics.registry.get_sample_value("inferencecache_evictions_waiting") or 0.0


async def test_what_arrives_meanwhile_goes_together() -> None:
    """While one call is under way the next collects everything that arrives, in order, equal fences in one run."""
    lane = Lane()
    first = lane.evict("a")
    await started(first)
    rest = [lane.evict(name, fence_ms=fence) for name, fence in (("b", 5), ("c", 5), ("d", None))]
    await started(first, *rest)
    assert lane.waiting == 3
    lane.store.gate.set()
    await asyncio.gather(first, *rest)
    assert removals(lane.store) == [
        Removal(h("a"), ((0, None),)),
        Removal(h("b") + h("c") + h("d"), ((0, 5), (2, None))),
    ]
    assert lane.waiting == 0


async def test_replicas_do_not_wait_for_each_other() -> None:
    """Each replica has its own lane: both calls are under way at once."""
    lane = Lane()
    tasks = [lane.evict("a", replica="r1"), lane.evict("a", replica="r2")]
    await lane.store.called(2)
    lane.store.gate.set()
    await asyncio.gather(*tasks)


async def test_adapters_do_not_mix() -> None:
    """A call carries one adapter; the order of arrival stays."""
    lane = Lane()
    first = lane.evict("a")
    await started(first)
    rest = [
        lane.evict(name, adapter=adapter) for name, adapter in (("b", "sql"), ("c", "sql"), ("d", ""), ("e", "sql"))
    ]
    await started(first, *rest)
    lane.store.gate.set()
    await asyncio.gather(first, *rest)
    assert [(removal.adapter_id, removal.keys) for removal in removals(lane.store)[1:]] == [
        ("sql", h("b") + h("c")),
        ("", h("d")),
        ("sql", h("e")),
    ]


async def test_a_call_carries_a_bounded_number_of_blocks() -> None:
    """What is more than one call may carry goes with the next ones."""
    lane = Lane()
    tasks = [lane.evict(str(at)) for at in range(2 * MAX_BATCH_BLOCKS)]
    await started(*tasks)
    lane.store.gate.set()
    await asyncio.gather(*tasks)
    sizes = [len(removal.keys) // 8 for removal in removals(lane.store)]
    assert sum(sizes) == 2 * MAX_BATCH_BLOCKS
    assert max(sizes) == MAX_BATCH_BLOCKS


async def test_one_error_is_everybodys_in_the_call() -> None:
    """When a shared call fails, all in it are told; the lane goes on."""
    lane = Lane()
    first = lane.evict("a")
    await started(first)
    rest = [lane.evict("b"), lane.evict("c")]
    await started(first, *rest)
    lane.store.error = StoreUnavailable("away")
    lane.store.gate.set()
    results = await asyncio.gather(first, *rest, return_exceptions=True)
    assert all(isinstance(result, StoreUnavailable) for result in results)
    lane.store.error = None
    await lane.evict("d")
    assert len(removals(lane.store)) == 3


async def test_who_goes_away_is_left_out() -> None:
    """A waiting eviction whose caller has gone is not sent; one under way does not take the others with it."""
    lane = Lane()
    first = lane.evict("a")
    await started(first)
    gone, stays = lane.evict("b"), lane.evict("c")
    await started(first, gone, stays)
    gone.cancel()
    first.cancel()
    await asyncio.gather(first, gone, return_exceptions=True)
    lane.store.gate.set()
    await stays
    assert [removal.keys for removal in removals(lane.store)] == [h("a"), h("c")]
    assert lane.waiting == 0


async def test_the_queue_is_bounded() -> None:
    """Above the limit evictions are refused at once, and taken again when there is room."""
    lane = Lane(max_waiting_bytes=3 * (ITEM_BYTES + 8))
    first = lane.evict("a")
    await started(first)
    waiting = [lane.evict(str(at)) for at in range(3)]
    await started(first, *waiting)
    with pytest.raises(StoreUnavailable) as refused:
        await lane.evict("x")
    assert refused.value.reason == "evictions_waiting"
    lane.store.gate.set()
    await asyncio.gather(first, *waiting)
    await lane.evict("x")
    assert h("x") == removals(lane.store)[-1].keys


async def test_many_single_evictions_over_the_wire() -> None:
    """A burst of single evictions takes two calls to the store, and each is acknowledged when it is done."""
    store = GatedStore()
    async with serving(store) as wire:
        await wire.report("r", *(exact(h(at), 64) for at in range(200)))
        store.gate.clear()
        first = asyncio.ensure_future(wire.event("PREFIX_EVICTED", "r", h(0)))
        await store.called(2)  # the report and the first eviction
        burst = asyncio.gather(first, *(wire.event("PREFIX_EVICTED", "r", h(at)) for at in range(1, 200)))
        await until(lambda: wire.counted("evictions_waiting") == 199)
        store.gate.set()
        assert all(ack.accepted for ack in await burst)
        assert await wire.total() == 0
        assert wire.counted("events_total", {"type": "PREFIX_EVICTED"}) == 200
        assert wire.counted("event_holdings_removed_total", {"type": "PREFIX_EVICTED"}) == 200
    assert [len(removal.keys) // 8 for removal in removals(store)] == [1, 199]
    keys = [removal.keys[at : at + 8] for removal in removals(store) for at in range(0, len(removal.keys), 8)]
    assert sorted(keys) == sorted(h(at) for at in range(200))
