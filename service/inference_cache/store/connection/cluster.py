"""A connection to a Redis Cluster: every call goes to the primary that owns its one key.

``MOVED`` proves that nothing ran and says where the slot is now: the topology is learnt again and the call repeated
once. ``ASK`` is never followed: while a slot moves key by key, a script on the importing node would see the
keys that are still on the other one as absent and write second copies. Such calls are refused until the slot has
moved.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence

from inference_cache.errors import StoreError, StoreUnavailable
from inference_cache.store.connection.address import Address
from inference_cache.store.connection.dial import Dialer
from inference_cache.store.connection.faults import FAILURES, WORDS, ErrorReply, store_errors, translate
from inference_cache.store.connection.node import LANES, Node
from inference_cache.store.connection.topology import SLOTS, Host, Topology, moved_to, slot_of
from inference_cache.store.connection.transport import Limits, Reply, ScriptLike, Traffic
from inference_cache.store.connection.watch import Watched

_ATTEMPTS = 2
_SUSPICION_S = 0.5


class ClusterConnection(Watched):
    """The primaries of a Cluster. The clock is that of the primary with the lowest address, so that all servers agree.

    Args:
        address: some nodes to learn the others from, and who we are.
        limits: deadlines and bounds.
    """

    socket_path: str | None = None
    restarts = 0

    def __init__(self, address: Address, limits: Limits) -> None:
        super().__init__()
        self._address = address
        self._limits = limits
        self._nodes: dict[Host, Node] = {}
        self._topology = Topology([None] * SLOTS)
        self._version = 0
        self._learning: asyncio.Task[None] | None = None
        self._suspected: Host | None = None
        self._learnt_at = -_SUSPICION_S
        self._retiring: set[asyncio.Task[None]] = set()
        self._left = dict.fromkeys(LANES, Traffic())
        """What the nodes that have left had counted."""

    async def run(self, script: ScriptLike, key: bytes, args: Sequence[bytes | int | str]) -> Reply:
        """Run a script on the owner of ``key`` and return its reply, undecoded."""
        try:
            return await self._run(script, key, args)
        except FAILURES as failure:
            raise translate(failure) from failure

    async def load(self, scripts: Iterable[ScriptLike]) -> None:
        """Load scripts on every primary."""
        scripts = tuple(scripts)
        if self._replicas is not None:
            self._replicas.remember(scripts)
        with store_errors():
            nodes = await self._primaries()
            for script in scripts:
                await asyncio.gather(*(node.load(script) for node in nodes))

    async def ping(self) -> None:
        """Return when any primary answers: what the others own fails open alone, and what this one owns is served."""
        with store_errors():
            primaries = await self._primaries()
            answers = await asyncio.gather(*(node.ping() for node in primaries), return_exceptions=True)
            failures = [answer for answer in answers if isinstance(answer, BaseException)]
            if failures and len(failures) == len(primaries):
                raise failures[0]

    def traffic(self) -> Mapping[str, Traffic]:
        """Return what goes on in each lane, all nodes together."""
        return self._with_replicas([self._left, *(node.traffic() for node in self._nodes.values())])

    async def close(self) -> None:
        """Close the sockets to all nodes."""
        await self.stop()
        if self._learning is not None:
            self._learning.cancel()
            await asyncio.gather(self._learning, return_exceptions=True)
        for task in self._retiring:
            task.cancel()
        await asyncio.gather(*self._retiring, return_exceptions=True)
        await asyncio.gather(*(node.close() for node in self._nodes.values()))

    async def _run(self, script: ScriptLike, key: bytes, args: Sequence[bytes | int | str]) -> Reply:
        for _ in range(_ATTEMPTS):
            version = self._version
            node = await self._owner(slot_of(key))
            try:
                return await self._run_on(node, script, key, args)
            except ErrorReply as reply:
                if reply.word != "MOVED":
                    if reply.word == "CLUSTERDOWN":
                        self._suspect(node.host)
                    raise
                await self._follow(reply, node, version)
            except (StoreUnavailable, TimeoutError):
                self._suspect(node.host)
                raise
        raise WORDS["MOVED"].as_error()

    async def _primaries(self) -> Sequence[Node]:
        if self._away or not self._topology.primaries:
            await self._learn(self._version)
        if not self._topology.primaries:
            raise WORDS["CLUSTERDOWN"].as_error()
        return [self._node(host) for host in self._topology.primaries]

    async def _owner(self, slot: int) -> Node:
        if self._topology.owner(slot) is None:
            await self._learn(self._version)
        owner = self._topology.owner(slot)
        if owner is None:
            raise StoreUnavailable("no node of the Cluster owns the slot of these keys", WORDS["CLUSTERDOWN"].reason)
        return self._node(owner)

    def _node(self, host: Host) -> Node:
        node = self._nodes.get(host)
        if node is None:
            node = self._nodes[host] = Node(Dialer(self._address, host, self._limits))
        return node

    async def _follow(self, moved: ErrorReply, node: Node, version: int) -> None:
        """Learn the topology again, and believe ``MOVED`` where the node we asked about it lags behind."""
        await self._learn(version)
        slot, owner = moved_to(str(moved), node.host or ("", 0))
        if self._topology.owner(slot) != owner:
            self._topology = self._topology.with_owner(slot, owner)

    def _suspect(self, host: Host | None) -> None:
        """Look in the background whether another node took over; not for every failing call anew."""
        self._suspected = host
        if time.monotonic() - self._learnt_at > _SUSPICION_S:
            self._start_learning()

    async def _learn(self, version: int) -> None:
        """Wait for a topology newer than ``version``; callers at the same time share one question."""
        if version == self._version:
            await asyncio.shield(self._start_learning())

    def _start_learning(self) -> asyncio.Task[None]:
        if self._learning is None or self._learning.done():
            self._learnt_at = time.monotonic()
            self._learning = asyncio.create_task(self._ask_for_slots())
            self._learning.add_done_callback(lambda task: task.cancelled() or task.exception())
        return self._learning

    async def _ask_for_slots(self) -> None:
        """Ask the nodes in turn until one tells the topology: known ones first, the one that failed last."""
        failure: Exception = WORDS["CLUSTERDOWN"].as_error()
        hosts = dict.fromkeys((*self._nodes, *self._address.hosts))
        for host in sorted(hosts, key=lambda host: host == self._suspected):
            try:
                reply = await self._node(host).call("CLUSTER", "SLOTS")
            except (*FAILURES, StoreError) as error:
                failure = error
                continue
            self._adopt(Topology.parse(reply, host))
            return
        raise failure

    def _adopt(self, topology: Topology) -> None:
        self._topology = topology
        self._version += 1
        gone = [host for host in self._nodes if host not in topology.primaries]
        for host in gone:
            self._retire(self._nodes.pop(host))

    def _retire(self, node: Node) -> None:
        """Let the calls under way to a node that has left end, without waiting for them."""
        retiring = asyncio.create_task(node.retire())
        self._retiring.add(retiring)
        retiring.add_done_callback(self._retiring.discard)
        for lane, flow in node.traffic().items():
            self._left[lane] += Traffic(circuit_openings=flow.circuit_openings, reconnects=flow.reconnects)
