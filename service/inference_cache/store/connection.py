"""The one place that turns ``--redis-url`` into a connection.

The interface itself (:class:`Connection`, :class:`ScriptLike`, :class:`Limits`) lives in
:mod:`inference_cache.store.transport` and is offered here too.
"""

from __future__ import annotations

from inference_cache.store.transport import Connection, Limits, Reply, ScriptLike

__all__ = ["Connection", "Limits", "Reply", "ScriptLike"]
