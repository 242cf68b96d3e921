"""Health, reflection, the calls without a meaning yet, and the port."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2

from inference_cache._pb import inferencecache_pb2 as pb
from inference_cache.domain.policy import DefaultPolicies
from inference_cache.metrics import Metrics
from inference_cache.rpc.health import Health
from inference_cache.rpc.server import Limits, build_server
from tests.rpc.serving import GatedStore, serving
from tests.rpc.wire import Wire, h

Status = health_pb2.HealthCheckResponse


async def test_templates_are_left_to_the_caller(wire: Wire) -> None:
    """RenderTemplate says OK and nothing else: the caller hashes its own prompt."""
    answer = await wire.stub.RenderTemplate(pb.RenderTemplateRequest(template_ref="x", tenant_id="t"))
    assert answer == pb.RenderTemplateResponse(reason_code="OK")


async def test_pairs_are_not_hinted(wire: Wire) -> None:
    """LookupPDRoute knows nothing."""
    answer = await wire.stub.LookupPDRoute(pb.LookupPDRouteRequest(model_id="m", tenant_id="t", prefix_hash=h("p")))
    assert answer == pb.LookupPDRouteResponse(reason_code="NO_HINT")


async def test_streams_end_at_once(wire: Wire) -> None:
    """Both observer streams end well, without a message."""
    for call in (
        wire.stub.StreamCacheEvents(pb.StreamEventsRequest(tenant_id="t")),
        wire.stub.StreamMetrics(pb.StreamMetricsRequest(names=["x"])),
    ):
        assert [message async for message in call] == []
        assert await call.code() is grpc.StatusCode.OK


async def test_unknown_methods(channel: grpc.aio.Channel) -> None:
    """A method that the contract does not have is unimplemented."""
    ping: Any = channel.unary_unary("/inferencecache.v1alpha1.InferenceCache/Ping")  # type: ignore[call-arg]
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await ping(b"")
    assert failed.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_health_follows_its_owner(channel: grpc.aio.Channel, health: Health) -> None:
    """The server serves when its owner says so, and never again once it drains; other names are unknown."""
    stub = health_pb2_grpc.HealthStub(channel)

    async def status() -> int:
        return int((await stub.Check(health_pb2.HealthCheckRequest())).status)

    assert await status() == Status.NOT_SERVING
    health.set_serving(True)
    assert await status() == Status.SERVING
    health.set_serving(False)
    assert await status() == Status.NOT_SERVING
    health.set_serving(True)
    health.drain()
    health.set_serving(True)
    assert await status() == Status.NOT_SERVING
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await stub.Check(health_pb2.HealthCheckRequest(service="inferencecache.v1alpha1.InferenceCache"))
    assert failed.value.code() is grpc.StatusCode.NOT_FOUND


async def test_watchers_hear_of_changes_and_are_let_go(channel: grpc.aio.Channel, health: Health) -> None:
    """A watcher hears each state, and its stream ends when the server drains."""
    watch = aiter(health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest()))
    assert (await anext(watch)).status == Status.NOT_SERVING
    health.set_serving(True)
    assert (await anext(watch)).status == Status.SERVING
    health.drain()
    assert (await anext(watch)).status == Status.NOT_SERVING
    assert [status async for status in watch] == []


async def test_watching_an_unknown_name(channel: grpc.aio.Channel) -> None:
    """A watcher of another name hears that it is unknown and stays."""
    watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service="x"))
    assert (await watch.read()).status == Status.SERVICE_UNKNOWN
    assert not watch.done()
    watch.cancel()


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
async def test_reflection(channel: grpc.aio.Channel, version: str) -> None:
    """Tools can list the services and read the contract, by either version of the protocol."""
    call = channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        reflection_pb2.ServerReflectionRequest.SerializeToString,
        reflection_pb2.ServerReflectionResponse.FromString,
    )
    request = reflection_pb2.ServerReflectionRequest
    name = "inferencecache.v1alpha1.InferenceCache"
    listed, described = [
        answer async for answer in call(iter([request(list_services=""), request(file_containing_symbol=name)]))
    ]
    names = {service.name for service in listed.list_services_response.service}
    assert {"grpc.health.v1.Health", name} <= names
    assert pb.DESCRIPTOR.serialized_pb in described.file_descriptor_response.file_descriptor_proto


async def test_a_taken_port_is_an_error() -> None:
    """A second server on the same port fails to start instead of sharing it unseen."""

    def build() -> grpc.aio.Server:
        return build_server(store=GatedStore(), policies=DefaultPolicies(), metrics=Metrics(), health=Health())

    first, second = build(), build()
    port = first.add_insecure_port("127.0.0.1:0")
    await first.start()
    with pytest.raises(RuntimeError):
        second.add_insecure_port(f"127.0.0.1:{port}")
    await first.stop(None)


async def test_calls_in_flight_are_bounded() -> None:
    """Above the limit calls are refused by name instead of piling up."""
    store = GatedStore()
    store.gate.clear()
    async with serving(store, limits=Limits(concurrent_rpcs=2)) as wire:
        under_way = [asyncio.ensure_future(wire.state()) for _ in range(2)]
        await store.called(2)
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await wire.state()
        assert failed.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        store.gate.set()
        await asyncio.gather(*under_way)
        await wire.state()
