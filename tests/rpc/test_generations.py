"""A request uses one generation of the policies throughout, however often it asks them."""

from __future__ import annotations

import asyncio

from inference_cache.domain.policy import Policy
from tests.rpc.serving import GatedStore, serving
from tests.rpc.wire import exact

BLOCK = b"12345678"
MINUTE_MS = 60_000


async def test_policies_that_change_during_a_lookup_count_from_the_next_one_on() -> None:
    """Other tenants' TTLs, asked for at the very end, are those of the request's beginning."""
    store = GatedStore()
    async with serving(store) as wire:
        await wire.report("A", exact(BLOCK, 64), tenant_id="other", age_ms=10 * MINUTE_MS)
        store.calls.clear()
        store.gate.clear()
        asked = asyncio.create_task(wire.lookup(BLOCK, tenant_id="nobody"))
        await store.called(1)
        wire.policy(Policy(ttl_ms=5 * MINUTE_MS), "other")
        store.gate.set()
        assert (await asked).reason_code == "UNKNOWN_TENANT"
        assert (await wire.lookup(BLOCK, tenant_id="nobody")).reason_code == "NO_HINT"
