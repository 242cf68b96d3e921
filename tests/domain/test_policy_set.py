from __future__ import annotations

import json
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_cache.domain.float32 import f32
from inference_cache.domain.policy import Policy
from inference_cache.domain.policy_set import PolicyRow, PolicySet, Quota, canonical_body, digest

OTHER = Policy(ttl_ms=60_000, routing_floor_score=3.0, affinity_routing=False, require_chain=True)


def test_a_tenant_nobody_named_has_the_servers_defaults() -> None:
    """Whatever these are: the very same object, so that asking costs nothing."""
    assert PolicySet().for_tenant("a", OTHER) is OTHER


def test_what_a_row_does_not_say_follows_the_server() -> None:
    """A knob without a word of its own has the default of the server that is asked."""
    policy = PolicySet({"a": PolicyRow(minimum_prefix_tokens=5)}).for_tenant("a", OTHER)
    assert policy == replace(OTHER, minimum_prefix_tokens=5, minimum_matched_tokens=0)


def test_an_empty_row_switches_the_matched_token_floor_off() -> None:
    """The one knob for which no row and an empty row differ."""
    assert PolicySet({"a": PolicyRow()}).for_tenant("a", Policy()) == Policy(minimum_matched_tokens=0)


@pytest.mark.parametrize("knob", [one.name for one in fields(Policy) if one.name != "max_index_entries"])
def test_every_knob_of_a_tenant_can_be_set_by_a_row(knob: str) -> None:
    """A knob that no row reaches would be decoration."""
    said = {"ttl_ms": "eviction_ttl_ns"}.get(knob, knob)
    default = getattr(Policy(), knob)
    value = {"ttl_ms": 7_000_000, "eviction": "lfu"}.get(knob, not default if isinstance(default, bool) else 7)
    policy = PolicySet({"a": PolicyRow(**{said: value})}).for_tenant("a", Policy())  # type: ignore[arg-type]
    assert getattr(policy, knob) == (7 if knob == "ttl_ms" else value) != default


def test_row_and_quota_meet_in_one_policy() -> None:
    """The namespace of a policy and the id of a tenant are one key."""
    both = PolicySet({"a": PolicyRow(eviction="lfu")}, {"a": Quota(5), "b": Quota(6)})
    assert both.for_tenant("a", Policy()) == Policy(eviction="lfu", minimum_matched_tokens=0, max_index_entries=5)
    assert both.for_tenant("b", Policy()) == Policy(max_index_entries=6)


def test_the_reserved_tenant_never_has_a_quota() -> None:
    """The self-test must not lose its block to a limit, even in a set that was made by hand."""
    probe = "inferencecache.io/probe"
    assert PolicySet({}, {probe: Quota(0)}).for_tenant(probe, Policy()).max_index_entries is None


def test_answers_are_kept_for_named_tenants_only() -> None:
    """A lookup pays for merging once, and ids that callers invent leave nothing behind."""
    policy_set = PolicySet({"a": PolicyRow()}, {"b": Quota(1)})
    default = Policy()
    assert policy_set.for_tenant("a", default) is policy_set.for_tenant("a", default)
    for number in range(1000):
        policy_set.for_tenant(f"x{number}", default)
    policy_set.for_tenant("b", default)
    assert set(policy_set._known) == {"a", "b"}


def test_another_default_gives_another_answer() -> None:
    """What was kept for one server's defaults is not given out for another's."""
    policy_set = PolicySet({"a": PolicyRow()})
    assert policy_set.for_tenant("a", Policy()).ttl_ms == 1_800_000
    assert policy_set.for_tenant("a", OTHER).ttl_ms == 60_000


def test_equality_is_about_what_is_said() -> None:
    """Neither order nor the answers given so far count."""
    one = PolicySet({"a": PolicyRow(), "b": PolicyRow()}, {"a": Quota(1)})
    two = PolicySet({"b": PolicyRow(), "a": PolicyRow()}, {"a": Quota(1)})
    one.for_tenant("a", Policy())
    assert one == two
    assert one != PolicySet({"a": PolicyRow(), "b": PolicyRow()}, {"a": Quota(2)})
    assert one != PolicySet({"a": PolicyRow(), "b": PolicyRow(affinity_routing=True)}, {"a": Quota(1)})


def test_the_canonical_body_is_fixed() -> None:
    """Servers of different versions compare digests of it, so its bytes must not drift."""
    policy_set = PolicySet(
        {
            "b": PolicyRow(require_chain=False),
            "a": PolicyRow(10**9, 1, 2, f32(0.1), 3, False, "lfu", True, False, True),
        },
        {"é": Quota(5, "Fairness"), "a": Quota(0)},
    )
    assert canonical_body(policy_set).decode() == (
        '{"version":7,"policies":[{"namespace":"a","evictionTTL":1000000000,"minimumPrefixTokens":1,'
        '"minimumMatchedTokens":2,"routingFloorScore":0.1,"lookupTimeoutMs":3,"affinityRouting":false,"eviction":"lfu",'
        '"strategy":{"enableChainMatching":true,"requireChain":false,"enableTenantHot":true}},'
        '{"namespace":"b","minimumMatchedTokens":0,"eviction":"lru","strategy":{"requireChain":false}}],'
        '"tenants":[{"tenantID":"a","maxIndexEntries":0},'
        '{"tenantID":"é","maxIndexEntries":5,"isolationMode":"Fairness"}]}'
    )
    assert canonical_body(PolicySet()) == b'{"version":7,"policies":[],"tenants":[]}'
    assert digest(canonical_body(PolicySet())) == "13b3bb158a4061d6c81b2a921df300c6eb25a026e6d0f32a6bb9219456e2d292"


@given(st.floats(0, allow_infinity=False, allow_nan=False, width=32))
def test_floors_are_printed_short_and_exact(value: float) -> None:
    """People read 0.1, servers read the float32 value it stands for."""
    body = canonical_body(PolicySet({"a": PolicyRow(routing_floor_score=abs(value))}))
    printed = body.partition(b'"routingFloorScore":')[2].partition(b",")[0]
    assert f32(float(printed)) == value
    assert len(printed) <= 16
    assert f32(json.loads(printed)) == value
