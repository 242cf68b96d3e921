"""A clear takes everything of one replica in one model, and only what its fence lets it."""

from __future__ import annotations

import pytest

from inference_cache.domain.models import Ingested, ModelKey, Partition, ReplicaStats, Run
from tests.contract.build import BASE, NOW, TTL, Client, blocks, chain, each, long_chain, series

WHOLE = series("prompt", 6)
PLACES = (BASE, Partition("vllm", "lora"), Partition("sglang"), Partition("sglang", "lora"))
ROW = ReplicaStats(hit_rate=0.5, reported_ms=NOW, alive_ms=NOW)


async def _fill(client: Client, replica_id: str, at: int = NOW) -> None:
    batches = [chain(WHOLE, place) for place in PLACES]
    await client.report(replica_id, *batches, at=at, stats=ReplicaStats(hit_rate=0.5, reported_ms=at, alive_ms=at))


async def test_a_clear_takes_all_schemes_adapters_and_the_row(client: Client) -> None:
    """Nothing of the replica is left in the model: no holding, no scope, no row, no prefix."""
    await _fill(client, "r")
    assert await client.clear("r") == 24
    for place in PLACES:
        found = await client.find(WHOLE, place)
        assert (found.runs, found.serving) == ((), ())
        assert await client.holders(WHOLE[:8], place) == ()
    assert (await client.prefixes(), await client.rows()) == (0, {})
    assert not (await client.presence()).model


async def test_others_are_untouched(client: Client) -> None:
    """Other replicas, models and tenants keep what they hold and their rows."""
    others = [Client(client.store, ModelKey("tenant", "other")), Client(client.store, ModelKey("other", "model"))]
    for each_client in (client, *others):
        await _fill(each_client, "r")
        await _fill(each_client, "s")
    assert await client.clear("r") == 24
    assert await client.depths(WHOLE) == {"s": 6}
    assert set(await client.rows()) == {"s"}
    assert await client.prefixes() == 24
    for other in others:
        assert await other.depths(WHOLE) == {"r": 6, "s": 6}
        assert set(await other.rows()) == {"r", "s"}


async def test_an_unknown_replica_or_model(client: Client) -> None:
    """Clearing what never was changes nothing."""
    await _fill(client, "r")
    for fence in (None, NOW):
        assert await client.clear("nobody", fence=fence) == 0
        assert await Client(client.store, ModelKey("tenant", "unknown")).clear("r", fence=fence) == 0
    assert await client.depths(WHOLE) == {"r": 6}
    assert set(await client.rows()) == {"r"}


@pytest.mark.parametrize("fence", [NOW, NOW + 1, NOW + TTL])
async def test_a_fence_at_or_after_the_newest_report_takes_everything(client: Client, fence: int) -> None:
    """An equal time is removed."""
    await _fill(client, "r")
    assert await client.clear("r", fence=fence) == 24
    assert (await client.prefixes(), await client.rows(), await client.serving()) == (0, {}, ())


@pytest.mark.parametrize("fence", [NOW - 1, 0])
async def test_an_older_fence_takes_nothing(client: Client, fence: int) -> None:
    """A late clear of an old incarnation leaves the new one alone."""
    await _fill(client, "r")
    assert await client.clear("r", fence=fence) == 0
    assert await client.depths(WHOLE) == {"r": 6}
    assert await client.rows() == {"r": ROW}


async def test_a_fence_within_takes_what_is_older(client: Client) -> None:
    """Block by block: what was reported at or before the fence goes, in every partition."""
    await _fill(client, "r", at=NOW - 100)
    await client.report("r", chain(blocks(WHOLE, 1, 3)), at=NOW - 10)
    await client.report("r", chain(blocks(WHOLE, 0, 2), PLACES[3]), at=NOW - 99)
    await client.report("s", chain(WHOLE), at=NOW - 100)
    assert await client.clear("r", fence=NOW - 100) == 24 - 4
    assert await client.runs(blocks(WHOLE, 1)) == (Run("r", 2, NOW - 10, 1), Run("s", 5, NOW - 100, 1))
    assert await client.depths(WHOLE, PLACES[3]) == {"r": 2}
    assert await client.depths(WHOLE, PLACES[2]) == {}
    assert await client.serving("sglang") == ("r",)
    assert await client.prefixes() == 6 + 2


async def test_a_block_refreshed_to_an_older_time_falls(client: Client) -> None:
    """What counts is the time that the last report gave, not the newest ever given."""
    await client.tell("r", WHOLE, at=NOW)
    await client.tell("r", blocks(WHOLE, 0, 2), at=NOW - 50)
    assert await client.clear("r", fence=NOW - 50) == 2
    assert await client.depths(blocks(WHOLE, 2)) == {"r": 4}


@pytest.mark.parametrize(("reported", "stays"), [(NOW - 51, False), (NOW - 50, False), (NOW - 49, True)])
async def test_the_row_goes_by_when_it_was_reported(client: Client, reported: int, stays: bool) -> None:
    """The row's own payload time is what the fence looks at, not the holdings' nor the last sign of life."""
    row = ReplicaStats(hit_rate=0.5, reported_ms=reported, alive_ms=reported)
    await client.report("r", chain(WHOLE), at=NOW - 100, stats=row)
    await client.store.touch(client.model, "r", alive_ms=NOW)
    assert await client.clear("r", fence=NOW - 50) == 6
    assert set(await client.rows()) == ({"r"} if stays else set())


async def test_the_row_stays_apart_from_the_holdings(client: Client) -> None:
    """An old row may go while newer holdings stay."""
    old = ReplicaStats(hit_rate=0.5, reported_ms=NOW - 100, alive_ms=NOW - 100)
    await client.report("r", chain(WHOLE), at=NOW, stats=old)
    assert await client.clear("r", fence=NOW - 50) == 0
    assert await client.rows() == {}
    assert await client.runs(WHOLE) == (Run("r", 6, NOW, 1, None),)


@pytest.mark.parametrize("fence", [None, NOW])
async def test_a_row_alone_is_cleared(client: Client, fence: int | None) -> None:
    """A replica that only sent statistics is forgotten too."""
    await client.report("r", stats=ROW)
    assert await client.clear("r", fence=fence) == 0
    assert await client.rows() == {}


@pytest.mark.parametrize("fence", [None, NOW, NOW - 100])
async def test_a_replica_comes_back(client: Client, fence: int | None) -> None:
    """After a clear the same replica reports as a new one, over and over."""
    for _ in range(3):
        assert await client.tell("r", WHOLE, at=NOW - 100) == Ingested(6, 6)
        assert await client.clear("r", fence=fence) == 6
        assert await client.depths(WHOLE) == {}
    await client.tell("s", WHOLE)
    assert await client.tell("r", blocks(WHOLE, 0, 2)) == Ingested(2, 0)
    assert await client.depths(WHOLE) == {"r": 2, "s": 6}
    assert await client.counts("r", WHOLE) == [16, 32, None, None, None, None]


async def test_a_cleared_replica_does_not_shine_through(client: Client) -> None:
    """What a replica held before its clear is not seen again when it stores a part of it anew."""
    await client.tell("r", WHOLE, tier=3)
    await client.tell("s", WHOLE)
    await client.clear("r")
    await client.tell("r", blocks(WHOLE, 3, 4))
    assert [[h.replica_id for h in await client.holders(one)] for one in each(WHOLE)] == [
        *(["s"], ["s"], ["s"]),
        ["r", "s"],
        *(["s"], ["s"]),
    ]
    assert await client.evict("r", WHOLE) == 1


async def test_a_large_replica_is_cleared(client: Client) -> None:
    """Thousands of blocks in many chains and partitions go in one call, and shared ones stay for others."""
    chains = [series("stem", 100) + series(number, 200) for number in range(20)]
    for number, one in enumerate(chains):
        await client.report("r", *long_chain(one, PLACES[number % 4]))
    await client.report("s", *long_chain(chains[0]))
    assert await client.clear("r") == 4 * 100 + 20 * 200
    assert await client.prefixes() == 300
    assert await client.depths(chains[0]) == {"s": 300}
    assert await client.depths(chains[1], PLACES[1]) == {}
    assert await client.clear("r") == 0


async def test_a_large_replica_is_cleared_behind_a_fence(client: Client) -> None:
    """A fenced clear of many runs takes the old half of them."""
    for number in range(20):
        await client.report("r", *long_chain(series(number, 100)), at=NOW - number)
    assert await client.clear("r", fence=NOW - 10) == 10 * 100
    assert await client.prefixes() == 1000
    assert await client.depths(series(9, 100)) == {"r": 100}
    assert await client.depths(series(10, 100)) == {}
