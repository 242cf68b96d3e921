"""Calls from the command line to a running server, with errors a person can act on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import grpc
import typer

from inference_cache._pb.inferencecache_pb2_grpc import InferenceCacheStub
from inference_cache.cli.output import fail

ServerOption = Annotated[
    str, typer.Option("--server", help="Address of the gRPC service.", envvar="INFERENCE_CACHE_SERVER")
]
TimeoutOption = Annotated[float, typer.Option("--timeout", min=0.001, help="Seconds to wait for the answer.")]
TenantOption = Annotated[str, typer.Option("--tenant", help="Whose index.")]
ModelOption = Annotated[str, typer.Option("--model", help="Which model.")]

DEFAULT_SERVER = "127.0.0.1:9090"
DEFAULT_TIMEOUT_S = 5.0


@contextmanager
def calling(server: str) -> Iterator[InferenceCacheStub]:
    """Give a stub for the server; a failing call inside ends the command with a sentence."""
    try:
        with grpc.insecure_channel(server) as channel:
            yield InferenceCacheStub(channel)
    except grpc.RpcError as error:
        fail(f"{server}: {_reason(error)}")


def _reason(error: grpc.RpcError) -> str:
    if not isinstance(error, grpc.Call):
        return "the call failed"
    code = error.code()
    if code is grpc.StatusCode.UNAVAILABLE:
        return f"no answer, is `inference-cache serve` running? ({error.details()})"
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return "no answer within --timeout"
    return f"{code.name}: {error.details()}"
