"""Sweeping: what has expired goes, what a dead server left is finished, and a changed retention is put in order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from inference_cache.domain.models import Expired, ModelKey, Retention
from inference_cache.errors import StoreError
from inference_cache.store import replies
from inference_cache.store.calls import Calls
from inference_cache.store.keys import key_ttl_ms
from inference_cache.store.replies import Listed, ModelState

_LATE_WORD_MS = 30_000
"""Longer than any call lasts: what a server still has to say about a model was said by then."""


class Sweep:
    """Sweeps the models that the catalog lists, each in bounded steps. Any number may sweep at once."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def run(
        self, expired_at: Callable[[str], int], retention: Callable[[str], Retention] | None = None
    ) -> Expired:
        """Sweep once; a model that fails does not stop the others."""
        report = Expired()
        for listed in await self._calls.catalog.listing():
            model = listed.entry.model
            report.prefixes[model] = listed.entry.prefixes
            try:
                if retention is not None:
                    await self._retain(listed, retention(model.tenant_id))
                cut = expired_at(model.tenant_id)
                if listed.due_ms <= cut:
                    report.prefixes[model] = await self._expire(listed, cut, report)
            except StoreError:
                report.failed += 1
        return report

    async def _retain(self, listed: Listed, retention: Retention) -> None:
        """Let keys live as long as a raised TTL wants, and forget credits that no longer count."""
        model, told = listed.entry.model, listed.entry.retention
        self._calls.catalog.learn(model.tenant_id, retention)
        if told == retention or listed.entry.holdings == 0:
            return
        if told.ttl_ms < retention.ttl_ms:
            await self._renew(model, key_ttl_ms(retention.ttl_ms))
        while True:
            args = ("cap", 0, "", 0, int(retention.lfu), self._calls.now_us())
            room = replies.read_trim(await self._calls.run("trim", model, *args))
            if not room.step.more:
                break
            await self._calls.after(model, room.step)
        await self._calls.catalog.put(model, room.step.state, retention)

    async def _renew(self, model: ModelKey, ttl_ms: int) -> None:
        cursor = b"0"
        while True:
            cursor = replies.read_cursor(await self._calls.run("renew", model, ttl_ms, cursor))
            if cursor == b"0":
                return

    async def _expire(self, listed: Listed, cut: int, report: Expired) -> int:
        """Sweep one model; return the distinct prefixes that it is left with."""
        model = listed.entry.model
        cursor: bytes = b"0"
        while True:
            step = replies.read_expire(await self._calls.run("expire", model, cut, cursor, self._calls.now_us()))
            cursor = step.cursor
            report.stats_rows += step.rows
            if step.holdings:
                report.holdings[model.tenant_id] = report.holdings.get(model.tenant_id, 0) + step.holdings
            await self._calls.after(model, step)
            if not step.more:
                break
        if not step.state.holds and not step.state.rows:
            await self._verify(listed, step.state)
        return step.state.prefixes

    async def _verify(self, listed: Listed, state: ModelState) -> None:
        """Correct the entry of a model with nothing; drop it when that has been so for so long that no word is late."""
        catalog, entry = self._calls.catalog, listed.entry
        # A model whose keys are gone has no version of its own any more; the catalog's still orders what we say.
        state = replace(state, version=max(state.version, listed.version))
        if entry.holdings or entry.rows:
            await catalog.put(entry.model, state)
        elif self._calls.connection.now_ms() - entry.told_ms > _LATE_WORD_MS:
            await catalog.forget(entry.model, state)
