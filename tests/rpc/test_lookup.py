"""Exact and chain matching, ranking and distinguishing power, as a client sees them."""

from __future__ import annotations

import pytest

from inference_cache._pb import inferencecache_pb2 as pb
from inference_cache.domain.policy import Policy
from tests.rpc.wire import AFFINITY_OFF, FLOORS_OFF, MINUTE, Wire, asks, chain, exact, h, hs, ids


def scores(answer: pb.LookupRouteResponse) -> dict[str, float]:
    """Return the scores by replica."""
    return {score.replica_id: score.score for score in answer.replica_scores}


async def test_exact_match(wire: Wire) -> None:
    """The holder of a hash is named with the tokens it reported, whatever the request says of them."""
    await wire.report("r", exact(h("p"), 128))
    answer = await wire.lookup(h("p"), prefix_token_count=7)
    assert answer.reason_code == "PREFIX_MATCH"
    assert [(s.replica_id, s.matched_tokens, s.tier) for s in answer.replica_scores] == [("r", 128, 1)]


async def test_a_novel_hash_matches_nothing(wire: Wire) -> None:
    """An unknown hash in a known scope is no hint."""
    wire.policy(AFFINITY_OFF)
    await wire.report("r", exact(h("known"), 128))
    assert (await wire.lookup(h("missing"))).reason_code == "NO_HINT"


async def test_schemes_are_apart(wire: Wire) -> None:
    """The same bytes under two schemes are two blocks."""
    await wire.report("vllm-0", exact(h("p"), 128), hash_scheme="vllm")
    await wire.report("sglang-0", exact(h("p"), 128), hash_scheme="sglang")
    for scheme in ("vllm", "sglang"):
        assert ids(await wire.lookup(h("p"), hash_scheme=scheme)) == [f"{scheme}-0"]


async def test_without_scheme_nothing_matches(wire: Wire) -> None:
    """An empty scheme is no hint, also beside warm replicas."""
    await wire.report("r", exact(h("p"), 128), stats={"hit_rate": 0.9})
    for question in ({"prefix_hash": h("p")}, {"prefix_hash": h("novel")}, asks(hs(1))):
        answer = await wire.lookup(**question, hash_scheme="")
        assert (answer.reason_code, ids(answer)) == ("NO_HINT", [])


async def test_tenants_are_apart(wire: Wire) -> None:
    """A tenant sees nothing of another."""
    await wire.report("r", exact(h("p"), 128), tenant_id="tenant-a")
    assert ids(await wire.lookup(h("p"), tenant_id="tenant-b")) == []
    assert ids(await wire.lookup(h("p"), tenant_id="tenant-a")) == ["r"]


async def test_the_longest_leading_run_wins(wire: Wire) -> None:
    """Each replica is credited its unbroken head of the chain, by the request's counts."""
    wire.policy(FLOORS_OFF)
    await wire.report("A", chain(hs(1, 2, 3, "x4", "x5")))
    await wire.report("B", chain(hs(1, 2, "y3", "y4")))
    answer = await wire.lookup(**asks(hs(1, 2, 3, 4, 5)))
    assert [(s.replica_id, s.matched_tokens) for s in answer.replica_scores] == [("A", 48), ("B", 32)]


async def test_a_hole_ends_the_run(wire: Wire) -> None:
    """Blocks after one that the replica lacks do not count."""
    wire.policy(FLOORS_OFF)
    await wire.report("A", chain(hs(1, 2, 3, 4)))
    await wire.event("PREFIX_EVICTED", "A", h(3))
    assert (await wire.lookup(**asks(hs(1, 2, 3, 4)))).replica_scores[0].matched_tokens == 32


async def test_the_coldest_block_gives_the_tier(wire: Wire) -> None:
    """A run with a block in T2 is T2."""
    wire.policy(FLOORS_OFF)
    await wire.report("A", exact(h(1), 16, tier=2), exact(h(2), 32, tier=1))
    score = (await wire.lookup(**asks(hs(1, 2)))).replica_scores[0]
    assert (score.matched_tokens, score.tier) == (32, 2)


async def test_a_chain_without_its_head_matches_nothing(wire: Wire) -> None:
    """Holding other blocks is no match, and a chain's miss is never TENANT_HOT."""
    wire.policy(AFFINITY_OFF)
    await wire.report("A", chain(hs(1, 2, 3)), stats={"hit_rate": 0.9})
    assert (await wire.lookup(**asks(hs("q1", 2, 3)))).reason_code == "NO_HINT"


async def test_the_oldest_block_gives_the_freshness(wire: Wire) -> None:
    """One old block makes the whole run old."""
    wire.policy(Policy(ttl_ms=10 * MINUTE, minimum_matched_tokens=0, routing_floor_score=0.0))
    await wire.report("A", exact(h(1), 16), age_ms=8 * MINUTE)
    await wire.report("A", exact(h(2), 32), exact(h(3), 48))
    score = (await wire.lookup(**asks(hs(1, 2, 3)))).replica_scores[0]
    assert score.estimated_cache_hit_prob == pytest.approx(0.2, abs=0.02)


async def test_an_expired_block_ends_the_run(wire: Wire) -> None:
    """A block past the tenant's TTL is not there."""
    wire.policy(Policy(ttl_ms=5 * MINUTE, minimum_matched_tokens=0, routing_floor_score=0.0))
    await wire.report("A", exact(h(1), 16), exact(h(3), 48))
    await wire.report("A", exact(h(2), 32), age_ms=6 * MINUTE)
    assert (await wire.lookup(**asks(hs(1, 2, 3)))).replica_scores[0].matched_tokens == 16


async def test_an_exactly_reported_block_starts_a_chain(wire: Wire) -> None:
    """A block reported alone matches as the head of a chain, with the request's count."""
    wire.policy(FLOORS_OFF)
    await wire.report("A", exact(h("p"), 64))
    assert (await wire.lookup(**asks(hs("p", "x", "y")))).replica_scores[0].matched_tokens == 16


async def test_a_chain_hides_the_single_hash(wire: Wire) -> None:
    """Beside a chain the prefix hash plays no part, and a malformed chain never falls back to it."""
    wire.policy(AFFINITY_OFF)
    await wire.report("A", exact(h("p"), 128))
    assert ids(await wire.lookup(h("p"), **asks(hs("novel")))) == []
    assert ids(await wire.lookup(h("p"), block_hashes=hs(1, 2), block_token_counts=[16])) == []
    assert ids(await wire.lookup(h("p"), block_token_counts=[16])) == []
    assert wire.counted("lookup_malformed_total", {"reason": "mismatched_arrays"}) == 2


async def test_a_repeated_block_counts_each_time(wire: Wire) -> None:
    """A hash twice in the request counts its tokens twice."""
    wire.policy(FLOORS_OFF)
    await wire.report("A", chain(hs(1)))
    assert (await wire.lookup(**asks(hs(1, 1)))).replica_scores[0].matched_tokens == 32


async def test_eight_known_and_eight_novel_chains(wire: Wire) -> None:
    """Every stored chain is found and no other."""
    wire.policy(AFFINITY_OFF)
    for at in range(8):
        await wire.report(f"r{at}", chain(hs(("known", at, 0), ("known", at, 1)), 64))
    for at in range(8):
        assert ids(await wire.lookup(**asks(hs(("known", at, 0), ("known", at, 1)), 64))) == [f"r{at}"]
        assert ids(await wire.lookup(**asks(hs(("novel", at, 0), ("novel", at, 1)), 64))) == []


async def test_two_of_three_holders(wire: Wire) -> None:
    """Scores are scaled by the share of serving replicas that do not match."""
    wire.policy(FLOORS_OFF)
    await wire.report("A", exact(h("p"), 80))
    await wire.report("B", exact(h("p"), 40))
    await wire.report("C", exact(h("other"), 40))
    assert scores(await wire.lookup(h("p"))) == pytest.approx({"A": 26.67, "B": 13.33}, rel=0.02)


@pytest.mark.parametrize(("holders", "score"), [(1, 42.67), (2, 21.33), (3, 0.0)])
async def test_what_everybody_holds_tells_nobody_apart(wire: Wire, holders: int, score: float) -> None:
    """The same match on all serving replicas scores 0; ties are ordered by id."""
    wire.policy(FLOORS_OFF)
    for at in range(3):
        await wire.report(f"r{at}", exact(h("p") if at < holders else h("other"), 64))
    answer = await wire.lookup(h("p"))
    assert ids(answer) == [f"r{at}" for at in range(holders)]
    assert list(scores(answer).values()) == pytest.approx([score] * holders, rel=0.02)


async def test_depths_of_a_chain(wire: Wire) -> None:
    """The deeper a match, the fewer share it; the deepest comes first."""
    wire.policy(FLOORS_OFF)
    for replica, depth in (("A", 4), ("B", 2), ("C", 1)):
        await wire.report(replica, chain(hs(*range(depth)), 64))
    expected = {"A": 170.67, "B": 42.67, "C": 0.0}
    answer = await wire.lookup(**asks(hs(*range(4)), 64))
    assert ids(answer) == ["A", "B", "C"]
    assert scores(answer) == pytest.approx(expected, rel=0.02)


async def test_a_lone_replica_has_full_scores(wire: Wire) -> None:
    """With one serving replica nothing is scaled."""
    await wire.report("A", exact(h("p"), 64), chain(hs(1, 2), 64))
    assert scores(await wire.lookup(h("p"))) == pytest.approx({"A": 64}, rel=0.02)
    assert scores(await wire.lookup(**asks(hs(1, 2), 64))) == pytest.approx({"A": 128}, rel=0.02)


@pytest.mark.parametrize(("tokens", "pressure"), [((100, 100), 0.9), ((100, 50), 0.9), ((100, 1), 1.5)])
async def test_idle_replicas_come_first(wire: Wire, tokens: tuple[int, int], pressure: float) -> None:
    """Pressure outweighs a longer match; from 1 on it cancels the match."""
    wire.policy(FLOORS_OFF)
    await wire.report("a-busy", exact(h("p"), tokens[0]), stats={"pressure": pressure})
    await wire.report("b-idle", exact(h("p"), tokens[1]), stats={"pressure": 0.0})
    await wire.report("decoy", exact(h("other"), 64))
    assert ids(await wire.lookup(h("p"))) == ["b-idle", "a-busy"]


async def test_pressure_counts_for_chains(wire: Wire) -> None:
    """Chains are scaled by idleness like exact matches."""
    wire.policy(FLOORS_OFF)
    await wire.report("big-hot", chain(hs(1, 2, 3)), stats={"pressure": 0.9})
    await wire.report("small-cool", chain(hs(1, 2)), stats={"pressure": 0.0})
    await wire.report("decoy", exact(h("other"), 64))
    assert ids(await wire.lookup(**asks(hs(1, 2, 3)))) == ["small-cool", "big-hot"]


@pytest.mark.parametrize("heartbeat", [False, True])
async def test_old_pressure_is_forgotten(wire: Wire, heartbeat: bool) -> None:
    """Statistics older than the TTL do not count, even of a replica that says it lives."""
    wire.policy(Policy(ttl_ms=5 * MINUTE, minimum_matched_tokens=0))
    await wire.report("A", stats={"pressure": 0.9}, age_ms=6 * MINUTE)
    await wire.report("A", exact(h("p"), 50))
    if heartbeat:
        await wire.event("REPLICA_UPDATED", "A")
    assert scores(await wire.lookup(h("p"))) == pytest.approx({"A": 50}, rel=0.02)


@pytest.mark.parametrize(("ttft_ms", "first"), [(0, "big-old"), (500, "big-old"), (50, "small-fresh")])
async def test_a_tight_objective_prefers_fresh_reports(wire: Wire, ttft_ms: int, first: str) -> None:
    """Below 200 ms to the first token, freshness counts more."""
    await wire.report("big-old", exact(h("p"), 100), age_ms=10 * MINUTE)
    await wire.report("small-fresh", exact(h("p"), 64))
    await wire.report("decoy", exact(h("other"), 64))
    assert ids(await wire.lookup(h("p"), slo=pb.SLO(ttft_ms=ttft_ms)))[0] == first


async def test_a_tight_objective_scores_higher(wire: Wire) -> None:
    """The same match scores higher under a tight objective."""
    await wire.report("A", exact(h("p"), 100))
    relaxed, tight = await wire.lookup(h("p")), await wire.lookup(h("p"), slo=pb.SLO(ttft_ms=50))
    assert scores(tight)["A"] == pytest.approx(2 * scores(relaxed)["A"], rel=0.02)


async def test_ids_are_ordered_as_bytes(wire: Wire) -> None:
    """Of equal scores, pod-10 comes before pod-2."""
    wire.policy(FLOORS_OFF)
    for replica in ("pod-2", "pod-10", "pod-1"):
        await wire.report(replica, exact(h("p"), 64))
    assert ids(await wire.lookup(h("p"))) == ["pod-1", "pod-10", "pod-2"]


async def test_the_answer_says_how_long_it_took(wire: Wire) -> None:
    """The latency is what the server spent, in microseconds, and one observation of the histogram."""
    await wire.report("A", exact(h("p"), 64))
    answer = await wire.lookup(h("p"))
    seconds = wire.counted("lookup_route_latency_seconds_sum", {"model": "m1"})
    assert answer.lookup_latency_us == pytest.approx(seconds * 1e6, abs=1)
    assert wire.counted("lookup_route_latency_seconds_count", {"model": "m1"}) == 1


async def test_the_adapter_is_echoed(wire: Wire) -> None:
    """An answer that consulted the index names the request's adapter; other adapters do not match."""
    wire.policy(AFFINITY_OFF)
    await wire.report("A", exact(h("p"), 64, adapter_id="sql"))
    hit, other, base = [await wire.lookup(h("p"), adapter_id=adapter) for adapter in ("sql", "chat", "")]
    assert [(a.reason_code, a.adapter_id) for a in (hit, other, base)] == [
        ("PREFIX_MATCH", "sql"),
        ("NO_HINT", "chat"),
        ("NO_HINT", ""),
    ]
