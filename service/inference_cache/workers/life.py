"""One worker process, from its start to its end, as the parent sees it.

It is a fresh interpreter, because gRPC does not survive a fork. It has one end of a socket pair, nothing of it is on
its command line, and it dies with the parent even when that one is killed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import inference_cache
from inference_cache.store.connection import tether
from inference_cache.workers.channel import Channel, Gone, Handlers, Refused

ANSWER_S = 2.0
"""How long a worker may take to answer; after that it is not ready, and what it last counted stands."""

_START_S = 60.0
_BEAT_S = 1.0
_ROOT = str(Path(inference_cache.__file__).parent.parent)
_MAIN = "import sys; sys.path.append(sys.argv.pop(1)); from inference_cache.worker import main; main()"
"""Finds this very package also where it is not installed, and never one that lies in the working directory."""


class Life:
    """A worker that is about to start.

    Attributes:
        pid: of its process; 0 before it has one.
        not_ready: why it should get no traffic, as it said when last asked; ``None`` when it should.

    Args:
        number: which of the server's workers it is.
        handlers: what it may ask the parent.
    """

    def __init__(self, number: int, handlers: Handlers) -> None:
        self.number = number
        self.pid = 0
        self.not_ready: str | None = "starting"
        self._handlers = handlers
        self._process: asyncio.subprocess.Process | None = None
        self._channel: Channel | None = None
        self._ended: asyncio.Task[int] | None = None
        self._heard = 0.0

    async def start(self, orders: Any) -> None:
        """Start the process, give it its orders and return when it serves.

        Raises:
            Gone: it ended before that.
            Refused: it could not; the message is its own.
            TimeoutError: it took too long.
            OSError: the system has no process to spare.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            self._channel = await Channel.over(ours, self._handlers)
            self._process = await _spawn(theirs)
        self.pid = self._process.pid
        self._ended = asyncio.create_task(self._process.wait())
        await self._channel.ask("start", (self.number, orders), timeout_s=_START_S)
        self._heard = asyncio.get_running_loop().time()
        await self._ask_state()

    async def ask(self, what: str, body: Any = None, *, timeout_s: float = ANSWER_S) -> Any:
        """Ask the worker; raises as :meth:`Channel.ask`."""
        if self._channel is None:
            raise Gone
        return await self._channel.ask(what, body, timeout_s=timeout_s)

    async def beat(self) -> bool:
        """Wait a moment, then ask for its state; return whether it still runs."""
        ended = self._ended
        if ended is None:
            return False
        await asyncio.wait({ended}, timeout=_BEAT_S)
        if not ended.done():
            await self._ask_state()
        return not ended.done()

    @property
    def silent_s(self) -> float:
        """Seconds since it last answered."""
        return asyncio.get_running_loop().time() - self._heard

    @property
    def how_it_ended(self) -> str:
        """How the process ended, for people: its status or the signal."""
        status = self._process.returncode if self._process is not None else None
        if status is None:
            return "did not end"
        return f"ended with status {status}" if status >= 0 else f"was ended by {signal.Signals(-status).name}"

    @property
    def was_killed(self) -> bool:
        """Whether a signal ended it."""
        return self._process is not None and (self._process.returncode or 0) < 0

    def terminate(self) -> None:
        """Ask it to drain; asked again, it cuts what is in flight."""
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()

    def kill(self) -> None:
        """End it at once."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    async def end(self) -> None:
        """Make sure that it has ended, and give back what it had."""
        self.kill()
        if self._ended is not None:
            await self._ended
        if self._channel is not None:
            await self._channel.close()

    async def _ask_state(self) -> None:
        try:
            self.not_ready = await self.ask("state")
            self._heard = asyncio.get_running_loop().time()
        except TimeoutError:
            self.not_ready = "does not answer"
        except (Gone, Refused):
            self.not_ready = "not running"


async def _spawn(end: socket.socket) -> asyncio.subprocess.Process:
    how = "kernel" if sys.platform == "linux" else "pipe"
    tied = [sys.executable, "-I", "-S", tether.__file__, how, str(os.getpid()), str(int(signal.SIGKILL))]
    return await asyncio.create_subprocess_exec(
        *tied,
        *(sys.executable, "-P", "-c", _MAIN, _ROOT, str(end.fileno())),
        stdin=asyncio.subprocess.PIPE if how == "pipe" else asyncio.subprocess.DEVNULL,
        pass_fds=(end.fileno(),),
        start_new_session=True,  # Ctrl-C is for the parent, which lets its workers drain
    )
