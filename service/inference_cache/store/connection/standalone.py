"""A connection to one Redis server at a time: by TCP, TLS or Unix socket, somebody's or our own child."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from inference_cache.store.connection.dial import Dial
from inference_cache.store.connection.embedded import EmbeddedServer
from inference_cache.store.connection.faults import FAILURES, store_errors, translate
from inference_cache.store.connection.node import Node
from inference_cache.store.connection.transport import Reply, ScriptLike, Traffic
from inference_cache.store.connection.watch import Watched


class StandaloneConnection(Watched):
    """One server.

    Args:
        dial: makes connections to it.
        child: the server when it is our own; it is stopped with the connection.
    """

    def __init__(self, dial: Dial, child: EmbeddedServer | None = None) -> None:
        super().__init__()
        self._node = Node(dial)
        self._child = child

    @property
    def socket_path(self) -> str | None:
        """Unix socket of an embedded server."""
        return self._child.socket_path if self._child is not None else None

    @property
    def restarts(self) -> int:
        """How often an embedded server was started again."""
        return self._child.restarts if self._child is not None else 0

    async def run(self, script: ScriptLike, key: bytes, args: Sequence[bytes | int | str]) -> Reply:
        """Run a script and return its reply, undecoded."""
        try:
            return await self._run_on(self._node, script, key, args)
        except FAILURES as failure:
            raise translate(failure) from failure

    async def load(self, scripts: Iterable[ScriptLike]) -> None:
        """Load scripts, so that no first call pays for it."""
        scripts = tuple(scripts)
        if self._replicas is not None:
            self._replicas.remember(scripts)
        with store_errors():
            for script in scripts:
                await self._node.load(script)

    async def ping(self) -> None:
        """Return when the server answers."""
        with store_errors():
            await self._node.ping()

    def traffic(self) -> Mapping[str, Traffic]:
        """Return what goes on in each lane."""
        return self._with_replicas([self._node.traffic()])

    async def close(self) -> None:
        """Close the sockets and stop an embedded server."""
        await self.stop()
        await self._node.close()
        if self._child is not None:
            await self._child.stop()

    async def _primaries(self) -> Sequence[Node]:
        return (self._node,)
