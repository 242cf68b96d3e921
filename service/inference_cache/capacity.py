"""Keeping tenants to their quota and the index to its cap, whenever something was stored.

Making room never fails the report that made it necessary: that is stored and acknowledged. What could not be trimmed is
counted and tried again: a tenant's quota by the process that owes it (:meth:`Capacity.run`), the cap by whoever
sweeps (:meth:`Capacity.enforce_cap`). A quota that was lowered is no debt: it counts from its tenant's next report on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import Literal

from inference_cache.domain.models import Ingested, Trimmed
from inference_cache.domain.policy import Policy, PolicySource
from inference_cache.domain.times import expired_at_ms
from inference_cache.errors import StoreError
from inference_cache.metrics import Metrics
from inference_cache.store.base import Store

logger = logging.getLogger(__name__)

DEFAULT_RETRY_MS = 10_000
Limit = Literal["quota", "cap"]


class Capacity:
    """Makes room in the index.

    Args:
        store: the index.
        policies: whose quota and eviction each tenant has.
        metrics: where what gave way is counted.
        max_entries: cap on holdings of the whole index; 0 = none.
        retry_ms: time between attempts to trim what could not be trimmed.
    """

    def __init__(
        self,
        store: Store,
        policies: PolicySource,
        metrics: Metrics,
        *,
        max_entries: int = 0,
        retry_ms: int = DEFAULT_RETRY_MS,
    ) -> None:
        self._store = store
        self._policies = policies
        self._metrics = metrics
        self._max_entries = max_entries
        self._retry_s = retry_ms / 1000
        self._owed: set[str] = set()
        """Tenants above their quota whose trimming failed: some of those that have a quota, never more."""

    async def after(self, tenant_id: str, ingested: Ingested, policies: PolicySource) -> None:
        """Make the room that a stored report needs, first in its tenant's quota, then in the index.

        Costs nothing while both are kept.

        Args:
            tenant_id: who reported.
            ingested: what the store said of it.
            policies: the generation by which the report was stored.
        """
        quota = policies.for_tenant(tenant_id).max_index_entries
        if quota is not None and ingested.tenant_prefixes > quota:
            await self._enforce_quota(tenant_id, quota, policies)
        if 0 < self._max_entries < ingested.index_holdings:
            await self.enforce_cap(policies)

    async def enforce_cap(self, policies: PolicySource | None = None) -> None:
        """Bring the index down to its cap, if it has one."""
        if self._max_entries <= 0:
            return
        by = policies or self._policies.current()
        now_ms = self._store.now_ms()

        def expired_at(tenant_id: str) -> int:
            return expired_at_ms(now_ms, by.for_tenant(tenant_id).ttl_ms)

        def lfu(tenant_id: str) -> bool:
            return by.for_tenant(tenant_id).lfu

        await self._trim("cap", self._store.trim_index(self._max_entries, expired_at, lfu), by)

    async def run(self) -> None:
        """Try for ever, once a period, to trim what could not be trimmed."""
        while True:
            await asyncio.sleep(self._retry_s)
            try:
                await self.settle()
            except Exception:
                logger.exception("trim_failed")

    async def settle(self) -> None:
        """Try once more to trim the tenants that could not be, to the quota that they have now."""
        policies = self._policies.current()
        for tenant_id in sorted(self._owed):
            self._owed.discard(tenant_id)
            quota = policies.for_tenant(tenant_id).max_index_entries
            if quota is not None:
                await self._enforce_quota(tenant_id, quota, policies)

    async def _enforce_quota(self, tenant_id: str, quota: int, policies: PolicySource) -> None:
        policy: Policy = policies.for_tenant(tenant_id)
        expired_at = expired_at_ms(self._store.now_ms(), policy.ttl_ms)
        trimmed = self._store.trim_tenant(tenant_id, quota, expired_at, lfu=policy.lfu)
        if not await self._trim("quota", trimmed, policies):
            self._owed.add(tenant_id)

    async def _trim(self, limit: Limit, trimming: Awaitable[Trimmed], policies: PolicySource) -> bool:
        """Wait until there is room and count what gave way for it; return whether there is."""
        try:
            found = await trimming
        except StoreError as error:
            self._metrics.trim_failed(limit, error.reason)
            return False
        for tenant_id, holdings in found.expired.items():
            self._metrics.index_evicted(policies.for_tenant(tenant_id).eviction, "ttl", holdings)
        for tenant_id, number in found.removed.items():
            if limit == "cap":
                self._metrics.index_evicted(policies.for_tenant(tenant_id).eviction, "cap", number)
            else:
                self._metrics.tenant_evicted(tenant_id, number)
        if found.failed:
            self._metrics.trim_failed(limit, "models_skipped", found.failed)
        return not found.failed
