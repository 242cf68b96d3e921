"""Hits are counted off the way of lookups: merged, bounded, and not lost when a server ends in order."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Any

from inference_cache.domain.credits import Delivery
from inference_cache.domain.models import Credit, ExactEvidence, ModelKey, Partition, Path
from inference_cache.domain.policy import Policy
from inference_cache.errors import StoreUnavailable
from inference_cache.metrics import Metrics
from inference_cache.rpc.credits import Credits
from tests.rpc.serving import GatedStore, serving, until
from tests.rpc.wire import TENANT, Policies, Wire, asks, chain, exact, hs

MODEL, BASE = ModelKey("t", "m"), Partition("vllm")
LFU = Policy(minimum_matched_tokens=0, routing_floor_score=0.0, affinity_routing=False, eviction="lfu")
NEVER_S = 3600.0
A, B, C = hs(*"abc")


def hit(
    *places: tuple[bytes, int, int], replicas: str = "a", partition: Partition = BASE, version: int = 1
) -> Delivery:
    blocks = sum(size for _, _, size in places)
    return Delivery(Path(MODEL, partition, places, version), tuple((who, blocks) for who in replicas))


def value(metrics: Metrics, name: str, **labels: str) -> float:
    return metrics.registry.get_sample_value(f"inferencecache_lfu_{name}_total", labels) or 0.0


async def test_equal_hits_become_one_credit() -> None:
    """Hits of one stretch add up, the deepest block counts; another replica, place or version is another credit."""
    store, metrics = GatedStore(), Metrics()
    hits = Credits(store, metrics, interval_s=NEVER_S)
    for each in [
        hit((b"s", 0, 3)),
        hit((b"s", 0, 2), replicas="ab"),
        hit((b"s", 0, 1), version=2),
        hit((b"z", 1, 1)),
        hit((b"s", 0, 1), partition=Partition("sglang")),
    ]:
        hits.add(each)
    await hits.close()
    assert [what for name, what in store.calls if name == "credit"] == [
        [
            Credit(b"s", "a", 3, 1, 2),
            Credit(b"s", "b", 2, 1, 1),
            Credit(b"s", "a", 1, 2, 1),
            Credit(b"z", "a", 2, 1, 1),
        ],
        [Credit(b"s", "a", 1, 1, 1)],
    ]
    assert value(metrics, "credits_dropped", reason="gone") == 5


async def test_one_call_an_interval() -> None:
    """What comes while nothing waits is sent after the interval, together with all that came since."""
    store = GatedStore()
    hits = Credits(store, Metrics(), interval_s=0.01)
    for _ in range(100):
        hits.add(hit((b"s", 0, 1)))
    await store.called(1)
    hits.add(hit((b"s", 0, 1)))
    await store.called(2)
    assert [what[0].hits for _, what in store.calls] == [100, 1]


async def test_a_full_queue_drops_and_counts() -> None:
    """Whatever Redis does, no more waits than the bound; the size counts, not the number of lookups."""
    store, metrics = GatedStore(), Metrics()
    hits = Credits(store, metrics, interval_s=NEVER_S, max_waiting=10)
    for _ in range(3):
        hits.add(hit((b"s", 0, 1), (b"z", 0, 1), replicas="ab"))
    hits.add(hit((b"s", 0, 1)))
    assert value(metrics, "credits_dropped", reason="queue_full") == 4
    await hits.close()
    assert sum(credit.hits for _, what in store.calls for credit in what) == 9


async def test_a_store_that_fails_costs_the_batch_only() -> None:
    """The loss is counted under its reason, and the next hits are counted as ever."""
    store, metrics = GatedStore(), Metrics()
    hits = Credits(store, metrics, interval_s=0)
    store.error = StoreUnavailable("away", "closed")
    hits.add(hit((b"s", 0, 1)))
    await until(lambda: value(metrics, "credits_dropped", reason="closed"))
    store.error = None
    hits.add(hit((b"s", 0, 1)))
    await until(lambda: value(metrics, "credits_dropped", reason="gone"))


async def test_an_error_nobody_foresaw_does_not_end_counting() -> None:
    """A bug of ours loses a batch and no more."""
    store, metrics = GatedStore(), Metrics()
    hits = Credits(store, metrics, interval_s=0)
    store.error = ZeroDivisionError()
    hits.add(hit((b"s", 0, 1)))
    await store.called(1)
    store.error = None
    await until(lambda: hits._flushing is None)
    hits.add(hit((b"s", 0, 1)))
    await until(lambda: value(metrics, "credits_dropped", reason="gone"))


async def test_closing_waits_for_what_is_under_way() -> None:
    """A batch that is being sent is not cut by an orderly end."""
    store, metrics = GatedStore(), Metrics()
    hits = Credits(store, metrics, interval_s=0)
    store.gate.clear()
    hits.add(hit((b"s", 0, 1)))
    await store.called(1)
    hits.add(hit((b"z", 0, 1)))
    closing = asyncio.create_task(hits.close())
    store.gate.set()
    await closing
    assert (len(store.calls), store.cut) == (2, [])


def lfu(store: GatedStore, **options: Any) -> AbstractAsyncContextManager[Wire]:
    return serving(store, policies=Policies({TENANT: LFU}), **options)


async def hot_chain(wire: Wire) -> None:
    await wire.report("r1", chain([A, B, C]))


async def test_a_lookup_makes_no_further_call() -> None:
    """The answer is there while the credit still waits for its turn."""
    store = GatedStore()
    async with lfu(store) as wire:
        await hot_chain(wire)
        store.calls.clear()
        answer = await wire.lookup(**asks([A, B, C]))
        assert answer.reason_code == "PREFIX_MATCH"
        await store.called(2)
        assert [name for name, _ in store.calls] == ["lookup_chain", "credit"]


async def test_a_credit_that_hangs_holds_up_no_lookup() -> None:
    """With the call that counts hits stuck, lookups are answered as before."""

    class Stuck(GatedStore):
        async def credit(self, *_: Any, **__: Any) -> int:
            await asyncio.Event().wait()
            raise AssertionError

    async with lfu(Stuck()) as wire:
        await hot_chain(wire)
        for _ in range(3):
            assert (await wire.lookup(**asks([A, B, C]))).reason_code == "PREFIX_MATCH"


async def test_no_path_is_asked_for_without_lfu() -> None:
    """Tenants that count no hits pay for none."""
    store = GatedStore()
    async with serving(store) as wire:
        wire.policy(Policy(minimum_matched_tokens=0))
        await wire.report("r1", exact(A, 64))
        await wire.lookup(A)
        await wire.lookup(**asks([A, B]))
        wanted = [what["want_path"] for name, what in store.calls if name.startswith("lookup")]
        assert wanted == [False, False]


async def test_a_timed_out_lookup_counts_nothing() -> None:
    """What was found too late was not delivered, so A, the older one, gives way as if nobody had asked."""

    class Late(GatedStore):
        late = True

        async def lookup_exact(self, *args: Any, **more: Any) -> ExactEvidence:
            found = await super().lookup_exact(*args, **more)
            if self.late:
                await asyncio.sleep(NEVER_S)
            return found

    store = Late()
    async with lfu(store, max_entries=1, lookup_timeout_ms=1) as wire:
        await wire.report("r1", exact(A, 64), age_ms=60_000)
        for _ in range(3):
            assert (await wire.lookup(A)).reason_code == "TIMEOUT"
        await wire.report("r1", exact(B, 64))
        store.late = False
        wire.policy(Policy(minimum_matched_tokens=0, lookup_timeout_ms=600_000, affinity_routing=False))
        assert [(await wire.lookup(one)).reason_code for one in (A, B)] == ["NO_HINT", "PREFIX_MATCH"]
        assert wire.counted("lfu_credits_total") == 0
        assert [name for name, _ in store.calls if name == "credit"] == []


async def test_an_orderly_end_loses_no_hits() -> None:
    """What waits when the server stops is counted before it has stopped."""
    store, metrics = GatedStore(), Metrics()
    hits = Credits(store, metrics, interval_s=NEVER_S)
    async with lfu(store, hits=hits) as wire:
        await hot_chain(wire)
        await wire.lookup(**asks([A, B, C]))
        assert [name for name, _ in store.calls if name == "credit"] == []
    await hits.close()
    assert value(metrics, "credits") == 3
