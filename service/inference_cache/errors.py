"""Every error this project raises on purpose, and nothing else.

The tree::

    InferenceCacheError
    ├── ConfigError            a flag, environment variable or file says something unusable
    ├── InputError             a request is malformed; carries the drop reason that is counted
    ├── PolicyError            a policy body or manifest cannot be used; names each place and what is wrong
    └── StoreError             the index could not answer
        ├── StoreUnavailable   no connection, refused, loading, read-only, a slot on the move
        ├── StoreFull          Redis is out of memory; removals still work
        ├── StoreCorrupt       a reply that no version of our scripts gives
        └── WalkTooLong        a lookup needs more work than one request may cause

The gRPC handlers map the tree in one table (:mod:`inference_cache.rpc.convert`); a test fails on a
subclass that has no row there.
"""

from __future__ import annotations


class InferenceCacheError(Exception):
    """Base of all errors of this project."""


class ConfigError(InferenceCacheError):
    """A setting is unusable. The message names the flag and its environment twin."""


class InputError(InferenceCacheError):
    """A request cannot be used; ``reason`` is the label under which it is counted."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class PolicyError(InferenceCacheError):
    """Policies that cannot be used, as a whole; ``problems`` has one sentence for each place, with its path."""

    def __init__(self, *problems: str) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class StoreError(InferenceCacheError):
    """The index could not answer. ``reason`` is a short fixed word for metrics and logs."""

    reason = "store"

    def __init__(self, detail: str, reason: str | None = None) -> None:
        super().__init__(detail)
        if reason is not None:
            self.reason = reason


class StoreUnavailable(StoreError):
    """Redis does not answer or refuses for now; trying again later is right."""

    reason = "unavailable"


class StoreFull(StoreError):
    """Redis has no memory left for new entries."""

    reason = "full"


class StoreCorrupt(StoreError):
    """A reply that none of our scripts gives: another layout, or somebody else's keys."""

    reason = "corrupt"


class WalkTooLong(StoreError):
    """A chain lookup reached its bound on blocks or segments."""

    reason = "walk_too_long"
