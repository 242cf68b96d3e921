"""How a client spreads its calls over all servers behind one name, and keeps up with servers that come and go.

gRPC multiplexes everything over one connection, so a client that connects to a name once stays with one server for
good. Three things together make it use all of them: ``round_robin`` opens a connection to every address of the name;
a server's ``--max-connection-age`` makes the client resolve the name again from time to time; and the client must not
then be held to gRPC's 30 seconds between two resolutions.
"""

from __future__ import annotations

import grpc

RESOLVE_MS = 1000
"""Least time between two resolutions of a name."""
BALANCED = (
    ("grpc.lb_policy_name", "round_robin"),
    ("grpc.dns_min_time_between_resolutions_ms", RESOLVE_MS),
    ("grpc.max_reconnect_backoff_ms", 2000),
)
"""Options of a channel to a target such as ``dns:///server:9090``."""


def balanced(server: str) -> grpc.aio.Channel:
    """Return a channel that takes the servers behind a name in turn; close it when done."""
    return grpc.aio.insecure_channel(server, options=BALANCED)
