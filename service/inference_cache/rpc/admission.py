"""How many lookups are under way, and whether there is room for one more.

While Redis stalls, lookups wait for as long as their budget lets them, and each holds its request. Bounded in number
they cannot fill the memory, however many gateways ask and whatever budgets they have.
"""

from __future__ import annotations

from types import TracebackType

DEFAULT_MAX_LOOKUPS = 1024
"""Lookups that one process has under way at most."""


class Admission:
    """Counts the lookups between their entry and their answer; to be entered by each of them.

    Args:
        limit: how many may be under way at once.
    """

    def __init__(self, limit: int = DEFAULT_MAX_LOOKUPS) -> None:
        self._limit = limit
        self._in_flight = 0

    @property
    def crowded(self) -> bool:
        """Whether whoever has just entered is one too many, and should leave before waiting for anything.

        Those that were told that they are not never hear otherwise later: whoever comes after them is told first.
        """
        return self._in_flight > self._limit

    def __enter__(self) -> None:
        self._in_flight += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._in_flight -= 1
