"""Making room: for a tenant's quota and for the cap of the whole index.

The catalog names the model whose turn it is and when the next one's turn comes; that model's script takes what gives
way first, up to there. So the cost follows what is removed, not what is held. One task of a server trims at a time;
servers that trim at once may each remove what the other was about to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Literal

from inference_cache.domain.models import ModelKey, Trimmed
from inference_cache.errors import StoreError
from inference_cache.store import replies
from inference_cache.store.calls import Calls
from inference_cache.store.replies import Room, Victim

_MAX_WANT = 1024
"""What one call may be asked to remove."""


class Trim:
    """Removes what gives way first."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._turn = asyncio.Lock()

    async def tenant(self, tenant_id: str, max_prefixes: int, expired_at_ms: int, *, lfu: bool) -> Trimmed:
        """Bring a tenant down to its quota of distinct prefixes."""
        return await self._run(
            tenant_id,
            lambda victim: victim.sums.prefixes - max_prefixes,
            lambda victim, excess: self._step("quota", victim, excess, expired_at_ms, lfu=lfu),
        )

    async def index(self, max_holdings: int, expired_at: Callable[[str], int], lfu: Callable[[str], bool]) -> Trimmed:
        """Bring the index down to its cap of holdings."""

        async def step(victim: Victim, excess: int) -> Room:
            tenant_id = _model_of(victim).tenant_id
            return await self._step("cap", victim, excess, expired_at(tenant_id), lfu=lfu(tenant_id))

        return await self._run(None, lambda victim: victim.sums.holdings - max_holdings, step)

    async def _run(
        self,
        tenant_id: str | None,
        excess_of: Callable[[Victim], int],
        step: Callable[[Victim, int], asyncio.Future[Room] | object],
    ) -> Trimmed:
        report = Trimmed()
        async with self._turn:
            while True:
                victim = await self._calls.catalog.victim(tenant_id, report.failed)
                excess = excess_of(victim)
                if excess <= 0 or victim.model is None:
                    return report
                try:
                    room = await step(victim, excess)  # type: ignore[misc]
                except StoreError:
                    report.failed += 1
                    continue
                _count(report, victim.model.tenant_id, room, quota=tenant_id is not None)

    async def _step(
        self, kind: Literal["quota", "cap"], victim: Victim, excess: int, expired_at_ms: int, *, lfu: bool
    ) -> Room:
        model = _model_of(victim)
        want = 0 if victim.unlisted else min(excess, _MAX_WANT)
        args = (kind, want, victim.bar, expired_at_ms, int(lfu), self._calls.now_us())
        room = replies.read_trim(await self._calls.run("trim", model, *args))
        await self._calls.after(model, room.step)
        return room


def _model_of(victim: Victim) -> ModelKey:
    if victim.model is None:
        raise ValueError("nobody's turn")
    return victim.model


def _count(report: Trimmed, tenant_id: str, room: Room, *, quota: bool) -> None:
    removed = room.prefixes if quota else room.holdings
    if removed:
        report.removed[tenant_id] = report.removed.get(tenant_id, 0) + removed
    if room.expired:
        report.expired[tenant_id] = report.expired.get(tenant_id, 0) + room.expired
