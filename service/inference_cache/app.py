"""The one place that puts a server together: configuration in, a running process out.

Starting: the store, then the ports, then what runs beside them. A Redis of the operator's that is away is no reason
not to start: the server says that it is not ready and serves when Redis comes. A port that is taken is one, and so is
an embedded Valkey that does not start.

With ``--workers`` above 1 this process only supervises (:mod:`inference_cache.supervisor`), and each worker
(:mod:`inference_cache.worker`) runs what :func:`working` puts together.

Stopping, on SIGTERM or SIGINT: not ready and NOT_SERVING at once, calls in flight get ``--shutdown-grace``, then they
are cut, then the store is closed. A second signal cuts at once.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import cast

import uvloop

from inference_cache import log
from inference_cache.admin.http import HttpListener, admin_app, public_app
from inference_cache.admin.policy import PolicyEndpoint
from inference_cache.background import StoreWatch
from inference_cache.config import ServeConfig
from inference_cache.domain.tuning import AffinityMode, Tuning
from inference_cache.errors import StoreError
from inference_cache.lifecycle import Signals, announce, beside, drained, settle_memory
from inference_cache.listening import why_not
from inference_cache.metrics import Metrics
from inference_cache.parts import capacity_of, keeper_of, open_store, policy_directory, sweeper_of
from inference_cache.rpc.credits import Credits
from inference_cache.rpc.health import Health
from inference_cache.rpc.server import Limits, build_server
from inference_cache.settings import Address
from inference_cache.store.connection import Connection
from inference_cache.store.redis import RedisStore
from inference_cache.supervisor import supervise

logger = logging.getLogger(__name__)


def run(config: ServeConfig) -> int:
    """Serve until a signal, and return the exit status.

    Raises:
        ConfigError: the Redis URL or a directory is unusable.
        StoreUnavailable: the embedded Valkey did not start.
        OSError: a port could not be had, or a worker did not start.
    """
    policy_directory(config)
    log.configure(config.logs.log_level, config.logs.log_format)
    uvloop.run(supervise(config) if config.process.workers > 1 else _serve_until_signal(config))
    return 0


def tuning_of(config: ServeConfig) -> Tuning:
    """Return the domain's weights and limits as configured."""
    return Tuning(
        pressure_weight=config.ranking.pressure_weight,
        tight_slo_ms=config.ranking.slo_threshold_ms,
        tight_slo_bias=config.ranking.slo_bias,
        hot_min_hit_rate=config.ranking.tenant_hot_min_hit_rate,
        hot_max_age_ms=config.ranking.tenant_hot_max_age_ms,
        max_token_ids=config.lookup.max_token_ids,
        max_prompt_bytes=config.lookup.max_prompt_bytes,
        block_size=config.lookup.engine_block_size,
        affinity=cast("AffinityMode", config.lookup.affinity),
        liveness_ttl_ms=config.retention.replica_liveness_ttl_ms,
    )


@dataclass(slots=True)
class State:
    """Why the server should get no traffic, if so."""

    watch: StoreWatch | None = None
    draining: bool = False

    def not_ready(self) -> str | None:
        """Return the reason in a few words, ``None`` when the server serves."""
        if self.draining:
            return "shutting down"
        if self.watch is None:
            return "starting"
        return None if self.watch.answers else "the store does not answer"


class Service:
    """The gRPC service on a store: what a server alone and each of several workers have in common.

    Attributes:
        metrics: everything it counts.
        policies: the tenants' rules; to be run beside the service.
        capacity: makes room after reports; to be run beside the service.
        health: what the health service says.
        state: what `/readyz` says.
        watch: to be run beside the service.

    Args:
        config: the configuration.
        connection: to the store.
        store: the index.
        share_port: whether other workers listen on the same port.
    """

    def __init__(
        self, config: ServeConfig, connection: Connection, store: RedisStore, *, share_port: bool = False
    ) -> None:
        self.metrics, self.health, self.state = Metrics(), Health(), State()
        self.policies = keeper_of(config, connection, self.metrics, writes=not share_port)
        self.watch = StoreWatch(connection, self.metrics, self._store_changed)
        self.capacity = capacity_of(config, store, self.policies.live, self.metrics)
        self._hits = Credits(store, self.metrics, hot_threshold=config.retention.hot_threshold)
        self._store = store
        self._server = build_server(
            store=store,
            policies=self.policies.live,
            metrics=self.metrics,
            health=self.health,
            tuning=tuning_of(config),
            capacity=self.capacity,
            hits=self._hits,
            limits=Limits(
                lookups=config.lookup.max_lookups_in_flight,
                connection_age_ms=config.listen.max_connection_age_ms,
                connection_age_grace_ms=config.listen.max_connection_age_grace_ms,
            ),
            lookup_timeout_ms=config.lookup.lookup_timeout_ms,
            share_port=share_port,
        )

    def listen(self, address: Address) -> Address:
        """Bind the port and return it with its real number; an empty host is every interface of both families.

        Raises:
            OSError: the port is taken.
        """
        target = replace(address, host=address.host or "::")
        try:
            return replace(address, port=self._server.add_insecure_port(str(target)))
        except RuntimeError:
            raise OSError(f"cannot listen on {address}: {why_not(address)}") from None

    async def start(self) -> None:
        """Take calls, and be ready as soon as the store answers."""
        await self.policies.begin()
        await self._server.start()
        await self.watch.look()
        self.state.watch = self.watch
        self.metrics.serving(up=True, tls=False)

    def ready(self) -> str:
        """Say what an operator should know of a server that is ready."""
        return "\n".join(["ok", *self.policies.details()])

    async def drain(self, grace_s: float | None) -> None:
        """Stop taking calls; let those in flight finish for ``grace_s`` seconds, ``None`` = cut them now.

        Returns when the last has ended; another call with ``None`` cuts a drain short.
        """
        self.state.draining = True
        self.health.drain()
        await self._server.stop(grace_s)
        await self._hits.close()

    async def stop(self) -> None:
        """Cut what was not drained."""
        self.metrics.serving(up=False, tls=False)
        await self._server.stop(None)
        await self._hits.close()

    async def _store_changed(self, answers: bool) -> None:
        if answers:
            with suppress(StoreError):  # whatever is not loaded now is loaded by its first call
                await self._store.warm_up()
            await self.policies.follow()
        self.health.set_serving(answers)


@dataclass(frozen=True, slots=True)
class Running:
    """A server that serves.

    Attributes:
        grpc_address: where the gRPC service listens, with its real port.
        http_address: where health and metrics are.
        admin_address: where the operator's endpoints are.
        service: what answers the calls.
    """

    grpc_address: Address
    http_address: Address
    admin_address: Address
    service: Service

    async def drain(self, grace_s: float | None) -> None:
        """Stop taking calls, as :meth:`Service.drain`."""
        await self.service.drain(grace_s)


@asynccontextmanager
async def running(config: ServeConfig) -> AsyncIterator[Running]:
    """Run a server for as long as the block does; leaving it cuts what was not drained."""
    async with open_store(config) as (connection, store), _serving(config, connection, store) as server:
        yield server


@asynccontextmanager
async def working(config: ServeConfig) -> AsyncIterator[Service]:
    """Run one worker for as long as the block does: calls on a port that it shares, and nothing beside them."""
    async with open_store(config) as (connection, store):
        service = Service(config, connection, store, share_port=True)
        try:
            service.listen(config.listen.grpc_bind_address)
            await service.start()
            async with beside(service.watch.run(), service.policies.run(), service.capacity.run()):
                yield service
        finally:
            await service.stop()


@asynccontextmanager
async def _serving(config: ServeConfig, connection: Connection, store: RedisStore) -> AsyncIterator[Running]:
    service = Service(config, connection, store)
    sweeper = sweeper_of(config, connection, store, service.policies.live, service.metrics, service.capacity)
    policy = PolicyEndpoint(service.policies.sync, service.policies.live, service.metrics)
    public = HttpListener(public_app(service.state.not_ready, service.metrics.registry, ready=service.ready))
    admin = HttpListener(admin_app({"/policy": policy.answer}))
    try:
        started = Running(
            grpc_address=service.listen(config.listen.grpc_bind_address),
            http_address=await public.start(config.listen.http_bind_address),
            admin_address=await admin.start(config.listen.snapshot_bind_address),
            service=service,
        )
        await service.start()
        async with beside(sweeper.run(), service.watch.run(), service.policies.run(), service.capacity.run()):
            yield started
    finally:
        await service.stop()
        await public.close()
        await admin.close()


async def _serve_until_signal(config: ServeConfig) -> None:
    signals = Signals()
    async with running(config) as server:
        settle_memory()
        announce(config, server.grpc_address, server.http_address, server.admin_address)
        await signals.first.wait()
        await drained(server, signals, config.process.shutdown_grace_ms)
    log.event(logger, logging.INFO, "graceful_shutdown_done")
