"""What a server does beside answering: sweep what has expired, and watch whether the store answers.

Both run until cancelled, survive a store that is away, and never hold up a request.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict

from inference_cache.capacity import Capacity
from inference_cache.domain.policy import PolicySource
from inference_cache.domain.times import expired_at_ms
from inference_cache.errors import StoreError
from inference_cache.log import event
from inference_cache.metrics import Metrics
from inference_cache.store.base import Store
from inference_cache.store.connection.transport import Connection

logger = logging.getLogger(__name__)

_JITTER = 0.1
_BEATS = 3
"""How often in a period the lease is asked for."""

_PING_PERIOD_S = 1.0
_PING_TIMEOUT_S = 2.0
_NO_EVICTION = "noeviction"


class Sweeper:
    """Removes what has expired, once a period, for all servers that share a store.

    The one that holds the lease sweeps; the others look at the catalog, so that their gauges are right too. A lease
    lasts a period and is asked for three times as often, so that when its owner dies, or no longer knows the time,
    another one goes on within two. Two at once do no harm: what expires is judged when it is removed.

    While the clock is not certain nothing is swept, because what looks expired may not be.

    Args:
        store: the index.
        policies: whose TTL each tenant has.
        metrics: where sweeps are counted and the index' size is shown.
        capacity: brings the index down to its cap after a sweep.
        period_ms: time between sweeps.
        clock_is_certain: whether the store's time is known well enough.
    """

    def __init__(
        self,
        store: Store,
        policies: PolicySource,
        metrics: Metrics,
        capacity: Capacity,
        *,
        period_ms: int,
        clock_is_certain: Callable[[], bool],
    ) -> None:
        self._store = store
        self._policies = policies
        self._metrics = metrics
        self._capacity = capacity
        self._period_ms = period_ms
        self._clock_is_certain = clock_is_certain
        self._owner = secrets.token_hex(16)
        self._mine = False
        self._promoted = asyncio.Event()

    async def run(self) -> None:
        """Sweep for ever, whenever it is this server's turn."""
        keeping = asyncio.create_task(self._keep_lease())
        try:
            await self._sweep_on()
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)

    async def _sweep_on(self) -> None:
        period_s = self._period_ms / 1000
        await asyncio.sleep(random.uniform(0, period_s))  # noqa: S311 - spreads load, guards nothing
        while True:
            self._promoted.clear()
            await (self.sweep() if self._mine else self.look())
            with suppress(TimeoutError):  # who takes over does so at once: nobody has swept for a while
                async with asyncio.timeout(period_s * random.uniform(1 - _JITTER, 1 + _JITTER)):  # noqa: S311
                    await self._promoted.wait()

    async def _keep_lease(self) -> None:
        """Ask for the lease, however long a sweep takes."""
        while True:
            before, self._mine = self._mine, await self._lease()
            if self._mine and not before:
                self._promoted.set()
            self._metrics.sweeping(self._mine)
            await asyncio.sleep(self._period_ms / 1000 / _BEATS)

    async def _lease(self) -> bool:
        if not self._clock_is_certain():
            return False  # another server may know better
        try:
            return await self._store.lease(self._owner, self._period_ms) is not None
        except StoreError:
            return False
        except Exception:
            logger.exception("lease_failed")
            return False

    async def sweep(self) -> None:
        """Sweep once; a store that does not answer makes this one a failure and is tried again next time."""
        if not self._clock_is_certain():
            self._metrics.swept("clock_uncertain")
            return
        await self._turn(self._sweep)

    async def look(self) -> None:
        """Leave the sweep to another server and only learn what the index holds."""
        await self._turn(self._look)

    async def _turn(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except StoreError as error:
            self._metrics.swept("failed")
            event(logger, logging.WARNING, "sweep_failed", reason=error.reason)
        except Exception:
            self._metrics.swept("failed")
            logger.exception("sweep_failed")

    async def _sweep(self) -> None:
        now_ms, policies = self._store.now_ms(), self._policies.current()
        found = await self._store.expire(
            lambda tenant_id: expired_at_ms(now_ms, policies.for_tenant(tenant_id).ttl_ms),
            lambda tenant_id: policies.for_tenant(tenant_id).retention,
        )
        self._metrics.swept("partial" if found.failed else "ok", stats_rows=found.stats_rows)
        self._metrics.entries(found.prefixes, complete=not found.failed)
        for tenant_id, holdings in found.holdings.items():
            self._metrics.index_evicted(policies.for_tenant(tenant_id).eviction, "ttl", holdings)
        await self._capacity.enforce_cap(policies)

    async def _look(self) -> None:
        self._metrics.entries(await self._store.entries(), complete=True)
        self._metrics.swept("standby")


class StoreWatch:
    """Keeps health, readiness and gauges in step with whether the store answers.

    Args:
        connection: the link to watch.
        metrics: where its state is shown.
        on_change: awaited with whether the store answers, at the first look and whenever that changes.
    """

    def __init__(self, connection: Connection, metrics: Metrics, on_change: Callable[[bool], Awaitable[None]]) -> None:
        self._connection = connection
        self._metrics = metrics
        self._on_change = on_change
        self._answers = False
        self._told: bool | None = None

    @property
    def answers(self) -> bool:
        """Whether the store answered when last asked."""
        return self._answers

    async def run(self) -> None:
        """Look for ever, about once a second."""
        while True:
            try:
                await self.look()
            except Exception:
                logger.exception("store_watch_failed")
            await asyncio.sleep(_PING_PERIOD_S)

    async def look(self) -> None:
        """Ask the store once."""
        reason = await self._ask()
        answers = reason is None
        self._metrics.store_state(answers)
        for lane, traffic in self._connection.traffic().items():
            self._metrics.store_lane(lane, **asdict(traffic))
        self._metrics.store_restarts(self._connection.restarts)
        if (replication := self._connection.replication()) is not None:
            self._metrics.store_replicas(**asdict(replication))
        self._metrics.store_clock(self._connection.clock.offset_ms / 1000)
        if self._connection.eviction_policy is not None:
            self._metrics.store_policy(self._connection.eviction_policy == _NO_EVICTION)
        if answers is not self._told:
            event(logger, logging.INFO if answers else logging.WARNING, "store_state", up=answers, reason=reason or "")
            self._answers = False  # until those who are told are ready too
            await self._on_change(answers)
            self._told = answers
        self._answers = answers

    async def _ask(self) -> str | None:
        try:
            async with asyncio.timeout(_PING_TIMEOUT_S):
                await self._connection.ping()
        except StoreError as error:
            return error.reason
        except TimeoutError:
            return "timeout"
        return None
