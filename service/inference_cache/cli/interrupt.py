"""Ctrl-C while something is loaded: the process ends at once, as one without a handler does, status 130 in a shell."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ends_quietly() -> Iterator[None]:
    """Let SIGINT end the process while the block runs; who ignores it, as jobs in the background do, still does."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
            signal.signal(signal.SIGINT, before)
