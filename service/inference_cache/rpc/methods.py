"""The contract's methods as gRPC wants them, with the decoding of requests in our own hands.

Where the library decodes, a request that is no message is answered with the exception's text and logged with a
stack trace, once for each such request. Here it is a status and a counter.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from inference_cache._pb import inferencecache_pb2 as pb
from inference_cache.rpc.failures import Failures
from inference_cache.rpc.wire import read_lookup

SERVICE = pb.DESCRIPTOR.services_by_name["InferenceCache"]

DECODERS: dict[str, Callable[[bytes], Any]] = {"LookupRoute": read_lookup}
"""Methods whose requests are read by something better than the generated class."""

_Context = grpc.aio.ServicerContext[Any, Any]


def generic_handler(servicer: object, failures: Failures) -> grpc.GenericRpcHandler[Any, Any]:
    """Return what serves every method of the contract by the servicer's method of the same name."""
    handlers = {method.name: _handler(method, getattr(servicer, method.name), failures) for method in SERVICE.methods}
    return grpc.method_handlers_generic_handler(SERVICE.full_name, handlers)


def _handler(
    method: MethodDescriptor, behaviour: Callable[..., Any], failures: Failures
) -> grpc.RpcMethodHandler[Any, Any]:
    request = GetMessageClass(method.input_type)
    encode = GetMessageClass(method.output_type).SerializeToString
    if method.client_streaming:  # a bad message surfaces where the servicer reads it, and is its error to report
        return grpc.stream_unary_rpc_method_handler(behaviour, request.FromString, encode)
    if method.server_streaming:
        return grpc.unary_stream_rpc_method_handler(
            _unary_stream(method.name, request, behaviour, failures), None, encode
        )
    decode = DECODERS.get(method.name, request.FromString)
    return grpc.unary_unary_rpc_method_handler(_unary_unary(method.name, decode, behaviour, failures), None, encode)


def _unary_unary(
    name: str,
    decode: Callable[[bytes], Any],
    behaviour: Callable[[Any, _Context], Awaitable[Any]],
    failures: Failures,
) -> Callable[[bytes, _Context], Awaitable[Any]]:
    async def call(data: bytes, context: _Context) -> Any:
        try:
            message = decode(data)
        except DecodeError as error:
            await failures.abort(name, error, context)
        return await behaviour(message, context)

    return call


def _unary_stream(
    name: str, request: type[Message], behaviour: Callable[[Any, _Context], AsyncIterator[Any]], failures: Failures
) -> Callable[[bytes, _Context], AsyncIterator[Any]]:
    async def call(data: bytes, context: _Context) -> AsyncIterator[Any]:
        try:
            message = request.FromString(data)
        except DecodeError as error:
            await failures.abort(name, error, context)
        async for each in behaviour(message, context):
            yield each

    return call
