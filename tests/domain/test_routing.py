from __future__ import annotations

import dataclasses

import pytest

from inference_cache.domain import reasons
from inference_cache.domain.affinity import chain_seed, pick
from inference_cache.domain.blocks import join_keys
from inference_cache.domain.float32 import f32
from inference_cache.domain.models import (
    RESERVED_TENANT,
    ChainEvidence,
    ExactEvidence,
    ModelKey,
    Partition,
    Presence,
)
from inference_cache.domain.policy import Policy
from inference_cache.domain.ranking import Score
from inference_cache.domain.requests import LookupRequest
from inference_cache.domain.routing import Answer, Query, decide, give_up, needs_presence, plan, wants_tokens
from inference_cache.domain.tuning import Tuning
from tests.domain.evidence import (
    NOW,
    OPEN,
    answer,
    ask,
    ask_chain,
    ask_exact,
    chain,
    exact,
    holder,
    points,
    query,
    refused,
    run,
    serving,
    stats,
)

AFFINE = Policy(minimum_matched_tokens=0, routing_floor_score=0.0)
"""No floors, but the fallback."""
CHAINS_ONLY = dataclasses.replace(OPEN, require_chain=True)
NO_CHAINS = dataclasses.replace(OPEN, enable_chain_matching=False)
NO_CHAINS_AFFINE = dataclasses.replace(AFFINE, enable_chain_matching=False)
WARM = (("r1", stats(hit_rate=0.5)),)
TWO_BLOCKS = list(range(1, 33))


def warm_miss(*, total: int = 1) -> ExactEvidence:
    """Return a miss in a scope with a warm replica."""
    return ExactEvidence(serving=serving(total, "r1"), warm=WARM)


# What needs no index.


def test_the_reserved_tenant_gets_nothing() -> None:
    """Callers cannot ask for the self-test's tenant: no scores, no echo, not even where a chain is required."""
    request = ask_exact(tenant=RESERVED_TENANT, adapter="sql")
    assert refused(request) == Answer(reasons.NO_HINT, dropped=reasons.RESERVED_TENANT)
    assert refused(request, CHAINS_ONLY).reason == reasons.NO_HINT


@pytest.mark.parametrize(
    "request_",
    [
        ask_exact(64),
        ask(hashes=[b"a", b"b"], counts=[16]),
        ask(counts=[16]),
        ask(token_ids=TWO_BLOCKS),
        ask(text="hello"),
        ask(),
        ask_exact(tenant=""),
    ],
    ids=["hash", "malformed", "counts", "tokens", "text", "nothing", "empty tenant"],
)
def test_a_policy_can_require_chains(request_: LookupRequest) -> None:
    """Only a well-formed chain as sent will do; the index is not asked and nothing is echoed."""
    assert refused(request_._replace(adapter_id="sql"), CHAINS_ONLY) == Answer(reasons.POLICY_REQUIRES_CHAIN)


def test_a_well_formed_chain_satisfies_the_policy() -> None:
    """With a chain the request goes its way."""
    assert query(ask_chain(16), CHAINS_ONLY).is_chain


def test_required_but_not_looked_at() -> None:
    """A policy that requires chains and ignores them refuses exact hashes and finds nothing in a chain alone."""
    both = dataclasses.replace(CHAINS_ONLY, enable_chain_matching=False)
    assert refused(ask_exact(64), both).reason == reasons.POLICY_REQUIRES_CHAIN
    assert refused(ask_chain(16), both) == Answer(reasons.NO_HINT, dropped=reasons.CHAIN_MATCHING_OFF)
    assert not query(ask_chain(16, prefix_hash=b"p"), both).is_chain


@pytest.mark.parametrize(
    ("request_", "policy", "dropped"),
    [
        (ask(hashes=[b"a", b"b"], counts=[16]), AFFINE, reasons.MISMATCHED_ARRAYS),
        (ask(counts=[16]), AFFINE, reasons.MISMATCHED_ARRAYS),
        (ask_exact(64, counts=[16]), AFFINE, reasons.MISMATCHED_ARRAYS),
        (ask_chain(16, -16), AFFINE, reasons.NEGATIVE_COUNT),
        (ask(token_ids=range(8)), AFFINE, reasons.PARTIAL_BLOCK),
        (ask(text="hello"), AFFINE, reasons.NO_TOKENS),
        (ask_chain(16), NO_CHAINS_AFFINE, reasons.CHAIN_MATCHING_OFF),
    ],
)
def test_malformed_requests_get_no_hint_and_no_affinity(request_: LookupRequest, policy: Policy, dropped: str) -> None:
    """The index is not asked, the adapter is not echoed, and the reason is there to be counted."""
    request = request_._replace(adapter_id="sql")
    assert refused(request, policy) == Answer(reasons.NO_HINT, dropped=dropped)


def test_too_many_token_ids() -> None:
    """One token beyond the limit gets no hint."""
    assert refused(ask(token_ids=range(2**20 + 1))).dropped == reasons.TOO_MANY_TOKENS


@pytest.mark.parametrize("missing", ["tenant_id", "model_id", "hash_scheme"])
@pytest.mark.parametrize("inputs", [ask_exact(64), ask_chain(16), ask()], ids=["hash", "chain", "nothing"])
def test_empty_keys_match_nothing(missing: str, inputs: LookupRequest) -> None:
    """Without tenant, model or scheme there is no match, no affinity and no diagnosis; the adapter is echoed."""
    request = inputs._replace(adapter_id="sql", **{missing: ""})  # type: ignore[arg-type]
    assert refused(request, Policy()) == Answer(reasons.NO_HINT, adapter_id="sql", dropped=reasons.EMPTY_KEY)


# The minimum of a prompt's tokens.


@pytest.mark.parametrize(
    ("request_", "minimum", "asked"),
    [
        (ask_exact(100), 50, True),
        (ask_exact(50), 50, True),
        (ask_exact(10), 200, False),
        (ask_exact(), 1, False),
        (ask_chain(16, 16, 16), 32, True),
        (ask_chain(16, 16), 200, False),
        (ask_chain(16, 16, 16, prefix_hash=b"p", tokens=999), 49, False),
        (ask(token_ids=TWO_BLOCKS), 32, True),
        (ask(token_ids=TWO_BLOCKS), 33, False),
    ],
)
def test_short_prompts_do_not_touch_the_index(request_: LookupRequest, minimum: int, asked: bool) -> None:
    """Without affinity, fewer effective tokens than the minimum end before the index; chain counts beat the other."""
    policy = dataclasses.replace(OPEN, minimum_prefix_tokens=minimum)
    step = plan(request_._replace(adapter_id="sql"), policy, Tuning())
    assert isinstance(step, Query) if asked else step == Answer(reasons.NO_HINT)


def test_chain_counts_are_ignored_without_chain_matching() -> None:
    """The minimum judges the exact hash' own count."""
    policy = dataclasses.replace(NO_CHAINS, minimum_prefix_tokens=100)
    assert refused(ask_exact(10, hashes=[b"x"], counts=[200]), policy) == Answer(reasons.NO_HINT)


def test_short_prompts_fall_back_to_affinity() -> None:
    """With affinity a short prompt gets its stable replica, whether it would have matched or not."""
    policy = dataclasses.replace(AFFINE, minimum_prefix_tokens=1024)
    hit = answer(ask_exact(1), exact(1, holder("r1", 64)), policy)
    assert hit == Answer(reasons.AFFINITY_HINT, (Score("r1"),))
    assert answer(ask_chain(1), chain(1, run("r1", 1)), policy) == hit
    assert answer(ask_chain(1), ChainEvidence(serving=("r1",)), policy) == hit


def test_short_prompts_are_never_sent_to_warm_replicas() -> None:
    """Below the minimum the warm fallback does not count, and its statistics are not fetched."""
    policy = dataclasses.replace(AFFINE, minimum_prefix_tokens=1024)
    assert not query(ask_exact(1), policy).want_warm
    assert answer(ask_exact(1), warm_miss(), policy).reason == reasons.AFFINITY_HINT


def test_short_prompts_are_still_diagnosed() -> None:
    """A wrong scheme is told below the minimum, and never covered by affinity."""
    policy = dataclasses.replace(AFFINE, minimum_prefix_tokens=1024)
    assert answer(ask_exact(1), ExactEvidence(), policy) == Answer(reasons.UNKNOWN_HASH_SCHEME)


# What is asked.


def test_the_query_names_scope_and_partition() -> None:
    """Tenant and model choose the index, scheme and adapter the partition, byte for byte as sent."""
    asked = query(ask_exact(64, tenant=" T/{", model="m\0", scheme="vLLM", adapter="sql "))
    assert asked.model == ModelKey(" T/{", "m\0")
    assert asked.partition == Partition("vLLM", "sql ")
    assert (asked.is_chain, asked.keys, asked.effective_tokens) == (False, b"prefix-a", 64)


def test_a_chain_is_asked_by_its_keys() -> None:
    """Hashes of any width become keys, in order and with repeats."""
    hashes = [b"12345678", b"wider than eight bytes", b"12345678"]
    asked = query(ask(hashes=hashes, counts=[16] * 3))
    assert asked.is_chain
    assert asked.keys == join_keys(hashes)
    assert len(asked.keys) == 24


def test_a_chain_is_asked_up_to_its_first_empty_hash() -> None:
    """Nothing at or behind an empty hash can match; a chain that begins with one asks only who serves."""
    asked = query(ask(hashes=[b"12345678", b"", b"abcdefgh"], counts=[16] * 3))
    assert (asked.keys, asked.effective_tokens, asked.dropped) == (b"12345678", 48, reasons.EMPTY_HASH)
    assert query(ask(hashes=[b"", b"abcdefgh"], counts=[16] * 2)).keys == b""


def test_an_empty_hash_stays_in_the_seed() -> None:
    """The stable replica is that of the whole chain as sent, and the empty hash is counted."""
    hashes = [b"12345678", b"", b"abcdefgh"]
    replicas = serving(7)
    given = answer(ask(hashes=hashes, counts=[16] * 3), ChainEvidence(serving=replicas), AFFINE)
    picked = pick(chain_seed(hashes), replicas, "modulo")
    assert given == Answer(reasons.AFFINITY_HINT, (Score(picked or ""),), dropped=reasons.EMPTY_HASH)


def test_nothing_is_asked_as_an_empty_key() -> None:
    """A request without inputs asks for warm replicas and the scope."""
    asked = query(ask())
    assert (asked.is_chain, asked.keys, asked.want_warm) == (False, b"", True)


@pytest.mark.parametrize(
    ("request_", "policy", "tuning", "want"),
    [
        (ask_exact(64), OPEN, Tuning(), True),
        (ask_chain(16), OPEN, Tuning(), False),
        (ask(token_ids=TWO_BLOCKS), OPEN, Tuning(), False),
        (ask(token_ids=TWO_BLOCKS), NO_CHAINS, Tuning(), True),
        (ask_exact(64), dataclasses.replace(OPEN, enable_tenant_hot=False), Tuning(), False),
        (ask_exact(64), OPEN, Tuning(hot_max_age_ms=0), False),
    ],
)
def test_warmth_is_asked_for_only_where_it_may_answer(
    request_: LookupRequest, policy: Policy, tuning: Tuning, want: bool
) -> None:
    """Chains never fall back to warm replicas, derived ones neither; policy and operator can switch it off."""
    assert query(request_, policy, tuning).want_warm is want


def test_a_query_expires_by_the_tenants_ttl() -> None:
    """What the store is asked with is now less the policy's TTL."""
    assert query(ask_exact(), dataclasses.replace(OPEN, ttl_ms=5000)).expired_at_ms(NOW) == NOW - 5000


# Matches.


def test_an_exact_hit() -> None:
    """One of three replicas holds 64 tokens: it alone is answered, with the default floors."""
    given = answer(ask_exact(10, adapter="sql"), exact(3, holder("r0", 64)), Policy())
    assert (given.reason, given.adapter_id) == (reasons.PREFIX_MATCH, "sql")
    assert given.scores == (Score("r0", f32(64 * f32(2 / 3)), 64, 1.0, 1),)


def test_a_chain_hit_counts_the_requests_tokens() -> None:
    """Three of five known blocks of 64 tokens match 192."""
    given = answer(ask_chain(*[64] * 5), chain(1, run("r1", 3)), Policy())
    assert given.reason == reasons.PREFIX_MATCH
    assert given.scores[0].matched_tokens == 192


def test_zero_scores_are_a_match_until_the_floor() -> None:
    """When everybody holds it the match is useless, but it is one without a floor."""
    everybody = exact(3, *(holder(f"r{at}", 1500) for at in range(3)))
    assert answer(ask_exact(), everybody).reason == reasons.PREFIX_MATCH
    floored = dataclasses.replace(OPEN, routing_floor_score=f32(0.1))
    assert answer(ask_exact(), everybody, floored) == Answer(reasons.NO_HINT)


def test_a_zero_score_match_is_not_replaced_by_warmth_or_diagnosis() -> None:
    """A miss begins where the list of holders is empty, not where the scores are low."""
    held = ExactEvidence((holder("r1", 64, stats=stats(hit_rate=0.9)),), ("r1", "r2"), WARM)
    assert answer(ask_exact(), held).reason == reasons.PREFIX_MATCH
    assert len(answer(ask_exact(), held).scores) == 1


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        (Policy(affinity_routing=False), reasons.NO_HINT),
        (Policy(), reasons.AFFINITY_HINT),
        (Policy(minimum_matched_tokens=0, routing_floor_score=100.0, affinity_routing=False), reasons.NO_HINT),
        (Policy(minimum_matched_tokens=0), reasons.PREFIX_MATCH),
    ],
)
def test_floored_matches_fall_back_to_affinity(policy: Policy, reason: str) -> None:
    """A match of 16 tokens dies at the default floor and is then a miss like any other."""
    assert answer(ask_exact(), exact(2, holder("r1", 16)), policy).reason == reason


def test_the_floor_of_matched_tokens_keeps_the_deep() -> None:
    """Of a run of 64 and one of 16 tokens only the first is answered, with the score it had beside the other."""
    given = answer(ask_chain(*[16] * 4), chain(3, run("A", 4), run("B", 1)), Policy())
    assert points(given.scores) == pytest.approx({"A": 64 * 2 / 3})


# Misses.


def test_a_warm_replica_answers_an_exact_miss() -> None:
    """Nobody holds the prefix, but one replica's cache is hot."""
    given = answer(ask_exact(adapter="new"), warm_miss(total=3), AFFINE)
    assert given == Answer(reasons.TENANT_HOT, (Score("r1", 0.5, 0, 0.5, 0),), "new")


def test_floors_do_not_judge_warmth() -> None:
    """A warm replica matches no tokens and scores below any floor; that is no reason to drop it."""
    policy = Policy(routing_floor_score=1000.0, affinity_routing=False)
    assert answer(ask_exact(), warm_miss(), policy).reason == reasons.TENANT_HOT


def test_a_request_without_inputs_is_sent_to_warm_replicas() -> None:
    """Warmth needs no prefix."""
    assert answer(ask(), warm_miss(), AFFINE).reason == reasons.TENANT_HOT


def test_the_warm_fallback_can_be_switched_off() -> None:
    """The policy's switch turns the answer into a plain miss."""
    policy = dataclasses.replace(OPEN, enable_tenant_hot=False)
    assert answer(ask_exact(), warm_miss(), policy) == Answer(reasons.NO_HINT)
    affine = dataclasses.replace(AFFINE, enable_tenant_hot=False)
    assert answer(ask_exact(), warm_miss(), affine).reason == reasons.AFFINITY_HINT


def test_cold_replicas_are_no_warm_ones() -> None:
    """A scope whose replicas have low hit rates is a plain miss."""
    cold = ExactEvidence(serving=("r1",), warm=(("r1", stats(hit_rate=0.05)),))
    assert answer(ask_exact(), cold) == Answer(reasons.NO_HINT)


@pytest.mark.parametrize("request_", [ask_exact(), ask_chain(16), ask()], ids=["hash", "chain", "nothing"])
@pytest.mark.parametrize(
    ("presence", "reason"),
    [
        (Presence(index=False, tenant=False, model=False), reasons.NO_HINT),
        (Presence(index=True, tenant=False, model=False), reasons.UNKNOWN_TENANT),
        (Presence(index=True, tenant=True, model=False), reasons.UNKNOWN_MODEL),
        (Presence(index=True, tenant=True, model=True), reasons.UNKNOWN_HASH_SCHEME),
    ],
)
def test_diagnostics_name_the_outermost_unknown_key(request_: LookupRequest, presence: Presence, reason: str) -> None:
    """An empty scope is explained, with the adapter echoed and never covered by affinity; a cold index is not."""
    evidence = ChainEvidence() if request_.block_hashes else ExactEvidence()
    request = request_._replace(adapter_id="sql")
    assert answer(request, evidence, AFFINE, presence=presence) == Answer(reason, adapter_id="sql")


@pytest.mark.parametrize(
    ("evidence", "needed"),
    [
        (ExactEvidence(), True),
        (ChainEvidence(), True),
        (warm_miss(), False),
        (exact(3, holder("r1", 1)), False),
        (ChainEvidence(serving=("r1",)), False),
    ],
)
def test_the_wider_index_is_asked_only_for_an_empty_scope(
    evidence: ChainEvidence | ExactEvidence, needed: bool
) -> None:
    """While anybody serves the scope all keys are known."""
    request = ask_chain(16) if isinstance(evidence, ChainEvidence) else ask_exact()
    assert needs_presence(query(request), evidence) is needed


def test_a_missing_presence_is_a_bug_not_an_answer() -> None:
    """Forgetting to ask must not look like a cold index."""
    with pytest.raises(ValueError, match="presence"):
        decide(query(ask_exact()), ExactEvidence(), None, NOW, Tuning())
    assert decide(query(ask_exact()), warm_miss(), None, NOW, Tuning()).reason == reasons.TENANT_HOT


# Affinity.


def test_a_miss_gets_a_stable_replica() -> None:
    """Worked example: an exact miss over three replicas, with nothing but the id in the score."""
    scope = ExactEvidence(serving=("replica-a", "replica-b", "replica-c"))
    given = answer(ask_exact(adapter="x"), scope, Policy())
    assert given == Answer(reasons.AFFINITY_HINT, (Score("replica-c", 0.0, 0, 0.0, 0),), "x")
    assert answer(ask_exact(adapter="x"), scope, Policy()) == given


def test_a_chain_miss_never_goes_to_warm_replicas() -> None:
    """A chain that nobody holds gets affinity, or nothing without it; also one derived from tokens."""
    scope = ChainEvidence(serving=("pod-0", "pod-1", "pod-10", "pod-2"))
    for request in (
        ask(token_ids=TWO_BLOCKS),
        ask(hashes=list(query(ask(token_ids=TWO_BLOCKS)).hashes), counts=[1, 1]),
    ):
        assert answer(request, scope, Policy()) == Answer(reasons.AFFINITY_HINT, (Score("pod-1"),))
        assert answer(request, scope) == Answer(reasons.NO_HINT)


def test_no_inputs_no_seed() -> None:
    """A request without inputs has nothing to be stable by."""
    assert answer(ask(), ExactEvidence(serving=("r1",)), Policy()) == Answer(reasons.NO_HINT)


def test_malformed_arrays_forbid_affinity_even_when_ignored() -> None:
    """Without chain matching a malformed chain beside a hash or tokens still gives no stable replica."""
    scope = ExactEvidence(serving=("r1",))
    malformed = {"hashes": [b"x", b"y"], "counts": [1]}
    sound = {"hashes": [b"x"], "counts": [1]}
    assert answer(ask_exact(1, **malformed), scope, NO_CHAINS_AFFINE) == Answer(reasons.NO_HINT)
    assert answer(ask(token_ids=TWO_BLOCKS, hashes=[b"x"]), scope, NO_CHAINS_AFFINE) == Answer(reasons.NO_HINT)
    assert answer(ask_exact(1, **sound), scope, NO_CHAINS_AFFINE).reason == reasons.AFFINITY_HINT


def test_without_chain_matching_tokens_are_seeded_by_their_last_block() -> None:
    """The seed is the last block's eight bytes, unframed."""
    replicas = serving(7)
    asked = query(ask(token_ids=TWO_BLOCKS), NO_CHAINS_AFFINE)
    assert asked.keys.hex() == "ad01835a37dd294c"
    given = answer(ask(token_ids=TWO_BLOCKS), ExactEvidence(serving=replicas), NO_CHAINS_AFFINE)
    assert given.scores == (Score(pick(bytes.fromhex("ad01835a37dd294c"), replicas, "modulo") or ""),)


def test_affinity_follows_the_servers_mode() -> None:
    """Rendezvous picks by its own rule."""
    replicas = serving(5)
    picks = {
        mode: answer(ask_exact(), ExactEvidence(serving=replicas), AFFINE, Tuning(affinity=mode)).scores[0].replica_id
        for mode in ("modulo", "rendezvous")
    }
    assert picks == {mode: pick(b"prefix-a", replicas, mode) for mode in ("modulo", "rendezvous")}
    assert picks["modulo"] != picks["rendezvous"]


# Tokens of a prompt text.


def test_tokens_of_the_text_are_echoed_on_every_answer() -> None:
    """A gateway that sent text gets the tokens back with whatever the index says, and when it says nothing."""
    asked = plan(ask(text="hello"), AFFINE, Tuning(), TWO_BLOCKS)
    assert not isinstance(asked, Answer)
    assert decide(asked, chain(1, run("r", 2)), None, NOW, Tuning()).token_ids == TWO_BLOCKS
    assert decide(asked, ChainEvidence(serving=("r",)), None, NOW, Tuning()).token_ids == TWO_BLOCKS
    assert give_up(asked, reasons.TIMEOUT) == Answer(reasons.TIMEOUT, token_ids=TWO_BLOCKS)
    short = dataclasses.replace(OPEN, minimum_prefix_tokens=1000)
    assert plan(ask(text="hello"), short, Tuning(), TWO_BLOCKS) == Answer(reasons.NO_HINT, token_ids=TWO_BLOCKS)
    assert plan(ask(text="hello"), AFFINE, Tuning(), [1]) == Answer(
        reasons.NO_HINT, token_ids=[1], dropped=reasons.PARTIAL_BLOCK
    )


@pytest.mark.parametrize(
    ("request_", "policy", "wanted"),
    [
        (ask(text="hello"), OPEN, True),
        (ask(), OPEN, False),
        (ask_exact(text="hello"), OPEN, False),
        (ask(text="hello", token_ids=[1]), OPEN, False),
        (ask_chain(16, text="hello"), OPEN, False),
        (ask(text="hello", counts=[1]), OPEN, False),
        (ask_chain(16, text="hello"), NO_CHAINS, True),
        (ask(text="hello"), CHAINS_ONLY, False),
        (ask(text="hello", tenant=RESERVED_TENANT), OPEN, False),
        (ask(text="x" * (2**20 + 1)), OPEN, False),
    ],
)
def test_text_is_tokenized_only_where_it_decides(request_: LookupRequest, policy: Policy, wanted: bool) -> None:
    """No tokenizer is bothered for an answer that does not depend on it."""
    assert wants_tokens(request_, policy, Tuning()) is wanted
    if not wanted:
        with_tokens = plan(request_, policy, Tuning(), TWO_BLOCKS)
        assert with_tokens == plan(request_, policy, Tuning())


def test_giving_up_keeps_nothing_but_the_reason() -> None:
    """Without the index there are no scores and no adapter echo; what had to be counted still is."""
    asked = query(ask(hashes=[b"12345678", b""], counts=[1, 1], adapter="sql"))
    assert give_up(asked, reasons.INDEX_UNAVAILABLE) == Answer(reasons.INDEX_UNAVAILABLE, dropped=reasons.EMPTY_HASH)
    assert give_up(None, reasons.TIMEOUT) == Answer(reasons.TIMEOUT)


def test_reason_codes_are_their_own_names() -> None:
    """The codes are the contract's words."""
    assert {getattr(reasons, code) for code in reasons.REASON_CODES} == set(reasons.REASON_CODES)
    assert len(reasons.REASON_CODES) == 10
