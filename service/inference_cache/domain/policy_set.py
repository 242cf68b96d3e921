"""Everything operators have decided about tenants: policies by namespace, quotas by tenant, and one text for both.

A row keeps what was said, apart from what was not: a knob nobody set follows the server's default. The canonical body
is the same for equal sets, so that servers compare sets by a digest of it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from inference_cache.domain.float32 import f32
from inference_cache.domain.models import RESERVED_TENANT
from inference_cache.domain.policy import Policy

CURRENT_VERSION = 7
"""The version of the body that we write."""

_NS_PER_MS = 1_000_000
_SHORT_AS_INTEGER = 10**16
"""From here on Python prints an exponent instead of ``.0``."""

_ENOUGH_DIGITS = range(1, 10)
"""Nine significant digits tell any two float32 values apart."""


@dataclass(frozen=True, slots=True)
class PolicyRow:
    """What was said about one namespace. ``None`` = not said, the server's default holds.

    Attributes:
        eviction_ttl_ns: how long a report counts, in nanoseconds; 0 = not said.
        minimum_prefix_tokens: 0 = off.
        minimum_matched_tokens: 0 = off, also when it was not said.
        routing_floor_score: a float32 value, 0 = off.
        lookup_timeout_ms: 0 = not said.
        affinity_routing: whether a miss falls back to a stable replica.
        eviction: ``"lru"`` or ``"lfu"``.
        enable_chain_matching: whether chains are looked at.
        require_chain: whether a request without a valid chain is refused a hint.
        enable_tenant_hot: whether an exact miss falls back to warm replicas.
    """

    eviction_ttl_ns: int = 0
    minimum_prefix_tokens: int = 0
    minimum_matched_tokens: int = 0
    routing_floor_score: float | None = None
    lookup_timeout_ms: int = 0
    affinity_routing: bool | None = None
    eviction: str = "lru"
    enable_chain_matching: bool | None = None
    require_chain: bool | None = None
    enable_tenant_hot: bool | None = None

    def over(self, default: Policy) -> Policy:
        """Return the policy of a tenant with this row, on a server with these defaults.

        A TTL is rounded up to whole milliseconds, the unit of ages, so that nothing expires before it says.
        """
        return replace(
            default,
            ttl_ms=-(-self.eviction_ttl_ns // _NS_PER_MS) or default.ttl_ms,
            eviction=self.eviction,
            minimum_prefix_tokens=self.minimum_prefix_tokens,
            minimum_matched_tokens=self.minimum_matched_tokens,
            lookup_timeout_ms=self.lookup_timeout_ms,
            **{name: said for name in _OPTIONAL if (said := getattr(self, name)) is not None},
        )


_STRATEGY = {
    "enableChainMatching": "enable_chain_matching",
    "requireChain": "require_chain",
    "enableTenantHot": "enable_tenant_hot",
}
_OPTIONAL = ("routing_floor_score", "affinity_routing", *_STRATEGY.values())


@dataclass(frozen=True, slots=True)
class Quota:
    """What a tenant may keep.

    Attributes:
        max_index_entries: distinct prefixes, 0 or more.
        isolation_mode: kept as it was said; it has no effect.
    """

    max_index_entries: int = 0
    isolation_mode: str = ""


@dataclass(frozen=True, slots=True)
class PolicySet:
    """All policies and quotas in force. Never changed after it was made; an empty one is every default.

    Attributes:
        policies: rows by namespace; a tenant's row is the one of the namespace that has its name.
        quotas: by tenant id.
    """

    policies: Mapping[str, PolicyRow] = field(default_factory=dict)
    quotas: Mapping[str, Quota] = field(default_factory=dict)
    _known: dict[str, tuple[Policy, Policy]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def for_tenant(self, tenant_id: str, default: Policy) -> Policy:
        """Return a tenant's policy: its row and its quota over the server's defaults.

        Answers are kept for tenants that the set names, hence as many as it has at most.
        """
        known = self._known.get(tenant_id)
        if known is not None and known[0] is default:
            return known[1]
        row, quota = self.policies.get(tenant_id), self.quotas.get(tenant_id)
        if row is None and quota is None:
            return default
        policy = default if row is None else row.over(default)
        if quota is not None and tenant_id != RESERVED_TENANT:
            policy = replace(policy, max_index_entries=quota.max_index_entries)
        self._known[tenant_id] = (default, policy)
        return policy


def canonical_body(policy_set: PolicySet) -> bytes:
    """Return the set as a body of version 7: compact JSON, sorted, without what an absent field says as well.

    Posting it back gives an equal set, and equal sets give equal bytes.
    """
    body = {
        "version": CURRENT_VERSION,
        "policies": [_policy_json(name, row) for name, row in sorted(policy_set.policies.items())],
        "tenants": [_quota_json(name, quota) for name, quota in sorted(policy_set.quotas.items())],
    }
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


def digest(body: bytes) -> str:
    """Return the SHA-256 of a canonical body, in hexadecimal."""
    return hashlib.sha256(body).hexdigest()


def _policy_json(namespace: str, row: PolicyRow) -> dict[str, Any]:
    strategy = {key: getattr(row, name) for key, name in _STRATEGY.items()}
    fields: dict[str, Any] = {
        "evictionTTL": row.eviction_ttl_ns or None,
        "minimumPrefixTokens": row.minimum_prefix_tokens or None,
        "minimumMatchedTokens": row.minimum_matched_tokens,
        "routingFloorScore": None if row.routing_floor_score is None else _shortest(row.routing_floor_score),
        "lookupTimeoutMs": row.lookup_timeout_ms or None,
        "affinityRouting": row.affinity_routing,
        "eviction": row.eviction,
        "strategy": _said(strategy) or None,
    }
    return {"namespace": namespace} | _said(fields)


def _said(fields: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value is not None}


def _quota_json(tenant_id: str, quota: Quota) -> dict[str, Any]:
    row: dict[str, Any] = {"tenantID": tenant_id, "maxIndexEntries": quota.max_index_entries}
    return row | ({"isolationMode": quota.isolation_mode} if quota.isolation_mode else {})


def _shortest(value: float) -> float:
    """Return the number with the fewest digits that is this float32 value: 0.1, not 0.10000000149011612."""
    number = next(number for digits in _ENOUGH_DIGITS if f32(number := float(f"{value:.{digits}g}")) == value)
    return int(number) if number == int(number) and number < _SHORT_AS_INTEGER else number
