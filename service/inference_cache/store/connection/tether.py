"""Run a program that does not outlive the process which started it, even when that one is killed outright.

Started as a script by :mod:`inference_cache.store.connection.embedded`, in an interpreter of its own that imports
nothing of ours: what must happen between fork and exec is not safe in a process with threads.

On Linux the kernel is asked for a signal at the parent's death, then this process becomes the program. Elsewhere
it stays, and stops the program when the pipe on its standard input closes.

Usage: ``tether.py kernel|pipe PARENT_PID SIGNAL PROGRAM [ARGUMENT ...]``
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading

_PR_SET_PDEATHSIG = 1


def become(command: list[str], parent: int, death_signal: int) -> None:
    """Turn into the program, to be sent ``death_signal`` when the parent's starting thread ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, death_signal, 0, 0, 0)
    if os.getppid() != parent:  # it died before the line above
        sys.exit(1)
    os.execv(command[0], command)  # noqa: S606 - no shell is wanted


def guard(command: list[str], death_signal: int) -> int:
    """Run the program until it ends or standard input does; return its exit code."""
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, close_fds=False)  # noqa: S603 - our own argv

    def wait_for_parent() -> None:
        sys.stdin.buffer.read()
        child.send_signal(death_signal)

    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    threading.Thread(target=wait_for_parent, daemon=True).start()
    return child.wait()


def main(arguments: list[str]) -> None:
    """Do what the command line says."""
    how, parent, death_signal, *command = arguments
    if how == "kernel":
        become(command, int(parent), int(death_signal))
    sys.exit(guard(command, int(death_signal)))


if __name__ == "__main__":
    main(sys.argv[1:])
