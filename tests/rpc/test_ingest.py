"""What a report stores: merge rules, malformed entries, tiers, statistics."""

from __future__ import annotations

import math

import pytest

from inference_cache.domain.policy import Policy
from tests.rpc.wire import AFFINITY_OFF, FLOORS_OFF, MINUTE, TENANT, Wire, asks, chain, exact, h, hs, ids, update


async def test_longer_matches_come_first(wire: Wire) -> None:
    """Two holders of one hash are both named, the one that reported more tokens first."""
    wire.policy(FLOORS_OFF)
    await wire.report("A", exact(h("p"), 100))
    await wire.report("B", exact(h("p"), 50))
    await wire.report("C", exact(h("other"), 50))
    answer = await wire.lookup(h("p"))
    assert answer.reason_code == "PREFIX_MATCH"
    assert [(s.replica_id, s.matched_tokens) for s in answer.replica_scores] == [("A", 100), ("B", 50)]


async def test_old_reports_score_lower(wire: Wire) -> None:
    """A holding that is nearly expired ranks below a fresh one of half the tokens."""
    wire.policy(Policy(ttl_ms=60 * MINUTE, minimum_matched_tokens=0, routing_floor_score=0.0))
    await wire.report("A", exact(h("p"), 100), age_ms=50 * MINUTE)
    await wire.report("B", exact(h("p"), 50))
    await wire.report("C", exact(h("other"), 50))
    assert ids(await wire.lookup(h("p"))) == ["B", "A"]


async def test_reporting_again_changes_nothing(wire: Wire) -> None:
    """The same update three times is one holding."""
    for _ in range(3):
        await wire.report("A", exact(h("p"), 100))
    assert ids(await wire.lookup(h("p"))) == ["A"]
    assert await wire.total() == 1


async def test_the_last_arrival_wins(wire: Wire) -> None:
    """A later report replaces count, time and tier, even with an older timestamp."""
    wire.policy(FLOORS_OFF)
    await wire.report("A", exact(h("p"), 100, tier=1))
    await wire.report("A", exact(h("p"), 70, tier=2), age_ms=15 * MINUTE)
    score = (await wire.lookup(h("p"))).replica_scores[0]
    assert (score.matched_tokens, score.tier) == (70, 2)
    assert score.estimated_cache_hit_prob == pytest.approx(0.5, abs=0.02)


async def test_reports_add_up(wire: Wire) -> None:
    """A block missing from a later update stays."""
    await wire.report("A", exact(h("p"), 100))
    await wire.report("A", exact(h("q"), 100))
    assert ids(await wire.lookup(h("p"))) == ids(await wire.lookup(h("q"))) == ["A"]


@pytest.mark.parametrize("entry", [exact(h("p"), 100), chain(hs(1, 2))], ids=["exact", "chain"])
async def test_without_scheme_nothing_is_stored(wire: Wire, entry: object) -> None:
    """Entries of an update without hash scheme are dropped and counted; its statistics still count."""
    await wire.report("A", entry, hash_scheme="", stats={"cache_memory_bytes": 42})  # type: ignore[arg-type]
    state = await wire.state()
    assert state.summary.total_prefixes == 0
    assert [row.cache_memory_bytes for row in state.replicas] == [42]
    assert wire.counted("report_dropped_total", {"reason": "empty_scheme"}) == 1


@pytest.mark.parametrize(
    "entry",
    [
        chain(hs(1, 2, 3), block_token_counts=[16]),
        chain(hs(1, 2), block_token_counts=[]),
        exact(h("legacy"), 64, block_token_counts=[16]),
        chain(hs(1, 2), block_token_counts=[16], prefix_hash=h("legacy"), token_count=64),
    ],
    ids=["fewer counts", "no counts", "counts only", "beside a hash"],
)
async def test_mismatched_arrays_drop_the_whole_entry(wire: Wire, entry: object) -> None:
    """Hashes and counts of different number drop the entry with its single hash; its neighbours stay."""
    await wire.report("A", entry, exact(h("good"), 64))  # type: ignore[arg-type]
    assert await wire.total() == 1
    assert ids(await wire.lookup(h("good"))) == ["A"]
    assert wire.counted("report_dropped_total", {"reason": "mismatched_arrays"}) == 1


@pytest.mark.parametrize(
    "entry",
    [exact(h("p"), -1), chain(hs(1, 2), block_token_counts=[16, -1]), chain(hs(1), prefix_hash=h("p"), token_count=-1)],
    ids=["exact", "chain", "hash beside a chain"],
)
async def test_a_negative_count_drops_the_whole_entry(wire: Wire, entry: object) -> None:
    """One negative number anywhere in an entry drops all of it."""
    await wire.report("A", entry, exact(h("good"), 64))  # type: ignore[arg-type]
    assert await wire.total() == 1
    assert wire.counted("report_dropped_total", {"reason": "negative_count"}) == 1


async def test_empty_hashes_are_not_stored(wire: Wire) -> None:
    """An entry without a hash is dropped; an empty hash in a chain is skipped, its tokens still count."""
    wire.policy(FLOORS_OFF)
    await wire.report("A", exact(b"", 64), chain([h(1), b"", h(3)]))
    assert await wire.total() == 2
    assert (await wire.lookup(h(3))).replica_scores[0].matched_tokens == 48
    assert wire.counted("report_dropped_total", {"reason": "empty_hash"}) == 2


async def test_a_chain_may_carry_a_single_hash(wire: Wire) -> None:
    """The hash beside a chain is a block of its own, with its own count."""
    wire.policy(FLOORS_OFF)
    await wire.report("A", chain(hs(1, 2, 3), prefix_hash=h("L"), token_count=128))
    assert (await wire.lookup(**asks(hs(1, 2, 3)))).replica_scores[0].matched_tokens == 48
    assert (await wire.lookup(h("L"))).replica_scores[0].matched_tokens == 128


async def test_a_chain_is_found_block_by_block(wire: Wire) -> None:
    """A block of a chain is found exactly, with the tokens up to and with it."""
    wire.policy(FLOORS_OFF)
    await wire.report("A", chain(hs(1, 2, 3)))
    assert (await wire.lookup(h(2))).replica_scores[0].matched_tokens == 32


@pytest.mark.parametrize(("sent", "answered"), [(0, 1), (1, 1), (2, 2), (3, 3), (99, 0), (-1, 0)])
@pytest.mark.parametrize("form", ["exact", "chain"])
async def test_tiers_come_back(wire: Wire, sent: int, answered: int, form: str) -> None:
    """Unspecified means T1; a tier that we do not know is answered as unspecified, never as T1."""
    entry = exact(h(1), 64, tier=sent) if form == "exact" else chain(hs(1), 64, tier=sent)
    await wire.report("A", entry)
    answer = await wire.lookup(h(1)) if form == "exact" else await wire.lookup(**asks(hs(1), 64))
    assert [score.tier for score in answer.replica_scores] == [answered]


async def test_statistics_belong_to_the_reporter(wire: Wire) -> None:
    """The id inside the statistics is ignored; every field comes back; a later row replaces all of it."""
    stats = {
        "replica_id": "somebody else",
        "cache_memory_bytes": 2048,
        "hit_rate": 0.5,
        "pressure": 0.25,
        "client_version": "0.3.1",
        "t2_hit_tokens": 600,
        "t2_query_tokens": 1000,
    }
    await wire.report("A", stats=stats)
    row = (await wire.state()).replicas[0]
    assert {name: getattr(row, name) for name in stats} == {**stats, "replica_id": "A"}
    await wire.report("A", stats={"cache_memory_bytes": 1})
    row = (await wire.state()).replicas[0]
    assert (row.cache_memory_bytes, row.t2_query_tokens, row.client_version) == (1, 0, "")


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
async def test_numbers_that_are_none_become_zero(wire: Wire, number: float) -> None:
    """A hit rate or pressure that is not finite is stored as 0 and counted."""
    await wire.report("A", stats={"hit_rate": number, "pressure": number, "cache_memory_bytes": 7})
    row = (await wire.state()).replicas[0]
    assert (row.hit_rate, row.pressure, row.cache_memory_bytes) == (0, 0, 7)
    assert wire.counted("report_dropped_total", {"reason": "non_finite_stats"}) == 1


async def test_rates_are_not_clamped(wire: Wire) -> None:
    """Finite rates are stored as sent, also outside of 0 to 1."""
    await wire.report("A", stats={"hit_rate": 7.5, "pressure": -1})
    row = (await wire.state()).replicas[0]
    assert (row.hit_rate, row.pressure) == (7.5, -1)


async def test_a_time_before_the_epoch_is_already_expired(wire: Wire) -> None:
    """A negative timestamp is moved to the epoch and counted; it never matches."""
    await wire.report("A", exact(h("p"), 100), timestamp_us=-5)
    assert ids(await wire.lookup(h("p"))) == []
    assert wire.counted("clamped_timestamps_total", {"source": "report", "direction": "past"}) == 1


async def test_a_time_to_come_is_now(wire: Wire) -> None:
    """A timestamp after now is moved to now and counted."""
    await wire.report("A", exact(h("p"), 100), age_ms=-60 * MINUTE)
    score = (await wire.lookup(h("p"))).replica_scores[0]
    assert score.estimated_cache_hit_prob == pytest.approx(1, abs=0.01)
    assert wire.counted("clamped_timestamps_total", {"source": "report", "direction": "future"}) == 1


async def test_an_empty_update_is_accepted(wire: Wire) -> None:
    """A stream may be empty, and an update may name a replica only."""
    assert (await wire.stream()).accepted
    ack = await wire.stream(update("r", hash_scheme=""), update("r", hash_scheme=""))
    assert (ack.accepted, ack.reason_code) == (True, "")
    assert await wire.total() == 0


async def test_nothing_is_stored_for_the_reserved_tenant(wire: Wire) -> None:
    """An update for the self-test's tenant is skipped, the stream goes on and is acknowledged."""
    ack = await wire.stream(
        update("A", exact(h("p"), 100), tenant_id="inferencecache.io/probe"), update("A", exact(h("q"), 100))
    )
    assert ack.accepted
    assert await wire.total() == 1
    assert wire.counted("reserved_tenant_total", {"rpc": "ReportCacheState"}) == 1


async def test_the_entry_gauge_follows_reports(wire: Wire) -> None:
    """The gauge of a model counts distinct prefixes as soon as they are reported."""
    await wire.report("A", exact(h("p"), 100), exact(h("q"), 100))
    await wire.report("B", exact(h("q"), 100))
    assert wire.counted("index_entries", {"model": "m1"}) == 2


async def test_sums_stop_instead_of_wrapping(wire: Wire) -> None:
    """Token counts beyond the wire's number stop at it."""
    wire.policy(FLOORS_OFF)
    await wire.report("A", chain(hs(1, 2), 2**31 - 1))
    assert (await wire.lookup(h(2))).replica_scores[0].matched_tokens == 2**31 - 1
    assert (await wire.lookup(**asks(hs(1, 2), 2**31 - 1))).replica_scores[0].matched_tokens == 2**31 - 1


async def test_ids_may_be_empty_but_never_match(wire: Wire) -> None:
    """What is reported without tenant or model shows in the state and is found by no lookup."""
    wire.policy(AFFINITY_OFF)
    await wire.report("", exact(h("p"), 100), tenant_id="", stats={"hit_rate": 0.9})
    assert (await wire.state(tenant_id="")).summary.total_prefixes == 1
    assert (await wire.lookup(h("p"), tenant_id="")).reason_code == "NO_HINT"
    assert (await wire.state(tenant_id=TENANT)).summary.total_prefixes == 0
