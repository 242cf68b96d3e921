"""An eviction takes exactly the named blocks of one replica, in every scheme, as far as its fences allow."""

from __future__ import annotations

import random

import pytest

from inference_cache.domain.models import Holder, Ingested, Partition, Removal, Run
from tests.contract.build import BASE, NOW, Client, blocks, chain, each, gone, key, keys, long_chain, odd, series

WHOLE = series("prompt", 10)
LORA = Partition("vllm", "lora")
SGLANG = Partition("sglang")


@pytest.mark.parametrize("at", range(10))
async def test_a_run_ends_where_a_block_was_evicted(client: Client, at: int) -> None:
    """Evicting one block, be it head, middle or tail, takes that block and no other."""
    await client.tell("r", WHOLE)
    await client.tell("s", WHOLE)
    assert await client.evict("r", blocks(WHOLE, at, at + 1)) == 1
    assert await client.depths(WHOLE) == ({"r": at, "s": 10} if at else {"s": 10})
    if at < 9:
        assert await client.depths(blocks(WHOLE, at + 1)) == {"r": 9 - at, "s": 9 - at}
    assert await client.counts("r", WHOLE) == [None if each_at == at else 16 * (each_at + 1) for each_at in range(10)]


@pytest.mark.parametrize(("start", "stop"), [(0, 4), (3, 7), (6, 10), (0, 10)])
async def test_a_stretch_is_evicted_in_bulk(client: Client, start: int, stop: int) -> None:
    """A removal of many blocks counts what it took; prefixes that nobody else holds are gone."""
    await client.tell("r", WHOLE)
    assert await client.evict("r", blocks(WHOLE, start, stop)) == stop - start
    assert await client.prefixes() == 10 - (stop - start)
    held = [at for at in range(10) if not start <= at < stop]
    assert [bool(await client.holders(one)) for one in each(WHOLE)] == [at in held for at in range(10)]
    assert await client.serving() == (("r",) if held else ())


async def test_scattered_blocks_in_any_order(client: Client) -> None:
    """The order of a removal does not matter, nor do unknown and repeated keys in it."""
    await client.tell("r", WHOLE)
    doomed = b"".join(blocks(WHOLE, at, at + 1) for at in (7, 0, 4, 7)) + key("unknown") + blocks(WHOLE, 4, 5)
    assert await client.evict("r", doomed) == 3
    assert [bool(await client.holders(one)) for one in each(WHOLE)] == [at not in (0, 4, 7) for at in range(10)]


async def test_nothing_to_evict(client: Client) -> None:
    """Unknown replicas, blocks of others, an unknown model and an empty removal change nothing."""
    await client.tell("r", WHOLE)
    await client.tell("s", series("other", 2))
    assert await client.evict("nobody", WHOLE) == 0
    assert await client.evict("s", WHOLE) == 0
    assert await client.evict("r", series("other", 2)) == 0
    assert await client.evict("r", b"") == 0
    assert await Client(client.store, type(client.model)("tenant", "unknown")).evict("r", WHOLE) == 0
    assert await client.depths(WHOLE) == {"r": 10}
    assert await client.prefixes() == 12


async def test_evicting_twice(client: Client) -> None:
    """What is gone cannot go again."""
    await client.tell("r", WHOLE)
    assert await client.evict("r", WHOLE) == 10
    assert await client.evict("r", WHOLE) == 0


async def test_every_scheme_is_evicted(client: Client) -> None:
    """A removal names no scheme and acts in all of them."""
    await client.report("r", chain(WHOLE), chain(WHOLE, SGLANG), chain(WHOLE, Partition("sglang", "x")))
    assert await client.evict("r", blocks(WHOLE, 9)) == 3
    assert await client.depths(WHOLE, SGLANG) == {"r": 9}
    assert await client.depths(WHOLE, Partition("sglang", "x")) == {"r": 9}


async def test_one_adapter_or_all(client: Client) -> None:
    """A named adapter limits a removal to it, in all schemes; no name means base and adapters alike."""
    places = (BASE, LORA, Partition("vllm", "lora2"), Partition("sglang", "lora"))
    await client.report("r", *(chain(WHOLE, place) for place in places))
    assert await client.evict("r", blocks(WHOLE, 5), adapter="lora") == 10
    assert [(await client.depths(WHOLE, place))["r"] for place in places] == [10, 5, 10, 5]
    assert await client.evict("r", blocks(WHOLE, 3)) == 7 + 2 + 7 + 2
    assert [(await client.depths(WHOLE, place))["r"] for place in places] == [3, 3, 3, 3]
    assert await client.evict("r", WHOLE, adapter="unseen") == 0


@pytest.mark.parametrize(("fence", "goes"), [(NOW - 1, False), (NOW, True), (NOW + 1, True), (None, True), (0, False)])
async def test_a_fence_spares_what_is_newer(client: Client, fence: int | None, goes: bool) -> None:
    """A holding goes when its time is at or before the fence, or when there is none."""
    await client.tell("r", WHOLE, at=NOW)
    assert await client.evict("r", WHOLE, fence=fence) == (10 if goes else 0)
    assert await client.depths(WHOLE) == ({} if goes else {"r": 10})


async def test_fences_may_differ_within_a_removal(client: Client) -> None:
    """Each run of keys has its own fence, and none is one of them."""
    await client.tell("r", blocks(WHOLE, 0, 5), at=NOW - 100)
    await client.tell("r", blocks(WHOLE, 5), at=NOW - 50)
    fences = ((0, NOW - 101), (2, NOW - 100), (3, NOW - 100), (5, NOW - 51), (6, None), (7, NOW - 50), (8, 0))
    assert await client.store.evict(client.model, "r", Removal(WHOLE, fences)) == 5
    assert [bool(await client.holders(one)) for one in each(WHOLE)] == [
        *(True, True, False, False, False),
        *(True, False, False, True, True),
    ]


async def test_a_fence_meets_mixed_times(client: Client) -> None:
    """Blocks of one run that were refreshed since stay when an older removal arrives."""
    await client.tell("r", WHOLE, at=NOW - 100)
    await client.tell("r", blocks(WHOLE, 2, 4), at=NOW)
    await client.tell("r", blocks(WHOLE, 8), at=NOW - 1)
    assert await client.evict("r", WHOLE, fence=NOW - 100) == 6
    assert await client.depths(blocks(WHOLE, 2, 4)) == {"r": 2}
    assert await client.depths(blocks(WHOLE, 8)) == {"r": 2}
    assert await client.prefixes() == 4


async def test_a_key_named_twice_goes_if_either_fence_lets_it(client: Client) -> None:
    """Events that name the same block twice act one after the other."""
    await client.tell("r", WHOLE)
    first, second = blocks(WHOLE, 0, 1), blocks(WHOLE, 1, 2)
    removal = Removal(first + second + second + first, ((0, NOW - 1), (1, None), (2, 0), (3, NOW)))
    assert await client.store.evict(client.model, "r", removal) == 2
    assert await client.depths(blocks(WHOLE, 2)) == {"r": 8}


async def test_a_fence_acts_on_what_is_stored_when_it_arrives(client: Client) -> None:
    """A later report with a time before the fence is stored as any other."""
    await client.tell("r", WHOLE, at=NOW - 10)
    assert await client.evict("r", WHOLE, fence=NOW) == 10
    assert await client.tell("r", WHOLE, at=NOW - 10) == Ingested(10, 10)
    assert await client.depths(WHOLE) == {"r": 10}


async def test_a_block_is_stored_again_after_its_eviction(client: Client) -> None:
    """A re-stored block closes the gap, with the new count, time and tier."""
    await client.tell("r", WHOLE)
    for at in (0, 4, 9):
        one = blocks(WHOLE, at, at + 1)
        await client.evict("r", one)
        assert await client.report("r", odd(one, [1000 + at], [2]), at=NOW - at) == Ingested(1, 1)
        assert await client.holders(one) == (Holder("r", 1000 + at, NOW - at, 2),)
    assert await client.runs(WHOLE) == (Run("r", 10, NOW - 9, 2),)


async def test_everything_evicted_and_stored_again(client: Client) -> None:
    """An emptied index takes the same chain as new, for the same and for another replica."""
    for round_number in range(3):
        assert await client.tell("r", WHOLE) == Ingested(10, 10)
        assert await client.tell("s", blocks(WHOLE, 0, 5)) == Ingested(5, 0)
        assert await client.evict("r", WHOLE) == 10
        assert await client.prefixes() == 5
        assert await client.evict("s", WHOLE) == 5
        assert (await client.prefixes(), await client.serving()) == (0, ()), round_number


async def test_the_tail_goes_one_by_one_and_comes_back(client: Client) -> None:
    """An engine that evicts from the tail and grows another way leaves exactly what it holds."""
    await client.tell("r", WHOLE)
    for at in range(9, 3, -1):
        assert await client.evict("r", blocks(WHOLE, at, at + 1)) == 1
        assert await client.depths(WHOLE) == {"r": at}
    other = blocks(WHOLE, 0, 4) + series("other way", 6)
    await client.tell("r", other)
    assert await client.depths(other) == {"r": 10}
    assert await client.depths(WHOLE) == {"r": 4}
    assert await client.prefixes() == 10


async def test_replicas_leave_a_shared_run_one_after_the_other(client: Client) -> None:
    """A prefix stays while somebody holds it, whoever stored it first."""
    for replica_id in "abc":
        await client.tell(replica_id, WHOLE)
    for replica_id, rest in (("a", {"b": 10, "c": 10}), ("c", {"b": 10}), ("b", {})):
        assert await client.evict(replica_id, WHOLE) == 10
        assert await client.depths(WHOLE) == rest
        assert await client.prefixes() == (10 if rest else 0)


async def test_holes_in_several_replicas(client: Client) -> None:
    """Replicas with different holes in one run are told apart block by block."""
    holes = {"a": {0, 5}, "b": {3, 4, 5}, "c": {9}, "d": set(range(0, 10, 2)), "e": set(range(1, 10, 2))}
    for replica_id in holes:
        await client.tell(replica_id, WHOLE)
    for replica_id, lost in holes.items():
        assert await client.evict(replica_id, keys(*(("prompt", at) for at in lost))) == len(lost)
    for at, one in enumerate(each(WHOLE)):
        holders = {holder.replica_id for holder in await client.holders(one)}
        assert holders == {replica_id for replica_id, lost in holes.items() if at not in lost}
    assert await client.depths(WHOLE) == {"b": 3, "c": 9, "e": 1}


async def test_a_long_run_shot_full_of_holes(client: Client) -> None:
    """Every second block of a long run may go, and come back."""
    whole = series("long", 700)
    await client.report("r", *long_chain(whole))
    even = b"".join(each(whole)[::2])
    assert await client.evict("r", even) == 350
    assert await client.prefixes() == 350
    assert await client.depths(whole) == {}
    assert await client.depths(blocks(whole, 301)) == {"r": 1}
    shuffled = each(even)
    random.Random(3).shuffle(shuffled)
    await client.report("r", chain(b"".join(shuffled[:200])))
    assert await client.prefixes() == 550
    await client.report("r", *long_chain(whole))
    assert await client.depths(whole) == {"r": 700}
    assert await client.counts("r", blocks(whole, 0, 20)) == [16 * (at + 1) for at in range(20)]


async def test_a_removal_larger_than_a_batch(client: Client) -> None:
    """A bulk eviction of thousands of blocks removes them all in one call of the store."""
    whole = series("long", 3000)
    await client.report("r", *long_chain(whole))
    await client.report("s", *long_chain(blocks(whole, 0, 1000)))
    assert await client.store.evict(client.model, "r", gone(whole)) == 3000
    assert await client.prefixes() == 1000
    assert await client.depths(whole) == {"s": 1000}
