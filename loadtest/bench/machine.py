"""The machine and the versions that a run's figures belong to."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from importlib.metadata import version
from pathlib import Path

import inference_cache

_PACKAGES = ("grpcio", "protobuf", "redis", "hiredis", "uvloop")


def describe() -> dict[str, str]:
    """Return processor, memory, system, versions and how busy the machine is, in words."""
    return {
        "processor": f"{_processor()}, {os.cpu_count()} cores visible",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        "packages": ", ".join(f"{name} {version(name)}" for name in _PACKAGES),
        "inference-cache": f"{inference_cache.__version__}{_revision()}",
        "load before": f"{os.getloadavg()[0]:.1f} (one-minute average; above 0, other work shares the cores)",
        "day": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def process_cpu_s(pid: int) -> float:
    """Return the processor seconds that a process has used, all its threads, to the nanosecond (Linux).

    The clock id is what ``clock_getcpuclockid(3)`` gives for a process.
    """
    return time.clock_gettime((~pid << 3) | 2)


def descendants(pid: int) -> list[int]:
    """Return a process and all that it started, workers for instance (Linux)."""
    found = [pid]
    for one in found:
        for task in Path(f"/proc/{one}/task").glob("*/children"):
            found += map(int, task.read_text().split())
    return found


def tree_cpu_s(pid: int) -> float:
    """Return the processor seconds of a process and all that it started."""
    return sum(process_cpu_s(one) for one in descendants(pid))


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _revision() -> str:
    """Return the commit of a checkout, nothing elsewhere."""
    git = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        found = subprocess.run(git, capture_output=True, text=True, check=True)  # noqa: S603 - our own argv
    except (OSError, subprocess.CalledProcessError):
        return ""
    return f" at {found.stdout.strip()}"
