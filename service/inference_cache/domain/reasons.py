"""The fixed words of answers and of dropped input; clients and dashboards match them literally.

Reason codes go over the wire in ``LookupRouteResponse.reason_code``. Drop reasons are labels of counters: each
input that is refused, skipped or corrected is counted under one of them.
"""

from __future__ import annotations

from typing import Final

PREFIX_MATCH: Final = "PREFIX_MATCH"
"""Replicas hold a leading part of the prompt."""
TENANT_HOT: Final = "TENANT_HOT"
"""Nobody holds the exact prefix; these replicas have warm caches."""
AFFINITY_HINT: Final = "AFFINITY_HINT"
"""A miss, sent to a stable replica so that the next request hits."""
NO_HINT: Final = "NO_HINT"
"""Nothing is known that should steer the request."""
UNKNOWN_TENANT: Final = "UNKNOWN_TENANT"
"""The index has content, but none of this tenant."""
UNKNOWN_MODEL: Final = "UNKNOWN_MODEL"
"""The tenant has content, but none of this model."""
UNKNOWN_HASH_SCHEME: Final = "UNKNOWN_HASH_SCHEME"
"""The model has content, but none under this hash scheme."""
POLICY_REQUIRES_CHAIN: Final = "POLICY_REQUIRES_CHAIN"
"""The tenant's policy wants a well-formed chain of blocks."""
TIMEOUT: Final = "TIMEOUT"
"""The budget was used up."""
INDEX_UNAVAILABLE: Final = "INDEX_UNAVAILABLE"
"""The index cannot be asked at the moment."""

REASON_CODES: Final = (
    PREFIX_MATCH,
    TENANT_HOT,
    AFFINITY_HINT,
    NO_HINT,
    UNKNOWN_TENANT,
    UNKNOWN_MODEL,
    UNKNOWN_HASH_SCHEME,
    POLICY_REQUIRES_CHAIN,
    TIMEOUT,
    INDEX_UNAVAILABLE,
)
"""Every reason code that a lookup can answer."""

RESERVED_TENANT: Final = "reserved_tenant"
"""Input for the tenant of the self-test: not stored, not answered."""
EMPTY_KEY: Final = "empty_key"
"""A lookup without tenant, model or hash scheme."""
EMPTY_SCHEME: Final = "empty_scheme"
"""An entry of a report without hash scheme: not stored."""
EMPTY_HASH: Final = "empty_hash"
"""An empty hash: not stored, matches nothing, removes nothing."""
MISMATCHED_ARRAYS: Final = "mismatched_arrays"
"""Block hashes and token counts differ in number."""
NEGATIVE_COUNT: Final = "negative_count"
"""A token count below zero."""
TOO_MANY_TOKENS: Final = "too_many_tokens"
"""More token ids than a lookup may carry."""
PROMPT_TOO_LONG: Final = "prompt_too_long"
"""A prompt text above the limit."""
NO_TOKENS: Final = "no_tokens"
"""A prompt text that was not tokenized."""
PARTIAL_BLOCK: Final = "partial_block"
"""Fewer tokens than one block: nothing to match."""
CHAIN_MATCHING_OFF: Final = "chain_matching_off"
"""A lookup with nothing but a chain, where the tenant's policy ignores chains."""
CLAMPED_TIME: Final = "clamped_time"
"""A time before the epoch or after now, moved to the nearest of the two."""

DROP_REASONS: Final = (
    RESERVED_TENANT,
    EMPTY_KEY,
    EMPTY_SCHEME,
    EMPTY_HASH,
    MISMATCHED_ARRAYS,
    NEGATIVE_COUNT,
    TOO_MANY_TOKENS,
    PROMPT_TOO_LONG,
    NO_TOKENS,
    PARTIAL_BLOCK,
    CHAIN_MATCHING_OFF,
    CLAMPED_TIME,
)
"""Every word under which the domain reports input as dropped or corrected."""
