"""Calls from the command line to a running server, with errors a person can act on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import grpc
import typer

from inference_cache._pb.inferencecache_pb2_grpc import InferenceCacheStub
from inference_cache.cli.output import USAGE, fail
from inference_cache.settings import MAX_PORT, address

ServerOption = Annotated[
    str,
    typer.Option(
        "--server",
        help="Address of the gRPC service: HOST:PORT, or a gRPC target such as dns:///cache:9090 or unix:/run/cache.",
        envvar="INFERENCE_CACHE_SERVER",
    ),
]
TimeoutOption = Annotated[float, typer.Option("--timeout", min=0.001, help="Seconds to wait for the answer.")]


def _named(value: str) -> str:
    if not value.strip():
        raise typer.BadParameter("must not be empty")
    return value


TenantOption = Annotated[str, typer.Option("--tenant", help="Whose index.", callback=_named)]
ModelOption = Annotated[str, typer.Option("--model", help="Which model.", callback=_named)]

DEFAULT_SERVER = "127.0.0.1:9090"
DEFAULT_TIMEOUT_S = 5.0
INDEX_AWAY = "the server answered, but its index (Redis) does not"

_TARGETS = ("dns:", "unix:", "unix-abstract:", "ipv4:", "ipv6:", "vsock:", "xds:")
"""What gRPC itself resolves, and therefore judges."""
_OF_THE_INDEX = re.compile(r"the index .*\((?P<reason>\w+)\)")
"""How our servers say that their store does not answer; who made no connection says something else."""


def check_server(server: str) -> None:
    """End the command when nobody could be reached under this address."""
    if server.startswith(_TARGETS):
        return
    if not _reachable(server):
        what = "is empty" if not server.strip() else f"{server!r} is no address"
        fail(f"--server {what}: say HOST:PORT with a port of 1 to {MAX_PORT}, as in {DEFAULT_SERVER}", USAGE)


def _reachable(server: str) -> bool:
    try:
        found = address(server)
    except ValueError:
        return False
    return bool(found.host and found.port) and "/" not in found.host


@contextmanager
def calling(server: str) -> Iterator[InferenceCacheStub]:
    """Give a stub for the server; a failing call inside ends the command with a sentence."""
    check_server(server)
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
        if found := _OF_THE_INDEX.fullmatch(error.details() or ""):
            return f"{INDEX_AWAY}: {found['reason']}"
        return f"no answer, is `inference-cache serve` running? ({error.details()})"
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return "no answer within --timeout"
    return f"{code.name}: {error.details()}"
