"""Who serves a scope, remembered by the version of the membership.

Every lookup needs the ids of all replicas that serve its scope, which change seldom. So it says which version it has,
and the reply lists them only when that is another one, or when somebody's reports have expired.
"""

from __future__ import annotations

from collections import OrderedDict

from inference_cache.domain.models import ModelKey, Partition
from inference_cache.store.replies import NOBODY, Scope

MAX_SCOPES = 4096


class Scopes:
    """The memberships that this server has seen last."""

    def __init__(self) -> None:
        self._scopes: OrderedDict[tuple[ModelKey, str], Scope] = OrderedDict()

    def known(self, model: ModelKey, partition: Partition, silent_at_ms: int | None) -> Scope:
        """Return what may be said to be known; nothing where silent replicas are looked for, which no version tells."""
        if silent_at_ms is not None:
            return NOBODY
        return self._scopes.get((model, partition.hash_scheme), NOBODY)

    def learn(self, model: ModelKey, partition: Partition, scope: Scope) -> Scope:
        """Remember a membership and return it; without a version it is not a whole one."""
        key = (model, partition.hash_scheme)
        if not scope.version:
            self._scopes.pop(key, None)
        elif self._scopes.get(key) is not scope:
            self._scopes[key] = scope
            if len(self._scopes) > MAX_SCOPES:
                self._scopes.popitem(last=False)
        return scope
