"""Statistics rows live beside the holdings: replaced by reports, touched by signs of life, never evidence."""

from __future__ import annotations

from dataclasses import fields

import pytest

from inference_cache.domain.models import CacheState, ChainEvidence, Ingested, ReplicaStats, Run
from tests.contract.build import NOW, TTL, Client, chain, series

RUN = series("run", 3)
FULL = ReplicaStats(
    hit_rate=0.875,
    pressure=0.25,
    cache_memory_bytes=2**63 - 1,
    t2_hit_tokens=2**53 + 1,
    t2_query_tokens=12,
    client_version="engine/1.2 é {}:\n\0",
    reported_ms=NOW - 3,
    alive_ms=NOW - 2,
)
ODD = ReplicaStats(
    hit_rate=-0.1, pressure=1e300, cache_memory_bytes=-(2**63), t2_hit_tokens=-1, t2_query_tokens=-(2**40)
)


@pytest.mark.parametrize("row", [FULL, ODD, ReplicaStats()], ids=["full", "odd", "zero"])
async def test_a_row_comes_back_as_it_was_sent(client: Client, row: ReplicaStats) -> None:
    """Every field survives exactly, at its extremes too."""
    assert await client.report("r", chain(RUN), stats=row) == Ingested(3, 3)
    assert await client.store.state(client.model) == CacheState((("r", row),), 3)
    assert await client.runs(RUN) == (Run("r", 3, NOW, 1, row),)
    (holder,) = await client.holders(RUN[:8])
    assert holder.stats == row


@pytest.mark.parametrize("field", [field.name for field in fields(ReplicaStats)])
async def test_a_row_is_replaced_as_a_whole(client: Client, field: str) -> None:
    """A field that the newer row leaves at its default does not survive from the older one."""
    await client.report("r", stats=FULL)
    newer = ReplicaStats(**{field: getattr(ODD, field) or getattr(FULL, field)})
    await client.report("r", stats=newer)
    assert await client.rows() == {"r": newer}


async def test_an_older_row_replaces_a_newer_one(client: Client) -> None:
    """The last arrival wins for rows as well."""
    await client.report("r", stats=FULL)
    older = ReplicaStats(hit_rate=0.1, reported_ms=1, alive_ms=1)
    await client.report("r", stats=older)
    assert await client.rows() == {"r": older}


async def test_a_report_without_statistics_keeps_the_row(client: Client) -> None:
    """Blocks alone do not touch the row."""
    await client.report("r", stats=FULL)
    await client.report("r", chain(RUN), at=NOW)
    assert await client.rows() == {"r": FULL}


async def test_rows_are_ordered_by_the_bytes_of_their_ids(client: Client) -> None:
    """The order is that of UTF-8, not of numbers or code units."""
    ids = ["pod-2", "pod-10", "", "Z", "é", "\U0001f600", "\uffff", "a\0", "a"]
    for replica_id in ids:
        await client.report(replica_id, stats=FULL)
    listed = [replica_id for replica_id, _ in (await client.store.state(client.model)).replicas]
    assert listed == sorted(ids, key=str.encode)


async def test_a_row_is_no_content(client: Client) -> None:
    """Statistics alone neither serve nor are present nor count as a prefix."""
    await client.report("r", stats=FULL)
    assert await client.find(RUN) == ChainEvidence()
    presence = await client.presence(expired=0)
    assert (presence.index, presence.tenant, presence.model) == (False, False, False)
    assert await client.prefixes() == 0


async def test_replicas_without_a_row_are_not_listed(client: Client) -> None:
    """Holding blocks alone makes no row."""
    await client.tell("r", RUN)
    assert await client.store.state(client.model) == CacheState((), 3)


async def test_a_touch_moves_the_sign_of_life_alone(client: Client) -> None:
    """Nothing else of the row changes, and the time may go back."""
    await client.report("r", chain(RUN), at=NOW - 9, stats=FULL)
    for alive_ms in (NOW, NOW - TTL):
        assert await client.store.touch(client.model, "r", alive_ms=alive_ms)
        (row,) = (await client.rows()).values()
        assert (row.alive_ms, row.reported_ms, row.hit_rate, row.client_version) == (
            alive_ms,
            FULL.reported_ms,
            FULL.hit_rate,
            FULL.client_version,
        )
    assert [run.oldest_ms for run in await client.runs(RUN)] == [NOW - 9]


async def test_a_touch_without_a_row_does_nothing(client: Client) -> None:
    """No row is made for a replica that never sent statistics, whether or not it holds blocks."""
    await client.tell("holds", RUN)
    for replica_id in ("holds", "unknown"):
        assert not await client.store.touch(client.model, replica_id, alive_ms=NOW)
    assert await client.rows() == {}
    assert not await Client(client.store, type(client.model)("t", "unknown")).store.touch(
        type(client.model)("t", "unknown"), "r", alive_ms=NOW
    )


async def test_rows_are_evidence_at_any_age(client: Client) -> None:
    """Whether a row is too old to use is for the ranking to judge; it is brought all the same."""
    ancient = ReplicaStats(hit_rate=0.5, reported_ms=1, alive_ms=1)
    await client.report("r", chain(RUN), stats=ancient)
    assert await client.runs(RUN) == (Run("r", 3, NOW, 1, ancient),)


async def test_evictions_keep_the_row(client: Client) -> None:
    """Losing the last block does not lose the statistics."""
    await client.report("r", chain(RUN), stats=FULL)
    assert await client.evict("r", RUN) == 3
    assert await client.rows() == {"r": FULL}
    await client.tell("r", RUN)
    assert await client.runs(RUN) == (Run("r", 3, NOW, 1, FULL),)


async def test_an_unknown_model_has_an_empty_state(client: Client) -> None:
    """Asking for what never was is no error."""
    assert await client.store.state(type(client.model)("t", "unknown")) == CacheState((), 0)
