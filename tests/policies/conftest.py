"""Servers' worth of policies on one real Redis."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import pytest

from inference_cache.domain.policy import Policy
from inference_cache.domain.policy_set import PolicyRow, PolicySet
from inference_cache.metrics import Metrics
from inference_cache.policies.live import LivePolicies
from inference_cache.policies.sync import PolicySync
from inference_cache.store.connection import Connection, Limits, open_connection
from inference_cache.store.policies import PolicyStore
from tests.support.servers import Server

DEFAULT = Policy(ttl_ms=60_000)
FAST = Limits(connect_ms=500, call_ms=500)


@dataclass
class Host:
    """The policies of one server."""

    store: PolicyStore
    live: LivePolicies
    sync: PolicySync
    metrics: Metrics

    @property
    def generation(self) -> int:
        """Generation in force."""
        return self.live.held.snapshot.generation

    def ttl_ms(self, tenant: str = "t") -> int:
        """TTL in force for a tenant."""
        return self.live.for_tenant(tenant).ttl_ms

    def counted(self, name: str, **labels: str) -> float:
        """Return a metric's value, 0 when it was never counted."""
        return self.metrics.registry.get_sample_value(f"inferencecache_{name}", labels) or 0.0

    async def until_ttl_ms(self, ttl_ms: int) -> None:
        """Wait until a TTL is in force; the test's own timeout bounds it."""
        while self.ttl_ms() != ttl_ms:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.005)


def ttl(ttl_ms: int, tenant: str = "t") -> PolicySet:
    """Return policies that give one tenant a TTL."""
    return PolicySet({tenant: PolicyRow(eviction_ttl_ns=ttl_ms * 1_000_000)})


def host_on(connection: Connection, prefix: str, name: str = "host") -> Host:
    """Return a server's policies on a connection; nothing runs yet."""
    store, live, metrics = PolicyStore(connection, key_prefix=prefix), LivePolicies(DEFAULT), Metrics()
    return Host(store, live, PolicySync(store, live, metrics, host=name), metrics)


@asynccontextmanager
async def hosts(url: str, prefix: str, number: int, *, follow: bool = True) -> AsyncIterator[list[Host]]:
    """Yield so many servers' policies, each on a connection of its own; they follow Redis if told so."""
    async with AsyncExitStack() as stack:
        made = []
        for at in range(number):
            connection = await open_connection(url, limits=FAST)
            stack.push_async_callback(connection.close)
            made.append(host_on(connection, prefix, f"host-{at}"))
        tasks = [asyncio.create_task(host.sync.run()) for host in made] if follow else []
        try:
            yield made
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture
async def host(valkey: Server, key_prefix: str) -> AsyncIterator[Host]:
    """Yield one server's policies that follow nothing by themselves."""
    async with hosts(valkey.url, key_prefix, 1, follow=False) as made:
        yield made[0]
