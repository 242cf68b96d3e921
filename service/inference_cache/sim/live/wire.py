"""How a simulated gateway hands a prompt to a simulated engine: one gRPC method, JSON both ways.

The request is a line of the trace format. It is the engines' own business and no part of the service's contract.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Any

import grpc
import orjson

from inference_cache.sim.trace import Request, format_line, parse_line

SERVICE = "inferencecache.simulated.Engine"
METHOD = "Prefill"


@dataclass(frozen=True, slots=True)
class Prefilled:
    """What an engine answers.

    Attributes:
        hit_tokens: tokens of the prompt that were cached.
        ttft_ms: how long the prompt waited for its first token.
    """

    hit_tokens: int
    ttft_ms: float


Prefill = Callable[[Request], Awaitable[Prefilled]]


def handler(prefill: Prefill) -> grpc.GenericRpcHandler[Request, Prefilled]:
    """Return what a server needs to take prompts."""

    async def answer(request: Request, _context: grpc.aio.ServicerContext[Any, Any]) -> Prefilled:
        return await prefill(request)

    method = grpc.unary_unary_rpc_method_handler(answer, request_deserializer=parse_line, response_serializer=_encode)
    return grpc.method_handlers_generic_handler(SERVICE, {METHOD: method})


def caller(channel: grpc.aio.Channel) -> grpc.aio.UnaryUnaryMultiCallable[Request, Prefilled]:
    """Return the method of the engine behind a channel."""
    return channel.unary_unary(f"/{SERVICE}/{METHOD}", request_serializer=format_line, response_deserializer=_decode)


def _encode(answer: Prefilled) -> bytes:
    return orjson.dumps(asdict(answer))


def _decode(message: bytes) -> Prefilled:
    return Prefilled(**orjson.loads(message))
