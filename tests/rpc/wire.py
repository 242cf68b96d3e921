"""The contract in few words: reports, events and questions of one tenant, sent over a real channel."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc

from inference_cache._pb import inferencecache_pb2 as pb
from inference_cache._pb.inferencecache_pb2_grpc import InferenceCacheStub
from inference_cache.domain.policy import Policy
from inference_cache.metrics import Metrics

TENANT, MODEL, SCHEME = "team-a", "m1", "vllm"
AFFINITY_OFF = Policy(affinity_routing=False)
FLOORS_OFF = Policy(minimum_matched_tokens=0, routing_floor_score=0.0)
MINUTE = 60_000


def h(name: object) -> bytes:
    """Return an eight-byte hash of a name."""
    return hashlib.sha256(repr(name).encode()).digest()[:8]


def hs(*names: object) -> list[bytes]:
    """Return the hashes of names."""
    return [h(name) for name in names]


def exact(prefix_hash: bytes, tokens: int, **more: Any) -> pb.PrefixEntry:
    """Return an entry of one hash."""
    return pb.PrefixEntry(prefix_hash=prefix_hash, token_count=tokens, **more)


def chain(hashes: Sequence[bytes], tokens: int = 16, **more: Any) -> pb.PrefixEntry:
    """Return an entry of a chain whose blocks have the same number of tokens."""
    more.setdefault("block_token_counts", [tokens] * len(hashes))
    return pb.PrefixEntry(block_hashes=hashes, **more)


def asks(hashes: Sequence[bytes], tokens: int = 16) -> dict[str, Any]:
    """Return the fields of a lookup that asks for a chain."""
    return {"block_hashes": hashes, "block_token_counts": [tokens] * len(hashes)}


def ids(answer: pb.LookupRouteResponse) -> list[str]:
    """Return the ranked replicas' ids."""
    return [score.replica_id for score in answer.replica_scores]


@dataclass
class Policies:
    """Policies that a test sets; everybody else has the defaults."""

    by_tenant: dict[str, Policy] = field(default_factory=dict)

    def for_tenant(self, tenant_id: str) -> Policy:
        """Return what the test set."""
        return self.by_tenant.get(tenant_id, Policy())

    def current(self) -> Policies:
        """Return what is set now, whatever the test sets later."""
        return Policies(dict(self.by_tenant))


@dataclass
class Wire:
    """A client with this module's tenant, model and scheme where a call names none.

    Attributes:
        stub: the plain client.
        policies: what the server consults.
        metrics: what the server counts.
    """

    stub: Any
    policies: Policies
    metrics: Metrics

    @classmethod
    def over(cls, channel: grpc.aio.Channel, policies: Policies, metrics: Metrics) -> Wire:
        """Return a client over a channel."""
        return cls(InferenceCacheStub(channel), policies, metrics)

    def policy(self, policy: Policy, tenant: str = TENANT) -> None:
        """Give a tenant a policy."""
        self.policies.by_tenant[tenant] = policy

    async def report(self, replica: str, *entries: pb.PrefixEntry, **more: Any) -> pb.Ack:
        """Send one update on a stream of its own."""
        return await self.stream(update(replica, *entries, **more))

    async def stream(self, *updates: pb.CacheStateUpdate) -> pb.Ack:
        """Send updates on one stream."""
        ack: pb.Ack = await self.stub.ReportCacheState(iter(updates))
        return ack

    async def event(self, kind: str, replica: str, prefix_hash: bytes = b"", **more: Any) -> pb.Ack:
        """Send one event, by the name of its type."""
        event = pb.CacheEvent(
            type=pb.CacheEvent.Type.Value(kind),
            replica_id=replica,
            prefix_hash=prefix_hash,
            **_identity(_stamped(more)),
        )
        ack: pb.Ack = await self.stub.PublishEvent(event)
        return ack

    async def lookup(self, prefix_hash: bytes = b"", **more: Any) -> pb.LookupRouteResponse:
        """Ask for a route."""
        request = pb.LookupRouteRequest(prefix_hash=prefix_hash, **{"hash_scheme": SCHEME, **_identity(more)})
        answer: pb.LookupRouteResponse = await self.stub.LookupRoute(request)
        return answer

    async def state(self, **more: Any) -> pb.GetCacheStateResponse:
        """Ask for the cache state."""
        answer: pb.GetCacheStateResponse = await self.stub.GetCacheState(pb.GetCacheStateRequest(**_identity(more)))
        return answer

    async def total(self) -> int:
        """Return how many distinct prefixes the model has."""
        return int((await self.state()).summary.total_prefixes)

    def counted(self, name: str, labels: Mapping[str, str] | None = None) -> float:
        """Return the value of a metric, 0 when it has not been counted."""
        return self.metrics.registry.get_sample_value(f"inferencecache_{name}", dict(labels or {})) or 0.0


def update(replica: str, *entries: pb.PrefixEntry, **more: Any) -> pb.CacheStateUpdate:
    """Return an update; ``age_ms`` stands for a timestamp that long ago, ``stats`` for a mapping of statistics."""
    more = {"hash_scheme": SCHEME, **_identity(_stamped(more))}
    if isinstance(more.get("stats"), dict):
        more["stats"] = pb.ReplicaStats(**more["stats"])
    return pb.CacheStateUpdate(replica_id=replica, prefixes=entries, **more)


def samples(metrics: Metrics) -> Iterable[tuple[str, dict[str, str], float]]:
    """Return every sample of the registry."""
    for metric in metrics.registry.collect():
        for sample in metric.samples:
            yield sample.name, sample.labels, sample.value


def _identity(more: dict[str, Any]) -> dict[str, Any]:
    return {"tenant_id": TENANT, "model_id": MODEL, **more}


def _stamped(more: dict[str, Any]) -> dict[str, Any]:
    more = dict(more)
    if "age_ms" in more:
        more["timestamp_us"] = time.time_ns() // 1000 - more.pop("age_ms") * 1000
    return more
