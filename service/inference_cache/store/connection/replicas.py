"""Lookups from replicas, which know what the primary knew a moment ago.

How far a replica is behind is measured in time, without writing anything: a few times within the bound the primary is
asked how far its stream of changes has come, and each replica how far it has applied that stream. A replica that has
come at least as far as the primary had at some moment lacks nothing from before that moment. So the bound is proved for
every lookup, and where the proof is too old, because the primary or the replica does not answer, the primary is asked.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress

from inference_cache.errors import StoreError
from inference_cache.store.connection.dial import Dial
from inference_cache.store.connection.faults import FAILURES, store_errors
from inference_cache.store.connection.node import Node
from inference_cache.store.connection.topology import Host
from inference_cache.store.connection.transport import Replication, Reply, ScriptLike, Traffic

_LOOKS_A_BOUND = 4
_MIN_PERIOD_S, _MAX_PERIOD_S = 0.05, 1.0
_REMEMBERED = 64

logger = logging.getLogger(__name__)


class _Replica:
    """One replica and the proof of how far it has come.

    Attributes:
        node: for lookups.
        sound: whether it follows the primary and served the last lookup it was asked.
        reached_at: a moment by our monotonic clock; the replica has all that the primary had then.
        loaded: whether the lookups' scripts were loaded there.
        skipped: whether the log says that it is left out.
    """

    def __init__(self, node: Node) -> None:
        self.node = node
        self.sound = False
        self.reached_at = -math.inf
        self.loaded = False
        self.skipped = False


class _Copies:
    """The replicas of one primary, and how far that had come when."""

    def __init__(self) -> None:
        self.replicas: dict[Host, _Replica] = {}
        self.turn = 0
        self._history = ""
        self._samples: deque[tuple[float, int]] = deque(maxlen=_REMEMBERED)

    def note(self, at: float, told: Mapping[str, str]) -> None:
        """Take down the primary's answer to a question asked at a moment."""
        if told["master_replid"] != self._history:
            self._history = told["master_replid"]
            self._samples.clear()
        self._samples.append((at, int(told["master_repl_offset"])))

    def judge(self, replica: _Replica, told: Mapping[str, str]) -> None:
        """Take down a replica's answer."""
        follows = told.get("role") == "slave" and told.get("master_link_status") == "up"
        replica.sound = follows and told["master_replid"] == self._history
        if replica.sound:
            applied = int(told["slave_repl_offset"])
            reached = (at for at, offset in self._samples if offset <= applied)
            replica.reached_at = max(replica.reached_at, max(reached, default=-math.inf))


class ReplicaReads:
    """Chooses who answers a lookup: a replica in turn, the primary where no replica is near enough.

    Args:
        primaries: returns the servers whose replicas to use.
        dial: makes connections to a replica.
        max_lag_ms: how far a replica may be behind to be asked.
    """

    def __init__(
        self, primaries: Callable[[], Awaitable[Sequence[Node]]], dial: Callable[[Host], Dial], max_lag_ms: int
    ) -> None:
        self._primaries = primaries
        self._dial = dial
        self._max_lag_s = max_lag_ms / 1000
        self._period_s = min(max(self._max_lag_s / _LOOKS_A_BOUND, _MIN_PERIOD_S), _MAX_PERIOD_S)
        self._copies: dict[Node, _Copies] = {}
        self._scripts: tuple[ScriptLike, ...] = ()
        self._by_replica = 0
        self._by_primary = 0
        self._watcher: asyncio.Task[None] | None = None
        self._left: set[asyncio.Task[None]] = set()

    async def run(self, primary: Node, script: ScriptLike, key: bytes, args: Sequence[bytes | int | str]) -> Reply:
        """Run a lookup on a replica of ``primary``, or there.

        A replica that fails is not asked again before it was looked at, and the primary answers this time.
        """
        replica = self._pick(primary)
        if replica is not None:
            try:
                reply = await replica.node.run(script, key, args)
            except (*FAILURES, StoreError):
                replica.sound = False
            else:
                self._by_replica += 1
                return reply
        self._by_primary += 1
        return await primary.run(script, key, args)

    def remember(self, scripts: Iterable[ScriptLike]) -> None:
        """Note what every replica that turns up shall have loaded."""
        self._scripts = tuple(script for script in scripts if script.may_lag)

    def traffic(self) -> list[Mapping[str, Traffic]]:
        """Return what goes on in the lanes to each replica."""
        return [replica.node.traffic() for replica in self._all()]

    def replication(self) -> Replication:
        """Return how far the replicas are behind now."""
        now, replicas = time.monotonic(), self._all()
        usable = sum(self._is_usable(replica, now) for replica in replicas)
        lags = (now - replica.reached_at for replica in replicas if math.isfinite(replica.reached_at))
        return Replication(usable, len(replicas) - usable, max(lags, default=0.0), self._by_replica, self._by_primary)

    def start(self) -> None:
        """Look at the replicas in the background from now on."""
        self._watcher = asyncio.create_task(self._keep_looking())

    async def close(self) -> None:
        """Stop looking and close the connections to the replicas."""
        tasks = [*self._left, *((self._watcher,) if self._watcher is not None else ())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(replica.node.close() for replica in self._all()))
        self._copies.clear()

    async def look(self) -> None:
        """Look at every primary and its replicas once."""
        with suppress(StoreError), store_errors():
            primaries = await self._primaries()
            for gone in self._copies.keys() - set(primaries):
                self._leave(self._copies.pop(gone).replicas.values())
            await asyncio.gather(*(self._look_at(primary) for primary in primaries))
        self._tell()

    def _pick(self, primary: Node) -> _Replica | None:
        copies = self._copies.get(primary)
        if copies is None:
            return None
        now, replicas = time.monotonic(), tuple(copies.replicas.values())
        copies.turn += 1
        for step in range(len(replicas)):
            replica = replicas[(copies.turn + step) % len(replicas)]
            if self._is_usable(replica, now):
                return replica
        return None

    def _is_usable(self, replica: _Replica, now: float) -> bool:
        return replica.sound and now - replica.reached_at <= self._max_lag_s

    def _all(self) -> list[_Replica]:
        return [replica for copies in self._copies.values() for replica in copies.replicas.values()]

    async def _keep_looking(self) -> None:
        while True:
            try:
                await self.look()
            except Exception:
                logger.exception("looking at the replicas failed in a way that nobody foresaw")
            await asyncio.sleep(self._period_s)

    async def _look_at(self, primary: Node) -> None:
        with suppress(*FAILURES, StoreError):
            at = time.monotonic()
            told = await self._ask(primary)
            if told.get("role") != "master":
                return
            copies = self._copies.setdefault(primary, _Copies())
            copies.note(at, told)
            self._follow(copies, _hosts(told))
            await asyncio.gather(*(self._look_at_replica(copies, each) for each in tuple(copies.replicas.values())))

    def _follow(self, copies: _Copies, hosts: Sequence[Host]) -> None:
        """Meet new replicas and leave those that the primary no longer knows."""
        self._leave([copies.replicas.pop(host) for host in copies.replicas.keys() - set(hosts)])
        for host in hosts:
            if host not in copies.replicas:
                copies.replicas[host] = _Replica(Node(self._dial(host), is_replica=True))

    async def _look_at_replica(self, copies: _Copies, replica: _Replica) -> None:
        with suppress(*FAILURES, StoreError):
            told = await self._ask(replica.node)
            if not replica.loaded:
                for script in self._scripts:
                    await replica.node.load(script)
                replica.loaded = bool(self._scripts)
            copies.judge(replica, told)

    async def _ask(self, node: Node) -> dict[str, str]:
        async with asyncio.timeout(self._max_lag_s):
            reply = await node.call("INFO", "replication")
        lines = (line.partition(":") for line in bytes(reply).decode("ascii", "replace").splitlines())
        return {name: value for name, colon, value in lines if colon}

    def _leave(self, replicas: Iterable[_Replica]) -> None:
        for replica in replicas:
            leaving = asyncio.create_task(replica.node.retire())
            self._left.add(leaving)
            leaving.add_done_callback(self._left.discard)

    def _tell(self) -> None:
        now = time.monotonic()
        for replica in self._all():
            skipped = not self._is_usable(replica, now)
            if skipped is not replica.skipped:
                replica.skipped = skipped
                host, port = replica.node.host or ("", 0)
                logger.warning("the replica at %s:%d %s", host, port, "is left out" if skipped else "serves lookups")


def _hosts(told: Mapping[str, str]) -> list[Host]:
    """Return the replicas that a primary is in step with, by its reply to ``INFO replication``."""
    hosts = []
    for name, value in told.items():
        if name.startswith("slave") and name[5:].isdecimal():
            fields = dict(part.split("=", 1) for part in value.split(","))
            if fields.get("state") == "online":
                hosts.append((fields["ip"], int(fields["port"])))
    return hosts
