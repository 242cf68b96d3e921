"""The index in Redis: each method is one atomic script, or a bounded number of steps of one.

Keys and segments are explained in ``docs/architecture.md``. What every method promises is written
at :class:`~inference_cache.store.base.Store`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence

from inference_cache.domain.models import (
    KEY_BYTES,
    Batch,
    CacheState,
    ChainEvidence,
    Credit,
    ExactEvidence,
    Expired,
    Ingested,
    ModelKey,
    Partition,
    Path,
    Presence,
    Removal,
    ReplicaStats,
    Retention,
    Run,
    Trimmed,
)
from inference_cache.errors import StoreUnavailable, WalkTooLong
from inference_cache.store import packing, replies
from inference_cache.store.calls import Calls
from inference_cache.store.connection.transport import Connection
from inference_cache.store.keys import Keys, key_ttl_ms
from inference_cache.store.replies import NOBODY, Stored, Sums
from inference_cache.store.scopes import Scopes
from inference_cache.store.scripts import load, names
from inference_cache.store.sweep import Sweep
from inference_cache.store.trim import Trim

MAX_EVICT_BLOCKS = 256
"""Blocks that one eviction takes: each may sit in a segment of its own, and no call shall hold Redis for more than two
milliseconds."""

MAX_CREDITS = 128
"""Credits that one call applies, likewise."""

MAX_WALK_BLOCKS = 131_072
MAX_WALK_SEGMENTS = 4_096
_WALK_SEGMENTS_A_CALL = 256


class RedisStore:
    """The store that serves users; any number of them on one Redis answer alike.

    Args:
        connection: an open connection; closed with the store.
        key_prefix: start of every key, so that several indexes can share a Redis.
    """

    def __init__(self, connection: Connection, *, key_prefix: str = "ic") -> None:
        self._connection = connection
        self._keys = Keys(key_prefix)
        self._calls = Calls(connection, self._keys)
        self._catalog = self._calls.catalog
        self._scopes = Scopes()
        self._sweep = Sweep(self._calls)
        self._trim = Trim(self._calls)

    def now_ms(self) -> int:
        """Return Redis' time."""
        return self._connection.now_ms()

    async def warm_up(self) -> None:
        """Load every script, so that no first call pays for it."""
        await self._connection.load(load(name) for name in names())

    async def lookup_chain(
        self,
        model: ModelKey,
        partition: Partition,
        keys: bytes,
        *,
        expired_at_ms: int,
        silent_at_ms: int | None = None,
        want_path: bool = False,
    ) -> ChainEvidence:
        """Walk the chain; a long one takes several calls that carry the replicas still in the run."""
        name = self._keys.partition(partition)
        known = self._scopes.known(model, partition, silent_at_ms)
        options = (expired_at_ms, "" if silent_at_ms is None else silent_at_ms, int(want_path), known.version)
        walked, calls = 0, 0
        ended: list[Run] = []
        going: dict[str, Run] = {}
        places: list[tuple[bytes, int, int]] = []
        while True:
            rest = keys[walked * KEY_BYTES :]
            reply = await self._calls.run("lookup_chain", model, name, rest, *options, len(going), *going)
            walk = replies.read_walk(reply, known)
            runs = [_continued(going.pop(run.replica_id, None), run, walked) for run in walk.runs]
            ended += going.values()
            places += walk.places
            walked, calls = walked + walk.walked, calls + 1
            if walk.complete:
                path = Path(model, partition, tuple(places), walk.version) if want_path else None
                scope = self._scopes.learn(model, partition, walk.scope)
                return ChainEvidence(replies.in_order([*ended, *runs]), scope.serving, scope.silent, path)
            ended += (run for run in runs if run.blocks < walked)
            going = {run.replica_id: run for run in runs if run.blocks == walked}
            _judge_length(walked, calls)

    async def lookup_exact(
        self,
        model: ModelKey,
        partition: Partition,
        key: bytes,
        *,
        expired_at_ms: int,
        want_warm: bool,
        silent_at_ms: int | None = None,
        want_path: bool = False,
    ) -> ExactEvidence:
        """Look one block up."""
        silent_at = "" if silent_at_ms is None else silent_at_ms
        known = NOBODY if want_warm else self._scopes.known(model, partition, silent_at_ms)
        options = (expired_at_ms, silent_at, int(want_path), known.version, int(want_warm))
        reply = await self._calls.run("lookup_exact", model, self._keys.partition(partition), key, *options)
        evidence, scope = replies.read_exact(reply, model, partition, known, want_path=want_path)
        self._scopes.learn(model, partition, scope)
        return evidence

    async def credit(self, model: ModelKey, partition: Partition, hits: Sequence[Credit], *, hot_threshold: int) -> int:
        """Count hits, as many a call as hold Redis only briefly."""
        name = self._keys.partition(partition)
        applied = 0
        for start in range(0, len(hits), MAX_CREDITS):
            some = hits[start : start + MAX_CREDITS]
            flat: list[bytes | int | str] = []
            for credit in some:
                flat += [credit.place, credit.depth, credit.version, credit.hits, credit.replica_id]
            applied += replies.read_number(
                await self._calls.run("credit", model, name, hot_threshold, len(some), *flat)
            )
        return applied

    async def ingest(
        self,
        model: ModelKey,
        replica_id: str,
        batches: Sequence[Batch],
        *,
        reported_ms: int,
        ttl_ms: int,
        lfu: bool = False,
        stats: ReplicaStats | None = None,
    ) -> Ingested:
        """Store an update, batch by batch, and tell the catalog before returning."""
        if not batches and stats is None:
            return Ingested()
        retention, expiry = Retention(ttl_ms, lfu), key_ttl_ms(ttl_ms)
        self._catalog.learn(model.tenant_id, retention)
        await self._catalog.announce(model)
        state, sums, holdings, prefixes = None, Sums(), 0, 0
        try:
            for batch in batches:
                async for stored in self._ingest(model, replica_id, batch, reported_ms, retention):
                    state = stored.state
                    holdings, prefixes = holdings + stored.holdings, prefixes + stored.prefixes
            if stats is not None:
                row = packing.pack_stats(stats)
                args = (replica_id, stats.alive_ms, row, expiry, self._calls.now_us())
                state = replies.read_stats(await self._calls.run("stats", model, *args))[1]
        finally:
            if state is not None:
                sums = await self._catalog.put(model, state)
        return Ingested(holdings, prefixes, sums.holdings, sums.prefixes)

    async def _ingest(
        self, model: ModelKey, replica_id: str, batch: Batch, reported_ms: int, retention: Retention
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
        options = (int(retention.lfu), key_ttl_ms(retention.ttl_ms))
        taken, total = 0, len(batch.keys) // KEY_BYTES
        while taken < total:
            args = (partition, replica_id, reported_ms, *columns, taken, *options, self._calls.now_us())
            stored = replies.read_ingest(await self._calls.run("ingest", model, *args))
            taken = stored.taken
            await self._calls.rebuild(model, partition.encode(), stored.rebuild)
            yield stored

    async def evict(self, model: ModelKey, replica_id: str, removal: Removal) -> int:
        """Remove blocks, as many a call as hold Redis only briefly."""
        adapter = self._keys.adapter(removal.adapter_id)
        removed = 0
        for keys, fences in _slices(removal):
            cursor: bytes = b""
            while True:
                args = (replica_id, adapter, keys, fences, cursor, self._calls.now_us())
                step = replies.read_evict(await self._calls.run("evict", model, *args))
                removed += step.holdings
                await self._calls.after(model, step)
                cursor = step.cursor
                if not step.more:
                    break
        return removed

    async def clear(self, model: ModelKey, replica_id: str, *, fence_ms: int | None) -> int:
        """Make a replica's holdings invisible, then take them out step by step."""
        await self._catalog.unfinished(model)
        removed = 0
        while True:
            fence = "" if fence_ms is None else fence_ms
            step = replies.read_clear(await self._calls.run("clear", model, replica_id, fence, self._calls.now_us()))
            removed += step.holdings
            if step.state.due_ms or step.rebuild:
                await self._calls.after(model, step)
            if not step.more:
                break
        # Also when the replica was unknown: a clear that is sent again waits for the first one's work.
        if step.state.due_ms == 0:
            await self._calls.free(model)
        return removed

    async def touch(self, model: ModelKey, replica_id: str, *, alive_ms: int) -> bool:
        """Move a row's sign of life."""
        args = (replica_id, alive_ms, b"", self._catalog.key_ttl_ms, self._calls.now_us())
        written, state = replies.read_stats(await self._calls.run("stats", model, *args))
        if written:
            await self._catalog.put(model, state)
        return written

    async def state(self, model: ModelKey) -> CacheState:
        """Read the rows and the distinct prefixes of a model."""
        return replies.read_state(await self._calls.run("state", model))

    async def presence(self, model: ModelKey, expired_at: Callable[[str], int]) -> Presence:
        """Ask the catalog, uncached, so that every server knows at once."""
        return await self._catalog.presence(model, expired_at)

    async def expire(
        self, expired_at: Callable[[str], int], retention: Callable[[str], Retention] | None = None
    ) -> Expired:
        """Sweep every model that may have something expired or unfinished."""
        if not self._connection.clock.certain:
            msg = "the offset to Redis' clock is not known well enough to sweep"
            raise StoreUnavailable(msg, "clock")
        return await self._sweep.run(expired_at, retention)

    async def entries(self) -> dict[ModelKey, int]:
        """Read the catalog, a page of models a call."""
        return {each.entry.model: each.entry.prefixes for each in await self._catalog.listing()}

    async def trim_tenant(self, tenant_id: str, max_prefixes: int, expired_at_ms: int, *, lfu: bool = False) -> Trimmed:
        """Bring a tenant down to its quota."""
        return await self._trim.tenant(tenant_id, max_prefixes, expired_at_ms, lfu=lfu)

    async def trim_index(
        self, max_holdings: int, expired_at: Callable[[str], int], lfu: Callable[[str], bool]
    ) -> Trimmed:
        """Bring the index down to its cap."""
        return await self._trim.index(max_holdings, expired_at, lfu)

    async def lease(self, owner: str, ttl_ms: int) -> int | None:
        """Take or keep the sweeper's lease."""
        return replies.read_lease(await self._connection.run(load("lease"), self._keys.lease, (owner, ttl_ms)))

    async def ping(self) -> None:
        """Ask Redis whether it answers."""
        await self._connection.ping()

    async def close(self) -> None:
        """Close the connection."""
        await self._connection.close()


def _judge_length(walked: int, calls: int) -> None:
    if walked >= MAX_WALK_BLOCKS or calls * _WALK_SEGMENTS_A_CALL >= MAX_WALK_SEGMENTS:
        msg = "the chain needs more work than a lookup may do"
        raise WalkTooLong(msg)


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
