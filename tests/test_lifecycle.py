from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from inference_cache.lifecycle import settle_memory


class Cycle:
    """Something that only the collector can free."""

    def __init__(self) -> None:
        self.itself = self


def lost() -> weakref.ref[Cycle]:
    """Return a trace of a cycle that nobody has any more."""
    return weakref.ref(Cycle())


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


def test_what_is_there_is_never_looked_at_again() -> None:
    """A full collection skips everything that was loaded at the start, so that no lookup waits for it."""
    loaded = Cycle()
    settle_memory()
    assert gc.get_freeze_count() > 10_000
    assert not any(each is loaded for each in gc.get_objects())
    assert gc.get_threshold()[0] == 10_000


def test_garbage_is_still_found() -> None:
    """What was garbage at the start is freed rather than frozen, and later cycles are freed as ever."""
    early = lost()
    settle_memory()
    assert early() is None
    late = lost()
    gc.collect()
    assert late() is None
