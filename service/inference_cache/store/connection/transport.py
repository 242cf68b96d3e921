"""What the store asks of a connection to Redis, whatever carries it.

The scripts, the keys and the replies know this interface only: a single server, a Cluster and an embedded
child look alike, and a transport that shares one socket among all callers can replace the pool behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from inference_cache.store.connection.clock import ServerClock


Reply: TypeAlias = Any
"""A reply as Redis gives it: bytes, int, None or a list of these. Only the table of replies takes it apart."""


class ScriptLike(Protocol):
    """A Lua script ready to be called by its digest."""

    @property
    def name(self) -> str:
        """The verb, for logs and errors."""
        ...

    @property
    def sha(self) -> str:
        """SHA-1 of ``text`` in lower-case hex, as Redis computes it."""
        ...

    @property
    def text(self) -> str:
        """The whole script, includes expanded."""
        ...

    @property
    def read_only(self) -> bool:
        """Whether the script carries the flag ``no-writes``."""
        ...


@dataclass(frozen=True, slots=True)
class Limits:
    """How long to wait for Redis and how many calls may be on the wire at once.

    Attributes:
        connect_ms: for a TCP or Unix connection to be made, TLS included.
        call_ms: for one command in all: waiting for a free connection, connecting, the reply.
        connections: sockets to one server; callers beyond that wait their turn.
    """

    connect_ms: int = 1_000
    call_ms: int = 5_000
    connections: int = 64


class Connection(Protocol):
    """A live link to the Redis that holds the index; safe for any number of tasks of one event loop.

    Every method that talks to Redis raises a subclass of :class:`~inference_cache.errors.StoreError`. Cancelling
    a call never disturbs another one, but what the cancelled call asked may have been done.
    """

    @property
    def clock(self) -> ServerClock:
        """The servers' shared clock, which is Redis' time."""
        ...

    @property
    def eviction_policy(self) -> str | None:
        """``maxmemory-policy`` as last seen, or ``None`` while unknown; anything but ``noeviction`` loses entries."""
        ...

    @property
    def socket_path(self) -> str | None:
        """Unix socket of an embedded server, for other processes of this user; ``None`` otherwise."""
        ...

    async def run(self, script: ScriptLike, key: bytes, args: Sequence[bytes | int | str]) -> Reply:
        """Run a script on the server that owns ``key`` and return its reply undecoded (bytes, ints, lists).

        The script is loaded where it is missing. A call is repeated only after errors which prove that
        nothing ran.
        """
        ...

    async def load(self, scripts: Iterable[ScriptLike]) -> None:
        """Load scripts on every server that may run them, so that no first call pays for it."""
        ...

    async def ping(self) -> None:
        """Return when Redis answers, in a Cluster when every primary does."""
        ...

    async def hear(self, channel: bytes, heard: Callable[[], None]) -> None:
        """Listen to a channel until the link is lost: call ``heard`` once subscribed, and at every message.

        A hint only: what is published while the link is down is never heard.
        """
        ...

    async def server_time_ms(self) -> float:
        """Ask Redis for its time in milliseconds since 1970; :meth:`now_ms` is the cheap way."""
        ...

    def now_ms(self) -> int:
        """Return Redis' time in milliseconds since 1970 without asking it."""
        ...

    async def close(self) -> None:
        """Close sockets and stop an embedded server; safe to call twice."""
        ...
