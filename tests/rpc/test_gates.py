"""A tenant's policy at work: floors, minimum lengths and switches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from inference_cache.domain.policy import Policy
from tests.rpc.wire import AFFINITY_OFF, FLOORS_OFF, Wire, asks, chain, exact, h, hs, ids

HOT = {"hit_rate": 0.8}


@pytest.mark.parametrize(
    ("tokens", "policy", "reason"),
    [
        (16, AFFINITY_OFF, "NO_HINT"),
        (64, Policy(), "PREFIX_MATCH"),
        (16, Policy(), "AFFINITY_HINT"),
        (100, replace(AFFINITY_OFF, minimum_matched_tokens=256), "NO_HINT"),
        (1, replace(AFFINITY_OFF, minimum_matched_tokens=0), "PREFIX_MATCH"),
        (64, replace(AFFINITY_OFF, routing_floor_score=100.0), "NO_HINT"),
    ],
)
async def test_floors(wire: Wire, tokens: int, policy: Policy, reason: str) -> None:
    """Too few matched tokens or too low a best score is a miss; the floors themselves pass."""
    wire.policy(policy)
    await wire.report("A", exact(h("p"), tokens))
    assert (await wire.lookup(h("p"))).reason_code == reason


async def test_short_matches_are_dropped_one_by_one(wire: Wire) -> None:
    """A replica below the floor is left out, the others stay."""
    await wire.report("A", chain(hs(1, 2, 3, 4)))
    await wire.report("B", chain(hs(1)))
    assert ids(await wire.lookup(**asks(hs(1, 2, 3, 4)))) == ["A"]


@pytest.mark.parametrize(("policy", "reason"), [(AFFINITY_OFF, "NO_HINT"), (FLOORS_OFF, "PREFIX_MATCH")])
async def test_what_everybody_holds_is_below_the_floor(wire: Wire, policy: Policy, reason: str) -> None:
    """A match on all replicas scores 0: a miss, unless the tenant has no floor."""
    wire.policy(policy)
    for replica in "ABC":
        await wire.report(replica, exact(h("p"), 1500))
    assert (await wire.lookup(h("p"))).reason_code == reason


@pytest.mark.parametrize(
    ("minimum", "affinity", "question", "reason"),
    [
        (50, False, {"prefix_hash": h("p"), "prefix_token_count": 100}, "PREFIX_MATCH"),
        (200, False, {"prefix_hash": h("p"), "prefix_token_count": 10}, "NO_HINT"),
        (50, False, {"prefix_hash": h("p")}, "NO_HINT"),
        (32, False, asks(hs(1, 2, 3)), "NO_HINT"),  # long enough, but 48 matched tokens are below the floor
        (32, False, asks(hs(1, 2, 3, 4)), "PREFIX_MATCH"),
        (200, False, asks(hs(1, 2, 3, 4)), "NO_HINT"),
        (100, False, {**asks(hs(1, 2, 3, 4)), "prefix_token_count": 999}, "NO_HINT"),
        (1024, True, asks(hs("novel")), "AFFINITY_HINT"),
        (1024, True, {"prefix_hash": h("p"), "prefix_token_count": 1}, "AFFINITY_HINT"),
        (1024, True, {"prefix_hash": h("novel"), "prefix_token_count": 1}, "AFFINITY_HINT"),
        (1024, True, {**asks(hs(1)), "hash_scheme": "other"}, "UNKNOWN_HASH_SCHEME"),
        (1024, False, {**asks(hs(1)), "hash_scheme": "other"}, "NO_HINT"),
    ],
)
async def test_minimum_prefix_length(
    wire: Wire, minimum: int, affinity: bool, question: dict[str, Any], reason: str
) -> None:
    """Short requests get no positive hint, but may get a stable replica; a chain's counts outweigh the single one."""
    wire.policy(Policy(minimum_prefix_tokens=minimum, affinity_routing=affinity))
    await wire.report("A", exact(h("p"), 64), chain(hs(1, 2, 3, 4)), stats=HOT)
    assert (await wire.lookup(**question)).reason_code == reason


@pytest.mark.parametrize(
    "question",
    [
        {"prefix_hash": h("p")},
        {"block_hashes": hs(1, 2), "block_token_counts": [16]},
        {"token_ids": range(64)},
        {"prompt_text": "hello"},
        {"prefix_hash": h("p"), "hash_scheme": ""},
    ],
    ids=["exact", "malformed", "tokens", "text", "no scheme"],
)
async def test_a_chain_can_be_required(wire: Wire, question: dict[str, Any]) -> None:
    """Whatever is not a well-formed chain is refused, without the adapter's echo; a chain is answered."""
    wire.policy(Policy(require_chain=True))
    await wire.report("A", exact(h("p"), 64), chain(hs(1, 2), 64))
    answer = await wire.lookup(**question, adapter_id="sql")
    assert (answer.reason_code, ids(answer), answer.adapter_id) == ("POLICY_REQUIRES_CHAIN", [], "")
    assert (await wire.lookup(**asks(hs(1, 2), 64))).reason_code == "PREFIX_MATCH"


NO_CHAINS = Policy(enable_chain_matching=False)


@pytest.mark.parametrize("counts", [[16, 16], [16]])
async def test_chains_can_be_ignored(wire: Wire, counts: list[int]) -> None:
    """With chain matching off the single hash counts, even beside a malformed chain."""
    wire.policy(NO_CHAINS)
    await wire.report("A", exact(h("p"), 128))
    await wire.report("B", chain(hs(1, 2), 64))
    answer = await wire.lookup(h("p"), block_hashes=hs(1, 2), block_token_counts=counts)
    assert [(s.replica_id, s.matched_tokens) for s in answer.replica_scores] == [("A", 128)]


async def test_only_a_chain_is_nothing_when_chains_are_ignored(wire: Wire) -> None:
    """With chain matching off a chain alone is no hint, and the index is not asked."""
    wire.policy(NO_CHAINS)
    await wire.report("A", chain(hs(1, 2), 64))
    answer = await wire.lookup(**asks(hs(1, 2), 64), adapter_id="sql")
    assert (answer.reason_code, answer.adapter_id) == ("NO_HINT", "")


async def test_ignored_counts_do_not_lengthen_a_request(wire: Wire) -> None:
    """With chain matching off only the single hash's count is the request's length."""
    wire.policy(replace(NO_CHAINS, minimum_prefix_tokens=100, affinity_routing=False))
    await wire.report("A", exact(h("p"), 128))
    answer = await wire.lookup(h("p"), prefix_token_count=10, **asks(hs(1), 200))
    assert answer.reason_code == "NO_HINT"


@pytest.mark.parametrize("extra", [{}, {"block_hashes": hs(1, 2), "block_token_counts": [16]}])
async def test_tokens_are_an_exact_hash_when_chains_are_ignored(wire: Wire, extra: dict[str, Any]) -> None:
    """With chain matching off token ids ask for their last block exactly, also beside a malformed chain."""
    wire.policy(replace(NO_CHAINS, minimum_prefix_tokens=32))
    await wire.report("A", exact(bytes.fromhex("ad01835a37dd294c"), 128))
    answer = await wire.lookup(token_ids=range(1, 33), **extra)
    assert [(s.replica_id, s.matched_tokens) for s in answer.replica_scores] == [("A", 128)]


async def test_a_miss_beside_a_malformed_chain_is_no_affinity(wire: Wire) -> None:
    """With chain matching off a malformed chain does not spoil the lookup, but there is no stable replica."""
    wire.policy(NO_CHAINS)
    await wire.report("A", exact(h("p"), 128))
    answer = await wire.lookup(h("novel"), block_hashes=hs(1, 2), block_token_counts=[16])
    assert answer.reason_code == "NO_HINT"


async def test_a_policy_is_one_tenants(wire: Wire) -> None:
    """Other tenants keep the defaults."""
    wire.policy(Policy(require_chain=True))
    await wire.report("A", exact(h("p"), 128), tenant_id="team-b")
    assert (await wire.lookup(h("p"), tenant_id="team-b")).reason_code == "PREFIX_MATCH"
