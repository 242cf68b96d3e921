"""Reaching Redis: embedded, alone, behind Sentinels or as a Cluster. What it holds is no business of this package.

:func:`open_connection` is the only way in, :class:`Connection` what everybody else knows.
"""

from __future__ import annotations

from inference_cache.store.connection.opening import EMBEDDED_URL, open_connection
from inference_cache.store.connection.transport import Connection, Limits, Replication, Reply, ScriptLike, Traffic

__all__ = ["EMBEDDED_URL", "Connection", "Limits", "Replication", "Reply", "ScriptLike", "Traffic", "open_connection"]
