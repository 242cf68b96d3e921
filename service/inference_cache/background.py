"""What a server does beside answering: sweep what has expired, and watch whether the store answers.

Both run until cancelled, survive a store that is away, and never hold up a request.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import asdict

from inference_cache.domain.models import Expired
from inference_cache.domain.policy import PolicySource
from inference_cache.domain.times import expired_at_ms
from inference_cache.errors import StoreError
from inference_cache.log import event
from inference_cache.metrics import Metrics
from inference_cache.store.base import Store
from inference_cache.store.connection.transport import Connection

logger = logging.getLogger(__name__)

_JITTER = 0.1
_PING_PERIOD_S = 1.0
_PING_TIMEOUT_S = 2.0
_NO_EVICTION = "noeviction"


class Sweeper:
    """Removes what has expired, once a period.

    Every server sweeps; a jitter keeps servers that started together from doing so together. While the clock is not
    certain nothing is swept, because what looks expired may not be.

    Args:
        store: the index.
        policies: whose TTL each tenant has.
        metrics: where sweeps are counted and the index' size is shown.
        period_ms: time between sweeps.
        clock_is_certain: whether the store's time is known well enough.
    """

    def __init__(
        self,
        store: Store,
        policies: PolicySource,
        metrics: Metrics,
        *,
        period_ms: int,
        clock_is_certain: Callable[[], bool],
    ) -> None:
        self._store = store
        self._policies = policies
        self._metrics = metrics
        self._period_s = period_ms / 1000
        self._clock_is_certain = clock_is_certain

    async def run(self) -> None:
        """Sweep for ever; the first time after a random part of the period."""
        await asyncio.sleep(random.uniform(0, self._period_s))  # noqa: S311 - spreads load, guards nothing
        while True:
            await self.sweep()
            await asyncio.sleep(self._period_s * random.uniform(1 - _JITTER, 1 + _JITTER))  # noqa: S311

    async def sweep(self) -> None:
        """Sweep once; a store that does not answer makes this one a failure and is tried again next time."""
        if not self._clock_is_certain():
            self._metrics.swept("clock_uncertain")
            return
        now_ms = self._store.now_ms()
        try:
            found = await self._store.expire(
                lambda tenant_id: expired_at_ms(now_ms, self._policies.for_tenant(tenant_id).ttl_ms)
            )
        except StoreError as error:
            self._metrics.swept("failed")
            event(logger, logging.WARNING, "sweep_failed", reason=error.reason)
        except Exception:
            self._metrics.swept("failed")
            logger.exception("sweep_failed")
        else:
            self._count(found)

    def _count(self, found: Expired) -> None:
        self._metrics.swept("partial" if found.failed else "ok", stats_rows=found.stats_rows)
        self._metrics.entries(found.prefixes, complete=not found.failed)
        for tenant_id, holdings in found.holdings.items():
            self._metrics.index_evicted(self._policies.for_tenant(tenant_id).eviction, "ttl", holdings)


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
