"""The clock that all servers share: Redis' time, kept by measuring how far it is from our own.

Asking Redis costs a round trip, so the difference between its ``TIME`` and the local monotonic clock is
measured when a connection opens and every few seconds after, and reading the clock is an addition. A measurement
is wrong by at most half its round trip (Cristian's method); of the last few the best counts, where age adds
what two quartz clocks may have drifted apart meanwhile.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

_KEPT = 8
_DRIFT_MS_PER_MS = 200e-6
CERTAIN_WITHIN_MS = 1_000.0


@dataclass(frozen=True, slots=True)
class _Sample:
    """One measurement: Redis' time minus the monotonic clock, and how wrong that may be."""

    offset_ms: float
    error_ms: float
    taken_ms: float

    def error_at(self, monotonic_ms: float) -> float:
        """Return the bound on the error after drifting until ``monotonic_ms``."""
        return self.error_ms + max(0.0, monotonic_ms - self.taken_ms) * _DRIFT_MS_PER_MS


class ServerClock:
    """Redis' time without asking Redis.

    Until the first measurement it is the wall clock of this machine, with infinite uncertainty.

    Args:
        monotonic: seconds that never jump.
        wall: seconds since 1970 by this machine.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time) -> None:
        self._monotonic = monotonic
        self._wall = wall
        self._samples: deque[_Sample] = deque(maxlen=_KEPT)
        self._best = _Sample((wall() - monotonic()) * 1000, math.inf, monotonic() * 1000)

    def now_ms(self) -> int:
        """Return Redis' time in whole milliseconds since 1970."""
        return int(self._monotonic() * 1000 + self._best.offset_ms)

    def ticks(self) -> float:
        """Return the local clock that :meth:`observe` wants, in seconds."""
        return self._monotonic()

    def observe(self, sent: float, received: float, server_ms: float) -> None:
        """Take in one answer of ``TIME``.

        Args:
            sent: :meth:`ticks` before the question.
            received: :meth:`ticks` after the answer.
            server_ms: the answer, milliseconds since 1970.
        """
        sample = _Sample(server_ms - (sent + received) * 500, (received - sent) * 500, received * 1000)
        if self._contradicts(sample):
            self._samples.clear()
        self._samples.append(sample)
        self._best = min(self._samples, key=lambda kept: kept.error_at(sample.taken_ms))

    @property
    def offset_ms(self) -> float:
        """How far Redis' clock is ahead of this machine's wall clock; a gauge for operators."""
        return self._monotonic() * 1000 + self._best.offset_ms - self._wall() * 1000

    @property
    def uncertainty_ms(self) -> float:
        """How wrong :meth:`now_ms` may be, either way."""
        return self._best.error_at(self._monotonic() * 1000)

    @property
    def certain(self) -> bool:
        """Whether the clock is good enough to remove what looks expired."""
        return self.uncertainty_ms <= CERTAIN_WITHIN_MS

    def _contradicts(self, sample: _Sample) -> bool:
        """Whether Redis' clock was set, or another server answers, since the best measurement."""
        bound = sample.error_ms + self._best.error_at(sample.taken_ms)
        return abs(sample.offset_ms - self._best.offset_ms) > bound
