"""Making room: for a tenant's quota and for the cap of the whole index.

The catalog names the model whose turn it is and when the next one's turn comes; that model's script takes what gives
way first, up to there. So the cost follows what is removed, not what is held. One task of a server trims at a time, and
the catalog shares what is too much out among servers that trim at once: each removes what it has claimed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from inference_cache.domain.models import ModelKey, Trimmed
from inference_cache.errors import StoreError
from inference_cache.store import replies
from inference_cache.store.calls import Calls
from inference_cache.store.replies import Room, Victim

_MAX_WANT = 1024
"""What one call may be asked to remove."""

_PATIENCE = 3
"""Steps in a row that find nothing to remove (somebody else did, or a model was lost) before a turn is passed over."""


@dataclass(frozen=True, slots=True)
class _Goal:
    """What a trim is after: whose sums, how many may stay, and how each model is to be asked."""

    kind: Literal["quota", "cap"]
    tenant_id: str | None
    limit: int
    expired_at: Callable[[str], int]
    lfu: Callable[[str], bool]


class Trim:
    """Removes what gives way first."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._turn = asyncio.Lock()

    async def tenant(self, tenant_id: str, max_prefixes: int, expired_at_ms: int, *, lfu: bool) -> Trimmed:
        """Bring a tenant down to its quota of distinct prefixes."""
        return await self._run(_Goal("quota", tenant_id, max_prefixes, lambda _: expired_at_ms, lambda _: lfu))

    async def index(self, max_holdings: int, expired_at: Callable[[str], int], lfu: Callable[[str], bool]) -> Trimmed:
        """Bring the index down to its cap of holdings."""
        return await self._run(_Goal("cap", None, max_holdings, expired_at, lfu))

    async def _run(self, goal: _Goal) -> Trimmed:
        report, idle = Trimmed(), 0
        waits = self._turn.locked()
        async with self._turn:
            # Whoever had the turn before has made room for all who waited: then there is nothing to ask.
            while not (waits and self._told_enough(goal)):
                waits = False
                victim = await self._calls.catalog.victim(
                    goal.tenant_id, report.failed, limit=goal.limit, most=_MAX_WANT
                )
                if victim.model is None:
                    break
                try:
                    idle = 0 if await self._step(goal, victim, victim.model, report) else idle + 1
                except StoreError:
                    report.failed += 1
                if idle > _PATIENCE:
                    report.failed, idle = report.failed + 1, 0
        return report

    def _told_enough(self, goal: _Goal) -> bool:
        catalog = self._calls.catalog
        told = catalog.index_holdings if goal.tenant_id is None else catalog.tenant_prefixes(goal.tenant_id)
        return told is not None and told <= goal.limit

    async def _step(self, goal: _Goal, victim: Victim, model: ModelKey, report: Trimmed) -> bool:
        """Ask one model to give way; return whether that led anywhere."""
        tenant_id = model.tenant_id
        options = (goal.expired_at(tenant_id), int(goal.lfu(tenant_id)), self._calls.now_us())
        room = replies.read_trim(await self._calls.run("trim", model, goal.kind, victim.claimed, victim.bar, *options))
        await self._calls.after(model, room.step)
        _count(report, tenant_id, room, quota=goal.tenant_id is not None)
        state = room.step.state
        if not state.version:
            # Its keys are gone, whatever the catalog says: what we say now is newer.
            await self._calls.catalog.put(model, replace(state, version=self._calls.now_us()))
        removed = room.expired + room.holdings + room.prefixes
        return bool(removed) or room.step.more or (victim.unlisted and state.stalest >= 0)


def _count(report: Trimmed, tenant_id: str, room: Room, *, quota: bool) -> None:
    removed = room.prefixes if quota else room.holdings
    if removed:
        report.removed[tenant_id] = report.removed.get(tenant_id, 0) + removed
    if room.expired:
        report.expired[tenant_id] = report.expired.get(tenant_id, 0) + room.expired
