"""What a tenant may tune: every knob with its default, and who knows a tenant's values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from inference_cache.domain.models import Retention

DEFAULT_TTL_MS = 30 * 60 * 1000
TTL_GRID_STEPS = 512
"""Holdings' times are floored to a grid of TTL / 512, so that neighbours in time can share a run."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The routing and retention rules of one tenant.

    Attributes:
        ttl_ms: how long a report counts, in milliseconds; always positive.
        eviction: ``"lru"`` or ``"lfu"``.
        minimum_prefix_tokens: requests with fewer effective tokens get no positive hint; 0 = off.
        minimum_matched_tokens: replicas that match fewer tokens are dropped; 0 = off.
        routing_floor_score: the best score must reach this; 0 = off. A float32 value.
        lookup_timeout_ms: budget of a lookup's index stage; 0 = the server's default.
        affinity_routing: whether a miss falls back to a stable replica.
        enable_chain_matching: whether block-hash chains are looked at.
        require_chain: whether a request without a valid chain is refused a hint.
        enable_tenant_hot: whether an exact miss falls back to warm replicas.
        max_index_entries: quota of distinct prefixes, ``None`` = unlimited.
    """

    ttl_ms: int = DEFAULT_TTL_MS
    eviction: str = "lru"
    minimum_prefix_tokens: int = 0
    minimum_matched_tokens: int = 64
    routing_floor_score: float = 0.10000000149011612
    lookup_timeout_ms: int = 0
    affinity_routing: bool = True
    enable_chain_matching: bool = True
    require_chain: bool = False
    enable_tenant_hot: bool = True
    max_index_entries: int | None = None

    @property
    def lfu(self) -> bool:
        """Whether hits are counted, and what was hit often gives way last."""
        return self.eviction == "lfu"

    @property
    def retention(self) -> Retention:
        """What the index needs to know to keep this tenant's reports."""
        return Retention(self.ttl_ms, self.lfu)

    @property
    def grid_ms(self) -> int:
        """Step of the grid that this tenant's holdings' times are floored to, in milliseconds."""
        return max(1, self.ttl_ms // TTL_GRID_STEPS)


class PolicySource(Protocol):
    """Answers which policy a tenant has, now; never fails and never waits."""

    def for_tenant(self, tenant_id: str) -> Policy:
        """Return the tenant's policy, the defaults when it has none."""
        ...

    def current(self) -> PolicySource:
        """Return the policies as they are now, which do not change any more: for what asks several times."""
        ...


@dataclass(frozen=True, slots=True)
class DefaultPolicies:
    """One policy for everybody: what a server without a policy snapshot uses."""

    default: Policy = Policy()

    def for_tenant(self, tenant_id: str) -> Policy:  # noqa: ARG002 - the protocol's parameter
        """Return the default policy."""
        return self.default

    def current(self) -> PolicySource:
        """Return itself: nothing changes here."""
        return self
