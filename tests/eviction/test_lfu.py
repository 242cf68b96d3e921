"""In an LFU tenant what delivered hits gives way last, and only what was delivered counts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inference_cache.domain.policy import Policy
from tests.eviction.conftest import CHAINS, Serve
from tests.eviction.index import CREDITED, LFU, OPEN
from tests.rpc.wire import chain, exact, h, hs

A, B, C, D = ABCD = hs(*"abcd")
NEW = h("new")


async def test_what_was_never_hit_goes_first(serve: Serve) -> None:
    """Hits come before age: of three the one without any goes, though it is not the oldest."""
    index = await serve(max_entries=3)
    index.policy(LFU)
    for age, one, hits in ((3, A, 5), (2, B, 2), (1, C, 0)):
        await index.tell("r1", one, minutes=age)
        await index.hit(hits, one)
    await index.tell("r1", D)
    assert await index.left(*ABCD) == [0, 1, 3]
    assert (index.evicted("lfu", "cap"), index.evicted("lru", "cap")) == (1, 0)


async def test_without_hits_the_oldest_goes(serve: Serve) -> None:
    """Equal counts are ordered by the last report."""
    index = await serve(max_entries=2)
    index.policy(LFU)
    for at, one in enumerate((A, B, C)):
        await index.tell("r1", one, minutes=3 - at)
    assert await index.left(A, B, C) == [1, 2]


@pytest.mark.parametrize(("policy", "left"), [(OPEN, [1, 2, 3]), (LFU, [0, 1, 2])], ids=["lru", "lfu"])
async def test_the_newcomer_may_be_the_victim(serve: Serve, policy: Policy, left: list[int]) -> None:
    """Of A with 9, B with 3 and C with 5 hits LRU gives up A, the oldest; LFU gives up D, which has none yet."""
    index = await serve(max_entries=3)
    index.policy(LFU)
    for age, one, hits in ((3, A, 9), (2, B, 3), (1, C, 5)):
        await index.tell("r1", one, minutes=age)
        await index.hit(hits, one)
    index.policy(policy)
    await index.tell("r1", D)
    assert await index.left(*ABCD) == left


async def test_a_hot_prefix_outlives_a_cold_newer_one(serve: Serve) -> None:
    """The only place of the index is kept by what was looked up three times."""
    index = await serve(max_entries=1)
    index.policy(LFU)
    await index.tell("r1", A, minutes=1)
    await index.hit(3, A)
    await index.tell("r1", B)
    assert await index.left(A, B) == [0]


async def test_hits_are_counted_in_lfu_tenants_only(serve: Serve) -> None:
    """Five lookups of each of two tenants are five credits."""
    index = await serve()
    index.policy(LFU, "team-b")
    await index.tell("r1", A)
    await index.tell("r1", A, tenant_id="team-b")
    for _ in range(5):
        assert await index.holders(A) == ["r1"]
    await index.hit(5, A, tenant_id="team-b")
    assert index.counted(CREDITED) == 5


async def test_hits_survive_a_new_report(serve: Serve) -> None:
    """A count belongs to the holding, not to one report of it."""
    index = await serve(max_entries=2)
    index.policy(LFU)
    await index.tell("r1", A, minutes=3)
    await index.hit(3, A)
    await index.tell("r1", A, minutes=2)
    await index.tell("r1", B, minutes=1)
    await index.hit(2, B)
    await index.sweep(max_entries=1)
    assert await index.left(A, B) == [0]


async def test_hits_go_with_the_holding(serve: Serve) -> None:
    """What was removed and reported again begins with none."""
    index = await serve(max_entries=2)
    index.policy(LFU)
    await index.tell("r1", A, minutes=1)
    await index.hit(3, A)
    await index.tell("r1", B, minutes=2)
    await index.hit(1, B)
    await index.evict("r1", A)
    await index.tell("r1", A, minutes=1)
    await index.sweep(max_entries=1)
    assert await index.left(A, B) == [1]


@CHAINS
async def test_blocks_beyond_the_hits_go_first(serve: Serve) -> None:
    """A chain that is matched for three of four blocks loses the fourth as if it had never been hit."""
    index = await serve(max_entries=4)
    index.policy(LFU)
    await index.report("r1", chain(ABCD), minutes=2)
    await index.hit(2, A, B, C)
    await index.tell("r1", NEW, minutes=1)
    assert await index.left(*ABCD, NEW) == [0, 1, 2, 4]
    await index.tell("r1", h("newer"))
    assert await index.left(*ABCD, NEW, h("newer")) == [0, 1, 2, 5]


@CHAINS
async def test_each_stretch_of_a_chain_has_its_own_hits(serve: Serve) -> None:
    """What the matched run goes through is credited, and what branches off is not."""
    index = await serve(max_entries=6)
    index.policy(LFU)
    await index.report("r1", chain([A, B]), minutes=3)
    await index.report("r2", chain([A, B]), minutes=3)
    await index.report("r1", chain([A, B, C]), minutes=2)
    assert (await index.state()).summary.hot_prefixes == 0
    await index.hit(2, A, B, stretches=2)
    assert (await index.state()).summary.hot_prefixes == 2
    await index.tell("r3", D, minutes=1)
    await index.tell("r3", NEW)
    assert await index.left(*ABCD, NEW) == [0, 1, 3, 4]
    assert await index.holders(B) == ["r1", "r2"]


@CHAINS
async def test_a_replica_below_the_floor_is_not_credited(serve: Serve) -> None:
    """Only who was named counts: the shallower replica's blocks go, the filler stays."""
    index = await serve(max_entries=6)
    index.policy(replace(LFU, minimum_matched_tokens=64))
    await index.report("rA", chain(ABCD), minutes=2)
    await index.report("rB", chain([A, B]), minutes=1)
    await index.hit(3, *ABCD)
    await index.tell("rC", NEW)
    assert await index.holders(NEW) == ["rC"]
    assert sum([len(await index.holders(each)) for each in ABCD]) == 5
    assert [("rA" in await index.holders(each)) for each in ABCD] == [True] * 4


@pytest.mark.parametrize(
    "policy",
    [
        replace(LFU, minimum_matched_tokens=65),
        replace(LFU, routing_floor_score=1000.0),
        replace(LFU, minimum_prefix_tokens=65, affinity_routing=True),
    ],
    ids=["matched tokens", "score", "prompt"],
)
async def test_an_answer_that_was_gated_counts_nothing(serve: Serve, policy: Policy) -> None:
    """A match that is not delivered saves nobody anything."""
    index = await serve(max_entries=3)
    index.policy(policy)
    await index.tell("r1", A, minutes=2)
    await index.tell("r1", B, minutes=1)
    for _ in range(3):
        await index.ask(A)
    index.policy(LFU, "team-b")
    await index.tell("r1", D, minutes=9, tenant_id="team-b")
    await index.hit(1, D, tenant_id="team-b")
    assert index.counted(CREDITED) == 1
    await index.tell("r1", C)
    assert await index.left(A, B, C) == [1, 2]


async def test_a_prefix_without_tokens_counts_nothing(serve: Serve) -> None:
    """An exact match of a block that was reported with 0 tokens is delivered and not credited."""
    index = await serve()
    index.policy(LFU)
    await index.report("r1", exact(A, 0))
    await index.report("r2", exact(A, 16))
    await index.hit(2, A, stretches=1)
    assert index.counted(CREDITED) == 2


@CHAINS
async def test_a_block_asked_for_twice_counts_twice(serve: Serve) -> None:
    """A request that repeats a block credits it per occurrence."""
    index = await serve(max_entries=2)
    index.policy(LFU)
    await index.tell("r1", A, minutes=2)
    await index.tell("r1", B, minutes=1)
    await index.hit(1, A, A)
    await index.hit(1, B)
    await index.sweep(max_entries=1)
    assert await index.left(A, B) == [0]


async def test_hot_prefixes_are_shown_to_lfu_tenants_only(serve: Serve) -> None:
    """From the second hit on a block is hot; a tenant that turns to LRU has none."""
    index = await serve()
    index.policy(LFU)
    await index.tell("r1", A)
    await index.tell("r1", B)
    await index.hit(1, A)
    assert (await index.state()).summary.hot_prefixes == 0
    await index.hit(1, A)
    assert (await index.state()).summary.hot_prefixes == 1
    await index.hit(2, B)
    assert (await index.state()).summary.hot_prefixes == 2
    index.policy(OPEN)
    assert (await index.state()).summary.hot_prefixes == 0
