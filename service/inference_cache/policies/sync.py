"""Keeps this process's policies in step with Redis: reads, writes, and writes back what Redis lost.

A poll about every 400 ms is the guarantee that a change is applied within a second; hints on a channel make it sooner.
What cannot be read changes nothing: the last policies stay in force, and readiness, a metric and the log say so.

Which of two generations holds
    The higher one. A missing or lower one in Redis is a loss (emptied, or a promoted replica that missed the last
    push): whoever holds the higher one writes it back. At equal numbers with different content, which only such
    a loss can bring about, Redis is right: what it has was accepted later, and every server takes it.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

from inference_cache.domain.policy_set import PolicySet, canonical_body, digest
from inference_cache.domain.policy_wire import parse_policy_body
from inference_cache.errors import PolicyError, StoreError, StoreUnavailable
from inference_cache.log import event
from inference_cache.metrics import Metrics
from inference_cache.policies.live import LivePolicies
from inference_cache.store.policies import NOTHING, PolicySnapshot, PolicyStore

logger = logging.getLogger(__name__)

POLL_S = 0.4
_JITTER = 0.2
_LISTEN_AGAIN_S = 1.0
_DEADLINE_S = 4.0
"""For one exchange with Redis, turns included: a controller waits five seconds for its answer."""

UNREADABLE = "unreadable"
"""The reason of a snapshot that this version cannot read."""


class PolicySync:
    """Reads and writes the shared snapshot for one process, one exchange at a time.

    Args:
        store: where the snapshot is.
        live: the policies of this process, which are replaced here and nowhere else.
        metrics: where it shows.
        host: this server's name, which `GET /policy` gives as the writer's.
    """

    def __init__(self, store: PolicyStore, live: LivePolicies, metrics: Metrics, *, host: str) -> None:
        self._store = store
        self._live = live
        self._metrics = metrics
        self._host = host
        self._turn = asyncio.Lock()
        self._news = asyncio.Event()
        self._refused: PolicySnapshot | None = None
        self._failing = ""
        self._ever_read = False
        self._deaf = ""
        self._read_at = time.monotonic()

    def problem(self) -> str | None:
        """Say in a few words why these policies may be old, ``None`` when they are not."""
        kept = f"generation {self._live.held.snapshot.generation} stays in force"
        if self._failing == UNREADABLE and self._refused is not None:
            return f"policies: this version cannot read generation {self._refused.generation}, {kept}"
        if self._failing and not self._ever_read:
            return f"policies: never read from Redis ({self._failing}), the defaults are in force"
        if self._failing:
            return f"policies: not read for {time.monotonic() - self._read_at:.0f} s ({self._failing}), {kept}"
        return None

    async def run(self) -> None:
        """Follow the snapshot for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._poll())
            group.create_task(self._listen())

    async def refresh(self) -> None:
        """Look once whether Redis has other policies, and apply them.

        Raises:
            StoreError: Redis cannot be read; what is in force stays.
        """
        try:
            async with self._exchange():
                await self._look()
        except StoreError as error:
            self._fail(error.reason)
            raise

    async def push(self, policy_set: PolicySet, source: str) -> bool:
        """Store policies and apply them in this process; return whether they are new.

        Args:
            policy_set: what shall hold from now on, for all tenants.
            source: who pushes, ``api`` or ``cli``.

        Raises:
            StoreError: they are not known to be stored. Nothing changed here.
        """
        new = await self._written(policy_set, source)
        async with self._exchange():
            stored, fresh = await self._store.push(new, self._live.held.snapshot)
            self._apply(stored, policy_set)
        return fresh

    async def push_directory(self, policy_set: PolicySet) -> bool:
        """Store and apply what the policy directory says, unless it is what a directory said last; tell which.

        Raises:
            StoreError: as with :meth:`push`.
        """
        new = await self._written(policy_set, "directory")
        new = replace(new, directory="" if new.digest == NOTHING.digest else new.digest)
        async with self._exchange():
            stored = await self._store.push_directory(new, self._live.held.snapshot)
            if stored is not None:
                self._apply(stored, policy_set)
        return stored is not None

    async def _written(self, policy_set: PolicySet, source: str) -> PolicySnapshot:
        body = await asyncio.to_thread(canonical_body, policy_set)
        return PolicySnapshot(0, digest(body), source, self._host, self._store.now_ms(), "", body)

    @asynccontextmanager
    async def _exchange(self) -> AsyncIterator[None]:
        """Take a turn, so that what is applied here follows the order in which Redis answered."""
        try:
            async with asyncio.timeout(_DEADLINE_S), self._turn:
                yield
        except TimeoutError:
            raise StoreUnavailable("Redis did not answer in time", "timeout") from None

    async def _look(self) -> None:
        held = self._live.held.snapshot
        found = await self._store.get(self._refused or held)
        if found == "SAME":
            if self._refused is None:
                self._succeed()
        elif found == "ABSENT" or found.generation < held.generation:
            if held.generation and await self._store.restore(held):
                self._metrics.policy_restored()
                event(logger, logging.WARNING, "policies_restored", generation=held.generation)
            self._succeed()
        else:
            await self._take(found)

    async def _take(self, found: PolicySnapshot) -> None:
        held = self._live.held
        try:
            same = found.digest == held.snapshot.digest
            policy_set = held.policy_set if same else await asyncio.to_thread(parse_policy_body, found.body)
        except PolicyError as error:
            self._refused = found
            self._fail(UNREADABLE)
            event(logger, logging.ERROR, "policies_unreadable", generation=found.generation, problem=error.problems[0])
            return
        self._apply(found, policy_set)

    def _apply(self, snapshot: PolicySnapshot, policy_set: PolicySet) -> None:
        before = self._live.held
        if (snapshot.generation, snapshot.digest) == (before.snapshot.generation, before.snapshot.digest):
            self._live.apply(snapshot, before.policy_set, before.applied_ms)
        else:
            self._live.apply(snapshot, policy_set, self._store.now_ms())
            self._metrics.policy_applied(snapshot.generation)
            event(
                logger,
                logging.INFO,
                "policies_applied",
                generation=snapshot.generation,
                source=snapshot.source,
                host=snapshot.host,
                digest=snapshot.digest,
                policies=len(policy_set.policies),
                tenants=len(policy_set.quotas),
            )
        self._succeed()

    def _succeed(self) -> None:
        self._refused, self._failing, self._ever_read = None, "", True
        self._read_at = time.monotonic()
        self._metrics.policy_read()

    def _fail(self, reason: str) -> None:
        self._metrics.policy_read_failed(reason)
        if reason != self._failing:
            event(logger, logging.WARNING, "policies_not_read", reason=reason)
        self._failing = reason

    async def _poll(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_S * random.uniform(1 - _JITTER, 1 + _JITTER)):  # noqa: S311
                    await self._news.wait()
            self._news.clear()
            try:
                await self.refresh()
            except StoreError:
                pass  # counted, told and tried again
            except Exception:
                self._fail("unexpected")
                logger.exception("policies_poll_failed")

    async def _listen(self) -> None:
        while True:
            try:
                await self._store.wait_for_news(self._heard)
            except StoreError as error:
                if error.reason != self._deaf:
                    event(logger, logging.INFO, "policy_hints_off", reason=error.reason)
                self._deaf = error.reason
            except Exception:
                logger.exception("policy_hints_failed")
            await asyncio.sleep(_LISTEN_AGAIN_S * random.uniform(1 - _JITTER, 1 + _JITTER))  # noqa: S311

    def _heard(self) -> None:
        self._deaf = ""
        self._news.set()
