"""Leaves out what only the system's Redis can do where there is none and nobody insists."""

from __future__ import annotations

from tests.support.servers import redis_binary

collect_ignore = [] if redis_binary() else ["test_tls_server.py"]
