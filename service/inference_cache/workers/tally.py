"""What one place of the crew has counted, whoever held it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from inference_cache.workers.merge import Snapshot, counted, merged, value

_LOOKUPS = "lookup_route_calls_total"


class Tally:
    """The last snapshot of the worker that runs, and the counts of those before it."""

    def __init__(self) -> None:
        self._counts: tuple[Snapshot, Snapshot] = ({}, {})
        self._one_at_a_time = asyncio.Lock()

    @property
    def snapshots(self) -> tuple[Snapshot, Snapshot]:
        """Both, of one moment; may be read from another thread."""
        return self._counts

    async def fetch(self, ask: Callable[[], Awaitable[Snapshot]]) -> float:
        """Take a newer snapshot and return how many lookups were answered since the one before.

        One at a time, because an older answer that comes later would let counters fall.
        """
        async with self._one_at_a_time:
            return self.note(await ask())

    def note(self, latest: Snapshot) -> float:
        """Take a snapshot of the worker that runs; return how many lookups were answered since the one before."""
        before, last = self._counts
        self._counts = (before, latest)
        return max(0.0, value(latest, _LOOKUPS) - value(last, _LOOKUPS))

    def close(self) -> None:
        """The worker has ended: keep what it counted, and forget its gauges."""
        self._counts = (counted(merged(self._counts)), {})
