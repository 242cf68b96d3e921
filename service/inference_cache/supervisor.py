"""A server of several processes, from the one that supervises: it has everything of which there must be one.

That is the embedded store, the gRPC port (held, not listened on), the HTTP ports, the sweep, and ``/metrics`` of all.
The workers answer the calls.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from urllib.parse import quote

from prometheus_client import CollectorRegistry

from inference_cache import log
from inference_cache.admin.http import HttpListener, admin_app, public_app
from inference_cache.admin.policy import PolicyEndpoint
from inference_cache.background import StoreWatch
from inference_cache.config import ServeConfig
from inference_cache.domain.models import ModelKey
from inference_cache.errors import StoreUnavailable
from inference_cache.lifecycle import Signals, announce, beside, drained
from inference_cache.metrics import Metrics
from inference_cache.parts import capacity_of, keeper_of, open_store, sweeper_of
from inference_cache.policies.keeper import PolicyKeeper
from inference_cache.settings import Address
from inference_cache.store.connection import Connection
from inference_cache.store.redis import RedisStore
from inference_cache.workers.channel import Gone
from inference_cache.workers.crew import Crew
from inference_cache.workers.merge import MergedCollector
from inference_cache.workers.port import Port, reserve

logger = logging.getLogger(__name__)

_APPLY_S = 4.0

_WAITING_SWEEPS = 4


async def supervise(config: ServeConfig) -> None:
    """Serve with ``--workers`` processes until a signal; raises as :func:`inference_cache.app.run`."""
    signals = Signals()
    async with _running(config) as server:
        announce(config, server.grpc_address, server.http_address, server.admin_address)
        await signals.first.wait()
        await drained(server, signals, config.process.shutdown_grace_ms)
    log.event(logger, logging.INFO, "graceful_shutdown_done")


@dataclass(slots=True)
class _Server:
    """A server whose workers answer the calls."""

    crew: Crew
    grpc_address: Address
    http_address: Address
    admin_address: Address
    state: _State

    async def drain(self, grace_s: float | None) -> None:
        """Stop taking calls, in every worker."""
        self.state.draining = True
        await self.crew.drain(grace_s)


@dataclass(slots=True)
class _State:
    """Whether the server should get traffic: while at least one worker should, since the kernel asks only those."""

    crew: Crew
    policies: PolicyKeeper
    started: bool = False
    draining: bool = False

    def not_ready(self) -> str | None:
        """Return the reason in a few words, ``None`` when the server serves."""
        if self.draining:
            return "shutting down"
        if not self.started:
            return "starting"
        return None if self.crew.ready else f"{self._workers()}: {self.crew.not_ready}"

    def ready(self) -> str:
        """Say how many workers are ready, and what an operator should know of the policies."""
        return "\n".join([self._workers(), *self.policies.details()])

    def _workers(self) -> str:
        return f"{self.crew.ready} of {self.crew.size} workers are ready"


class _Metrics(Metrics):
    """The parent's metrics; remembers what a sweep found until the workers have heard it."""

    def __init__(self) -> None:
        super().__init__()
        self.swept_entries: asyncio.Queue[tuple[Mapping[ModelKey, int], bool]] = asyncio.Queue(_WAITING_SWEEPS)

    def entries(self, prefixes: Mapping[ModelKey, int], *, complete: bool) -> None:
        """Set how many prefixes each model holds, here and in every worker."""
        super().entries(prefixes, complete=complete)
        with suppress(asyncio.QueueFull):  # the next sweep says it again
            self.swept_entries.put_nowait((dict(prefixes), complete))


async def _tell_entries(metrics: _Metrics, crew: Crew) -> None:
    """Pass on what each sweep found: only who knows what the index holds can name models in its metrics."""
    while True:
        await crew.ask("entries", await metrics.swept_entries.get())


async def _apply_policies(crew: Crew) -> None:
    """Return when every worker uses the policies in Redis; one that ends meanwhile reads them when it starts again.

    Raises:
        StoreUnavailable: a worker is alive and could not.
    """
    answers = await crew.ask("policies", timeout_s=_APPLY_S)
    if any(isinstance(answer, Exception) and not isinstance(answer, Gone) for answer in answers):
        raise StoreUnavailable("a worker has not applied the policies yet", "worker")


@asynccontextmanager
async def _running(config: ServeConfig) -> AsyncIterator[_Server]:
    async with open_store(config) as (connection, store):
        port = reserve(config.listen.grpc_bind_address)
        try:
            async with _serving(config, connection, store, port) as server:
                yield server
        finally:
            port.close()


@asynccontextmanager
async def _serving(
    config: ServeConfig, connection: Connection, store: RedisStore, port: Port
) -> AsyncIterator[_Server]:
    metrics = _Metrics()
    policies = keeper_of(config, connection, metrics, writes=True)
    crew = Crew(config.process.workers, worker_config(config, port.address, connection.socket_path), metrics)
    state = _State(crew, policies)
    registry = CollectorRegistry()
    registry.register(MergedCollector(metrics.registry, crew.snapshots))
    public = HttpListener(public_app(state.not_ready, registry, before_scrape=crew.count, ready=state.ready))
    policy = PolicyEndpoint(policies.sync, policies.live, metrics, lambda: _apply_policies(crew))
    admin = HttpListener(admin_app({"/policy": policy.answer}))
    watch = StoreWatch(connection, metrics, _nobody_to_tell)
    capacity = capacity_of(config, store, policies.live, metrics)
    sweeper = sweeper_of(config, connection, store, policies.live, metrics, capacity)
    try:
        http_address = await public.start(config.listen.http_bind_address)
        admin_address = await admin.start(config.listen.snapshot_bind_address)
        await policies.begin()
        await crew.start()
        await watch.look()
        state.started = True
        async with beside(sweeper.run(), watch.run(), policies.run(), _tell_entries(metrics, crew)):
            yield _Server(crew, port.address, http_address, admin_address, state)
    finally:
        await crew.close()
        await public.close()
        await admin.close()


def worker_config(config: ServeConfig, address: Address, socket_path: str | None) -> ServeConfig:
    """Return what a worker is told: the real port, and the parent's embedded store instead of one of its own."""
    told = replace(config, listen=replace(config.listen, grpc_bind_address=address))
    if socket_path is None:
        return told
    return replace(told, redis=replace(config.redis, redis_url=f"unix://{quote(socket_path)}", embedded_dir=""))


async def _nobody_to_tell(answers: bool) -> None:
    """The workers watch the store themselves; the parent shows it on its gauges only."""
