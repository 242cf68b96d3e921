"""What the store asks of a connection to Redis, whatever carries it.

The scripts, the keys and the replies know this interface only: a single server, a Cluster and an embedded
child look alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
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

    @property
    def may_lag(self) -> bool:
        """Whether a replica may answer, from a moment ago; only where the operator allows it."""
        ...


@dataclass(frozen=True, slots=True)
class Limits:
    """How long to wait for Redis, and how many calls may do so.

    Attributes:
        connect_ms: for a connection to be made, TLS and introduction included.
        call_ms: for the reply to one command. A socket on which a reply is overdue is cut. A command that has to wait
            for its turn first may do so for as long again.
        in_flight: calls that one socket carries at once; a server has two, one for lookups and one for all else.
        waiting: callers that wait for their turn at one socket; more are refused.
    """

    connect_ms: int = 1_000
    call_ms: int = 5_000
    in_flight: int = 128
    waiting: int = 16_384


@dataclass(frozen=True, slots=True)
class Traffic:
    """What goes on at the sockets of one lane, all servers together.

    Attributes:
        in_flight: calls whose reply is owed.
        waiting: callers that wait for their turn.
        circuits_open: servers that are left alone, because they did not answer.
        circuit_openings: how often that happened so far.
        reconnects: how often a lost connection was made again so far.
    """

    in_flight: int = 0
    waiting: int = 0
    circuits_open: int = 0
    circuit_openings: int = 0
    reconnects: int = 0

    def __add__(self, other: Traffic) -> Traffic:
        """Return both together."""
        return Traffic(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))


@dataclass(frozen=True, slots=True)
class Replication:
    """What lookups get from replicas.

    Attributes:
        used: replicas that are near enough to be asked.
        skipped: replicas that are not.
        lag_s: how far the furthest of them is behind at most; seconds.
        by_replica: lookups' calls that a replica has answered so far.
        by_primary: those that the primary was asked instead.
    """

    used: int = 0
    skipped: int = 0
    lag_s: float = 0.0
    by_replica: int = 0
    by_primary: int = 0


class Connection(Protocol):
    """A live link to the Redis that holds the index; safe for any number of tasks of one event loop.

    Every method that talks to Redis raises a subclass of :class:`~inference_cache.errors.StoreError`. Cancelling
    a call ends it at once and never disturbs another one, but what it asked may have been done. While a server does
    not answer, calls to it fail at once with the reason ``circuit_open``.
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

    @property
    def restarts(self) -> int:
        """How often an embedded server ended by itself and was started again; 0 when it is somebody else's."""
        ...

    def traffic(self) -> Mapping[str, Traffic]:
        """Return what goes on in each lane: ``reads`` carries lookups, ``writes`` everything else."""
        ...

    def replication(self) -> Replication | None:
        """Return what lookups get from replicas, ``None`` where only primaries are asked."""
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
        """Return when Redis answers in both lanes, in a Cluster when any primary does."""
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
