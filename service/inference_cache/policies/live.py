"""The policies in force in this process: parsed, in memory, replaced as a whole."""

from __future__ import annotations

from dataclasses import dataclass

from inference_cache.domain.policy import Policy
from inference_cache.domain.policy_set import PolicySet
from inference_cache.store.policies import NOTHING, PolicySnapshot


@dataclass(frozen=True, slots=True)
class Held:
    """One generation of the policies, as this process uses it. Never changed once made.

    Attributes:
        snapshot: what Redis had, with its writer.
        policy_set: the same, parsed.
        applied_ms: since when it is in force here, by Redis' clock; 0 for what a server starts with.
        default: the policy of tenants that the set does not name, and of knobs that a row does not set.
    """

    snapshot: PolicySnapshot
    policy_set: PolicySet
    applied_ms: int
    default: Policy

    def for_tenant(self, tenant_id: str) -> Policy:
        """Return the tenant's policy in this generation."""
        return self.policy_set.for_tenant(tenant_id, self.default)

    def current(self) -> Held:
        """Return itself: a generation never changes."""
        return self


class LivePolicies:
    """Answers requests from memory. A change replaces everything in one assignment, so no answer mixes two generations.

    Args:
        default: the policy of tenants without one of their own.
    """

    def __init__(self, default: Policy) -> None:
        self._held = Held(NOTHING, PolicySet(), 0, default)

    @property
    def held(self) -> Held:
        """The generation in force."""
        return self._held

    def for_tenant(self, tenant_id: str) -> Policy:
        """Return the tenant's policy, the defaults when it has none."""
        return self._held.for_tenant(tenant_id)

    def current(self) -> Held:
        """Return the generation in force, for what asks several times."""
        return self._held

    def apply(self, snapshot: PolicySnapshot, policy_set: PolicySet, applied_ms: int) -> None:
        """Put a generation in force; who already looked up a policy keeps that one."""
        self._held = Held(snapshot, policy_set, applied_ms, self._held.default)
