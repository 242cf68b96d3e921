"""A chain finds, per replica, its leading run; how the blocks came in does not matter."""

from __future__ import annotations

import pytest

from inference_cache.domain.models import ChainEvidence, Ingested, Run
from tests.contract.build import NOW, Client, blocks, chain, each, key, keys, long_chain, odd, series

WHOLE = series("prompt", 8)


async def test_an_empty_index_finds_nobody(client: Client) -> None:
    """A prompt that nobody reported has neither runs nor a serving replica."""
    assert await client.find(WHOLE) == ChainEvidence()


async def test_a_chain_finds_who_reported_it(client: Client) -> None:
    """A run carries its depth, its time and its tier, and there is no statistics row until one is reported."""
    assert await client.report("r", chain(WHOLE, tier=2), at=NOW - 5) == Ingested(8, 8)
    assert await client.find(WHOLE) == ChainEvidence((Run("r", 8, NOW - 5, 2, None),), ("r",))


async def test_the_empty_chain_has_no_runs(client: Client) -> None:
    """A request without blocks learns who serves the scope, no more."""
    await client.tell("r", WHOLE)
    assert await client.find(b"") == ChainEvidence((), ("r",))


@pytest.mark.parametrize("length", range(1, 9))
async def test_a_shorter_request_is_matched_whole(client: Client, length: int) -> None:
    """A request that ends within what is stored is matched to its own end."""
    await client.tell("r", WHOLE)
    assert await client.depths(blocks(WHOLE, 0, length)) == {"r": length}


@pytest.mark.parametrize("length", range(1, 8))
async def test_a_longer_request_is_matched_as_far_as_it_goes(client: Client, length: int) -> None:
    """A request that goes on beyond what is stored is matched to the end of the stored part."""
    await client.tell("r", blocks(WHOLE, 0, length))
    assert await client.depths(WHOLE) == {"r": length}


@pytest.mark.parametrize("fork", range(9))
async def test_a_request_that_forks_is_matched_to_the_fork(client: Client, fork: int) -> None:
    """Blocks beyond the first difference do not count, even where they agree again."""
    await client.tell("r", WHOLE)
    request = blocks(WHOLE, 0, fork) + series("other", 1) + blocks(WHOLE, fork + 1)
    assert await client.depths(request) == ({"r": min(fork, 8)} if fork else {})


async def test_a_request_may_start_anywhere(client: Client) -> None:
    """Matching is position-blind: a key counts wherever in a report it stood."""
    await client.tell("r", WHOLE)
    assert await client.depths(blocks(WHOLE, 5)) == {"r": 3}


async def test_the_order_of_a_request_is_free(client: Client) -> None:
    """Blocks asked for in another order than they were reported are all found."""
    await client.tell("r", WHOLE)
    backwards = b"".join(reversed(each(WHOLE)))
    assert await client.depths(backwards) == {"r": 8}


async def test_a_repeated_block_counts_each_time(client: Client) -> None:
    """A block that a request repeats is matched as often as it stands there."""
    await client.tell("r", WHOLE)
    request = blocks(WHOLE, 0, 1) * 3 + blocks(WHOLE, 1, 3) + blocks(WHOLE, 0, 3) + key("nobody's")
    assert await client.depths(request) == {"r": 8}


async def test_replicas_run_to_different_depths(client: Client) -> None:
    """Every replica's run ends at its own first gap, and runs are ordered by id."""
    for replica_id, stretch in {"d": (0, 8), "b": (0, 3), "a": (1, 8), "c": (0, 5)}.items():
        await client.tell(replica_id, blocks(WHOLE, *stretch))
    assert await client.runs(WHOLE) == (
        Run("b", 3, NOW, 1),
        Run("c", 5, NOW, 1),
        Run("d", 8, NOW, 1),
    )
    assert await client.serving() == ("a", "b", "c", "d")


async def test_a_gap_is_filled_by_a_later_report(client: Client) -> None:
    """A replica that reports the missing middle afterwards runs through."""
    await client.tell("r", blocks(WHOLE, 0, 3))
    await client.tell("r", blocks(WHOLE, 5))
    assert await client.depths(WHOLE) == {"r": 3}
    assert await client.tell("r", blocks(WHOLE, 3, 5)) == Ingested(2, 2)
    assert await client.depths(WHOLE) == {"r": 8}


async def test_one_block_at_a_time(client: Client) -> None:
    """A chain that grows by one block a report is one chain."""
    for at, one in enumerate(each(WHOLE)):
        batch = chain(one, first=16 * (at + 1), after=blocks(WHOLE, at - 1, at) if at else b"")
        assert await client.report("r", batch) == Ingested(1, 1)
    assert await client.depths(WHOLE) == {"r": 8}
    assert await client.counts("r", WHOLE) == [16, 32, 48, 64, 80, 96, 112, 128]


async def test_lone_blocks_form_a_chain_of_a_request(client: Client) -> None:
    """Blocks reported alone, without a word on what precedes them, are matched by a chain all the same."""
    for one in reversed(each(WHOLE)):
        await client.report("r", chain(one))
    assert await client.depths(WHOLE) == {"r": 8}


async def test_a_suffix_extends_what_was_there(client: Client) -> None:
    """A report of the whole chain after one of its head adds only the rest."""
    await client.tell("r", blocks(WHOLE, 0, 4))
    assert await client.tell("r", WHOLE) == Ingested(4, 4)
    assert await client.tell("s", WHOLE) == Ingested(8, 0)
    assert await client.depths(WHOLE) == {"r": 8, "s": 8}


async def test_after_is_a_hint_and_no_condition(client: Client) -> None:
    """A continuation whose predecessor is unknown, or nobody's, is stored like any other."""
    await client.report("r", chain(blocks(WHOLE, 4), after=blocks(WHOLE, 3, 4)))
    assert await client.depths(blocks(WHOLE, 4)) == {"r": 4}
    await client.report("r", chain(keys("x", "y"), after=blocks(WHOLE, 5, 6)))
    assert await client.depths(WHOLE + keys("x")) == {}
    assert await client.depths(blocks(WHOLE, 4, 6) + keys("x", "y")) == {"r": 4}


async def test_branches_share_their_prefix(client: Client) -> None:
    """Many continuations of one prefix are each found, and the prefix is stored once."""
    stem = series("stem", 6)
    for branch in range(40):
        await client.tell(f"r{branch % 4}", stem + series(branch, 3))
    assert await client.prefixes() == 6 + 40 * 3
    for branch in range(40):
        expected = {f"r{other}": 9 if other == branch % 4 else 6 for other in range(4)}
        assert await client.depths(stem + series(branch, 3)) == expected


async def test_a_fork_within_a_stored_run(client: Client) -> None:
    """A second chain may leave the first anywhere and come back to it."""
    await client.tell("r", WHOLE)
    detour = blocks(WHOLE, 0, 3) + keys("detour", "more") + blocks(WHOLE, 6)
    await client.tell("s", detour)
    assert await client.depths(WHOLE) == {"r": 8, "s": 3}
    assert await client.depths(detour) == {"r": 3, "s": 7}


async def test_breaks_are_no_borders_for_a_lookup(client: Client) -> None:
    """Where a report starts an unrelated run only concerns placement."""
    await client.report("r", chain(WHOLE, breaks=(2, 3, 7)))
    assert await client.depths(WHOLE) == {"r": 8}
    assert await client.depths(blocks(WHOLE, 2, 5) + blocks(WHOLE, 7)) == {"r": 4}


async def test_every_block_its_own_run(client: Client) -> None:
    """A report that breaks before every block is stored in full."""
    await client.report("r", chain(WHOLE, breaks=range(1, 8)))
    await client.report("s", *(chain(one) for one in each(WHOLE)))
    assert await client.depths(WHOLE) == {"r": 8, "s": 8}


async def test_a_report_in_another_order_moves_nothing_away(client: Client) -> None:
    """Re-reporting known blocks shuffled, with new ones between, keeps every block findable in both orders."""
    await client.tell("r", WHOLE)
    shuffled = b"".join(
        blocks(WHOLE, at, at + 1) + (key(f"new {at}") if at % 2 else b"") for at in (6, 1, 3, 0, 7, 2, 5, 4)
    )
    assert await client.report("s", chain(shuffled)) == Ingested(12, 4)
    assert await client.depths(WHOLE) == {"r": 8, "s": 8}
    assert await client.depths(shuffled) == {"r": 2, "s": 12}


async def test_batches_of_one_report_apply_in_order(client: Client) -> None:
    """A block that two batches of a report name keeps the last one's values, and is new once."""
    first = odd(keys("a", "b"), [1, 2], [1, 1])
    second = odd(keys("b", "c"), [7, 8], [3, 3])
    assert await client.report("r", first, second) == Ingested(3, 3)
    assert await client.counts("r", keys("a", "b", "c")) == [1, 7, 8]
    assert await client.runs(keys("a", "b", "c")) == (Run("r", 3, NOW, 3),)


async def test_a_report_without_blocks_stores_nothing(client: Client) -> None:
    """A report that brings nothing does not make its replica serve."""
    assert await client.report("r") == Ingested(0, 0)
    assert await client.find(WHOLE) == ChainEvidence()


async def test_repeating_a_report_changes_nothing(client: Client) -> None:
    """Reports are idempotent."""
    await client.tell("r", WHOLE)
    once = await client.find(WHOLE)
    for _ in range(3):
        assert await client.report("r", *long_chain(WHOLE)) == Ingested(0, 0)
    assert await client.find(WHOLE) == once
    assert await client.prefixes() == 8


async def test_neighbours_do_not_leak_between_models(client: Client) -> None:
    """The same blocks in another model or tenant are other blocks."""
    await client.tell("r", WHOLE)
    for tenant_id, model_id in (("tenant", "other"), ("other", "model"), ("", "model"), ("tenant", "")):
        other = Client(client.store, type(client.model)(tenant_id, model_id))
        assert await other.find(WHOLE) == ChainEvidence()
        assert await other.prefixes() == 0
