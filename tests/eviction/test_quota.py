"""A tenant that is above its quota of distinct prefixes loses those that were reported longest ago."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from inference_cache.domain.policy import Policy
from tests.eviction.conftest import CHAINS, Serve
from tests.eviction.index import LFU, OPEN, Index
from tests.rpc.wire import TENANT, chain, exact, h, hs

A, B, C, D, E = ABCDE = hs(*"abcde")
OTHER = "team-b"


def quota(number: int, policy: Policy = OPEN) -> Policy:
    return replace(policy, max_index_entries=number)


async def tell_in_turn(index: Index, *hashes: bytes, **more: Any) -> None:
    """Report prefixes a minute apart, the last one now."""
    for at, each in enumerate(hashes):
        await index.tell("r1", each, minutes=len(hashes) - 1 - at, **more)


async def test_a_prefix_goes_from_all_its_holders(index: Index) -> None:
    """It counts once, is as old as its freshest holder, and is evicted as one."""
    index.policy(quota(2))
    await index.tell("r1", A, minutes=3)
    await index.tell("r2", A, minutes=2)
    await index.tell("r1", B, minutes=1)
    assert index.over() == 0
    await index.tell("r1", C)
    assert await index.total() == 2
    assert await index.left(A, B, C) == [1, 2]
    assert index.over() == 1
    assert index.evicted("lru", "cap") == index.evicted("lru", "ttl") == 0


async def test_the_freshest_holder_counts(index: Index) -> None:
    """A prefix that one replica reported long ago and another one just now is young."""
    index.policy(quota(2))
    await index.tell("r1", A, minutes=9)
    await index.tell("r2", A, minutes=1)
    await index.tell("r1", B, minutes=5)
    await index.tell("r1", C)
    assert await index.left(A, B, C) == [0, 2]
    assert await index.holders(A) == ["r1", "r2"]


async def test_the_oldest_go_first(index: Index) -> None:
    """Of five prefixes, a minute apart, a quota of three keeps the three newest."""
    index.policy(quota(3))
    await tell_in_turn(index, *ABCDE)
    assert await index.left(*ABCDE) == [2, 3, 4]
    assert index.over() == 2


async def test_one_report_may_cost_many(index: Index) -> None:
    """However much a single update brings, the tenant ends at its quota, and its own news may be what goes."""
    index.policy(quota(2))
    await index.report("r1", *(exact(each, 64) for each in ABCDE), minutes=5)
    assert (await index.total(), index.over()) == (2, 3)
    await index.tell("r1", h("older"), minutes=6)
    assert await index.left(h("older")) == []
    assert (await index.total(), index.over()) == (2, 4)


async def test_below_the_quota_nothing_goes(index: Index) -> None:
    """Neither below it nor at it; then the metric does not exist."""
    index.policy(quota(3))
    await tell_in_turn(index, A, B, C)
    assert await index.left(A, B, C) == [0, 1, 2]
    assert index.over() == 0


async def test_no_quota_is_no_limit(index: Index) -> None:
    """Neither without any quota nor with one for somebody else."""
    await tell_in_turn(index, A, B)
    index.policy(quota(1), OTHER)
    await tell_in_turn(index, C, D, E)
    assert await index.left(*ABCDE) == [0, 1, 2, 3, 4]


async def test_every_tenant_has_its_own(index: Index) -> None:
    """One tenant's reports never cost another one anything, however old its prefixes are."""
    index.policy(quota(2))
    index.policy(OPEN, OTHER)
    await index.tell("r1", *ABCDE[:4], minutes=20, tenant_id=OTHER)
    await tell_in_turn(index, *ABCDE[:4])
    assert (await index.total(), await index.total(tenant_id=OTHER)) == (2, 4)
    assert await index.left(*ABCDE[:4]) == [2, 3]
    assert (index.over(), index.over(OTHER)) == (2, 0)


async def test_a_quota_of_nothing(index: Index) -> None:
    """Nothing survives the report that brings it, and the report is acknowledged."""
    index.policy(quota(0))
    await tell_in_turn(index, A, B)
    assert (await index.total(), index.over()) == (0, 2)


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(
    ("small", "large"),
    [
        ({"model_id": "m1"}, {"model_id": "m2"}),
        ({"model_id": "m10"}, {"model_id": "m2"}),
        ({"hash_scheme": "sglang"}, {"hash_scheme": "vllm"}),
        ({"adapter_id": ""}, {"adapter_id": "lora"}),
        ({"adapter_id": "lora-1"}, {"adapter_id": "lora-2"}),
        ({}, {}),
    ],
    ids=["model", "model as bytes", "scheme", "no adapter", "adapter", "hash"],
)
async def test_names_decide_between_equals(
    index: Index, small: dict[str, Any], large: dict[str, Any], order: int
) -> None:
    """Of two prefixes of one age the one with the smaller name goes, whichever of them came last."""
    index.policy(quota(1))
    low, high = (A, A) if small else sorted((A, B))
    for name, one in [(small, low), (large, high)][::order]:
        await index.tell("r1", one, **name)
    assert await index.holders(low, **small) == []
    assert await index.holders(high, **large) == ["r1"]
    assert index.over() == 1


async def test_names_decide_within_one_report(index: Index) -> None:
    """Prefixes of one length in one update are no chain: the smallest hashes go, wherever they stand in it."""
    index.policy(quota(3))
    await index.tell("r1", *ABCDE)
    small = sorted(ABCDE)[:2]
    assert await index.left(*ABCDE) == [at for at, each in enumerate(ABCDE) if each not in small]


@CHAINS
async def test_a_chain_gives_way_from_its_end(index: Index) -> None:
    """Blocks that were reported together go from the last one, so that what is left can still be matched."""
    index.policy(quota(3))
    await index.report("r1", chain(ABCDE), minutes=1)
    assert await index.left(*ABCDE) == [0, 1, 2]
    await index.tell("r2", h("new"))
    assert await index.left(*ABCDE) == [0, 1]


async def test_hits_do_not_count(index: Index) -> None:
    """A quota goes by time alone, in LFU tenants too."""
    index.policy(quota(2, LFU))
    await index.tell("r1", A, minutes=2)
    await index.tell("r1", B, minutes=1)
    await index.hit(3, A)
    await index.tell("r1", C)
    assert await index.left(A, B, C) == [1, 2]


async def test_statistics_alone_enforce_it_too(index: Index) -> None:
    """A quota that was lowered counts from the tenant's next message on, and rows are never touched."""
    await tell_in_turn(index, A, B, C)
    await index.report("r1", stats={"hit_rate": 0.5})
    index.policy(quota(1))
    assert await index.total() == 3
    await index.report("r1", stats={"hit_rate": 0.25})
    assert await index.left(A, B, C) == [2]
    assert [row.hit_rate for row in (await index.state()).replicas] == [0.25]
    assert index.over() == 2


async def test_a_lowered_quota_waits_for_the_next_report(index: Index) -> None:
    """Neither a sweep nor another tenant's report takes what was allowed when it came."""
    index.policy(OPEN, OTHER)
    await tell_in_turn(index, A, B, C)
    index.policy(quota(1))
    await index.sweep()
    await index.tell("r1", D, tenant_id=OTHER)
    assert await index.total() == 3


async def test_one_quota_over_all_models(index: Index) -> None:
    """Models lie on different nodes of a Cluster; the oldest prefix of all of them goes first."""
    index.policy(quota(4))
    models = [f"m{number}" for number in range(6)]
    for age, model in zip((5, 1, 4, 2, 6, 3), models, strict=True):
        await index.tell("r1", A, minutes=age, model_id=model)
    left = [model for model in models if await index.holders(A, model_id=model)]
    assert left == ["m1", "m2", "m3", "m5"]
    await index.tell("r1", B, C, model_id="m4")
    assert [await index.total(model_id=model) for model in models] == [0, 1, 0, 1, 2, 0]
    assert index.over() == 4


async def test_what_has_expired_goes_first(index: Index) -> None:
    """Making room sweeps the model it looks at; only what then is still too much counts as over the quota."""
    index.policy(quota(2))
    await index.tell("r1", A, minutes=29)
    await index.tell("r1", B, minutes=1)
    index.policy(quota(2, replace(OPEN, ttl_ms=10 * 60_000)))
    await index.tell("r1", C)
    assert await index.left(A, B, C) == [1, 2]
    assert (index.over(), index.evicted("lru", "ttl")) == (0, 1)


async def test_quota_and_cap_together(serve: Serve) -> None:
    """The quota is kept first; the cap then takes what is still too much, from anybody."""
    index = await serve(max_entries=3)
    index.policy(quota(2))
    index.policy(OPEN, OTHER)
    await index.tell("r1", A, B, minutes=9, tenant_id=OTHER)
    for at, each in enumerate((C, D, E)):
        await index.tell("r1", each, minutes=3 - at)
    assert await index.left(C, D, E) == [1, 2]
    assert await index.total(tenant_id=OTHER) == 1
    assert (index.over(TENANT), index.evicted("lru", "cap")) == (1, 1)


async def test_servers_that_make_room_at_once_share_it(index: Index) -> None:
    """However many reports of a tenant exceed its quota at one time, exactly what is too much goes."""
    index.policy(quota(20))
    names = hs(*range(200))
    await asyncio.gather(*(index.tell(f"r{at % 3}", one, model_id=f"m{at % 5}") for at, one in enumerate(names)))
    assert sum([await index.total(model_id=f"m{number}") for number in range(5)]) == 20
    assert index.over() == 180
