"""The contract holds at the sizes it is made for, beyond what one call to a server carries."""

from __future__ import annotations

import pytest

from inference_cache.domain.models import Ingested, Run
from inference_cache.errors import WalkTooLong
from tests.contract.build import NOW, Client, blocks, chain, key, long_chain, series

WALK = 131_072
"""Blocks that one lookup may follow."""


@pytest.mark.parametrize("length", [511, 512, 513, 1023, 1024, 1025, 2000, 20_000])
async def test_long_chains(client: Client, length: int) -> None:
    """A chain of any length is matched whole, in part, from its middle, and for several replicas."""
    whole = series("long", length)
    assert await client.tell("r", whole) == Ingested(length, length)
    assert await client.tell("s", blocks(whole, 0, length // 2)) == Ingested(length // 2, 0)
    assert await client.tell("t", blocks(whole, 0, length - 1), tier=2) == Ingested(length - 1, 0)
    assert await client.runs(whole) == (
        Run("r", length, NOW, 1),
        Run("s", length // 2, NOW, 1),
        Run("t", length - 1, NOW, 2),
    )
    assert await client.depths(blocks(whole, 0, length - 1) + key("fork")) == {
        "r": length - 1,
        "s": length // 2,
        "t": length - 1,
    }
    assert await client.depths(blocks(whole, length // 2)) == {"r": length - length // 2, "t": length - 1 - length // 2}
    for at in (0, length // 2, length - 1):
        (first, *_) = await client.holders(blocks(whole, at, at + 1))
        assert (first.replica_id, first.token_count) == ("r", 16 * (at + 1))
    assert await client.evict("r", blocks(whole, length // 3, length // 3 + 1)) == 1
    assert (await client.depths(whole))["r"] == length // 3
    assert await client.clear("t") == length - 1
    assert await client.clear("r") == length - 1
    assert await client.prefixes() == length // 2
    assert await client.clear("s") == length // 2
    assert (await client.prefixes(), await client.serving(expired=0)) == (0, ())


@pytest.mark.parametrize("size", [1, 7, 16, 500, 512])
async def test_the_cut_into_batches_does_not_show(client: Client, size: int) -> None:
    """However a chain was cut, and in one report or many, it is one chain."""
    whole = series("cut", 1500)
    await client.report("one", *long_chain(whole, size=size))
    for batch in long_chain(whole, size=512):
        await client.report("many", batch)
    assert await client.depths(whole) == {"one": 1500, "many": 1500}
    assert await client.counts("one", blocks(whole, 1490)) == [16 * at for at in range(1491, 1501)]


async def test_many_replicas(client: Client) -> None:
    """A hundred holders of one chain to a hundred depths are told apart."""
    whole = series("shared", 300)
    for number in range(100):
        await client.tell(f"pod-{number}", blocks(whole, 0, 300 - number), at=NOW - number, tier=1 + number % 3)
    found = await client.runs(whole)
    expected = [Run(f"pod-{number}", 300 - number, NOW - number, 1 + number % 3) for number in range(100)]
    assert list(found) == sorted(expected, key=lambda run: run.replica_id)
    assert len(await client.serving()) == 100
    assert await client.prefixes() == 300
    for number in range(0, 100, 2):
        assert await client.clear(f"pod-{number}") == 300 - number
    assert await client.prefixes() == 299
    assert len(await client.runs(whole)) == 50


async def test_many_branches_of_one_long_stem(client: Client) -> None:
    """Two hundred conversations that share a system prompt are stored once in their common part."""
    stem = series("system", 700)
    for number in range(200):
        await client.report(f"r{number % 7}", *long_chain(stem + series(number, 20)))
    assert await client.prefixes() == 700 + 200 * 20
    for number in range(0, 200, 13):
        depths = await client.depths(stem + series(number, 20))
        assert depths == {f"r{at}": 720 if at == number % 7 else 700 for at in range(7)}


async def test_a_conversation_that_grows(client: Client) -> None:
    """A session whose every turn reports its whole prompt again adds only what is new, on two replicas in turn."""
    whole = series("session", 1200)
    known = {"a": 0, "b": 0}
    for turn in range(24):
        replica_id, length = "ab"[turn % 2], 50 * (turn + 1)
        got = await client.tell(replica_id, blocks(whole, 0, length))
        assert got == Ingested(length - known[replica_id], 50)
        known[replica_id] = length
        assert await client.depths(whole) == {each: depth for each, depth in known.items() if depth}


async def test_single_blocks_that_interleave(client: Client) -> None:
    """Engines that flush block by block, two sequences at a time, store two chains."""
    left, right = series("left", 120), series("right", 120)
    for at in range(0, 120, 4):
        mixed = blocks(left, at, at + 4) + blocks(right, at, at + 4)
        await client.report("r", chain(mixed, step=0, first=16, breaks=(4,)))
    assert await client.depths(left) == {"r": 120}
    assert await client.depths(right) == {"r": 120}
    woven = b"".join(blocks(side, at, at + 1) for at in range(120) for side in (left, right))
    assert await client.tell("s", woven) == Ingested(240, 0)
    assert await client.depths(left) == {"r": 120, "s": 120}
    assert await client.depths(woven) == {"r": 240, "s": 240}


@pytest.mark.slow
async def test_a_walk_has_a_bound(client: Client) -> None:
    """The longest chain that a lookup follows is answered; one that goes on beyond it is refused, not cut short."""
    whole = series("endless", WALK + 1)
    await client.tell("r", whole)
    assert await client.depths(blocks(whole, 0, WALK)) == {"r": WALK}
    with pytest.raises(WalkTooLong):
        await client.depths(whole)
    assert await client.depths(key("unknown") + whole) == {}
