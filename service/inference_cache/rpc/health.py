"""``grpc.health.v1``: SERVING only while the store answers and shutdown has not begun.

Our own servicer because a watcher that stops reading must not hold up a change of state, and because watchers must
not hold up a shutdown.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

_Status = health_pb2.HealthCheckResponse


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc] # the library's class is untyped
    """The health of the whole server, under the service name ``""``; it knows no other name.

    Begins as NOT_SERVING: whoever watches the store says when that changes.
    """

    def __init__(self) -> None:
        self._serving = False
        self._draining = False
        self._changed = asyncio.Event()

    def set_serving(self, serving: bool) -> None:
        """Say whether the server serves; without effect once it drains."""
        self._set(serving and not self._draining)

    def drain(self) -> None:
        """Say NOT_SERVING from now on, and let watchers go once they have heard it."""
        self._draining = True
        self._set(False)
        self._wake()

    async def Check(  # noqa: N802 - the protocol's name
        self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> health_pb2.HealthCheckResponse:
        """Answer the present state; NOT_FOUND for any name but ``""``."""
        if request.service:
            await context.abort(grpc.StatusCode.NOT_FOUND, "unknown service; the server's own name is empty")
        return _Status(status=self._status())

    async def Watch(  # noqa: N802 - the protocol's name
        self,
        request: health_pb2.HealthCheckRequest,
        context: grpc.aio.ServicerContext[Any, Any],  # noqa: ARG002 - the protocol's parameter
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        """Answer the present state and each later one; a slow watcher may miss those in between."""
        told = None
        while True:
            changed = self._changed
            status = _Status.SERVICE_UNKNOWN if request.service else self._status()
            if status != told:
                told = status
                yield _Status(status=status)
            elif self._draining:
                return
            else:
                await changed.wait()

    def _status(self) -> health_pb2.HealthCheckResponse.ServingStatus:
        return _Status.SERVING if self._serving else _Status.NOT_SERVING

    def _set(self, serving: bool) -> None:
        if serving != self._serving:
            self._serving = serving
            self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
