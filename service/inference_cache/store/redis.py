"""The index in Redis: each method is one atomic script, or a bounded number of steps of one.

Keys and segments are explained in ``docs/architecture.md``. What every method promises is written
at :class:`~inference_cache.store.base.Store`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from inference_cache.domain.models import (
    KEY_BYTES,
    Batch,
    CacheState,
    ChainEvidence,
    ExactEvidence,
    Expired,
    Ingested,
    ModelKey,
    Partition,
    Presence,
    Removal,
    ReplicaStats,
    Run,
)
from inference_cache.domain.policy import DEFAULT_TTL_MS
from inference_cache.errors import StoreError, StoreUnavailable, WalkTooLong
from inference_cache.store import packing, replies
from inference_cache.store.catalog import Catalog
from inference_cache.store.connection.transport import Connection
from inference_cache.store.keys import Keys
from inference_cache.store.replies import Listed, ModelState, Removed, Stored
from inference_cache.store.scripts import load, names

MAX_EVICT_BLOCKS = 256
"""Blocks that one eviction takes: each may sit in a segment of its own, and no call shall hold Redis for more than two
milliseconds."""

MAX_WALK_BLOCKS = 131_072
MAX_WALK_SEGMENTS = 4_096
_WALK_SEGMENTS_A_CALL = 256
_MIN_KEY_TTL_MS = 60_000
_LATE_WORD_MS = 30_000
"""Longer than any call lasts: what a server still has to say about a model was said by then."""


def key_ttl_ms(ttl_ms: int) -> int:
    """Return the backstop expiry of keys for a tenant's TTL: 2.5 times, renewed before it falls below twice."""
    return max(_MIN_KEY_TTL_MS, ttl_ms * 5 // 2)


class RedisStore:
    """The store that serves users; any number of them on one Redis answer alike.

    Args:
        connection: an open connection; closed with the store.
        key_prefix: start of every key, so that several indexes can share a Redis.
    """

    def __init__(self, connection: Connection, *, key_prefix: str = "ic") -> None:
        self._connection = connection
        self._keys = Keys(key_prefix)
        self._catalog = Catalog(connection, self._keys, connection.now_ms)
        self._key_ttl_ms = key_ttl_ms(DEFAULT_TTL_MS)
        """Of the longest TTL seen, for the catalog, which all tenants share."""

    def now_ms(self) -> int:
        """Return Redis' time."""
        return self._connection.now_ms()

    async def warm_up(self) -> None:
        """Load every script, so that no first call pays for it."""
        await self._connection.load(load(name) for name in names())

    async def lookup_chain(
        self, model: ModelKey, partition: Partition, keys: bytes, *, expired_at_ms: int
    ) -> ChainEvidence:
        """Walk the chain; a long one takes several calls that carry the replicas still in the run."""
        name = self._keys.partition(partition)
        walked, calls = 0, 0
        ended: list[Run] = []
        going: dict[str, Run] = {}
        while True:
            walk = replies.read_walk(
                await self._run(
                    "lookup_chain", model, name, keys[walked * KEY_BYTES :], expired_at_ms, len(going), *going
                )
            )
            runs = [_continued(going.pop(run.replica_id, None), run, walked) for run in walk.runs]
            ended += going.values()
            walked, calls = walked + walk.walked, calls + 1
            if walk.complete:
                return replies.chain_evidence([*ended, *runs], walk.serving)
            ended += (run for run in runs if run.blocks < walked)
            going = {run.replica_id: run for run in runs if run.blocks == walked}
            if walked >= MAX_WALK_BLOCKS or calls * _WALK_SEGMENTS_A_CALL >= MAX_WALK_SEGMENTS:
                msg = "the chain needs more work than a lookup may do"
                raise WalkTooLong(msg)

    async def lookup_exact(
        self, model: ModelKey, partition: Partition, key: bytes, *, expired_at_ms: int, want_warm: bool
    ) -> ExactEvidence:
        """Look one block up."""
        name = self._keys.partition(partition)
        return replies.read_exact(await self._run("lookup_exact", model, name, key, expired_at_ms, int(want_warm)))

    async def ingest(
        self,
        model: ModelKey,
        replica_id: str,
        batches: Sequence[Batch],
        *,
        reported_ms: int,
        ttl_ms: int,
        stats: ReplicaStats | None = None,
    ) -> Ingested:
        """Store an update, batch by batch, and tell the catalog before returning."""
        if not batches and stats is None:
            return Ingested()
        expiry = key_ttl_ms(ttl_ms)
        self._key_ttl_ms = max(self._key_ttl_ms, expiry)
        await self._catalog.announce(model, self._key_ttl_ms)
        state, holdings, prefixes = None, 0, 0
        try:
            for batch in batches:
                async for stored in self._ingest(model, replica_id, batch, reported_ms, expiry):
                    state = stored.state
                    holdings, prefixes = holdings + stored.holdings, prefixes + stored.prefixes
            if stats is not None:
                row = packing.pack_stats(stats)
                reply = await self._run("stats", model, replica_id, stats.alive_ms, row, expiry, self._us())
                state = replies.read_stats(reply)[1]
        finally:
            if state is not None:
                await self._catalog.put(model, state, self._key_ttl_ms)
        return Ingested(holdings, prefixes)

    async def _ingest(
        self, model: ModelKey, replica_id: str, batch: Batch, reported_ms: int, expiry: int
    ) -> AsyncIterator[Stored]:
        """Store one batch; blocks that are scattered over many segments take several calls."""
        partition = self._keys.partition(batch.partition)
        columns = (
            batch.keys,
            batch.after,
            packing.pack_tiers(batch.tiers),
            packing.pack_counts(batch.counts),
            packing.pack_breaks(batch.breaks),
        )
        taken, total = 0, len(batch.keys) // KEY_BYTES
        while taken < total:
            reply = await self._run(
                "ingest", model, partition, replica_id, reported_ms, *columns, taken, expiry, self._us()
            )
            stored = replies.read_ingest(reply)
            taken = stored.taken
            await self._rebuild(model, partition.encode(), stored.rebuild)
            yield stored

    async def evict(self, model: ModelKey, replica_id: str, removal: Removal) -> int:
        """Remove blocks, as many a call as hold Redis only briefly."""
        adapter = self._keys.adapter(removal.adapter_id)
        removed = 0
        for keys, fences in _slices(removal):
            cursor: bytes = b""
            while True:
                reply = await self._run("evict", model, replica_id, adapter, keys, fences, cursor, self._us())
                step = replies.read_evict(reply)
                removed += step.holdings
                await self._after(model, step)
                cursor = step.cursor
                if not step.more:
                    break
        return removed

    async def clear(self, model: ModelKey, replica_id: str, *, fence_ms: int | None) -> int:
        """Make a replica's holdings invisible, then take them out step by step."""
        await self._catalog.unfinished(model, self._key_ttl_ms)
        removed = 0
        while True:
            reply = await self._run("clear", model, replica_id, "" if fence_ms is None else fence_ms, self._us())
            step = replies.read_clear(reply)
            removed += step.holdings
            if step.retired is not None:
                return removed + await self._free(model, step.retired)
            await self._after(model, step)
            if not step.more:
                return removed

    async def touch(self, model: ModelKey, replica_id: str, *, alive_ms: int) -> bool:
        """Move a row's sign of life."""
        reply = await self._run("stats", model, replica_id, alive_ms, b"", self._key_ttl_ms, self._us())
        written, state = replies.read_stats(reply)
        if written:
            await self._catalog.put(model, state, self._key_ttl_ms)
        return written

    async def state(self, model: ModelKey) -> CacheState:
        """Read the rows and the distinct prefixes of a model."""
        prefixes, rows = replies.read_state(await self._run("state", model))
        return CacheState(tuple(rows), prefixes)

    async def presence(self, model: ModelKey, expired_at: Callable[[str], int]) -> Presence:
        """Ask the catalog, uncached, so that every server knows at once."""
        return await self._catalog.presence(model, expired_at)

    async def expire(self, expired_at: Callable[[str], int]) -> Expired:
        """Sweep every model that may have something expired or unfinished; one that fails does not stop the others."""
        if not self._connection.clock.certain:
            msg = "the offset to Redis' clock is not known well enough to sweep"
            raise StoreUnavailable(msg, "clock")
        report = Expired()
        for listed in await self._catalog.listing():
            model = listed.entry.model
            prefixes = listed.entry.prefixes
            cut = expired_at(model.tenant_id)
            if listed.due_ms <= cut:
                try:
                    prefixes = await self._expire_model(listed, cut, report)
                except StoreError:
                    report.failed += 1
            report.prefixes[model] = prefixes
        return report

    async def ping(self) -> None:
        """Ask Redis whether it answers."""
        await self._connection.ping()

    async def close(self) -> None:
        """Close the connection."""
        await self._connection.close()

    async def _run(self, name: str, model: ModelKey, *args: bytes | int | str) -> Any:
        return await self._connection.run(load(name), self._keys.totals(model), args)

    def _us(self) -> int:
        return self._connection.now_ms() * 1000

    async def _after(self, model: ModelKey, step: Removed) -> None:
        """Do what a removing step leaves to do: rebuild segments, tell the catalog."""
        for partition in dict.fromkeys(name for name, _ in step.rebuild):
            await self._rebuild(model, partition, [segment for name, segment in step.rebuild if name == partition])
        if step.state.version:
            await self._catalog.put(model, step.state, self._key_ttl_ms)

    async def _rebuild(self, model: ModelKey, partition: bytes, segments: Iterable[bytes]) -> None:
        """Rewrite wasteful segments; a split may leave halves that need it again."""
        todo = list(segments)
        while todo:
            seen, again = replies.read_rebuild(await self._run("rebuild", model, partition, b"".join(todo)))
            todo = [*todo[seen:], *again]

    async def _free(self, model: ModelKey, slot: int) -> int:
        removed = 0
        while True:
            step = replies.read_free(await self._run("free", model, slot, self._us()))
            removed += step.holdings
            await self._after(model, step)
            if not step.more:
                return removed

    async def _expire_model(self, listed: Listed, cut: int, report: Expired) -> int:
        """Sweep one model; return the distinct prefixes that it is left with."""
        model = listed.entry.model
        cursor: bytes = b"0"
        while True:
            step = replies.read_expire(await self._run("expire", model, cut, cursor, self._us()))
            cursor = step.cursor
            report.stats_rows += step.rows
            if step.holdings:
                report.holdings[model.tenant_id] = report.holdings.get(model.tenant_id, 0) + step.holdings
            if not step.more:
                break
            await self._after(model, step)
        await self._verify(listed, step.state)
        return step.state.prefixes

    async def _verify(self, listed: Listed, state: ModelState) -> None:
        """Correct a model's catalog entry; drop it when the model has been empty for so long that no word is late."""
        was_empty = listed.entry.holdings == 0 and listed.entry.rows == 0
        if state.holds or state.rows:
            await self._catalog.put(listed.entry.model, state, self._key_ttl_ms)
            return
        # A model whose keys are gone has no version of its own any more; the catalog's still orders what we say.
        state = replace(state, version=max(state.version, listed.version))
        if not was_empty:
            await self._catalog.put(listed.entry.model, state, self._key_ttl_ms)
        elif self.now_ms() - listed.entry.told_ms > _LATE_WORD_MS:
            await self._catalog.forget(listed.entry.model, state, self._key_ttl_ms)


def _continued(before: Run | None, run: Run, walked: int) -> Run:
    """Return a run whose first ``walked`` blocks an earlier call found."""
    if before is None:
        return run
    return Run(
        run.replica_id,
        walked + run.blocks,
        min(before.oldest_ms, run.oldest_ms),
        max(before.tier, run.tier),
        run.stats,
    )


def _slices(removal: Removal) -> Iterable[tuple[bytes, bytes]]:
    """Cut a removal into what one call takes: keys, and packed fences counted from the first of them."""
    total = len(removal.keys) // KEY_BYTES
    for start in range(0, total, MAX_EVICT_BLOCKS):
        stop = min(start + MAX_EVICT_BLOCKS, total)
        fences: list[tuple[int, int | None]] = []
        for at, fence_ms in removal.fences:
            if at <= start:
                fences = [(0, fence_ms)]
            elif at < stop:
                fences.append((at - start, fence_ms))
        yield removal.keys[start * KEY_BYTES : stop * KEY_BYTES], packing.pack_fences(fences)
