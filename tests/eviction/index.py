"""An index with limits, served by one server or by several that take turns, told and asked over the wire."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import cycle
from typing import Any

from inference_cache._pb import inferencecache_pb2 as pb
from inference_cache.background import Sweeper
from inference_cache.capacity import Capacity
from inference_cache.domain.policy import Policy
from inference_cache.metrics import Metrics
from inference_cache.store.base import Store
from tests.rpc.serving import until
from tests.rpc.wire import MINUTE, TENANT, Policies, Wire, asks, exact, ids

US = 1000
OPEN = Policy(minimum_matched_tokens=0, routing_floor_score=0.0, affinity_routing=False)
"""No floors and no fallback: whoever holds something is named."""
LFU = Policy(minimum_matched_tokens=0, routing_floor_score=0.0, affinity_routing=False, eviction="lfu")
CREDITED = "lfu_credits_total"


class Index:
    """Servers over one store; every call goes to the next of them.

    Ages count from one moment a test, so that equal ones are ties, and lie minutes apart where they are none.

    Args:
        store: what the servers share.
        policies: what they all consult.
        wires: a client of each.
        max_entries: their cap.
    """

    def __init__(self, store: Store, policies: Policies, wires: Sequence[Wire], max_entries: int) -> None:
        self.store = store
        self._policies = policies
        self._wires = wires
        self._turn = cycle(wires)
        self._max_entries = max_entries
        self._began_us = time.time_ns() // US
        self.policy(OPEN)

    def policy(self, policy: Policy, tenant: str = TENANT) -> None:
        """Give a tenant a policy."""
        self._policies.by_tenant[tenant] = policy

    async def report(self, replica: str, *entries: pb.PrefixEntry, minutes: int = 0, **more: Any) -> None:
        """Report something that happened so many minutes ago."""
        ack = await next(self._turn).report(
            replica, *entries, timestamp_us=self._began_us - minutes * MINUTE * US, **more
        )
        assert ack.accepted

    async def tell(self, replica: str, *hashes: bytes, minutes: int = 0, **more: Any) -> None:
        """Report unrelated prefixes of 64 tokens."""
        await self.report(replica, *(exact(each, 64) for each in hashes), minutes=minutes, **more)

    async def holders(self, prefix_hash: bytes, **more: Any) -> list[str]:
        """Return who holds a prefix, in order, without leaving a trace in any count."""
        tenant = more.get("tenant_id", TENANT)
        kept = self._policies.for_tenant(tenant)
        self.policy(OPEN, tenant)
        try:
            answer = await self.ask(prefix_hash, **more)
            return sorted(ids(answer)) if answer.reason_code == "PREFIX_MATCH" else []
        finally:
            self.policy(kept, tenant)

    async def left(self, *hashes: bytes, **more: Any) -> list[int]:
        """Return which of some prefixes, by their place, somebody holds."""
        return [at for at, each in enumerate(hashes) if await self.holders(each, **more)]

    async def hit(self, times: int, *hashes: bytes, stretches: int = 1, tokens: int = 16, **more: Any) -> None:
        """Have a chain, or one prefix, matched so often, and each time wait until its stretches have their credit."""
        question = asks(hashes, tokens) if len(hashes) > 1 else {"prefix_hash": hashes[0]}
        for _ in range(times):
            before = self.counted(CREDITED)
            answer = await next(self._turn).lookup(**question, **more)
            assert answer.reason_code == "PREFIX_MATCH"
            await until(lambda before=before: self.counted(CREDITED) >= before + stretches)  # type: ignore[misc]
            assert self.counted(CREDITED) == before + stretches

    async def ask(self, prefix_hash: bytes, **more: Any) -> pb.LookupRouteResponse:
        """Look one prefix up, whatever comes of it."""
        return await next(self._turn).lookup(prefix_hash, **more)

    async def evict(self, replica: str, prefix_hash: bytes, **more: Any) -> None:
        """Let a replica drop a prefix."""
        assert (await next(self._turn).event("PREFIX_EVICTED", replica, prefix_hash, **more)).accepted

    async def total(self, **more: Any) -> int:
        """Return the distinct prefixes of a model."""
        return int((await next(self._turn).state(**more)).summary.total_prefixes)

    async def state(self, **more: Any) -> pb.GetCacheStateResponse:
        """Return what there is to say of a model."""
        return await next(self._turn).state(**more)

    def counted(self, name: str, labels: dict[str, str] | None = None) -> float:
        """Return a counter over all servers."""
        return sum(wire.counted(name, labels) for wire in self._wires)

    def evicted(self, algorithm: str, reason: str) -> float:
        """Return how many holdings the servers removed themselves."""
        return self.counted("index_evictions_total", {"algorithm": algorithm, "reason": reason})

    def over(self, tenant: str = TENANT) -> float:
        """Return how many prefixes a tenant lost to its quota."""
        return self.counted("tenant_evictions_total", {"tenant_id": tenant, "reason": "over_entries"})

    async def sweep(self, max_entries: int | None = None) -> Metrics:
        """Sweep once, as one more server, with another cap if one is given; return what it counted."""
        metrics = Metrics()
        cap = self._max_entries if max_entries is None else max_entries
        capacity = Capacity(self.store, self._policies, metrics, max_entries=cap)
        await Sweeper(
            self.store, self._policies, metrics, capacity, period_ms=1000, clock_is_certain=lambda: True
        ).sweep()
        return metrics
