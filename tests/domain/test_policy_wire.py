from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_cache.domain.float32 import f32
from inference_cache.domain.policy import Policy
from inference_cache.domain.policy_set import PolicyRow, PolicySet, Quota, canonical_body, digest
from inference_cache.domain.policy_wire import MAX_BODY_BYTES, parse_policy_body, read_policy_body
from inference_cache.errors import PolicyError
from tests.domain.policy_cases import BAD_BODIES, policy

FLOOR = f32(0.1)
DEFAULT = Policy()


def body(version: int = 7, **fields: Any) -> bytes:
    return json.dumps({"version": version, **fields}).encode()


def one_row(version: int, **knobs: Any) -> PolicyRow:
    """Return what is stored for a body with one policy."""
    return parse_policy_body(body(version, policies=[{"namespace": "a", **knobs}])).policies["a"]


def in_force(version: int = 7, **knobs: Any) -> Policy:
    """Return the policy that a tenant has after a body with one row for it."""
    return parse_policy_body(body(version, policies=[{"namespace": "a", **knobs}])).for_tenant("a", DEFAULT)


@pytest.mark.parametrize("case", BAD_BODIES)
def test_a_bad_body_is_refused_with_what_is_wrong_where(case: str) -> None:
    """Whoever pushes learns the path and the reason; nothing of a bad body is used."""
    data, message = BAD_BODIES[case]
    with pytest.raises(PolicyError) as refused:
        parse_policy_body(data)
    assert str(refused.value) == message


def test_the_table_of_bad_bodies_is_large_enough() -> None:
    """Guards the table itself: at least 60 kinds of wrong."""
    assert len(BAD_BODIES) >= 60


def test_many_problems_are_told_up_to_a_bound() -> None:
    """A body that is wrong ten thousand times gets an answer of readable size."""
    with pytest.raises(PolicyError) as refused:
        parse_policy_body(body(policies=[7] * 10_000))
    assert len(refused.value.problems) == 21
    assert refused.value.problems[-1] == "and 9980 more"


def test_a_long_value_is_cut_in_the_message() -> None:
    """A message does not repeat a megabyte of input."""
    with pytest.raises(PolicyError) as refused:
        parse_policy_body(policy('"' + "x" * 100_000 + '":1,"affinityRouting":"' + "y" * 100_000 + '"'))
    assert len(str(refused.value)) < 300


def test_an_empty_set_clears_everything() -> None:
    """`{"version":7}` is a valid body without policies and quotas (W5)."""
    assert parse_policy_body(b'{"version":7}') == PolicySet()
    assert parse_policy_body(b' {"version":7,"policies":null,"tenants":null}\n') == PolicySet()


def test_a_full_body_is_stored_knob_by_knob() -> None:
    """Every field of version 7 arrives (W5, W13)."""
    read = parse_policy_body(
        b'{"version":7,"policies":[{"namespace":"team-a","evictionTTL":5400000000000,"minimumPrefixTokens":128,'
        b'"minimumMatchedTokens":256,"routingFloorScore":2.5,"lookupTimeoutMs":20,"affinityRouting":false,'
        b'"eviction":"lfu","strategy":{"enableChainMatching":false,"requireChain":true,"enableTenantHot":false}}],'
        b'"tenants":[{"tenantID":"team-a","maxIndexEntries":200000,"isolationMode":"Fairness"}]}'
    )
    assert read.for_tenant("team-a", DEFAULT) == Policy(
        ttl_ms=5_400_000,
        eviction="lfu",
        minimum_prefix_tokens=128,
        minimum_matched_tokens=256,
        routing_floor_score=2.5,
        lookup_timeout_ms=20,
        affinity_routing=False,
        enable_chain_matching=False,
        require_chain=True,
        enable_tenant_hot=False,
        max_index_entries=200_000,
    )
    assert read.quotas == {"team-a": Quota(200_000, "Fairness")}


def test_an_old_body_is_filled_with_what_its_writer_relied_on() -> None:
    """Version 3 had no floor, strategy or affinity; the rest is kept as it was sent (W9)."""
    read = parse_policy_body(
        body(
            3,
            policies=[
                {
                    "namespace": "a",
                    "evictionTTL": 900_000_000_000,
                    "minimumPrefixTokens": 32,
                    "lookupTimeoutMs": 25,
                    "eviction": "lfu",
                }
            ],
            tenants=[{"tenantID": "a", "maxIndexEntries": 7}],
        )
    )
    assert read.policies["a"] == PolicyRow(
        eviction_ttl_ns=900_000_000_000,
        minimum_prefix_tokens=32,
        minimum_matched_tokens=64,
        routing_floor_score=FLOOR,
        lookup_timeout_ms=25,
        affinity_routing=True,
        eviction="lfu",
        enable_chain_matching=True,
        require_chain=False,
        enable_tenant_hot=True,
    )
    assert read.quotas == {"a": Quota(7)}


@pytest.mark.parametrize(
    ("version", "said", "kept"),
    [(3, None, 64), (3, 0, 64), (3, 5, 5), (3, -1, 0), (4, None, 0), (4, 0, 0), (4, 5, 5), (7, None, 0), (7, -5, 0)],
)
def test_matched_tokens_of_0_were_no_choice_in_version_3(version: int, said: int | None, kept: int) -> None:
    """Version 3 could not tell 0 from nothing, so its 0 is 64 (NT23); later 0 and nothing are off (W10, NT24)."""
    assert one_row(version, minimumMatchedTokens=said).minimum_matched_tokens == kept


@pytest.mark.parametrize(
    ("version", "said", "kept"),
    [
        (3, None, FLOOR),
        (4, None, FLOOR),
        (5, None, None),
        (7, None, None),
        (4, 0, 0.0),
        (5, 0, 0.0),
        (7, 0, 0.0),
        (3, 5, 5.0),
        (7, -1, 0.0),
        (7, -0.0, 0.0),
        (7, 0.1, FLOOR),
    ],
)
def test_a_floor_of_0_is_a_choice(version: int, said: float | None, kept: float | None) -> None:
    """Absent is the default floor, 0 and below are off (W10, W11, F8)."""
    row = one_row(version, routingFloorScore=said)
    assert row.routing_floor_score == kept
    assert row.over(DEFAULT).routing_floor_score == (FLOOR if kept is None else kept)


@pytest.mark.parametrize("version", range(3, 8))
def test_strategy_is_filled_switch_by_switch_up_to_version_5(version: int) -> None:
    """An old body's explicit switches are kept and only the missing ones are said for it."""
    row = one_row(version, strategy={"requireChain": True})
    filled = True if version <= 5 else None
    assert (row.enable_chain_matching, row.require_chain, row.enable_tenant_hot) == (filled, True, filled)
    bare = one_row(version)
    assert bare.require_chain is (False if version <= 5 else None)
    policy_in_force = bare.over(DEFAULT)
    assert policy_in_force.enable_chain_matching
    assert not policy_in_force.require_chain
    assert policy_in_force.enable_tenant_hot


@pytest.mark.parametrize("version", range(3, 8))
def test_affinity_is_on_unless_switched_off(version: int) -> None:
    """Up to version 6 a missing switch is said for the writer; from 7 on it follows the server (W12)."""
    assert one_row(version).affinity_routing is (True if version <= 6 else None)
    assert in_force(version).affinity_routing
    assert not in_force(version, affinityRouting=False).affinity_routing
    assert in_force(version, affinityRouting=True).affinity_routing


@pytest.mark.parametrize(
    ("said_ns", "ttl_ms"),
    [
        (None, 1_800_000),
        (0, 1_800_000),
        (-1, 1_800_000),
        (1, 1),
        (1_000_000, 1),
        (1_000_001, 2),
        (2**63 - 1, 9_223_372_036_855),
    ],
)
def test_ttl_is_nanoseconds_on_the_wire(said_ns: int | None, ttl_ms: int) -> None:
    """A TTL of 0 or less is the default; one between milliseconds ends with the next, never before it is due."""
    assert in_force(evictionTTL=said_ns).ttl_ms == ttl_ms


@pytest.mark.parametrize(
    ("said", "stored"),
    [("lfu", "lfu"), ("LFU", "lfu"), ("Lfu", "lfu"), ("lru", "lru"), ("LRU", "lru"), ("", "lru"), (None, "lru")],
)
def test_eviction_is_read_in_any_case(said: str | None, stored: str) -> None:
    """The baseline compares this one value without case (W18)."""
    assert in_force(eviction=said).eviction == stored


@given(st.text(max_size=6))
def test_whatever_is_not_lfu_is_lru(word: str) -> None:
    """An algorithm nobody knows does not refuse the body, but it is counted."""
    read = read_policy_body(body(policies=[{"namespace": "a", "eviction": word}]))
    assert read.policy_set.policies["a"].eviction == ("lfu" if word.lower() == "lfu" else "lru")
    assert read.ignored == ({} if word.lower() in {"", "lru", "lfu"} else {"unknown_eviction": 1})


@pytest.mark.parametrize("knob", ["minimumPrefixTokens", "lookupTimeoutMs"])
def test_gates_at_0_or_below_are_off(knob: str) -> None:
    """0, negative and absent are one and the same."""
    assert one_row(7, **{knob: -5}) == one_row(7, **{knob: 0}) == one_row(7) == one_row(7, **{knob: -(2**31)})
    assert in_force(**{knob: 2**31 - 1}) != in_force()


def test_null_is_absent_everywhere() -> None:
    """Writers that print empty fields say the same as those that leave them out."""
    knobs = ("evictionTTL", "minimumPrefixTokens", "minimumMatchedTokens", "routingFloorScore", "lookupTimeoutMs")
    nulls = dict.fromkeys([*knobs, "affinityRouting", "eviction", "strategy"])
    assert one_row(7, **nulls) == PolicyRow()
    assert one_row(7, strategy=dict.fromkeys(["enableChainMatching", "requireChain", "enableTenantHot"])) == PolicyRow()
    row = {"tenantID": "a", "maxIndexEntries": None, "isolationMode": None}
    assert parse_policy_body(body(tenants=[row])).quotas == {"a": Quota(0)}


@pytest.mark.parametrize(("said", "kept"), [(-1, 0), (0, 0), (None, 0), (2**63 - 1, 2**63 - 1), (-(2**63), 0)])
def test_a_quota_below_0_is_0(said: int | None, kept: int) -> None:
    """A quota of less than nothing lets nothing survive, and so does one without a number (W16)."""
    read = parse_policy_body(body(tenants=[{"tenantID": "a", "maxIndexEntries": said}]))
    assert read.for_tenant("a", DEFAULT) == replace(DEFAULT, max_index_entries=kept)


def test_a_set_replaces_the_one_before() -> None:
    """What the next body does not name is back at the defaults and unlimited (W14)."""
    first = parse_policy_body(
        body(policies=[{"namespace": "a", "eviction": "lfu"}], tenants=[{"tenantID": "b", "maxIndexEntries": 1}])
    )
    assert first.for_tenant("a", DEFAULT) != DEFAULT != first.for_tenant("b", DEFAULT)
    second = parse_policy_body(body())
    assert second.for_tenant("a", DEFAULT) is second.for_tenant("b", DEFAULT) is DEFAULT


def test_rows_without_a_key_are_dropped_and_counted() -> None:
    """They can be meant for nobody (W15)."""
    read = read_policy_body(
        body(
            policies=[{"namespace": "", "eviction": "lfu"}, {}, None],
            tenants=[{"tenantID": ""}, {"maxIndexEntries": 5}, None],
        )
    )
    assert read.policy_set == PolicySet()
    assert read.ignored == {"empty_namespace": 3, "empty_tenant": 3}


def test_the_last_of_several_rows_counts() -> None:
    """As a whole: nothing of the earlier row shines through."""
    read = read_policy_body(
        body(
            policies=[{"namespace": "a", "eviction": "lfu"}, {"namespace": "a", "lookupTimeoutMs": 5}],
            tenants=[{"tenantID": "a", "maxIndexEntries": 5}, {"tenantID": "a", "maxIndexEntries": 6}],
        )
    )
    assert read.policy_set == PolicySet({"a": PolicyRow(lookup_timeout_ms=5)}, {"a": Quota(6)})
    assert read.ignored == {"duplicate_namespace": 1, "duplicate_tenant": 1}


def test_the_reserved_tenant_has_no_quota() -> None:
    """Its quota is left out (W17); a policy of that name is kept, as in the baseline."""
    probe = "inferencecache.io/probe"
    read = read_policy_body(
        body(policies=[{"namespace": probe, "eviction": "lfu"}], tenants=[{"tenantID": probe, "maxIndexEntries": 0}])
    )
    assert read.policy_set == PolicySet({probe: PolicyRow(eviction="lfu")})
    assert read.ignored == {"reserved_tenant": 1}


@pytest.mark.parametrize("name", ["A", " a", "a ", "á", "a\u0301", "a\0", "😀", '"', "<&>"])
def test_keys_are_kept_byte_for_byte(name: str) -> None:
    """No trimming, no folding: a name is found as it was said, and never as another."""
    read = parse_policy_body(
        canonical_body(parse_policy_body(body(policies=[{"namespace": name}, {"namespace": "a"}])))
    )
    assert set(read.policies) == {name, "a"}


@pytest.mark.parametrize("version", [3, 7])
def test_a_body_of_the_largest_size_is_read(version: int) -> None:
    """Exactly 1 MiB passes, one byte more does not (W8)."""
    data = body(version, policies=[])
    data += b" " * (MAX_BODY_BYTES - len(data))
    assert parse_policy_body(data) == PolicySet()
    with pytest.raises(PolicyError, match="larger than 1048576 bytes"):
        parse_policy_body(data + b" ")


def test_what_would_be_too_large_to_be_posted_back_is_refused() -> None:
    """Filling in an old body can make it grow beyond what any server takes; so it is refused at the door."""
    data = body(3, policies=[{"namespace": f"{number:05}"} for number in range(20_000)])
    assert len(data) < MAX_BODY_BYTES
    with pytest.raises(PolicyError, match=r"body: \d{7} bytes in its canonical form, more than 1048576"):
        parse_policy_body(data)


def test_knobs_of_a_newer_version_are_known_in_an_old_one() -> None:
    """One schema for all versions: a version 3 body may already say what came later."""
    assert not one_row(3, affinityRouting=False, strategy={"enableTenantHot": False}).affinity_routing


NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
KNOWN = st.none() | st.booleans()
ROWS = st.builds(
    PolicyRow,
    eviction_ttl_ns=st.integers(0, 2**63 - 1),
    minimum_prefix_tokens=st.integers(0, 2**31 - 1),
    minimum_matched_tokens=st.integers(0, 2**31 - 1),
    routing_floor_score=st.none() | st.floats(0, allow_infinity=False, allow_nan=False, width=32).map(abs),
    lookup_timeout_ms=st.integers(0, 2**31 - 1),
    affinity_routing=KNOWN,
    eviction=st.sampled_from(["lru", "lfu"]),
    enable_chain_matching=KNOWN,
    require_chain=KNOWN,
    enable_tenant_hot=KNOWN,
)
QUOTAS = st.builds(Quota, st.integers(0, 2**63 - 1), NAMES | st.just(""))
SETS = st.builds(
    PolicySet,
    st.dictionaries(NAMES, ROWS, max_size=4),
    st.dictionaries(NAMES.filter(lambda name: name != "inferencecache.io/probe"), QUOTAS, max_size=4),
)


@given(SETS)
def test_a_canonical_body_gives_the_same_set_back(policy_set: PolicySet) -> None:
    """What GET answers can be posted, and its digest does not change by it."""
    data = canonical_body(policy_set)
    read = read_policy_body(data)
    assert read.policy_set == policy_set
    assert read.ignored == {}
    assert digest(canonical_body(read.policy_set)) == digest(data)


@given(SETS, st.randoms())
def test_order_and_spacing_do_not_change_the_digest(policy_set: PolicySet, random: Any) -> None:
    """Controllers print rows and keys in any order; the set is the same."""
    tree = json.loads(canonical_body(policy_set))
    for rows in (tree["policies"], tree["tenants"]):
        random.shuffle(rows)
        rows[:] = [dict(sorted(row.items(), reverse=True)) for row in rows]
    again = parse_policy_body(json.dumps(tree, indent=2).encode())
    assert canonical_body(again) == canonical_body(policy_set)


@given(SETS, st.integers(3, 6))
def test_posting_an_old_body_twice_is_posting_it_once(policy_set: PolicySet, version: int) -> None:
    """What was filled in is said in version 7, so that no server fills it in otherwise."""
    tree = json.loads(canonical_body(policy_set))
    once = parse_policy_body(json.dumps(tree | {"version": version}).encode())
    assert parse_policy_body(canonical_body(once)) == once


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=5), NAMES)
def test_any_value_at_any_knob_is_taken_or_refused(value: Any, unknown: str) -> None:
    """Nothing but a refusal comes out of a wrong type: no crash, no silent default."""
    for knob in ["namespace", "evictionTTL", "routingFloorScore", "affinityRouting", "eviction", "strategy", unknown]:
        try:
            parse_policy_body(body(policies=[{knob: value}]))
        except PolicyError as refused:
            assert refused.problems  # noqa: PT017 - either outcome is right, a crash is not
