"""Running the scripts of models, and doing what each of them leaves to do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from inference_cache.domain.models import ModelKey
from inference_cache.store import replies
from inference_cache.store.catalog import Catalog
from inference_cache.store.connection.transport import Connection
from inference_cache.store.keys import Keys
from inference_cache.store.replies import Removed, Sums
from inference_cache.store.scripts import load


class Calls:
    """What the parts of the store share: scripts of a model, and the catalog that is told of them.

    Args:
        connection: where the models live.
        keys: how their keys are named.
    """

    def __init__(self, connection: Connection, keys: Keys) -> None:
        self.connection = connection
        self.keys = keys
        self.catalog = Catalog(connection, keys, connection.now_ms)

    async def run(self, name: str, model: ModelKey, *args: bytes | int | str) -> Any:
        """Run a script on a model and return its reply undecoded."""
        return await self.connection.run(load(name), self.keys.totals(model), args)

    def now_us(self) -> int:
        """Return what versions are at least: the time in microseconds, which no counter outruns."""
        return self.connection.now_ms() * 1000

    async def after(self, model: ModelKey, step: Removed) -> Sums:
        """Do what a removing step leaves to do: rebuild segments, tell the catalog; return its sums."""
        for partition in dict.fromkeys(name for name, _ in step.rebuild):
            await self.rebuild(model, partition, [segment for name, segment in step.rebuild if name == partition])
        if not step.state.version:
            return Sums()
        # Between two steps the model stays due at once: whoever dies there leaves work that a sweep must find.
        state = replace(step.state, due_ms=0) if step.more else step.state
        return await self.catalog.put(model, state)

    async def rebuild(self, model: ModelKey, partition: bytes, segments: Iterable[bytes]) -> None:
        """Rewrite wasteful segments; a split may leave halves that need it again."""
        todo = list(segments)
        while todo:
            seen, again = replies.read_rebuild(await self.run("rebuild", model, partition, b"".join(todo)))
            todo = [*todo[seen:], *again]

    async def free(self, model: ModelKey) -> None:
        """Take what retired slots hold out of the segments, those of others too, until none is left."""
        more = True
        while more:
            step = replies.read_free(await self.run("free", model, self.now_us()))
            more = step.more
            await self.after(model, step)
