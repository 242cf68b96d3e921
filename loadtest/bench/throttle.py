"""Hold a process and its children to a share of one core, by stopping them when they are ahead of it.

Usage: ``python -m loadtest.bench.throttle PID SHARE``, until SIGTERM. Machines on which control groups may be
set could do it better; this works everywhere on Linux, and its grain of some milliseconds is fine for rates.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress

from loadtest.bench.machine import descendants, tree_cpu_s

_STEP_S = 0.004


def throttle(pid: int, share: float) -> None:
    """Throttle until told to stop or the process ends; it is left running."""
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    stopped = False
    began, used = time.monotonic(), tree_cpu_s(pid)
    try:
        while not told:
            ahead = tree_cpu_s(pid) - used > share * (time.monotonic() - began)
            if ahead != stopped:
                _send(pid, signal.SIGSTOP if ahead else signal.SIGCONT)
                stopped = ahead
            elif not ahead:
                # What was not used is lost, or a pause would be followed by a burst at full speed.
                began, used = time.monotonic(), tree_cpu_s(pid)
            time.sleep(_STEP_S)
    finally:
        with suppress(ProcessLookupError):
            _send(pid, signal.SIGCONT)


def _send(pid: int, number: int) -> None:
    for one in descendants(pid):
        os.kill(one, number)


if __name__ == "__main__":
    throttle(int(sys.argv[1]), float(sys.argv[2]))
