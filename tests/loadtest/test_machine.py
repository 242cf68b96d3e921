from __future__ import annotations

import os
import subprocess
import sys
import time

from loadtest.bench.machine import descendants, describe, process_cpu_s, tree_cpu_s

_WAIT = "import sys; print(flush=True); sys.stdin.read()"
_BURN_AND_WAIT = "sum(range(10**6)); " + _WAIT


def test_processor_time_is_that_of_the_process() -> None:
    """The clock of a process, read from anywhere, lies between two readings that the process makes itself."""
    before = time.process_time()
    read = process_cpu_s(os.getpid())
    assert before <= read <= time.process_time()


def test_workers_count_for_their_server() -> None:
    """What a child used counts for its parent while both run, so that two workers are not cheaper than one."""
    with subprocess.Popen(
        [sys.executable, "-c", _BURN_AND_WAIT], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert child.pid in descendants(os.getpid())
        own, used = time.process_time(), process_cpu_s(child.pid)
        assert used > 0
        assert tree_cpu_s(os.getpid()) >= own + used
        child.communicate()
    assert child.pid not in descendants(os.getpid())


def test_a_machine_is_described_without_names() -> None:
    """A published report says what was measured on, and nothing about whose machine or which folder it was."""
    words = describe()
    assert {"processor", "memory", "system", "packages", "load before"} <= set(words)
    text = " ".join(words.values())
    assert os.uname().nodename not in text
    assert os.path.sep not in text.replace("CPU @", "")
