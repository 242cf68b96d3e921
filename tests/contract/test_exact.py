"""A block asked for alone is answered with what its last report said, token count included."""

from __future__ import annotations

import random

import pytest

from inference_cache.domain.models import MAX_TOKENS, ExactEvidence, Holder, ReplicaStats, Tier
from tests.contract.build import BASE, NOW, TTL, Client, blocks, chain, each, key, odd, series

RUN = series("run", 6)


async def _exact(client: Client, one: bytes, *, want_warm: bool = True) -> ExactEvidence:
    return await client.store.lookup_exact(client.model, BASE, one, expired_at_ms=NOW - TTL, want_warm=want_warm)


async def test_every_block_of_a_chain_is_found_alone(client: Client) -> None:
    """A chain's blocks are exact entries too: count so far, time and tier."""
    await client.report("r", chain(RUN, step=16, tier=3), at=NOW - 1)
    for at, one in enumerate(each(RUN)):
        assert await client.holders(one) == (Holder("r", 16 * (at + 1), NOW - 1, 3),)


async def test_exact_entries_form_chains(client: Client) -> None:
    """Blocks reported one by one with unrelated counts are a chain to a lookup, and keep their counts."""
    for one, count in zip(each(RUN), (5, 900, 0, 17, 17, 1), strict=True):
        await client.report("r", odd(one, [count]))
    assert await client.depths(RUN) == {"r": 6}
    assert await client.counts("r", RUN) == [5, 900, 0, 17, 17, 1]


async def test_no_key_matches_nothing(client: Client) -> None:
    """A lookup without a block has no holder, but serving replicas."""
    await client.tell("r", RUN)
    assert await _exact(client, b"") == ExactEvidence((), ("r",), ())


async def test_an_unknown_key_matches_nothing(client: Client) -> None:
    """A block that nobody reported has no holder."""
    await client.tell("r", RUN)
    assert await _exact(client, key("nobody's")) == ExactEvidence((), ("r",), ())


@pytest.mark.parametrize(
    "counts",
    [
        [16, 32, 48, 64, 80, 96],
        [0, 0, 0, 0, 0, 0],
        [7, 7, 7, 7, 7, 7],
        [100, 90, 80, 70, 60, 50],
        [3, 1, 4, 1, 5, 9],
        [16, 32, 33, 49, 65, 81],
        [2**31 - 33, 2**31 - 17, MAX_TOKENS, MAX_TOKENS, MAX_TOKENS, MAX_TOKENS],
        [MAX_TOKENS, 0, MAX_TOKENS, 0, 1, MAX_TOKENS],
        [0, MAX_TOKENS, 0, 0, 0, 0],
    ],
    ids=["even", "zero", "flat", "falling", "wild", "stumbling", "saturated", "extremes", "spike"],
)
async def test_any_counts_are_kept_exactly(client: Client, counts: list[int]) -> None:
    """Token counts come back as reported, however they run."""
    await client.report("r", odd(RUN, counts))
    await client.report("s", chain(RUN))
    assert await client.counts("r", RUN) == counts
    assert await client.counts("s", RUN) == [16, 32, 48, 64, 80, 96]


async def test_counts_are_kept_per_replica_and_follow_re_reports(client: Client) -> None:
    """A report of a few blocks changes their counts for that replica only."""
    await client.report("r", chain(RUN))
    await client.report("s", chain(RUN, step=8))
    await client.report("r", odd(blocks(RUN, 2, 4), [1000, 2]))
    assert await client.counts("r", RUN) == [16, 32, 1000, 2, 80, 96]
    assert await client.counts("s", RUN) == [8, 16, 24, 32, 40, 48]
    await client.report("r", chain(RUN))
    assert await client.counts("r", RUN) == [16, 32, 48, 64, 80, 96]


async def test_counts_of_a_long_run_survive_many_patches(client: Client) -> None:
    """Patches at random places of a long run leave every other count as it was."""
    whole = series("long", 300)
    expected = [16 * (at + 1) for at in range(300)]
    await client.report("r", chain(whole))
    dice = random.Random(7)
    for _ in range(60):
        start = dice.randrange(300)
        patch = [dice.choice((0, 1, MAX_TOKENS, dice.randrange(5000))) for _ in range(dice.randint(1, 5))][
            : 300 - start
        ]
        expected[start : start + len(patch)] = patch
        await client.report("r", odd(blocks(whole, start, start + len(patch)), patch))
    assert await client.counts("r", whole) == expected


@pytest.mark.parametrize("tier", list(Tier))
async def test_every_tier_is_kept(client: Client, tier: Tier) -> None:
    """All four tiers, the unknown one included, are answered exactly and by chains."""
    await client.report("r", chain(RUN, tier=tier))
    assert {holder.tier for one in each(RUN) for holder in await client.holders(one)} == {tier}
    assert [run.tier for run in await client.runs(RUN)] == [tier]


async def test_tiers_may_change_within_a_run(client: Client) -> None:
    """Each block has its own tier; a run is as cold as the coldest block up to its end."""
    await client.report("r", odd(RUN, [16] * 6, [1, 2, 1, 4, 3, 1]))
    assert [holder.tier for one in each(RUN) for holder in await client.holders(one)] == [1, 2, 1, 4, 3, 1]
    coldest = [(await client.runs(blocks(RUN, 0, stop)))[0].tier for stop in range(1, 7)]
    assert coldest == [1, 2, 2, 4, 4, 4]
    assert [run.tier for run in await client.runs(blocks(RUN, 4))] == [3]


async def test_the_tier_follows_the_last_report(client: Client) -> None:
    """Offloading a block makes it colder, restoring it warmer, whatever the times say."""
    await client.report("r", chain(RUN, tier=1))
    await client.report("r", chain(blocks(RUN, 1, 3), tier=2), at=NOW - 50)
    assert [run.tier for run in await client.runs(RUN)] == [2]
    await client.report("r", chain(blocks(RUN, 1, 3), tier=1), at=NOW - 60)
    assert [(run.tier, run.oldest_ms) for run in await client.runs(RUN)] == [(1, NOW - 60)]


async def test_holders_are_ordered_and_carry_their_rows(client: Client) -> None:
    """Holders come in the byte order of their ids, each with its statistics row if it has one."""
    row = ReplicaStats(hit_rate=0.25, pressure=0.5, reported_ms=NOW, alive_ms=NOW)
    for replica_id in ("pod-2", "pod-10", "é", "Z", "pod-1"):
        await client.report(replica_id, chain(RUN), stats=row if replica_id == "pod-10" else None)
    assert [(h.replica_id, h.stats) for h in await client.holders(key(("run", 0)))] == [
        ("Z", None),
        ("pod-1", None),
        ("pod-10", row),
        ("pod-2", None),
        ("é", None),
    ]


async def test_a_wanted_miss_brings_the_rows_of_the_serving_replicas(client: Client) -> None:
    """Only a miss, only when wanted, only replicas that serve the scheme and have a row."""
    row = ReplicaStats(hit_rate=0.75, reported_ms=NOW - TTL - 1, alive_ms=NOW)
    await client.report("serves", chain(RUN), stats=row)
    await client.report("has no row", chain(RUN))
    await client.report("row only", stats=row)
    await client.report("other scheme", chain(RUN, type(BASE)("sglang")), stats=row)
    await client.report("expired", chain(RUN), at=NOW - TTL, stats=row)
    serving = ("has no row", "serves")
    assert await _exact(client, key("x")) == ExactEvidence((), serving, (("serves", row),))
    assert await _exact(client, key("x"), want_warm=False) == ExactEvidence((), serving, ())
    hit = await _exact(client, key(("run", 0)))
    assert hit.warm == ()
    assert [(h.replica_id, h.stats) for h in hit.holders] == [("has no row", None), ("serves", row)]
