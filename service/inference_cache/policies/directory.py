"""A directory of manifests as a writer of policies: read at start and whenever it changes, all or nothing.

It writes when its content differs from the last directory that anybody wrote, never because somebody else wrote: what
came by API or from another server's directory stays until these files change. A content that cannot be used
changes nothing and is told by the log, a counter and the readiness detail.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from inference_cache.domain.manifests import ManifestSet, parse_manifests
from inference_cache.domain.policy_set import PolicySet
from inference_cache.errors import PolicyError, StoreError
from inference_cache.log import event
from inference_cache.metrics import Metrics
from inference_cache.policies.files import Mark, mark_of, read_directory
from inference_cache.policies.live import LivePolicies
from inference_cache.policies.sync import PolicySync

logger = logging.getLogger(__name__)

PERIOD_S = 0.5
_SHOWN_PROBLEMS = 10


class PolicyDirectory:
    """Watches one directory.

    Args:
        path: where the manifests are.
        sync: what writes.
        live: the policies in force, to compare with.
        metrics: where it shows.
    """

    def __init__(self, path: Path, sync: PolicySync, live: LivePolicies, metrics: Metrics) -> None:
        self._path = path
        self._sync = sync
        self._live = live
        self._metrics = metrics
        self._mark: Mark | None = None
        self._problem = "not read yet"
        self._says = PolicySet()
        self._unwritten = False

    @property
    def in_force(self) -> bool:
        """Whether the policies in force are what the directory says now."""
        return not self._problem and not self._unwritten and self._says == self._live.held.policy_set

    def detail(self) -> str:
        """Say in a few words whether the directory is in force, and why not."""
        if self._problem:
            return f"policy directory: not in force, {self._problem}"
        if self._unwritten:
            return "policy directory: not in force, not stored yet"
        if self.in_force:
            return "policy directory: in force"
        held = self._live.held.snapshot
        return f"policy directory: not in force, generation {held.generation} came from {held.source} on {held.host}"

    async def run(self) -> None:
        """Look for ever."""
        while True:
            await asyncio.sleep(PERIOD_S)
            try:
                await self.look()
            except Exception:
                logger.exception("policy_directory_failed")

    async def look(self) -> None:
        """Read the directory if it changed, and write it if that is still to be done."""
        mark = await asyncio.to_thread(mark_of, self._path)
        if mark != self._mark:
            await self._read(mark)
        if self._unwritten:
            await self._write()
        self._metrics.policy_directory(self.in_force)

    async def _read(self, mark: Mark) -> None:
        self._mark = mark
        try:
            self._mark, found = await asyncio.to_thread(_read, self._path)
        except PolicyError as error:
            self._refuse(error)
            return
        self._says, self._problem, self._unwritten = found.policy_set, "", True
        for warning in found.warnings[:_SHOWN_PROBLEMS]:
            event(logger, logging.WARNING, "policy_directory_warning", problem=warning)

    def _refuse(self, error: PolicyError) -> None:
        self._unwritten = False  # what was read before is not there any more
        more = len(error.problems) - 1
        self._problem = error.problems[0] + (f" (and {more} more)" if more else "")
        self._metrics.policy_directory_failed()
        event(logger, logging.ERROR, "policy_directory_unusable", problems=error.problems[:_SHOWN_PROBLEMS])

    async def _write(self) -> None:
        try:
            wrote = await self._sync.push_directory(self._says)
        except StoreError as error:
            self._metrics.policy_pushed("directory", "failed")
            event(logger, logging.WARNING, "policy_directory_not_stored", reason=error.reason)
            return
        self._unwritten = False
        self._metrics.policy_pushed("directory", "changed" if wrote else "same")


def _read(path: Path) -> tuple[Mark, ManifestSet]:
    reading = read_directory(path)
    return reading.mark, parse_manifests(reading.files)
