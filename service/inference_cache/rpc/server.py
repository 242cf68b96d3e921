"""The gRPC server, put together and not yet started."""

from __future__ import annotations

from dataclasses import dataclass

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import _async as reflection_aio
from grpc_reflection.v1alpha import reflection, reflection_pb2

from inference_cache.capacity import Capacity
from inference_cache.domain.policy import PolicySource
from inference_cache.domain.tuning import Tuning
from inference_cache.metrics import Metrics
from inference_cache.rpc.admission import DEFAULT_MAX_LOOKUPS
from inference_cache.rpc.credits import Credits
from inference_cache.rpc.events import Events
from inference_cache.rpc.evictions import MAX_WAITING_BYTES, Evictions
from inference_cache.rpc.failures import Failures
from inference_cache.rpc.handlers import Handlers
from inference_cache.rpc.health import Health
from inference_cache.rpc.lookup import DEFAULT_LOOKUP_TIMEOUT_MS, Lookups
from inference_cache.rpc.methods import SERVICE, generic_handler
from inference_cache.rpc.report import Reports
from inference_cache.store.base import Store

HEALTH_SERVICE = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
REFLECTION_V1 = "grpc.reflection.v1.ServerReflection"


@dataclass(frozen=True, slots=True)
class Limits:
    """What a server takes at most.

    Attributes:
        message_bytes: size of one received message; larger ones are refused with RESOURCE_EXHAUSTED.
        concurrent_rpcs: calls at a time, streams included; more are refused with RESOURCE_EXHAUSTED.
        waiting_evictions_bytes: block keys of evictions that wait for the index; more are refused with UNAVAILABLE.
        lookups: lookups under way at once; more are answered NO_HINT at once.
        connection_age_ms: when a client is asked to connect anew, 0 = never.
        connection_age_grace_ms: how much longer its calls may take before they end with UNAVAILABLE.
    """

    message_bytes: int = 4 * 1024 * 1024
    concurrent_rpcs: int = 8192
    waiting_evictions_bytes: int = MAX_WAITING_BYTES
    lookups: int = DEFAULT_MAX_LOOKUPS
    connection_age_ms: int = 0
    connection_age_grace_ms: int = 10_000


def build_server(
    *,
    store: Store,
    policies: PolicySource,
    metrics: Metrics,
    health: Health,
    tuning: Tuning | None = None,
    capacity: Capacity | None = None,
    hits: Credits | None = None,
    limits: Limits | None = None,
    lookup_timeout_ms: int = DEFAULT_LOOKUP_TIMEOUT_MS,
    share_port: bool = False,
) -> grpc.aio.Server:
    """Return a server of the contract, health and reflection, without a port and not started.

    Must be called inside the event loop that will run it.

    Args:
        store: the index.
        policies: the tenants' rules.
        metrics: where everything is counted.
        health: what ``grpc.health.v1`` answers; its owner says when the server serves.
        tuning: weights and limits of lookups.
        capacity: makes room after reports; without one quotas are kept and the index has no cap.
        hits: counts the hits of LFU tenants; its owner closes it, after the server was stopped.
        limits: what the server takes at most.
        lookup_timeout_ms: budget of a lookup's index stage where the tenant's policy has none; 0 = none.
        share_port: whether other processes of ours listen on the same port; otherwise one that is taken is an error.
    """
    limits = limits or Limits()
    server = grpc.aio.server(
        options=(
            ("grpc.max_receive_message_length", limits.message_bytes),
            ("grpc.so_reuseport", int(share_port)),  # on by default: a second server would answer beside the first
            *_connection_age(limits),
            # The library cancels calls at random once 1000 have come in one turn of the event loop; ours never fail.
            ("grpc.server.max_pending_requests", limits.concurrent_rpcs),
            ("grpc.server.max_pending_requests_hard_limit", 2 * limits.concurrent_rpcs),
        ),
        maximum_concurrent_rpcs=limits.concurrent_rpcs,
    )
    failures = Failures(metrics)
    evictions = Evictions(store, metrics, limits.waiting_evictions_bytes)
    handlers = Handlers(
        store,
        policies,
        metrics,
        Lookups(
            store,
            policies,
            metrics,
            hits or Credits(store, metrics),
            tuning or Tuning(),
            lookup_timeout_ms,
            limits.lookups,
        ),
        Reports(store, policies, metrics, capacity or Capacity(store, policies, metrics)),
        Events(store, metrics, evictions),
        failures,
    )
    server.add_generic_rpc_handlers((generic_handler(handlers, failures),))
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    _add_reflection(server)
    return server


def _connection_age(limits: Limits) -> tuple[tuple[str, int], ...]:
    if not limits.connection_age_ms:
        return ()
    return (
        ("grpc.max_connection_age_ms", limits.connection_age_ms),
        ("grpc.max_connection_age_grace_ms", limits.connection_age_grace_ms),
    )


def _add_reflection(server: grpc.aio.Server) -> None:
    """Serve reflection as v1alpha, which the library has, and as v1, whose messages are the same on the wire."""
    names = (SERVICE.full_name, HEALTH_SERVICE, REFLECTION_V1, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, server)
    method = grpc.stream_stream_rpc_method_handler(
        reflection_aio.ReflectionServicer(names).ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(REFLECTION_V1, {"ServerReflectionInfo": method}),)
    )
