"""All that one process does about policies: answer from memory, follow Redis, and mind the directory if it has one."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

from inference_cache.domain.policy import Policy
from inference_cache.errors import StoreError
from inference_cache.metrics import Metrics
from inference_cache.policies.directory import PolicyDirectory
from inference_cache.policies.live import LivePolicies
from inference_cache.policies.sync import PolicySync
from inference_cache.store.policies import PolicyStore


class PolicyKeeper:
    """The policies of one process, with everything that changes them.

    Args:
        store: where all servers' policies are.
        default: the policy of tenants without one of their own.
        metrics: where it shows.
        host: this server's name, given as the writer's.
        directory: manifests that this process writes, ``None`` for none.

    Attributes:
        live: answers requests.
        sync: reads and writes Redis.
    """

    def __init__(
        self, store: PolicyStore, default: Policy, metrics: Metrics, *, host: str, directory: Path | None = None
    ) -> None:
        self.live = LivePolicies(default)
        self.sync = PolicySync(store, self.live, metrics, host=host)
        self._directory = PolicyDirectory(directory, self.sync, self.live, metrics) if directory else None
        metrics.policy_directory(directory is None)

    async def begin(self) -> None:
        """Take what there is before the first request; a Redis that is away is followed when it comes."""
        await self.follow()
        if self._directory is not None:
            await self._directory.look()

    async def follow(self) -> None:
        """Look once at Redis; while it cannot be read, what is in force stays."""
        with suppress(StoreError):
            await self.sync.refresh()

    async def run(self) -> None:
        """Keep all of it in step for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.sync.run())
            if self._directory is not None:
                group.create_task(self._directory.run())

    def details(self) -> list[str]:
        """Return what an operator should know of the policies in force, a line each."""
        lines = [self.sync.problem(), self._directory.detail() if self._directory is not None else None]
        return [line for line in lines if line is not None]
