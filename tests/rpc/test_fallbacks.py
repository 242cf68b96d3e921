"""What a miss becomes: warm replicas, diagnostics, a stable replica, or nothing."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from inference_cache.domain.policy import Policy
from tests.rpc.wire import AFFINITY_OFF, MINUTE, Wire, asks, chain, exact, h, hs, ids

HOT = {"hit_rate": 0.8, "pressure": 0.1}


async def test_a_match_is_better_than_warmth(wire: Wire) -> None:
    """With a holder, warm replicas are not named."""
    await wire.report("A", exact(h("p"), 64), stats=HOT)
    await wire.report("B", stats={"hit_rate": 0.95})
    answer = await wire.lookup(h("p"))
    assert (answer.reason_code, ids(answer)) == ("PREFIX_MATCH", ["A"])


async def test_warm_replicas_of_the_scope(wire: Wire) -> None:
    """A novel exact hash names the replicas whose hit rate is high enough, and claims no tokens and no tier."""
    await wire.report("warm", exact(h(1), 64), stats={"hit_rate": 0.7, "pressure": 0.1})
    await wire.report("cold", exact(h(2), 64), stats={"hit_rate": 0.05})
    answer = await wire.lookup(h("novel"))
    assert (answer.reason_code, ids(answer)) == ("TENANT_HOT", ["warm"])
    score = answer.replica_scores[0]
    assert (score.matched_tokens, score.tier) == (0, 0)
    assert score.estimated_cache_hit_prob == pytest.approx(0.7)
    assert score.score == pytest.approx(0.63, rel=0.02)


@pytest.mark.parametrize("hit_rate", [0.0, 0.95])
async def test_statistics_alone_make_nobody_warm(wire: Wire, hit_rate: float) -> None:
    """A replica without blocks serves nothing, and statistics are no content of the index."""
    await wire.report("A", stats={"hit_rate": hit_rate})
    answer = await wire.lookup(h("novel"))
    assert (answer.reason_code, ids(answer)) == ("NO_HINT", [])


@pytest.mark.parametrize("heartbeat", [False, True])
async def test_old_statistics_are_not_warm(wire: Wire, heartbeat: bool) -> None:
    """From five minutes on statistics tell nothing, even of a replica that says it lives."""
    wire.policy(AFFINITY_OFF)
    await wire.report("A", exact(h(1), 64))
    await wire.report("A", stats=HOT, age_ms=10 * MINUTE)
    if heartbeat:
        await wire.event("REPLICA_UPDATED", "A")
    assert (await wire.lookup(h("novel"))).reason_code == "NO_HINT"


async def test_statistics_from_the_future_are_fresh(wire: Wire) -> None:
    """A producer whose clock is ahead is warm now, and scores no more than its hit rate."""
    await wire.report("A", exact(h(1), 64), stats={"hit_rate": 0.5}, age_ms=-2 * MINUTE)
    answer = await wire.lookup(h("novel"))
    assert answer.reason_code == "TENANT_HOT"
    assert answer.replica_scores[0].score <= 0.5


@pytest.mark.parametrize("scope", [{"hash_scheme": "sglang"}, {"tenant_id": "team-b"}, {"model_id": "m2"}])
async def test_warmth_stays_in_its_scope(wire: Wire, scope: dict[str, str]) -> None:
    """A replica is warm for the scheme, tenant and model in which it holds something."""
    for tenant in ("team-a", "team-b"):
        wire.policy(AFFINITY_OFF, tenant)
    await wire.report("A", exact(h(1), 64), stats=HOT)
    await wire.report("B", exact(h(1), 64), **scope)
    answer = await wire.lookup(h("novel"), **scope)
    # statistics have no scheme: A's are about its blocks under another one
    assert (answer.reason_code, ids(answer)) == ("NO_HINT", [])


async def test_warmth_can_be_switched_off(wire: Wire) -> None:
    """A tenant's policy turns TENANT_HOT into no hint."""
    wire.policy(Policy(enable_tenant_hot=False, affinity_routing=False))
    await wire.report("A", exact(h(1), 64), stats=HOT)
    assert (await wire.lookup(h("novel"))).reason_code == "NO_HINT"


@pytest.mark.parametrize("question", [{"prefix_hash": h("novel")}, asks(hs("novel"))], ids=["exact", "chain"])
@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"tenant_id": "default"}, "UNKNOWN_TENANT"),
        ({"model_id": "m2"}, "UNKNOWN_MODEL"),
        ({"hash_scheme": "vllm-v1"}, "UNKNOWN_HASH_SCHEME"),
        ({"hash_scheme": "vllm-v1", "adapter_id": "sql"}, "UNKNOWN_HASH_SCHEME"),
        ({"tenant_id": "default", "model_id": "m2", "hash_scheme": "vllm-v1"}, "UNKNOWN_TENANT"),
        ({"model_id": "m2", "hash_scheme": "vllm-v1"}, "UNKNOWN_MODEL"),
    ],
)
async def test_a_wrong_key_is_named(wire: Wire, question: dict[str, object], keys: dict[str, str], reason: str) -> None:
    """The outermost key under which nothing is held is the answer, without scores and with the adapter's echo."""
    await wire.report("A", exact(h(1), 64, adapter_id="sql"), stats=HOT)
    answer = await wire.lookup(**question, **keys)  # type: ignore[arg-type]
    assert (answer.reason_code, ids(answer), answer.adapter_id) == (reason, [], keys.get("adapter_id", ""))


@pytest.mark.parametrize("key", ["tenant_id", "model_id", "hash_scheme"])
async def test_a_missing_key_is_no_hint(wire: Wire, key: str) -> None:
    """Without tenant, model or scheme there is never a hint, also where something was reported so."""
    await wire.report("A", exact(h(1), 64), stats=HOT)
    await wire.report("A", exact(h(1), 64), stats=HOT, **{key: ""})
    for question in ({"prefix_hash": h(1)}, asks(hs(1), 64), {}):
        answer = await wire.lookup(**question, **{key: ""})  # type: ignore[arg-type]
        assert (answer.reason_code, ids(answer)) == ("NO_HINT", [])
    assert wire.counted("lookup_malformed_total", {"reason": "empty_key"}) == 3


async def test_an_empty_index_diagnoses_nothing(wire: Wire) -> None:
    """A cold index is no hint, whatever is asked."""
    for question in ({"prefix_hash": h(1)}, asks(hs(1)), {}):
        answer = await wire.lookup(**question)
        assert (answer.reason_code, ids(answer)) == ("NO_HINT", [])


async def test_what_is_gone_is_unknown_again(wire: Wire) -> None:
    """After a clear the model is unknown; when nothing at all is left, there is nothing to diagnose."""
    await wire.report("A", exact(h(1), 64))
    await wire.report("A", exact(h(1), 64), tenant_id="team-b")
    await wire.event("ALL_CLEARED", "A")
    assert (await wire.lookup(h(1))).reason_code == "UNKNOWN_TENANT"
    await wire.event("ALL_CLEARED", "A", tenant_id="team-b")
    assert (await wire.lookup(h(1))).reason_code == "NO_HINT"


async def test_the_adapter_is_not_diagnosed(wire: Wire) -> None:
    """An unseen adapter in a known scope is a novel prefix."""
    wire.policy(AFFINITY_OFF)
    await wire.report("A", exact(h(1), 64))
    assert (await wire.lookup(h(1), adapter_id="sql")).reason_code == "NO_HINT"


async def test_a_miss_goes_to_a_stable_replica(wire: Wire) -> None:
    """A novel prompt always names the same serving replica and claims nothing about it."""
    for at in range(3):
        await wire.report(f"r{at}", exact(h(at), 64))
    answers = [await wire.lookup(**asks(hs("n1", "n2"))) for _ in range(10)]
    assert {answer.reason_code for answer in answers} == {"AFFINITY_HINT"}
    assert len({tuple(ids(answer)) for answer in answers}) == 1
    score = answers[0].replica_scores[0]
    assert score.replica_id in {"r0", "r1", "r2"}
    assert (score.score, score.matched_tokens, score.estimated_cache_hit_prob, score.tier) == (0, 0, 0, 0)


async def test_the_pick_is_the_contracts(wire: Wire) -> None:
    """The replica is the contract's worked example: SHA-256 of the seed, its first eight bytes modulo the number."""
    for replica in ("pod-0", "pod-1", "pod-2", "pod-10"):
        await wire.report(replica, exact(h(replica), 64))
    hashes = [bytes.fromhex("ea06fc71a5ee6e88"), bytes.fromhex("ad01835a37dd294c")]
    assert ids(await wire.lookup(**asks(hashes))) == ["pod-1"]
    assert ids(await wire.lookup(hashes[0])) == ["pod-2"]
    assert ids(await wire.lookup(**asks(hashes[:1]))) == ["pod-1"]
    assert ids(await wire.lookup(token_ids=range(1, 33))) == ["pod-1"]


async def test_affinity_can_be_switched_off(wire: Wire) -> None:
    """A tenant's policy turns the stable replica into no hint."""
    wire.policy(AFFINITY_OFF)
    await wire.report("A", exact(h(1), 64))
    assert (await wire.lookup(**asks(hs("novel")))).reason_code == "NO_HINT"


async def test_nothing_to_hash_is_no_affinity(wire: Wire) -> None:
    """Without a prefix, or with a malformed chain, there is no stable replica."""
    await wire.report("A", exact(h(1), 64))
    assert (await wire.lookup()).reason_code == "NO_HINT"
    assert (await wire.lookup(h("novel"), block_token_counts=[16])).reason_code == "NO_HINT"


async def test_affinity_stays_in_its_scheme(wire: Wire) -> None:
    """Only replicas that serve the scheme are picked, whatever their adapter."""
    await wire.report("r-vllm", exact(h(1), 64, adapter_id="sql"), hash_scheme="vllm")
    await wire.report("r-sglang", exact(h(2), 64), hash_scheme="sglang")
    assert ids(await wire.lookup(h("novel"), hash_scheme="vllm")) == ["r-vllm"]
    assert ids(await wire.lookup(h("novel"), hash_scheme="sglang")) == ["r-sglang"]


async def test_expired_replicas_are_not_picked(wire: Wire) -> None:
    """A replica whose holdings have all expired serves nothing."""
    await wire.report("live", exact(h(1), 64))
    await wire.report("gone", exact(h(2), 64), age_ms=31 * MINUTE)
    assert {tuple(ids(await wire.lookup(h(("novel", at))))) for at in range(20)} == {("live",)}


async def test_affinity_spreads(wire: Wire) -> None:
    """Many prompts spread over the replicas."""
    for at in range(8):
        await wire.report(f"r{at}", exact(h(at), 64))
    seeds = random.Random(7)
    picks = Counter([ids(await wire.lookup(seeds.randbytes(32)))[0] for _ in range(1000)])
    assert len(picks) == 8
    assert all(80 <= number <= 220 for number in picks.values())


async def test_the_order_of_arrival_does_not_matter(wire: Wire) -> None:
    """Replicas reported in another order are picked alike."""
    for tenant, order in (("team-a", (0, 1, 2)), ("team-b", (2, 0, 1))):
        for at in order:
            await wire.report(f"r{at}", chain(hs(at)), tenant_id=tenant)
    for at in range(20):
        a, b = [await wire.lookup(h(("novel", at)), tenant_id=tenant) for tenant in ("team-a", "team-b")]
        assert ids(a) == ids(b) != []
