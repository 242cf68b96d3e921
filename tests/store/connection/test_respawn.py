from __future__ import annotations

import asyncio
import itertools
import os
import signal
from pathlib import Path

import pytest

from inference_cache.errors import StoreError, StoreUnavailable
from inference_cache.store.connection import embedded, open_connection, respawn
from tests.support.patience import until, until_it_runs
from tests.support.scripts import COUNT


def kill(server: embedded.EmbeddedServer) -> None:
    """End the process the hard way."""
    os.kill(server.pid, signal.SIGKILL)


async def test_a_server_that_is_killed_comes_back_at_the_same_place(caplog: pytest.LogCaptureFixture) -> None:
    """Whoever is connected by its socket goes on, without data and without doing anything about it; it is logged."""
    server = await embedded.start_embedded()
    connection = await open_connection(f"unix://{server.socket_path}")
    assert await connection.run(COUNT, b"k", []) == 1
    killed = server.pid
    kill(server)
    await until(lambda: server.restarts == 1)
    assert await until_it_runs(connection, COUNT, b"k") == 1
    assert server.pid != killed
    assert "was ended by SIGKILL" in caplog.text
    await connection.close()
    await server.stop()
    assert not Path(server.socket_path).parent.exists()


async def test_with_a_directory_it_has_its_data_back(tmp_path: Path) -> None:
    """What was written before the kill is there after it, again and again, and the connection counts the restarts."""
    connection = await open_connection(embedded_dir=str(tmp_path))
    child = connection._child  # type: ignore[attr-defined]
    for number in range(1, 4):
        assert await until_it_runs(connection, COUNT, b"k") == number
        await until(lambda: b"k" in (tmp_path / "appendonlydir" / "appendonly.aof.1.incr.aof").read_bytes())
        if number < 3:
            kill(child)
            await until(lambda number=number: connection.restarts == number)  # type: ignore[misc]
    await connection.close()


async def test_stopping_is_no_end_to_mend() -> None:
    """A server that is told to stop stays away, also in the middle of its next start."""
    server = await embedded.start_embedded()
    kill(server)
    await until(lambda: server.ended is not None or server.restarts == 1)
    await server.stop()
    assert server.ended is not None
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


class Fragile:
    """A server that ends as soon as it has been started, or cannot be."""

    def __init__(self, *errors: Exception | None) -> None:
        self.ended: str | None = "ended with status 1"
        self.starts = 0
        self._errors = itertools.chain(errors, itertools.repeat(None))

    async def start(self) -> None:
        """Start in vain."""
        self.starts += 1
        error = next(self._errors)
        if error is not None:
            raise error


@pytest.mark.parametrize("error", [StoreUnavailable("no"), StoreError("no"), OSError("no"), None])
async def test_it_never_gives_up(error: Exception | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start that fails, or one that does not last, is followed by another one."""
    monkeypatch.setattr(respawn, "_FIRST_PAUSE_S", 0.0)
    server = Fragile(error, error)
    keeping = asyncio.create_task(respawn.keep_running(server))
    await until(lambda: server.starts > 3)
    keeping.cancel()


def test_pauses_grow_and_stay_bounded() -> None:
    """A server that cannot live does not eat the machine, and one that can again is soon noticed."""
    pauses = [respawn.pause_s(young) for young in range(20)]
    assert pauses[0] < 1
    assert pauses == sorted(pauses)
    assert pauses[-1] == pauses[-2] == 30
