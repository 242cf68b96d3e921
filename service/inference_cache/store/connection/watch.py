"""What a connection keeps an eye on in the background: Redis' clock and its eviction policy.

Every few seconds, and soon again while Redis is away, one task asks for the time and for ``maxmemory-policy``.
So a server that came back, was replaced or reconfigured is noticed without anybody's call paying for it.
"""

from __future__ import annotations

import asyncio
import logging
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from inference_cache.errors import StoreError
from inference_cache.store.connection.clock import ServerClock
from inference_cache.store.connection.dial import Dial
from inference_cache.store.connection.faults import ErrorReply, store_errors
from inference_cache.store.connection.node import LANES, Node
from inference_cache.store.connection.replicas import ReplicaReads
from inference_cache.store.connection.topology import Host
from inference_cache.store.connection.transport import Replication, Reply, ScriptLike, Traffic

PERIOD_S = 5.0
_AWAY_PERIOD_S = 1.0
_FIRST_SAMPLES = 4
NO_EVICTION = "noeviction"

logger = logging.getLogger(__name__)


class Watched(ABC):
    """The part of a connection that is alike for one server and for a Cluster."""

    def __init__(self) -> None:
        self.clock = ServerClock()
        self._eviction_policy: str | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._away = True
        self._replicas: ReplicaReads | None = None

    def read_from_replicas(self, dial: Callable[[Host], Dial], max_lag_ms: int) -> None:
        """Ask replicas for lookups, from :meth:`start` on.

        Args:
            dial: makes connections to a replica.
            max_lag_ms: how far a replica may be behind to be asked.
        """
        self._replicas = ReplicaReads(self._primaries, dial, max_lag_ms)

    def replication(self) -> Replication | None:
        """Return what lookups get from replicas."""
        return self._replicas.replication() if self._replicas is not None else None

    def _with_replicas(self, flows: Sequence[Mapping[str, Traffic]]) -> Mapping[str, Traffic]:
        """Return what goes on in each lane, of these servers and of the replicas together."""
        if self._replicas is not None:
            flows = [*flows, *self._replicas.traffic()]
        return {lane: sum((flow[lane] for flow in flows), Traffic()) for lane in LANES}

    async def _run_on(self, node: Node, script: ScriptLike, key: bytes, args: Sequence[bytes | int | str]) -> Reply:
        """Run a script on a primary, or on one of its replicas where that may be."""
        if self._replicas is not None and script.may_lag:
            return await self._replicas.run(node, script, key, args)
        return await node.run(script, key, args)

    @abstractmethod
    async def _primaries(self) -> Sequence[Node]:
        """Return the servers that hold data; the first that answers gives the time, so their order is fixed."""

    @property
    def eviction_policy(self) -> str | None:
        """``maxmemory-policy`` of the servers (the first that is not ``noeviction``), ``None`` while unknown."""
        return self._eviction_policy

    def now_ms(self) -> int:
        """Return Redis' time in milliseconds since 1970 without asking it."""
        return self.clock.now_ms()

    async def server_time_ms(self) -> float:
        """Ask Redis for its time, which also serves the clock."""
        with store_errors():
            return await self._sample(await self._primaries())

    async def hear(self, channel: bytes, heard: Callable[[], None]) -> None:
        """Listen on any server, since a Cluster tells all its nodes."""
        with store_errors():
            nodes = await self._primaries()
            await random.choice(nodes).hear(channel, heard)  # noqa: S311 - spreads listeners, guards nothing

    async def start(self) -> None:
        """Look once, then keep looking; a Redis that is away now is only logged, as it may come."""
        try:
            await self.look()
        except StoreError as fault:
            logger.warning("Redis is not available yet: %s (%s)", fault, fault.reason)
        self._watcher = asyncio.create_task(self._keep_looking())
        if self._replicas is not None:
            await self._replicas.look()
            self._replicas.start()

    async def stop(self) -> None:
        """End the background tasks."""
        if self._watcher is not None:
            self._watcher.cancel()
            with suppress(asyncio.CancelledError):
                await self._watcher
            self._watcher = None
        if self._replicas is not None:
            await self._replicas.close()

    async def look(self) -> None:
        """Measure the clock and read the eviction policy now.

        Raises:
            StoreError: Redis is away.
        """
        try:
            with store_errors():
                nodes = await self._primaries()
                for _ in range(_FIRST_SAMPLES if self._away else 1):
                    await self._sample(nodes)
                self._note_policy([await _policy_of(node) for node in nodes])
        except StoreError as fault:
            if not self._away:
                logger.warning("Redis went away: %s (%s)", fault, fault.reason)
            self._away = True
            raise
        if self._away:
            logger.info("Redis answers")
        self._away = False

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(_AWAY_PERIOD_S if self._away else PERIOD_S)
            with suppress(StoreError):
                await self.look()

    async def _sample(self, nodes: Sequence[Node]) -> float:
        """Measure the clock on the first node that answers."""
        for node in nodes[:-1]:
            with suppress(StoreError), store_errors():
                return await self._sample_of(node)
        return await self._sample_of(nodes[-1])

    async def _sample_of(self, node: Node) -> float:
        sent = self.clock.ticks()
        server_ms = await node.time_ms()
        self.clock.observe(sent, self.clock.ticks(), server_ms)
        return server_ms

    def _note_policy(self, policies: Sequence[str | None]) -> None:
        known = [policy for policy in policies if policy is not None]
        policy = next((policy for policy in known if policy != NO_EVICTION), known[0] if known else None)
        if policy not in {self._eviction_policy, None, NO_EVICTION}:
            logger.warning(
                "Redis runs with maxmemory-policy %s and may drop parts of the index; set %s", policy, NO_EVICTION
            )
        self._eviction_policy = policy


async def _policy_of(node: Node) -> str | None:
    """Return ``maxmemory-policy`` of a server, ``None`` where reading the configuration is forbidden."""
    try:
        reply = await node.call("CONFIG", "GET", "maxmemory-policy")
    except ErrorReply:
        return None
    return bytes(reply[1]).decode("ascii", "replace") if reply else None
