"""The two kinds of manifest and what their specs may say: the checks of the custom resources, before anything runs."""

from __future__ import annotations

import re
from typing import Final

from inference_cache.domain.durations import duration_ns
from inference_cache.domain.fields import Fields, shown
from inference_cache.domain.float32 import f32
from inference_cache.domain.models import RESERVED_TENANT
from inference_cache.domain.policy_set import PolicyRow, Quota

API_VERSION: Final = "inferencecache.io/v1alpha1"
CACHE_POLICY: Final = "CachePolicy"
CACHE_TENANT: Final = "CacheTenant"
DEFAULT_MATCHED_TOKENS = 64
DEFAULT_ROUTING_FLOOR = "0.1"
_MAX_INT32 = 2**31 - 1
_MAX_INT64 = 2**63 - 1
_FLOOR = re.compile(r"(?:0|[1-9][0-9]{0,7})(?:\.[0-9]{1,6})?")


def cache_policy(spec: Fields) -> PolicyRow:
    """Read the spec of a CachePolicy. Its resource has defaults of its own, so most knobs are always said."""
    matched_tokens = spec.whole("minimumMatchedTokens", 0, _MAX_INT32)
    strategy = spec.inner("strategy")
    row = PolicyRow(
        eviction=(spec.word("eviction", ("LRU", "LFU")) or "LRU").lower(),
        eviction_ttl_ns=_ttl_ns(spec),
        minimum_prefix_tokens=spec.whole("minimumPrefixTokens", 0, _MAX_INT32) or 0,
        minimum_matched_tokens=DEFAULT_MATCHED_TOKENS if matched_tokens is None else matched_tokens,
        routing_floor_score=_floor(spec),
        lookup_timeout_ms=spec.whole("lookupTimeoutMs", 0, _MAX_INT32) or 0,
        affinity_routing=spec.word("affinityRouting", ("Enabled", "Disabled")) != "Disabled",
        enable_chain_matching=strategy.flag("enableChainMatching"),
        require_chain=strategy.flag("requireChain"),
        enable_tenant_hot=strategy.flag("enableTenantHot"),
    )
    if row.require_chain and row.enable_chain_matching is False:
        strategy.wrong("requireChain", "needs enableChainMatching, which is false")
    strategy.close()
    return row


def _ttl_ns(spec: Fields) -> int:
    value = spec.value("evictionTTL")
    if value is None:
        return 0
    try:
        ttl_ns = duration_ns(value) if isinstance(value, str) else 0
    except ValueError:
        ttl_ns = 0
    if ttl_ns <= 0:
        spec.wrong("evictionTTL", f"expected a duration above 0 such as 30m or 1h30m, got {shown(value)}")
    return ttl_ns


def _floor(spec: Fields) -> float:
    value = spec.value("routingFloorScore")
    text = DEFAULT_ROUTING_FLOOR if value is None else value
    if isinstance(text, str) and _FLOOR.fullmatch(text):
        return f32(float(text))
    wanted = 'a decimal in quotes such as "0.1", at most 8 digits before the point and 6 after it'
    spec.wrong("routingFloorScore", f"expected {wanted}, got {shown(text)}")
    return 0.0


def cache_tenant(spec: Fields) -> tuple[str, Quota | None, list[str]]:
    """Read the spec of a CacheTenant.

    Returns:
        The tenant's id, its quota if it has one, and warnings.
    """
    tenant_id = spec.required("tenantID")
    if tenant_id == RESERVED_TENANT:
        spec.wrong("tenantID", f"{RESERVED_TENANT} is reserved for the server's self-test")
    mode = spec.word("isolationMode", ("Fairness", "crypto")) or ""
    quota = spec.inner("quota")
    entries = quota.whole("maxIndexEntries", 0, _MAX_INT64)
    quota.close()
    warnings = [f"{spec.at('isolationMode')}: crypto is not provided and has no effect"] if mode == "crypto" else []
    return tenant_id, None if entries is None else Quota(entries, mode), warnings
