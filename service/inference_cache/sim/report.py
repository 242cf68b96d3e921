"""Engines' reports: what they stored as chains, what they dropped in bulk, in the order in which it happened."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

import grpc

from inference_cache._pb import inferencecache_pb2 as pb
from inference_cache.sim.blocks import id_hashes
from inference_cache.sim.engine import Engine, Outcome
from inference_cache.sim.gateway import Scope
from inference_cache.sim.simulate import Step
from inference_cache.sim.trace import BLOCK_TOKENS

if TYPE_CHECKING:  # the class exists for type checkers only
    from inference_cache._pb.inferencecache_pb2_grpc import InferenceCacheAsyncStub

FEATURES_HEADER = "inference-cache-features"
BULK_EVICT = "bulk-evict"
"""Named in the initial metadata of a server that understands ``CacheEvent.prefix_hashes``."""
CALL_DEADLINE_S = 10.0
ATTEMPTS = 5
PAUSE_S = 0.2
T = TypeVar("T")

RETRIED = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED)


class ServiceReporter:
    """Tells the service what engines stored and dropped, through the real calls.

    Reports of one engine go one after another over its server; those of different engines at the same time. Their
    time is left to the server (``timestamp_us`` 0), because simulated time is not the wall's.

    Attributes:
        calls: finished calls by name, and ``retries``.
        stored: blocks reported as stored.
        evicted: blocks reported as dropped.
    """

    def __init__(self, stubs: Mapping[str, InferenceCacheAsyncStub], scope: Scope) -> None:
        self._stubs = stubs
        """Replica id -> the server it reports to."""
        self._scope = scope
        self._bulk: dict[str, bool] = {}
        """What a replica's server said with its first Ack; an engine stores before it ever has to evict."""
        self._prompt_tokens: Counter[str] = Counter()
        self._hit_tokens: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self.stored = 0
        self.evicted = 0

    async def report(self, steps: Sequence[Step]) -> None:
        """Report finished prefills; return when all are acknowledged.

        Raises:
            grpc.aio.AioRpcError: a server did not take a report although it was sent several times.
        """
        by_engine: dict[str, list[Outcome]] = {}
        for engine, outcome in steps:
            by_engine.setdefault(engine.replica_id, []).append(outcome)
        try:
            async with asyncio.TaskGroup() as group:
                for replica_id, outcomes in by_engine.items():
                    group.create_task(self._report_in_order(replica_id, outcomes))
        except* grpc.aio.AioRpcError as failed:
            first = failed.exceptions[0]
        else:
            return
        raise first

    async def clear(self, engines: Sequence[Engine]) -> None:
        """Tell the service that these engines hold nothing any more, as long as it listens.

        Leaving is no time to insist: what a server does not hear expires by itself.
        """
        with suppress(grpc.aio.AioRpcError):
            for engine in engines:
                await self.cleared(engine)

    async def cleared(self, engine: Engine) -> None:
        """Tell the service that an engine holds nothing any more.

        Raises:
            grpc.aio.AioRpcError: the service does not listen.
        """
        event = self._event(engine.replica_id, pb.CacheEvent.ALL_CLEARED)
        await self._stubs[engine.replica_id].PublishEvent(event, timeout=CALL_DEADLINE_S)

    async def _report_in_order(self, replica_id: str, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            self._prompt_tokens[replica_id] += outcome.request.input_tokens
            self._hit_tokens[replica_id] += outcome.hit_tokens
            await self._evict(replica_id, evicted_hashes(outcome))
            await self._store(replica_id, outcome)

    async def _store(self, replica_id: str, outcome: Outcome) -> None:
        entry = stored_chain(outcome)
        update = pb.CacheStateUpdate(
            replica_id=replica_id,
            tenant_id=self._scope.tenant_id,
            model_id=self._scope.model_id,
            hash_scheme=self._scope.hash_scheme,
            prefixes=[] if entry is None else [entry],
            stats=pb.ReplicaStats(
                hit_rate=self._hit_tokens[replica_id] / max(1, self._prompt_tokens[replica_id]),
                client_version="simulated",
            ),
        )
        stub = self._stubs[replica_id]

        async def send() -> grpc.aio.Metadata:
            call = stub.ReportCacheState(_once(update), timeout=CALL_DEADLINE_S)
            await call
            return await call.initial_metadata()

        metadata = await self._retried(send)
        self._bulk[replica_id] = _has_bulk_evict(metadata)
        self.calls["ReportCacheState"] += 1
        self.stored += outcome.change.held - outcome.change.first_new

    async def _evict(self, replica_id: str, hashes: Sequence[bytes]) -> None:
        """Report dropped blocks: all in one event where the server understands it, else one by one."""
        if not hashes:
            return
        bulk = self._bulk.get(replica_id, False)
        for group in [hashes] if bulk else [[one] for one in hashes]:
            event = self._event(replica_id, pb.CacheEvent.PREFIX_EVICTED)
            if bulk:
                event.prefix_hashes.extend(group)
            else:
                event.prefix_hash = group[0]
            await self._publish(replica_id, event)
        self.evicted += len(hashes)

    def _event(self, replica_id: str, kind: pb.CacheEvent.Type.ValueType) -> pb.CacheEvent:
        return pb.CacheEvent(
            type=kind, replica_id=replica_id, tenant_id=self._scope.tenant_id, model_id=self._scope.model_id
        )

    async def _publish(self, replica_id: str, event: pb.CacheEvent) -> None:
        stub = self._stubs[replica_id]

        async def send() -> pb.Ack:
            return await stub.PublishEvent(event, timeout=CALL_DEADLINE_S)

        await self._retried(send)
        self.calls["PublishEvent"] += 1

    async def _retried(self, send: Callable[[], Awaitable[T]]) -> T:
        """Send until it is acknowledged; a report says the same however often it arrives."""
        for attempt in range(1, ATTEMPTS):
            try:
                return await send()
            except grpc.aio.AioRpcError as error:
                if error.code() not in RETRIED:
                    raise
            self.calls["retries"] += 1
            await asyncio.sleep(PAUSE_S * attempt)
        return await send()


def stored_chain(outcome: Outcome) -> pb.PrefixEntry | None:
    """Return a prompt's new blocks as a chain, ``None`` when there are none.

    It begins with the last block that was there before, whose count stands for all tokens up to it. So the service
    sees where the new blocks belong, and counts their tokens from the prompt's beginning.
    """
    first_new, held = outcome.change.first_new, outcome.change.held
    if first_new >= held:
        return None
    begin = max(0, first_new - 1)
    hashes = _hashes_between(outcome.spans, begin, held)
    counts = [BLOCK_TOKENS] * len(hashes)
    counts[0] = (begin + 1) * BLOCK_TOKENS
    return pb.PrefixEntry(block_hashes=hashes, block_token_counts=counts)


def evicted_hashes(outcome: Outcome) -> list[bytes]:
    """Return the hashes of all blocks that had to go for a prompt."""
    return [one for hash_id, begin, end in outcome.change.evicted for one in id_hashes(hash_id, end)[begin:]]


def _hashes_between(spans: Sequence[tuple[int, int]], begin: int, end: int) -> list[bytes]:
    """Return the hashes of a prompt's blocks ``begin`` to ``end``."""
    hashes: list[bytes] = []
    first = 0
    for hash_id, count in spans:
        if first < end and first + count > begin:
            hashes += id_hashes(hash_id, min(count, end - first))[max(0, begin - first) :]
        first += count
    return hashes


async def _once(update: pb.CacheStateUpdate) -> AsyncIterator[pb.CacheStateUpdate]:
    yield update


def _has_bulk_evict(metadata: grpc.aio.Metadata) -> bool:
    return any(key == FEATURES_HEADER and BULK_EVICT in str(value).split(",") for key, value in metadata)
