"""The server with a sampling profiler in it; the command line is that of ``inference-cache``.

Between two SIGUSR1, every few milliseconds of processor time give a point to the Python function that the event loop's
thread is in. Time in compiled code counts for the function that called it, time of other threads for whatever
the loop's thread is in. The second signal writes the points to the file that the environment variable names.
"""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from pathlib import Path
from types import FrameType

from inference_cache.cli.main import main

OUT = "BENCH_PROFILE"
_EVERY_S = 0.001

_points: Counter[str] = Counter()


def _sample(_: int, frame: FrameType | None) -> None:
    if frame is not None:
        _points[f"{frame.f_code.co_filename}:{frame.f_code.co_qualname}"] += 1


def _toggle(_: int, __: FrameType | None) -> None:
    if signal.getitimer(signal.ITIMER_PROF)[0]:
        signal.setitimer(signal.ITIMER_PROF, 0)
        Path(os.environ[OUT]).write_text(json.dumps(_points))
    else:
        signal.setitimer(signal.ITIMER_PROF, _EVERY_S, _EVERY_S)


if __name__ == "__main__":
    signal.signal(signal.SIGPROF, _sample)
    signal.signal(signal.SIGUSR1, _toggle)
    main()
