"""`inference-cache serve` as a process of its own, the way an operator runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.servers import wait_until

STOP_S = 30.0
ANY_PORTS = (
    *("--grpc-bind-address", "127.0.0.1:0"),
    *("--http-bind-address", "127.0.0.1:0"),
    *("--snapshot-bind-address", "127.0.0.1:0"),
)


def clean_environment() -> dict[str, str]:
    """Return the environment without the settings of somebody's own server."""
    return {
        name: value
        for name, value in os.environ.items()
        if name != "REDIS_URL" and not name.startswith("INFERENCE_CACHE_")
    }


def command(*arguments: str) -> list[str]:
    """Return the command line of `inference-cache` for this interpreter."""
    return [sys.executable, "-m", "inference_cache", *arguments]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        command(*arguments), env=clean_environment(), capture_output=True, text=True, timeout=STOP_S, check=False
    )


class Serving:
    """A running server; its log is read from a file, as JSON lines."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self._log = log

    def events(self) -> list[dict[str, Any]]:
        """Return what was logged so far, complete lines only."""
        return [json.loads(line) for line in self._log.read_text().splitlines(keepends=True) if line.endswith("\n")]

    def names(self) -> list[str]:
        """Return the names of the events logged so far."""
        return [str(event["event"]) for event in self.events()]

    def wait_for(self, name: str) -> dict[str, Any]:
        """Wait for an event and return it."""

        def seen() -> bool:
            if name in self.names():
                return True
            if self.process.poll() is not None:
                raise ChildProcessError(self._log.read_text())
            return False

        wait_until(seen, f"the event {name}")
        return next(event for event in self.events() if event["event"] == name)

    @property
    def grpc(self) -> str:
        """Address of the gRPC service."""
        return str(self.wait_for("startup")["grpc_addr"])

    @property
    def http(self) -> str:
        """Address of health and metrics."""
        return str(self.wait_for("startup")["http_addr"])

    def get(self, path: str, address: str = "") -> tuple[int, str]:
        """Return status and body of an HTTP GET."""
        try:
            with urllib.request.urlopen(f"http://{address or self.http}{path}", timeout=10) as answer:
                return int(answer.status), answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def signal(self, number: int = signal.SIGTERM) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def ended(self) -> int:
        """Wait for the end and return the exit status."""
        return self.process.wait(STOP_S)


@contextmanager
def serving(home: Path, *arguments: str, environment: Mapping[str, str] | None = None) -> Iterator[Serving]:
    """Run a server with its log in ``home``, free ports and further flags; killed at the end if it still runs.

    Args:
        home: folder of the log.
        arguments: flags.
        environment: variables besides those that every command has.
    """
    log = home / f"serve-{len(list(home.glob('serve-*')))}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            command("serve", *ANY_PORTS, *arguments),
            env={**clean_environment(), **(environment or {})},
            stdout=out,
            stderr=out,
        )
    try:
        server = Serving(process, log)
        server.wait_for("startup")
        yield server
    finally:
        process.kill()
        process.wait()
