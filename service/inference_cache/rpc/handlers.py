"""The eight methods of the contract: decode, one call, encode."""

# Names and parameters are the contract's.
# ruff: noqa: N802, ARG002

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc

from inference_cache._pb import inferencecache_pb2 as pb
from inference_cache._pb.inferencecache_pb2_grpc import InferenceCacheServicer
from inference_cache.domain.models import RESERVED_TENANT, CacheState, ModelKey
from inference_cache.domain.policy import PolicySource
from inference_cache.domain.reasons import INDEX_UNAVAILABLE, NO_HINT
from inference_cache.domain.requests import LookupRequest
from inference_cache.metrics import Metrics
from inference_cache.rpc import convert
from inference_cache.rpc.events import Events
from inference_cache.rpc.failures import Failures
from inference_cache.rpc.lookup import Lookups
from inference_cache.rpc.report import Reports
from inference_cache.store.base import Store

FEATURES = (("inference-cache-features", "bulk-evict"),)
"""Initial metadata for producers: what this server understands beyond the baseline's contract."""

Context = grpc.aio.ServicerContext[Any, Any]


class Handlers(InferenceCacheServicer):
    """Serves the contract."""

    def __init__(
        self,
        store: Store,
        policies: PolicySource,
        metrics: Metrics,
        lookups: Lookups,
        reports: Reports,
        events: Events,
        failures: Failures,
    ) -> None:
        self._store = store
        self._policies = policies
        self._metrics = metrics
        self._lookups = lookups
        self._reports = reports
        self._events = events
        self._failures = failures

    async def LookupRoute(self, request: LookupRequest, context: Context) -> pb.LookupRouteResponse:  # type: ignore[override]
        """Rank replicas; whatever goes wrong is an empty answer. The request comes decoded, see :mod:`.wire`."""
        try:
            answer, latency_us = await self._lookups.answer(request, context.time_remaining())
            return convert.lookup_response(answer, latency_us)
        except Exception as error:  # noqa: BLE001 - a lookup never fails a request
            self._failures.unexpected("LookupRoute", error)
            return pb.LookupRouteResponse(reason_code=INDEX_UNAVAILABLE)

    async def ReportCacheState(self, request_iterator: AsyncIterator[pb.CacheStateUpdate], context: Context) -> pb.Ack:
        """Apply a stream of reports, each before the next is read: flow control holds a fast producer back."""
        await context.send_initial_metadata(FEATURES)
        try:
            async for message in request_iterator:
                await self._reports.apply(convert.update(message))
        except Exception as error:  # noqa: BLE001 - becomes the call's status
            await self._failures.abort("ReportCacheState", error, context)
        return pb.Ack(accepted=True)

    async def PublishEvent(self, request: pb.CacheEvent, context: Context) -> pb.Ack:
        """Apply one event."""
        await context.send_initial_metadata(FEATURES)
        try:
            await self._events.apply(convert.event(request))
        except Exception as error:  # noqa: BLE001 - becomes the call's status
            await self._failures.abort("PublishEvent", error, context)
        return pb.Ack(accepted=True)

    async def GetCacheState(self, request: pb.GetCacheStateRequest, context: Context) -> pb.GetCacheStateResponse:
        """Return a model's statistics and totals."""
        if request.tenant_id == RESERVED_TENANT:
            self._metrics.reserved_tenant("GetCacheState")
            return convert.state_response(CacheState())
        try:
            state = await self._store.state(ModelKey(request.tenant_id, request.model_id))
            return convert.state_response(state, hot=self._policies.for_tenant(request.tenant_id).lfu)
        except Exception as error:  # noqa: BLE001 - becomes the call's status
            await self._failures.abort("GetCacheState", error, context)

    async def RenderTemplate(self, request: pb.RenderTemplateRequest, context: Context) -> pb.RenderTemplateResponse:
        """Answer that the caller hashes its own prompt: there are no templates."""
        return pb.RenderTemplateResponse(reason_code="OK")

    async def LookupPDRoute(self, request: pb.LookupPDRouteRequest, context: Context) -> pb.LookupPDRouteResponse:
        """Answer that nothing is known of prefill and decode pairs."""
        return pb.LookupPDRouteResponse(reason_code=NO_HINT)

    async def StreamCacheEvents(
        self, request: pb.StreamEventsRequest, context: Context
    ) -> AsyncIterator[pb.CacheEvent]:
        """End at once: events are not kept."""
        nothing: tuple[pb.CacheEvent, ...] = ()
        for event in nothing:
            yield event

    async def StreamMetrics(self, request: pb.StreamMetricsRequest, context: Context) -> AsyncIterator[pb.Metric]:
        """End at once: metrics are scraped over HTTP."""
        nothing: tuple[pb.Metric, ...] = ()
        for metric in nothing:
            yield metric
