"""What is older than its tenant's TTL counts for nothing at once, and is gone after a sweep."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inference_cache.domain.policy import Policy
from inference_cache.metrics import Metrics
from tests.eviction.index import LFU, OPEN, Index
from tests.rpc.wire import MINUTE, hs

A, B, C = hs(*"abc")
SHORT, LONG = (replace(OPEN, ttl_ms=minutes * MINUTE) for minutes in (5, 60))


def swept(metrics: Metrics, algorithm: str = "lru") -> float:
    labels = {"algorithm": algorithm, "reason": "ttl"}
    return metrics.registry.get_sample_value("inferencecache_index_evictions_total", labels) or 0.0


async def test_the_sweep_takes_what_has_expired(index: Index) -> None:
    """An entry older than the TTL is no evidence before the sweep and does not count after it."""
    await index.tell("r1", A, minutes=31)
    await index.tell("r1", B, minutes=29)
    assert (await index.ask(A)).reason_code != "PREFIX_MATCH"
    assert await index.total() == 2
    assert swept(await index.sweep()) == 1
    assert await index.total() == 1
    assert swept(await index.sweep()) == 0


async def test_every_tenant_has_its_own_ttl(index: Index) -> None:
    """Ten minutes are too old where five are allowed, and young where an hour is."""
    index.policy(SHORT)
    index.policy(LONG, "team-b")
    for tenant in ("team-a", "team-b"):
        await index.tell("r1", A, minutes=10, tenant_id=tenant)
    assert [(await index.ask(A, tenant_id=tenant)).reason_code for tenant in ("team-a", "team-b")] == [
        "UNKNOWN_TENANT",
        "PREFIX_MATCH",
    ]
    assert swept(await index.sweep()) == 1
    assert [await index.total(tenant_id=tenant) for tenant in ("team-a", "team-b")] == [0, 1]


async def test_a_changed_ttl_counts_at_once(index: Index) -> None:
    """A lower one hides, a higher one brings back what was not swept yet."""
    await index.tell("r1", A, minutes=10)
    for policy, found in ((SHORT, False), (LONG, True), (SHORT, False)):
        index.policy(policy)
        assert ((await index.ask(A)).reason_code == "PREFIX_MATCH") is found
    await index.sweep()
    index.policy(LONG)
    assert (await index.ask(A)).reason_code != "PREFIX_MATCH"


@pytest.mark.parametrize(("policy", "algorithm"), [(OPEN, "lru"), (LFU, "lfu")])
async def test_what_expired_counts_under_its_algorithm(index: Index, policy: Policy, algorithm: str) -> None:
    """Hits do not save from expiry."""
    index.policy(policy)
    await index.tell("r1", A, B, minutes=20)
    if policy is LFU:
        await index.hit(3, A)
    index.policy(replace(policy, ttl_ms=SHORT.ttl_ms))
    metrics = await index.sweep()
    assert (swept(metrics, algorithm), await index.total()) == (2, 0)


async def test_expired_holdings_count_for_limits_until_they_go(index: Index) -> None:
    """They are the first that a full quota gives up, so that a limit never costs anything that lives without need."""
    index.policy(replace(SHORT, max_index_entries=2))
    await index.tell("r1", A, minutes=9)
    await index.tell("r1", B, minutes=2)
    await index.tell("r1", C)
    assert await index.left(A, B, C) == [1, 2]
    assert (index.over(), index.evicted("lru", "ttl")) == (0, 1)
