"""From the wire to the domain and back: pure functions, one for each message that means something.

Nothing is judged here. Repeated fields pass as they are: the domain reads them once and keeps nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from grpc import StatusCode

from inference_cache._pb import inferencecache_pb2 as pb
from inference_cache.domain.models import CacheState, ModelKey, ReplicaStats
from inference_cache.domain.requests import LookupRequest, UpdateEntry
from inference_cache.domain.routing import Answer
from inference_cache.errors import (
    ConfigError,
    InferenceCacheError,
    InputError,
    PolicyError,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreUnavailable,
    WalkTooLong,
)
from inference_cache.rpc.events import Event
from inference_cache.rpc.report import Update

STATUS: dict[type[InferenceCacheError], tuple[StatusCode, str]] = {
    InferenceCacheError: (StatusCode.INTERNAL, "the server could not do this"),
    ConfigError: (StatusCode.FAILED_PRECONDITION, "the server is not set up for this"),
    InputError: (StatusCode.INVALID_ARGUMENT, "the request cannot be used"),
    PolicyError: (StatusCode.INVALID_ARGUMENT, "the policies cannot be used"),
    StoreError: (StatusCode.UNAVAILABLE, "the index could not answer; try again later"),
    StoreUnavailable: (StatusCode.UNAVAILABLE, "the index does not answer for now; keep this and send it again"),
    StoreFull: (StatusCode.RESOURCE_EXHAUSTED, "the index has no memory left; removals still work"),
    StoreCorrupt: (StatusCode.INTERNAL, "the index holds something this server cannot read"),
    WalkTooLong: (StatusCode.RESOURCE_EXHAUSTED, "this needs more work than one request may cause"),
}
"""What each error of ours is on the wire: the status and a sentence for whoever reads it. A test walks the tree."""


def status_of(error: InferenceCacheError) -> tuple[StatusCode, str]:
    """Return the status of an error of ours and the detail that goes with it: a sentence and a fixed word."""
    code, sentence = next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)
    word = getattr(error, "reason", "")
    return code, f"{sentence} ({word})" if word else sentence


def lookup_request(message: pb.LookupRouteRequest) -> LookupRequest:
    """Return the domain's view of a lookup."""
    return LookupRequest(
        tenant_id=message.tenant_id,
        model_id=message.model_id,
        hash_scheme=message.hash_scheme,
        adapter_id=message.adapter_id,
        prefix_hash=message.prefix_hash,
        prefix_token_count=message.prefix_token_count,
        block_hashes=message.block_hashes,
        block_token_counts=message.block_token_counts,
        token_ids=message.token_ids,
        prompt_text=message.prompt_text,
        ttft_ms=message.slo.ttft_ms,
    )


def lookup_response(answer: Answer, latency_us: int) -> pb.LookupRouteResponse:
    """Return the wire's form of an answer."""
    response = pb.LookupRouteResponse(
        reason_code=answer.reason,
        lookup_latency_us=latency_us,
        token_ids=answer.token_ids,
        adapter_id=answer.adapter_id,
    )
    add = response.replica_scores.add  # in place: messages given to a constructor are copied
    for score in answer.scores:
        add(
            replica_id=score.replica_id,
            score=score.score,
            matched_tokens=score.matched_tokens,
            estimated_cache_hit_prob=score.hit_prob,
            tier=score.tier,
        )
    return response


def update(message: pb.CacheStateUpdate) -> Update:
    """Return the domain's view of a report."""
    stats, non_finite = _stats(message.stats) if message.HasField("stats") else (None, False)
    return Update(
        model=ModelKey(message.tenant_id, message.model_id),
        replica_id=message.replica_id,
        hash_scheme=message.hash_scheme,
        adapter_id=message.adapter_id,
        timestamp_us=message.timestamp_us,
        entries=_Entries(message),
        blocks=sum(1 + len(entry.block_hashes) for entry in message.prefixes),
        stats=stats,
        non_finite_stats=non_finite,
    )


def event(message: pb.CacheEvent) -> Event:
    """Return the domain's view of an event; an empty ``prefix_hash`` beside a bulk list is no hash at all."""
    hashes = tuple(message.prefix_hashes)
    if message.prefix_hash or not hashes:
        hashes = (message.prefix_hash, *hashes)
    return Event(
        kind=_event_kind(message.type),
        model=ModelKey(message.tenant_id, message.model_id),
        replica_id=message.replica_id,
        hashes=hashes,
        timestamp_us=message.timestamp_us,
        adapter_id=message.adapter_id,
    )


def state_response(state: CacheState, *, hot: bool = False) -> pb.GetCacheStateResponse:
    """Return the wire's form of a model's statistics and totals; hot prefixes are the business of LFU tenants only."""
    return pb.GetCacheStateResponse(
        replicas=[
            pb.ReplicaStats(
                replica_id=replica_id,
                cache_memory_bytes=row.cache_memory_bytes,
                hit_rate=row.hit_rate,
                pressure=row.pressure,
                client_version=row.client_version,
                t2_hit_tokens=row.t2_hit_tokens,
                t2_query_tokens=row.t2_query_tokens,
            )
            for replica_id, row in state.replicas
        ],
        summary=pb.CacheSummary(total_prefixes=state.total_prefixes, hot_prefixes=state.hot_prefixes if hot else 0),
    )


class _Entries:
    """The entries of a report, made one by one: a message of 4 MiB never becomes two."""

    def __init__(self, message: pb.CacheStateUpdate) -> None:
        self._message = message

    def __iter__(self) -> Iterator[UpdateEntry]:
        for entry in self._message.prefixes:
            yield UpdateEntry(
                prefix_hash=entry.prefix_hash,
                token_count=entry.token_count,
                block_hashes=entry.block_hashes,
                block_token_counts=entry.block_token_counts,
                tier=entry.tier,
                adapter_id=entry.adapter_id,
            )


def _stats(message: pb.ReplicaStats) -> tuple[ReplicaStats, bool]:
    """Return reported statistics, without times, and whether a number had to be replaced by 0."""
    rates = (message.hit_rate, message.pressure)
    hit_rate, pressure = (rate if math.isfinite(rate) else 0.0 for rate in rates)
    stats = ReplicaStats(
        hit_rate=hit_rate,
        pressure=pressure,
        cache_memory_bytes=message.cache_memory_bytes,
        t2_hit_tokens=message.t2_hit_tokens,
        t2_query_tokens=message.t2_query_tokens,
        client_version=message.client_version,
    )
    return stats, not all(map(math.isfinite, rates))


def _event_kind(number: int) -> str:
    kinds = pb.CacheEvent.Type.DESCRIPTOR.values_by_number
    return str(kinds[number].name) if number in kinds else "UNKNOWN"
