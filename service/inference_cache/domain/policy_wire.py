"""The body of the policy API, versions 3 to 7, and what a server of today makes of an older one.

An older body could not say everything; what it could not say is filled in here with what its writer relied on. Values
that mean "off" or "default" are stored in one form, so that bodies with one meaning give one set.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from inference_cache.domain import strict_json
from inference_cache.domain.fields import Fields, Problems, shown
from inference_cache.domain.float32 import f32
from inference_cache.domain.models import RESERVED_TENANT
from inference_cache.domain.policy_set import CURRENT_VERSION, PolicyRow, PolicySet, Quota, canonical_body
from inference_cache.errors import PolicyError

OLDEST_VERSION = 3
MAX_BODY_BYTES = 1 << 20
_FIRST_WITH_MATCHED_TOKENS = 4
_FIRST_WITH_ROUTING_FLOOR = 5
_FIRST_WITH_STRATEGY = 6
_FIRST_WITH_AFFINITY = 7
_OLD_MATCHED_TOKENS = 64
_OLD_ROUTING_FLOOR = f32(0.1)
_INT32: Final = (-(2**31), 2**31 - 1)
_INT64: Final = (-(2**63), 2**63 - 1)


@dataclass(frozen=True, slots=True)
class PolicyBody:
    """A body that was accepted.

    Attributes:
        policy_set: what it says.
        ignored: rows and values that have no effect, counted by reason: ``empty_namespace``, ``empty_tenant``,
            ``duplicate_namespace``, ``duplicate_tenant``, ``reserved_tenant``, ``unknown_eviction``.
    """

    policy_set: PolicySet
    ignored: Mapping[str, int]


def parse_policy_body(data: bytes) -> PolicySet:
    """Return the set that a body stands for; see :func:`read_policy_body`."""
    return read_policy_body(data).policy_set


def read_policy_body(data: bytes) -> PolicyBody:
    """Read a body of the policy API, all or nothing.

    Of several rows with one key the last counts; rows without a key, and a quota of the reserved tenant, are left out.

    Raises:
        PolicyError: it is too large, not strict JSON, of another version, or has an unknown field or a wrong type; also
            when its canonical form would be too large to be posted back.
    """
    if len(data) > MAX_BODY_BYTES:
        raise PolicyError(f"body: larger than {MAX_BODY_BYTES} bytes")
    try:
        tree = strict_json.loads(data)
    except strict_json.JsonError as error:
        raise PolicyError(f"body: {error}") from None
    if not isinstance(tree, dict):
        raise PolicyError("body: expected an object")
    problems = Problems()
    body = Fields(tree, "", problems)
    version, ignored = _version(body), Counter[str]()
    policy_set = PolicySet(_policies(body, version, ignored), _quotas(body, ignored))
    body.close()
    if problems:
        raise PolicyError(*problems.sentences())
    return PolicyBody(bounded(policy_set), +ignored)


def bounded(policy_set: PolicySet) -> PolicySet:
    """Return a set whose canonical body is small enough to be posted.

    Raises:
        PolicyError: it is not.
    """
    if (size := len(canonical_body(policy_set))) > MAX_BODY_BYTES:
        raise PolicyError(f"body: {size} bytes in its canonical form, more than {MAX_BODY_BYTES}")
    return policy_set


def _version(body: Fields) -> int:
    version = body.value("version")
    if type(version) is int and OLDEST_VERSION <= version <= CURRENT_VERSION:
        return version
    got = "missing" if version is None else f"got {shown(version)}"
    raise PolicyError(f"version: expected a whole number from {OLDEST_VERSION} to {CURRENT_VERSION}, {got}")


def _policies(body: Fields, version: int, ignored: Counter[str]) -> dict[str, PolicyRow]:
    rows: dict[str, PolicyRow] = {}
    for item in body.items("policies"):
        namespace, row = item.text("namespace"), _filled(_row(item, version, ignored), version)
        item.close()
        if not namespace:
            ignored["empty_namespace"] += 1
            continue
        ignored["duplicate_namespace"] += namespace in rows
        rows[namespace] = row
    return rows


def _row(item: Fields, version: int, ignored: Counter[str]) -> PolicyRow:
    eviction = (item.text("eviction") or "lru").lower()
    ignored["unknown_eviction"] += eviction not in {"lru", "lfu"}
    matched_tokens = item.whole("minimumMatchedTokens", *_INT32) or 0
    if version < _FIRST_WITH_MATCHED_TOKENS and matched_tokens == 0:
        matched_tokens = _OLD_MATCHED_TOKENS
    floor = item.float32("routingFloorScore")
    strategy = item.inner("strategy")
    row = PolicyRow(
        eviction_ttl_ns=_natural(item.whole("evictionTTL", *_INT64)),
        minimum_prefix_tokens=_natural(item.whole("minimumPrefixTokens", *_INT32)),
        minimum_matched_tokens=_natural(matched_tokens),
        routing_floor_score=None if floor is None else max(0.0, floor),
        lookup_timeout_ms=_natural(item.whole("lookupTimeoutMs", *_INT32)),
        affinity_routing=item.flag("affinityRouting"),
        eviction="lfu" if eviction == "lfu" else "lru",
        enable_chain_matching=strategy.flag("enableChainMatching"),
        require_chain=strategy.flag("requireChain"),
        enable_tenant_hot=strategy.flag("enableTenantHot"),
    )
    strategy.close()
    return row


def _natural(value: int | None) -> int:
    """Return a number as it works: below 0 as 0."""
    return max(0, value or 0)


def _filled(row: PolicyRow, version: int) -> PolicyRow:
    """Return a row with what its body's version had no field for."""
    missing: dict[str, Any] = {}
    if version < _FIRST_WITH_ROUTING_FLOOR:
        missing |= {"routing_floor_score": _OLD_ROUTING_FLOOR}
    if version < _FIRST_WITH_STRATEGY:
        missing |= {"enable_chain_matching": True, "require_chain": False, "enable_tenant_hot": True}
    if version < _FIRST_WITH_AFFINITY:
        missing |= {"affinity_routing": True}
    return replace(row, **{name: value for name, value in missing.items() if getattr(row, name) is None})


def _quotas(body: Fields, ignored: Counter[str]) -> dict[str, Quota]:
    quotas: dict[str, Quota] = {}
    for item in body.items("tenants"):
        tenant_id = item.text("tenantID")
        quota = Quota(_natural(item.whole("maxIndexEntries", *_INT64)), item.text("isolationMode") or "")
        item.close()
        if not tenant_id or tenant_id == RESERVED_TENANT:
            ignored["reserved_tenant" if tenant_id else "empty_tenant"] += 1
            continue
        ignored["duplicate_tenant"] += tenant_id in quotas
        quotas[tenant_id] = quota
    return quotas
