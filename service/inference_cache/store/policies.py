"""The policy snapshot in Redis: read when it changed, written by compare-and-set.

There is one for all servers, in a slot of its own and without an expiry. A write that changes something raises its
generation; the last accepted write wins. Nobody reads policies here on a request's way: servers keep a parsed
copy (:mod:`inference_cache.policies.live`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from inference_cache.domain.policy_set import PolicySet, canonical_body, digest
from inference_cache.store.connection.transport import Connection
from inference_cache.store.keys import Keys
from inference_cache.store.replies import PolicySnapshot, read_policy_get, read_policy_put
from inference_cache.store.scripts import load

__all__ = ["NOTHING", "PolicySnapshot", "PolicyStore"]

EMPTY_BODY = canonical_body(PolicySet())
NOTHING = PolicySnapshot(0, digest(EMPTY_BODY), "", "", 0, "", EMPTY_BODY)
"""What holds before anything was ever written."""


class PolicyStore:
    """Reads and writes the snapshot. Every method raises a subclass of ``StoreError`` when Redis cannot do it.

    Args:
        connection: an open connection; not closed here.
        key_prefix: start of every key.
    """

    def __init__(self, connection: Connection, *, key_prefix: str = "ic") -> None:
        self._connection = connection
        self._keys = Keys(key_prefix)

    async def get(self, known: PolicySnapshot) -> PolicySnapshot | Literal["SAME", "ABSENT"]:
        """Return what is stored, or that it is the one that is known, or that there is none."""
        args = (known.generation, known.digest, known.directory)
        return read_policy_get(await self._connection.run(load("policy_get"), self._keys.policy, args))

    async def push(self, new: PolicySnapshot, held: PolicySnapshot) -> tuple[PolicySnapshot, bool]:
        """Store ``new`` whatever is stored; return what is stored then, and whether that raised the generation.

        A body that is stored already keeps its generation and its writer. ``held`` is what the caller knew before: the
        new generation is above that too, should Redis have lost it.
        """
        stored, fresh = await self._put("push", new, held.generation, held.directory)
        return stored or new, fresh

    async def push_directory(self, new: PolicySnapshot, held: PolicySnapshot) -> PolicySnapshot | None:
        """Store what a policy directory says and record its digest; ``None`` if that was the last one recorded.

        What somebody else wrote since then stays: only another directory content is news.
        """
        return (await self._put("directory", new, held.generation, new.directory))[0]

    async def restore(self, held: PolicySnapshot) -> bool:
        """Write back what Redis lost; return whether it was needed: nothing or a lower generation was stored."""
        return (await self._put("restore", held, held.generation, held.directory))[1]

    async def wait_for_news(self, heard: Callable[[], None]) -> None:
        """Call ``heard`` once listening and at every hint of a change; return or raise when the link is lost."""
        await self._connection.hear(self._keys.policy_channel, heard)

    def now_ms(self) -> int:
        """Return Redis' time."""
        return self._connection.now_ms()

    async def _put(
        self, mode: str, new: PolicySnapshot, generation: int, directory: str
    ) -> tuple[PolicySnapshot | None, bool]:
        args = (mode, generation, new.digest, new.body, new.source, new.host, new.written_ms, directory)
        reply = await self._connection.run(load("policy_put"), self._keys.policy, args)
        return read_policy_put(reply, new.body)
