"""The index as plain dictionaries: written to be obviously right, the oracle of the property tests.

It serves no user. Nothing here is fast: whatever can be found by looking at everything is found by looking
at everything, so that there is nothing to keep in step and nothing to get wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from inference_cache.domain.models import (
    KEY_BYTES,
    Batch,
    CacheState,
    ChainEvidence,
    Credit,
    ExactEvidence,
    Expired,
    Holder,
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
from inference_cache.errors import WalkTooLong
from inference_cache.store.model_index import Held, Index, ordered

MAX_WALK_BLOCKS = 131_072
"""The longest leading run that one lookup follows; beyond it :class:`~inference_cache.errors.WalkTooLong`."""


_Entry = TypeVar("_Entry", tuple[int, int], tuple[int, int | None], tuple[int, int, int])


class ModelStore:
    """A :class:`~inference_cache.store.base.Store` in memory, by the clock that it is given."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._indexes: dict[ModelKey, Index] = {}
        self._changes = 0
        self._lease: tuple[str, int, int] | None = None

    def now_ms(self) -> int:
        """Return the time by the given clock."""
        return self._now_ms()

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
        """Find who holds the leading run of a chain, block by block."""
        index = self._index(model)
        runs: dict[str, list[Held]] = {}
        for depth, key in enumerate(_keys(keys)):
            if depth == MAX_WALK_BLOCKS:
                raise WalkTooLong(f"a run reaches {MAX_WALK_BLOCKS} blocks and the chain goes on")
            holders = index.fresh(partition, key, expired_at_ms)
            survivors = [who for who in holders if len(runs.get(who, ())) == depth]
            if not survivors:
                break
            for who in survivors:
                runs.setdefault(who, []).append(holders[who])
        serving = index.serving(partition.hash_scheme, expired_at_ms)
        return ChainEvidence(
            runs=tuple(_run(who, runs[who], index.stats.get(who)) for who in ordered(runs)),
            serving=serving,
            silent=index.silent(partition.hash_scheme, serving, silent_at_ms),
            path=self._path(model, partition, keys) if want_path else None,
        )

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
        """Find who holds one block."""
        index = self._index(model)
        fresh = index.fresh(partition, key, expired_at_ms)
        serving = index.serving(partition.hash_scheme, expired_at_ms)
        holders = tuple(
            Holder(who, fresh[who].token_count, fresh[who].time_ms, fresh[who].tier, index.stats.get(who))
            for who in ordered(fresh)
        )
        warm = tuple((who, index.stats[who]) for who in serving if who in index.stats)
        return ExactEvidence(
            holders,
            serving,
            warm if want_warm and not holders else (),
            index.silent(partition.hash_scheme, serving, silent_at_ms),
            self._path(model, partition, key) if want_path and holders else None,
        )

    async def credit(self, model: ModelKey, partition: Partition, hits: Sequence[Credit], *, hot_threshold: int) -> int:
        """Count hits, holding by holding: each block is a place of its own."""
        index = self._index(model)
        index.hot_threshold = hot_threshold
        applied = 0
        for credit in hits:
            holders = index.blocks.get((partition, credit.place), {})
            held = holders.get(credit.replica_id)
            if held is not None and held.began <= credit.version:
                holders[credit.replica_id] = replace(held, hits=held.hits + credit.hits)
                applied += 1
        return applied

    def _path(self, model: ModelKey, partition: Partition, keys: bytes) -> Path:
        return Path(model, partition, tuple((key, 0, 1) for key in _keys(keys)), self._changes)

    async def ingest(
        self,
        model: ModelKey,
        replica_id: str,
        batches: Sequence[Batch],
        *,
        reported_ms: int,
        ttl_ms: int,  # noqa: ARG002 - memory needs no backstop
        lfu: bool = False,  # noqa: ARG002 - every holding counts its hits
        stats: ReplicaStats | None = None,
    ) -> Ingested:
        """Store a report, block by block."""
        index = self._indexes.setdefault(model, Index())
        self._changes += 1
        holdings = prefixes = 0
        for batch in batches:
            for key, token_count, tier in _blocks(batch):
                held = Held(token_count, reported_ms, tier, self._changes)
                new_holding, new_prefix = index.put(batch.partition, key, replica_id, held)
                holdings += new_holding
                prefixes += new_prefix
        if stats is not None:
            index.stats[replica_id] = stats
        return Ingested(holdings, prefixes, self._holdings(), self._prefixes(model.tenant_id))

    async def evict(self, model: ModelKey, replica_id: str, removal: Removal) -> int:
        """Remove blocks of one replica, in all hash schemes."""
        fences: dict[bytes, list[int | None]] = {}
        keys = _keys(removal.keys)
        for key, (_, fence_ms) in zip(keys, _in_force(removal.fences, len(keys)), strict=True):
            fences.setdefault(key, []).append(fence_ms)

        def doomed(partition: Partition, key: bytes, who: str, held: Held) -> bool:
            return (
                who == replica_id
                and removal.adapter_id in ("", partition.adapter_id)
                and any(_falls(held.time_ms, fence_ms) for fence_ms in fences.get(key, ()))
            )

        return self._index(model).remove(doomed)

    async def clear(self, model: ModelKey, replica_id: str, *, fence_ms: int | None) -> int:
        """Remove what a replica holds in a model, and its statistics row, as far as the fence allows."""
        index = self._index(model)
        row = index.stats.get(replica_id)
        if row is not None and _falls(row.reported_ms, fence_ms):
            del index.stats[replica_id]
        return index.remove(lambda _p, _k, who, held: who == replica_id and _falls(held.time_ms, fence_ms))

    async def touch(self, model: ModelKey, replica_id: str, *, alive_ms: int) -> bool:
        """Set when a replica was last alive, if it has a statistics row."""
        rows = self._index(model).stats
        if replica_id not in rows:
            return False
        rows[replica_id] = replace(rows[replica_id], alive_ms=alive_ms)
        return True

    async def state(self, model: ModelKey) -> CacheState:
        """Return the statistics rows of a model and its distinct prefixes."""
        index = self._index(model)
        rows = tuple((who, index.stats[who]) for who in ordered(index.stats))
        return CacheState(rows, len(index.blocks), index.hot())

    async def presence(self, model: ModelKey, expired_at: Callable[[str], int]) -> Presence:
        """Tell what is present at all."""
        present = {key for key, index in self._indexes.items() if index.is_present(expired_at(key.tenant_id))}
        return Presence(
            index=bool(present),
            tenant=any(key.tenant_id == model.tenant_id for key in present),
            model=model in present,
        )

    async def expire(
        self,
        expired_at: Callable[[str], int],
        retention: Callable[[str], Retention] | None = None,  # noqa: ARG002 - memory keeps nothing that depends on it
    ) -> Expired:
        """Remove everything that is expired, everywhere; a model left with nothing is reported once more, with 0."""
        swept = Expired()
        for model, index in list(self._indexes.items()):
            expired_at_ms = expired_at(model.tenant_id)
            removed = index.remove(lambda _p, _k, _w, held, limit=expired_at_ms: held.time_ms <= limit)  # type: ignore[misc]
            if removed:
                swept.holdings[model.tenant_id] = swept.holdings.get(model.tenant_id, 0) + removed
            silent = [who for who, row in index.stats.items() if row.alive_ms <= expired_at_ms]
            for who in silent:
                del index.stats[who]
            swept.stats_rows += len(silent)
            swept.prefixes[model] = len(index.blocks)
            if not index.blocks and not index.stats:
                del self._indexes[model]
        return swept

    async def entries(self) -> dict[ModelKey, int]:
        """Count the prefixes of each model."""
        return {model: len(index.blocks) for model, index in self._indexes.items()}

    async def trim_tenant(
        self,
        tenant_id: str,
        max_prefixes: int,
        expired_at_ms: int,
        *,
        lfu: bool = False,  # noqa: ARG002 - no hits count
    ) -> Trimmed:
        """Remove whole prefixes of a tenant, one by one."""
        report = Trimmed()
        if self._prefixes(tenant_id) <= max_prefixes:
            return report
        self._drop_expired(tenant_id, expired_at_ms, report)
        order = sorted(
            (max(held.time_ms for held in holders.values()), *_names(model, partition, key), (model, partition, key))
            for model, index in self._of(tenant_id)
            for (partition, key), holders in index.blocks.items()
        )
        for _, _, _, _, _, _, place in order[: max(0, len(order) - max_prefixes)]:
            self._take(*place)
            report.removed[tenant_id] = report.removed.get(tenant_id, 0) + 1
        return report

    async def trim_index(
        self, max_holdings: int, expired_at: Callable[[str], int], lfu: Callable[[str], bool]
    ) -> Trimmed:
        """Remove holdings of anybody, one by one."""
        report = Trimmed()
        if self._holdings() <= max_holdings:
            return report
        for tenant_id in {model.tenant_id for model in self._indexes}:
            self._drop_expired(tenant_id, expired_at(tenant_id), report)
        order = sorted(
            (
                held.hits if lfu(model.tenant_id) else 0,
                held.time_ms,
                *_names(model, partition, key),
                who.encode(),
                (model, partition, key, who),
            )
            for model, index in self._indexes.items()
            for (partition, key), holders in index.blocks.items()
            for who, held in holders.items()
        )
        for _, _, _, _, _, _, _, _, place in order[: max(0, len(order) - max_holdings)]:
            self._take(*place)
            tenant_id = place[0].tenant_id
            report.removed[tenant_id] = report.removed.get(tenant_id, 0) + 1
        return report

    async def lease(self, owner: str, ttl_ms: int) -> int | None:
        """Take or keep the lease."""
        holder, until, token = self._lease or ("", 0, 0)
        if holder != owner and until > self._now_ms():
            return None
        self._lease = (owner, self._now_ms() + ttl_ms, token + (holder != owner or until <= self._now_ms()))
        return self._lease[2]

    def _take(self, model: ModelKey, partition: Partition, key: bytes, who: str | None = None) -> None:
        """Remove one holding, or a whole prefix."""
        self._indexes[model].remove(lambda p, k, w, _h: (p, k) == (partition, key) and who in (None, w))

    def _of(self, tenant_id: str) -> list[tuple[ModelKey, Index]]:
        return [(model, index) for model, index in self._indexes.items() if model.tenant_id == tenant_id]

    def _holdings(self) -> int:
        return sum(len(holders) for index in self._indexes.values() for holders in index.blocks.values())

    def _prefixes(self, tenant_id: str) -> int:
        return sum(len(index.blocks) for _, index in self._of(tenant_id))

    def _drop_expired(self, tenant_id: str, expired_at_ms: int, report: Trimmed) -> None:
        for _, index in self._of(tenant_id):
            gone = index.remove(lambda _p, _k, _w, held: held.time_ms <= expired_at_ms)
            if gone:
                report.expired[tenant_id] = report.expired.get(tenant_id, 0) + gone

    async def ping(self) -> None:
        """Return: memory answers."""

    async def close(self) -> None:
        """Return: there is nothing to give back."""

    def _index(self, model: ModelKey) -> Index:
        """Return a model's index; that of an unknown one is empty and not kept."""
        return self._indexes.get(model, Index())


def _names(model: ModelKey, partition: Partition, key: bytes) -> tuple[bytes, bytes, bytes, bytes, bytes]:
    """Return the names that order what is otherwise equal."""
    return (
        model.tenant_id.encode(),
        model.model_id.encode(),
        partition.hash_scheme.encode(),
        partition.adapter_id.encode(),
        key,
    )


def _falls(time_ms: int, fence_ms: int | None) -> bool:
    return fence_ms is None or time_ms <= fence_ms


def _run(replica_id: str, held: Sequence[Held], stats: ReplicaStats | None) -> Run:
    return Run(replica_id, len(held), min(one.time_ms for one in held), max(one.tier for one in held), stats)


def _keys(joined: bytes) -> list[bytes]:
    """Take concatenated block keys apart."""
    if len(joined) % KEY_BYTES:
        raise ValueError(f"{len(joined)} bytes are no whole number of block keys")
    return [joined[at : at + KEY_BYTES] for at in range(0, len(joined), KEY_BYTES)]


def _in_force(runs: Sequence[_Entry], length: int) -> list[_Entry]:
    """Return for each of ``length`` indexes the run-length entry in force there."""
    starts: list[int] = [run[0] for run in runs]
    if length and (starts[:1] != [0] or starts != sorted(set(starts)) or starts[-1] >= length):
        raise ValueError(f"runs that start at {starts} do not cover {length} blocks")
    ends: list[int] = [*starts[1:], length]
    return [run for run, end in zip(runs, ends, strict=True) for _ in range(run[0], end)] if length else []


def _blocks(batch: Batch) -> Iterator[tuple[bytes, int, int]]:
    """Take a batch apart into blocks: key, token count, tier."""
    keys = _keys(batch.keys)
    if len(set(keys)) < len(keys):
        raise ValueError("a batch with the same key twice")
    if not keys:
        raise ValueError("a batch without a block")
    if any(not 0 < at < len(keys) for at in batch.breaks) or len(batch.after) not in (0, KEY_BYTES):
        raise ValueError("a batch with a break outside of it or half a key before it")
    counts = _in_force(batch.counts, len(keys))
    tiers = _in_force(batch.tiers, len(keys))
    for at, (key, (start, first, step), (_, tier)) in enumerate(zip(keys, counts, tiers, strict=True)):
        yield key, first + (at - start) * step, tier
