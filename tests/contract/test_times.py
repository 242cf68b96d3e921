"""Age is judged when read: by the block for runs, by an upper bound for who serves and what is present."""

from __future__ import annotations

import pytest

from inference_cache.domain.models import Holder, Ingested, Partition, Run
from tests.contract.build import NOW, TTL, Client, blocks, chain, each, keys, odd, series

WHOLE = series("prompt", 6)
LORA = Partition("vllm", "lora")


@pytest.mark.parametrize(("expired", "found"), [(NOW - 1, True), (NOW, False), (NOW + 1, False), (-1, True), (0, True)])
async def test_the_border_of_expiry(client: Client, expired: int, found: bool) -> None:
    """A time at or before the border is expired, one millisecond after it is not."""
    await client.tell("r", WHOLE)
    assert await client.depths(WHOLE, expired=expired) == ({"r": 6} if found else {})
    assert bool(await client.holders(WHOLE[:8], expired=expired)) is found
    assert await client.serving(expired=expired) == (("r",) if found else ())
    assert (await client.presence(expired=expired)).model is found


@pytest.mark.parametrize("at", [0, 1, 512, 2**31, 2**32 + 1, 2**41 + 1, 2**44])
async def test_any_time_is_kept_exactly(client: Client, at: int) -> None:
    """Times come back to the millisecond, near the epoch and far from now."""
    await client.tell("r", WHOLE, at=at)
    assert await client.runs(WHOLE, expired=at - 1) == (Run("r", 6, at, 1),)
    assert await client.runs(WHOLE, expired=at) == ()
    assert await client.holders(WHOLE[:8], expired=at - 1) == (Holder("r", 16, at, 1),)


@pytest.mark.parametrize("stale", range(6))
async def test_a_run_ends_at_its_first_expired_block(client: Client, stale: int) -> None:
    """An expired block ends a run like a missing one, for its replica only."""
    await client.tell("r", WHOLE)
    await client.tell("s", WHOLE, at=NOW - 1)
    await client.tell("r", blocks(WHOLE, stale, stale + 1), at=NOW - TTL)
    expected = {"r": stale, "s": 6} if stale else {"s": 6}
    assert await client.depths(WHOLE) == expected
    assert await client.runs(WHOLE, expired=NOW - TTL - 1) == (
        Run("r", 6, NOW - TTL, 1),
        Run("s", 6, NOW - 1, 1),
    )


async def test_a_run_is_as_old_as_its_oldest_block(client: Client) -> None:
    """The weakest link up to the end of the run is answered, and no later one."""
    for at, age in enumerate((5, 3, 9, 1, 20, 0)):
        await client.tell("r", blocks(WHOLE, at, at + 1), at=NOW - age)
    oldest = [(await client.runs(blocks(WHOLE, 0, stop)))[0].oldest_ms for stop in range(1, 7)]
    assert [NOW - each_oldest for each_oldest in oldest] == [5, 5, 9, 9, 20, 20]
    assert [(run.blocks, NOW - run.oldest_ms) for run in await client.runs(WHOLE, expired=NOW - 9)] == [(2, 5)]


async def test_what_lies_behind_the_run_makes_it_neither_old_nor_cold(client: Client) -> None:
    """Time and tier come from the matched part alone."""
    await client.tell("r", blocks(WHOLE, 0, 3))
    await client.tell("r", blocks(WHOLE, 3), at=NOW - 500, tier=3)
    assert await client.runs(blocks(WHOLE, 0, 3)) == (Run("r", 3, NOW, 1),)
    assert await client.runs(WHOLE, expired=NOW - 500) == (Run("r", 3, NOW, 1),)


async def test_the_last_arrival_wins(client: Client) -> None:
    """A re-report sets the time even when that moves it back, and even when it is expired at once."""
    await client.tell("r", WHOLE, at=NOW)
    assert await client.tell("r", blocks(WHOLE, 2, 4), at=NOW - TTL) == Ingested(0, 0)
    assert await client.depths(WHOLE) == {"r": 2}
    assert await client.holders(blocks(WHOLE, 2, 3)) == ()
    assert await client.tell("r", blocks(WHOLE, 2, 4), at=NOW - 7) == Ingested(0, 0)
    assert await client.runs(WHOLE) == (Run("r", 6, NOW - 7, 1),)


async def test_all_three_values_change_together(client: Client) -> None:
    """Count, time and tier of the last arrival are stored, whatever was there."""
    one = blocks(WHOLE, 3, 4)
    await client.tell("r", WHOLE)
    for count, at, tier in ((7, NOW - 1, 2), (7, NOW - 1, 3), (9, NOW - 1, 3), (9, NOW, 3), (9, NOW - 8, 3)):
        await client.report("r", odd(one, [count], [tier]), at=at)
        assert await client.holders(one) == (Holder("r", count, at, tier),)
        assert await client.runs(WHOLE) == (Run("r", 6, at, tier),)


async def test_expired_blocks_stay_counted_until_they_are_swept(client: Client) -> None:
    """A holding that is no evidence any more is still a holding: not new when re-reported, removed when evicted."""
    await client.tell("r", WHOLE, at=NOW - TTL)
    assert await client.prefixes() == 6
    assert await client.tell("r", blocks(WHOLE, 0, 2)) == Ingested(0, 0)
    assert await client.tell("s", WHOLE, at=NOW - TTL) == Ingested(6, 0)
    assert await client.evict("s", WHOLE) == 6
    assert await client.clear("r") == 6
    assert await client.prefixes() == 0


async def test_a_longer_ttl_brings_blocks_back(client: Client) -> None:
    """Lowering the TTL hides blocks at once, raising it shows what was not swept."""
    await client.tell("r", WHOLE, at=NOW - 1000)
    assert await client.depths(WHOLE, expired=NOW - 1000) == {}
    assert await client.depths(WHOLE, expired=NOW - 2000) == {"r": 6}


async def test_who_serves_is_an_upper_bound(client: Client) -> None:
    """Evicting the newest block does not lower it; neither does re-reporting that block as older."""
    await client.tell("r", blocks(WHOLE, 0, 1), at=NOW - 100)
    await client.tell("r", blocks(WHOLE, 1, 3), at=NOW)
    await client.evict("r", blocks(WHOLE, 1, 2))
    await client.tell("r", blocks(WHOLE, 2, 3), at=NOW - 100)
    assert await client.serving(expired=NOW - 1) == ("r",)
    assert (await client.presence(expired=NOW - 1)).model
    assert await client.depths(WHOLE, expired=NOW - 1) == {}


@pytest.mark.parametrize("how", ["evict", "clear", "fenced clear", "expire"])
async def test_the_bound_is_forgotten_with_the_last_block(client: Client, how: str) -> None:
    """However a replica lost everything, what it reports afterwards starts a new bound."""
    await client.tell("r", WHOLE, at=NOW)
    if how == "evict":
        await client.evict("r", WHOLE)
    elif how == "clear":
        await client.clear("r")
    elif how == "fenced clear":
        await client.clear("r", fence=NOW)
    else:
        await client.store.expire(lambda _: NOW)
    assert (await client.serving(expired=0), (await client.presence(expired=0)).model) == ((), False)
    await client.tell("r", WHOLE, at=NOW - 100)
    assert await client.serving(expired=NOW - 100) == ()
    assert not (await client.presence(expired=NOW - 100)).model
    assert await client.serving(expired=NOW - 101) == ("r",)
    assert (await client.presence(expired=NOW - 101)).model


async def test_a_fenced_clear_that_leaves_something_keeps_the_bound(client: Client) -> None:
    """A clear behind a fence is a removal like any other: the bound stands while a block is left."""
    await client.tell("r", blocks(WHOLE, 0, 3), at=NOW - 10)
    await client.tell("r", blocks(WHOLE, 3), at=NOW)
    await client.tell("r", blocks(WHOLE, 4), at=NOW - 10)
    await client.tell("r", blocks(WHOLE, 3, 4), at=NOW - 5)
    assert await client.clear("r", fence=NOW - 10) == 5
    assert await client.serving(expired=NOW - 1) == ("r",)
    assert await client.evict("r", blocks(WHOLE, 3, 4)) == 1
    assert await client.serving(expired=0) == ()


async def test_bounds_of_scopes_are_apart(client: Client) -> None:
    """Each scheme has its own bound over all its adapters; the model's is the largest of them."""
    sglang = Partition("sglang")
    await client.report("r", chain(WHOLE), at=NOW - 50)
    await client.report("r", chain(WHOLE, LORA), at=NOW - 20)
    await client.report("r", chain(WHOLE, sglang), at=NOW - 80)
    for expired, vllm, other in ((NOW - 21, True, False), (NOW - 20, False, False), (NOW - 81, True, True)):
        assert await client.serving(expired=expired) == (("r",) if vllm else ())
        assert await client.serving("sglang", expired=expired) == (("r",) if other else ())
        assert (await client.presence(expired=expired)).model is vllm
    await client.evict("r", WHOLE, adapter="lora")
    assert await client.serving(expired=NOW - 21) == ("r",)
    assert await client.depths(WHOLE, LORA) == {}


async def test_many_times_in_one_run(client: Client) -> None:
    """A run whose every block has its own time, for several replicas, is answered block by block."""
    whole = series("aging", 200)
    for at, one in enumerate(each(whole)):
        await client.tell("old first", one, at=NOW - 200 + at)
        await client.tell("old last", one, at=NOW - at)
    assert await client.runs(whole, expired=NOW - 1000) == (
        Run("old first", 200, NOW - 200, 1),
        Run("old last", 200, NOW - 199, 1),
    )
    assert await client.depths(whole, expired=NOW - 100) == {"old last": 100}
    assert await client.depths(blocks(whole, 101), expired=NOW - 100) == {"old first": 99}
    assert await client.depths(blocks(whole, 100) + keys("x"), expired=NOW - 200) == {"old first": 100, "old last": 100}
