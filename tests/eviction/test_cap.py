"""An index above its cap loses, holding by holding, what was reported longest ago, and what was hit before the rest."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from inference_cache.domain.models import ModelKey
from tests.contract import build
from tests.eviction.conftest import CHAINS, Serve
from tests.eviction.index import LFU, OPEN, Index
from tests.rpc.wire import MINUTE, MODEL, TENANT, chain, h, hs

A, B, C, D = ABCD = hs(*"abcd")
OTHER = "team-b"


async def test_the_oldest_holding_goes(serve: Serve) -> None:
    """Of three in an index for two the newest two stay."""
    index = await serve(max_entries=2)
    await index.tell("r1", A, minutes=2)
    await index.tell("r1", B, minutes=1)
    assert index.evicted("lru", "cap") == 0
    await index.tell("r1", C)
    assert (await index.total(), await index.left(A, B, C)) == (2, [1, 2])
    assert index.evicted("lru", "cap") == 1
    assert index.evicted("lru", "ttl") == index.evicted("lfu", "cap") == 0


async def test_the_unit_is_the_holding(serve: Serve) -> None:
    """Of a prefix that two replicas hold only the older holding goes; the prefix stays."""
    index = await serve(max_entries=3)
    await index.tell("r1", A, minutes=3)
    await index.tell("r2", A, minutes=1)
    await index.tell("r1", B, minutes=2)
    await index.tell("r1", C)
    assert await index.holders(A) == ["r2"]
    assert await index.left(A, B, C) == [0, 1, 2]
    assert index.evicted("lru", "cap") == 1


async def test_a_report_that_is_older_than_the_rest_goes_itself(serve: Serve) -> None:
    """What was stored last is no younger for it."""
    index = await serve(max_entries=2)
    await index.tell("r1", A, B)
    await index.tell("r1", C, minutes=5)
    assert await index.left(A, B, C) == [0, 1]


async def test_a_new_report_rejuvenates(serve: Serve) -> None:
    """The last report of a holding counts, also one that is older than the first."""
    index = await serve(max_entries=2)
    await index.tell("r1", A, minutes=4)
    await index.tell("r1", B, minutes=3)
    await index.tell("r1", A, minutes=2)
    await index.tell("r1", C, minutes=1)
    assert await index.left(A, B, C) == [0, 2]
    await index.tell("r1", C, minutes=3)
    await index.tell("r1", D)
    assert await index.left(*ABCD) == [0, 3]


async def test_no_cap_is_no_limit(serve: Serve) -> None:
    """With a cap of 0 nothing gives way."""
    index = await serve(max_entries=0)
    await index.tell("r1", *ABCD, minutes=20)
    assert (await index.total(), index.evicted("lru", "cap")) == (4, 0)


@pytest.mark.parametrize("order", [1, -1])
async def test_names_decide_between_equals(serve: Serve, order: int) -> None:
    """Holdings of one age go by tenant, model, scheme, adapter, hash and replica, whichever came last."""
    index = await serve(max_entries=6)
    index.policy(OPEN, OTHER)
    low, high = sorted((A, B))
    ranked: list[tuple[str, bytes, dict[str, Any]]] = [
        ("r1", low, {"model_id": "m1"}),
        ("r10", low, {"model_id": "m1"}),
        ("r2", low, {"model_id": "m1"}),
        ("r1", high, {"model_id": "m1"}),
        ("r1", low, {"model_id": "m1", "adapter_id": "lora"}),
        ("r1", low, {"model_id": "m1", "hash_scheme": "z"}),
        ("r1", low, {"model_id": "m2"}),
        ("r1", low, {"model_id": "m1", "tenant_id": OTHER}),
    ]
    for replica, one, where in ranked[::order]:
        await index.tell(replica, one, minutes=1, **where)
    for gone in range(2, 6):
        held = [replica in await index.holders(one, **where) for replica, one, where in ranked]
        assert held == [at >= gone for at in range(len(ranked))]
        await index.tell("new", h(gone))  # one more


async def test_models_and_tenants_share_the_cap(serve: Serve) -> None:
    """Whose models lie on which node of a Cluster plays no role: the oldest of all goes."""
    index = await serve(max_entries=4)
    places = [{"tenant_id": f"t{number % 3}", "model_id": f"m{number}"} for number in range(6)]
    for tenant in ("t0", "t1", "t2"):
        index.policy(OPEN, tenant)
    for age, place in zip((5, 1, 4, 2, 6, 3), places, strict=True):
        await index.tell("r1", A, minutes=age, **place)
    assert [at for at, place in enumerate(places) if await index.holders(A, **place)] == [1, 2, 3, 5]
    assert index.evicted("lru", "cap") == 2


async def test_statistics_are_never_capped_and_enforce_it(serve: Serve) -> None:
    """Rows do not count and do not go, and a message without prefixes makes room too."""
    index = await serve(max_entries=2)
    await index.tell("r1", A, B)
    for replica in ("r1", "r2", "r3"):
        await index.report(replica, stats={"hit_rate": 0.5})
    assert len((await index.state()).replicas) == 3
    assert await index.left(A, B) == [0, 1]


async def test_statistics_alone_enforce_it_too(serve: Serve) -> None:
    """An index that is above the cap comes down to it with the next message of anybody, whatever it brings."""
    index = await serve(max_entries=2)
    for one, age in [(A, 3), (B, 2), (C, 1)]:
        await _store_uncapped(index, one, age)
    assert await index.total() == 3
    await index.report("r9", stats={"hit_rate": 0.5}, tenant_id=OTHER)
    assert await index.left(A, B, C) == [1, 2]


async def test_the_sweep_enforces_it_too(serve: Serve) -> None:
    """What a report could not trim, because it failed or its server died, goes with the next sweep."""
    index = await serve(max_entries=1)
    await _store_uncapped(index, A, 2)
    await _store_uncapped(index, B, 1)
    metrics = await index.sweep()
    assert await index.left(A, B) == [1]
    labels = {"algorithm": "lru", "reason": "cap"}
    assert metrics.registry.get_sample_value("inferencecache_index_evictions_total", labels) == 1


async def test_what_has_expired_goes_first(serve: Serve) -> None:
    """Of another tenant's, whose reports count for longer, nothing goes while something has expired where it looks."""
    index = await serve(max_entries=2)
    index.policy(replace(OPEN, ttl_ms=60 * 60_000))
    await index.tell("r1", A, minutes=8)
    await index.tell("r1", B, minutes=9)
    index.policy(replace(OPEN, ttl_ms=30_000 + 8 * 60_000))
    await index.tell("r1", C)
    assert await index.left(A, B, C) == [0, 2]
    assert (index.evicted("lru", "cap"), index.evicted("lru", "ttl")) == (0, 1)


@CHAINS
async def test_a_replicas_run_gives_way_from_its_end(serve: Serve) -> None:
    """A chain loses its last blocks, at the replica whose report is older, and can still be matched."""
    index = await serve(max_entries=8)
    await index.report("r1", chain(ABCD), minutes=2)
    await index.report("r2", chain(ABCD), minutes=1)
    for number in range(3):
        await index.tell("r3", h(number))
    assert [await index.holders(each) for each in ABCD] == [["r1", "r2"], ["r2"], ["r2"], ["r2"]]
    for number in range(3, 6):
        await index.tell("r3", h(number))
    assert [await index.holders(each) for each in ABCD] == [["r2"], ["r2"], [], []]
    assert index.evicted("lru", "cap") == 6


async def test_mixed_tenants_have_their_own_algorithm(serve: Serve) -> None:
    """Hits hold only where they are counted, and each holding counts under its tenant's algorithm."""
    index = await serve(max_entries=3)
    index.policy(LFU, OTHER)
    await index.tell("r1", A, minutes=9, tenant_id=OTHER)
    await index.hit(1, A, tenant_id=OTHER)
    await index.tell("r1", B, minutes=8, tenant_id=OTHER)
    await index.tell("r1", C, minutes=7)
    await index.tell("r1", D)
    assert (index.evicted("lfu", "cap"), index.evicted("lru", "cap")) == (1, 0)
    await index.tell("r1", h("e"))
    assert (index.evicted("lfu", "cap"), index.evicted("lru", "cap")) == (1, 1)
    assert await index.left(A, B, tenant_id=OTHER) == [0]
    assert await index.left(C, D, h("e")) == [1, 2]


async def test_servers_that_make_room_at_once_share_it(serve: Serve) -> None:
    """However many reports need room at one time, through whichever server, exactly what is too much goes."""
    index = await serve(max_entries=20)
    names = hs(*range(200))
    await asyncio.gather(*(index.tell(f"r{at % 3}", one, model_id=f"m{at % 5}") for at, one in enumerate(names)))
    assert sum([await index.total(model_id=f"m{number}") for number in range(5)]) == 20
    assert index.evicted("lru", "cap") == 180


async def _store_uncapped(index: Index, one: bytes, minutes: int) -> None:
    """Store a prefix as a server would that has no cap."""
    when = index.store.now_ms() - minutes * MINUTE
    await index.store.ingest(ModelKey(TENANT, MODEL), "r1", [build.chain(one)], reported_ms=when, ttl_ms=build.TTL)
