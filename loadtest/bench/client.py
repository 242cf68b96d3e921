"""A cheap client: messages are bytes made beforehand, so that the client does not compete with what it measures."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

import grpc

from inference_cache._pb import inferencecache_pb2 as pb
from inference_cache.domain.blocks import split_keys
from loadtest.bench import data
from loadtest.bench.stats import percentile

Lookup: TypeAlias = Callable[[bytes], Awaitable[bytes]]
"""Sends a serialized request and returns the serialized response."""

_SERVICE = "/inferencecache.v1alpha1.InferenceCache/"
_MATCH = b"PREFIX_MATCH"


@dataclass(slots=True)
class Sample:
    """What one run of calls saw.

    Attributes:
        seconds: wall time of the run.
        latencies_ms: of each call.
        unmatched: answers that were no PREFIX_MATCH.
    """

    seconds: float = 0.0
    latencies_ms: list[float] = field(default_factory=list)
    unmatched: int = 0

    @property
    def rate(self) -> float:
        """Calls a second."""
        return len(self.latencies_ms) / self.seconds

    def at(self, share: float) -> float:
        """Return a percentile of the latencies, in milliseconds."""
        return percentile(self.latencies_ms, share)


class Client:
    """One connection to one server."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.lookup: Lookup = channel.unary_unary(_SERVICE + "LookupRoute", None, None)
        self._publish = channel.unary_unary(_SERVICE + "PublishEvent", None, None)
        self._report = channel.stream_unary(_SERVICE + "ReportCacheState", None, None)

    async def report(self, updates: Iterable[bytes]) -> None:
        """Send serialized updates on one stream and wait for the acknowledgement."""
        await self.stream(iter(updates))

    async def stream(self, updates: Iterator[bytes] | AsyncIterator[bytes]) -> None:
        """Send serialized updates as they come."""
        ack = pb.Ack.FromString(await self._report(updates))
        if not ack.accepted:
            raise RuntimeError(f"a report was refused: {ack.reason_code}")

    async def publish(self, event: bytes) -> None:
        """Send a serialized event and wait for the acknowledgement."""
        ack = pb.Ack.FromString(await self._publish(event))
        if not ack.accepted:
            raise RuntimeError(f"an event was refused: {ack.reason_code}")


@asynccontextmanager
async def connected(*addresses: str) -> AsyncIterator[list[Client]]:
    """Open connections, each a socket of its own even to the same server."""
    options = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", 64 * 2**20))
    channels = [grpc.aio.insecure_channel(address, options=options) for address in addresses]
    try:
        await asyncio.gather(*(channel.channel_ready() for channel in channels))
        yield [Client(channel) for channel in channels]
    finally:
        await asyncio.gather(*(channel.close(None) for channel in channels))


async def keep_busy(
    clients: Sequence[Client], requests: Sequence[bytes], in_flight: int, *, calls: int = 0, seconds: float = 0.0
) -> Sample:
    """Keep some lookups in flight until so many were made, or for so long.

    Each of the ``in_flight`` callers uses one client and sends its next request when it has its answer.
    """
    sample = Sample()
    began = time.perf_counter()
    left = iter(range(calls)) if calls else None

    async def caller(number: int) -> None:
        lookup, turn = clients[number % len(clients)].lookup, number
        while (next(left, None) is not None) if left is not None else (time.perf_counter() - began < seconds):
            await _ask(lookup, requests[turn % len(requests)], sample)
            turn += in_flight

    await asyncio.gather(*(caller(number) for number in range(in_flight)))
    sample.seconds = time.perf_counter() - began
    return sample


async def keep_pace(client: Client, requests: Sequence[bytes], rate: float, seconds: float) -> Sample:
    """Send lookups at a fixed rate, whatever becomes of the earlier ones; latencies count from the moment due."""
    sample = Sample()
    began = time.perf_counter()

    async def one(turn: int) -> None:
        due = began + turn / rate
        await asyncio.sleep(due - time.perf_counter())
        await _ask(client.lookup, requests[turn % len(requests)], sample, due)

    await asyncio.gather(*(one(turn) for turn in range(int(rate * seconds))))
    sample.seconds = time.perf_counter() - began
    return sample


async def _ask(lookup: Lookup, request: bytes, sample: Sample, due: float | None = None) -> None:
    began = time.perf_counter() if due is None else due
    response = await lookup(request)
    sample.latencies_ms.append((time.perf_counter() - began) * 1000)
    sample.unmatched += _MATCH not in response


def lookup_request(keys: bytes, *, hash_bytes: int = 8) -> bytes:
    """Return a lookup of a chain; wider hashes than eight bytes begin with the block's key."""
    hashes = widened(keys, hash_bytes)
    return pb.LookupRouteRequest(
        model_id=data.MODEL.model_id,
        tenant_id=data.MODEL.tenant_id,
        hash_scheme=data.PARTITION.hash_scheme,
        block_hashes=hashes,
        block_token_counts=[data.BLOCK_TOKENS] * len(hashes),
    ).SerializeToString()


def chain_update(replica_id: str, *chains: bytes, hash_bytes: int = 8) -> bytes:
    """Return a report of chains."""
    entries = [
        pb.PrefixEntry(block_hashes=hashes, block_token_counts=[data.BLOCK_TOKENS] * len(hashes))
        for hashes in (widened(keys, hash_bytes) for keys in chains)
    ]
    return update(replica_id, entries)


def update(replica_id: str, entries: Iterable[pb.PrefixEntry]) -> bytes:
    """Return a report of any entries."""
    return pb.CacheStateUpdate(
        replica_id=replica_id,
        model_id=data.MODEL.model_id,
        tenant_id=data.MODEL.tenant_id,
        hash_scheme=data.PARTITION.hash_scheme,
        prefixes=entries,
    ).SerializeToString()


def eviction(replica_id: str, keys: bytes) -> bytes:
    """Return an event that drops blocks: by the single field if it is one, else by the bulk list."""
    hashes = split_keys(keys)
    event = _event(pb.CacheEvent.PREFIX_EVICTED, replica_id)
    if len(hashes) == 1:
        event.prefix_hash = hashes[0]
    else:
        event.prefix_hashes.extend(hashes)
    return event.SerializeToString()


def clearing(replica_id: str) -> bytes:
    """Return an event that drops everything that a replica holds."""
    return _event(pb.CacheEvent.ALL_CLEARED, replica_id).SerializeToString()


def _event(kind: pb.CacheEvent.Type.ValueType, replica_id: str) -> pb.CacheEvent:
    return pb.CacheEvent(type=kind, replica_id=replica_id, model_id=data.MODEL.model_id, tenant_id=data.MODEL.tenant_id)


def widened(keys: bytes, hash_bytes: int) -> list[bytes]:
    """Return a chain's hashes, padded to a width."""
    return [key.ljust(hash_bytes, b"\x01") for key in split_keys(keys)]
