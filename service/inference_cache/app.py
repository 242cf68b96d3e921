"""The one place that puts a server together: configuration in, a running process out.

Starting: the store, then the ports, then what runs beside them. A Redis of the operator's that is away is no reason
not to start: the server says that it is not ready and serves when Redis comes. A port that is taken is one, and so is
an embedded Valkey that does not start.

Stopping, on SIGTERM or SIGINT: not ready and NOT_SERVING at once, calls in flight get ``--shutdown-grace``, then they
are cut, then the store is closed. A second signal cuts at once.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, cast

import grpc
import uvloop

import inference_cache
from inference_cache import log
from inference_cache.admin.http import HttpListener, admin_app, public_app
from inference_cache.background import StoreWatch, Sweeper
from inference_cache.config import ServeConfig, unenforced
from inference_cache.domain.policy import DefaultPolicies, Policy
from inference_cache.domain.tuning import AffinityMode, Tuning
from inference_cache.errors import StoreError
from inference_cache.metrics import Metrics
from inference_cache.rpc.health import Health
from inference_cache.rpc.server import build_server
from inference_cache.settings import Address
from inference_cache.store.connection import Connection, open_connection
from inference_cache.store.redis import RedisStore

logger = logging.getLogger(__name__)

MS = 1000


def run(config: ServeConfig) -> int:
    """Serve until a signal, and return the exit status.

    Raises:
        ConfigError: the Redis URL or the directory is unusable.
        StoreUnavailable: the embedded Valkey did not start.
        OSError: a port could not be had.
    """
    log.configure(config.logs.log_level, config.logs.log_format)
    uvloop.run(_serve_until_signal(config))
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


@dataclass(frozen=True, slots=True)
class Running:
    """A server that serves.

    Attributes:
        grpc_address: where the gRPC service listens, with its real port.
        http_address: where health and metrics are.
        admin_address: where the operator's endpoints are.
        server: the gRPC server.
        health: what the health service says.
        state: what `/readyz` says.
    """

    grpc_address: Address
    http_address: Address
    admin_address: Address
    server: grpc.aio.Server
    health: Health
    state: State

    async def drain(self, grace_s: float | None) -> None:
        """Stop taking calls; let those in flight finish for ``grace_s`` seconds, ``None`` = cut them now.

        Returns when the last has ended; another call with ``None`` cuts a drain short.
        """
        self.state.draining = True
        self.health.drain()
        await self.server.stop(grace_s)


@asynccontextmanager
async def running(config: ServeConfig) -> AsyncIterator[Running]:
    """Run a server for as long as the block does; leaving it cuts what was not drained."""
    connection = await open_connection(config.redis.redis_url, embedded_dir=config.redis.embedded_dir or None)
    store = RedisStore(connection, key_prefix=config.redis.redis_key_prefix)
    try:
        async with _serving(config, connection, store) as server:
            yield server
    finally:
        await store.close()


@asynccontextmanager
async def _serving(config: ServeConfig, connection: Connection, store: RedisStore) -> AsyncIterator[Running]:
    metrics, health, state = Metrics(), Health(), State()
    policies = DefaultPolicies(replace(Policy(), ttl_ms=config.retention.default_ttl_ms))
    server = build_server(
        store=store,
        policies=policies,
        metrics=metrics,
        health=health,
        tuning=tuning_of(config),
        lookup_timeout_ms=config.lookup.lookup_timeout_ms,
    )
    sweeper = Sweeper(
        store,
        policies,
        metrics,
        period_ms=config.retention.sweep_period_ms,
        clock_is_certain=lambda: connection.clock.certain,
    )

    async def on_change(answers: bool) -> None:
        if answers:
            with suppress(StoreError):  # whatever is not loaded now is loaded by its first call
                await store.warm_up()
        health.set_serving(answers)

    watch = StoreWatch(connection, metrics, on_change)
    public = HttpListener(public_app(state.not_ready, metrics.registry))
    admin = HttpListener(admin_app())
    try:
        started = Running(
            grpc_address=_listen_grpc(server, config.listen.grpc_bind_address),
            http_address=await public.start(config.listen.http_bind_address),
            admin_address=await admin.start(config.listen.snapshot_bind_address),
            server=server,
            health=health,
            state=state,
        )
        await server.start()
        await watch.look()
        state.watch = watch
        metrics.serving(up=True, tls=False)
        async with _beside(sweeper.run(), watch.run()):
            yield started
    finally:
        metrics.serving(up=False, tls=False)
        await server.stop(None)
        await public.close()
        await admin.close()


def _listen_grpc(server: grpc.aio.Server, address: Address) -> Address:
    """Bind the gRPC port and return it with its real number; an empty host is every interface of both families."""
    target = replace(address, host=address.host or "::")
    try:
        return replace(address, port=server.add_insecure_port(str(target)))
    except RuntimeError:
        raise OSError(f"cannot listen on {address}: is the port taken?") from None


@asynccontextmanager
async def _beside(*work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run background work for as long as the block does."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task


class _Signals:
    """The first SIGTERM or SIGINT asks for an end, the second for one at once."""

    def __init__(self) -> None:
        self.first, self.second = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._arrived)

    def _arrived(self) -> None:
        (self.second if self.first.is_set() else self.first).set()


async def _serve_until_signal(config: ServeConfig) -> None:
    signals = _Signals()
    async with running(config) as server:
        _announce(config, server)
        await signals.first.wait()
        log.event(logger, logging.INFO, "graceful_shutdown_started", grace_ms=config.process.shutdown_grace_ms)
        draining = asyncio.create_task(server.drain(config.process.shutdown_grace_ms / MS))
        hurry = asyncio.create_task(signals.second.wait())
        await asyncio.wait({draining, hurry}, return_when=asyncio.FIRST_COMPLETED)
        if not draining.done():
            await server.drain(None)
        await draining
        hurry.cancel()
    log.event(logger, logging.INFO, "graceful_shutdown_done")


def _announce(config: ServeConfig, server: Running) -> None:
    log.event(
        logger,
        logging.INFO,
        "startup",
        version=inference_cache.__version__,
        grpc_addr=str(server.grpc_address),
        grpc_tls=False,
        http_addr=str(server.http_address),
        snapshot_addr=str(server.admin_address),
        redis=config.redis.redis_url.partition(":")[0],
    )
    for flag in unenforced(config):
        log.event(logger, logging.WARNING, "setting_not_enforced", flag=flag)
    if config.listen.insecure_disable_auth:
        log.event(logger, logging.WARNING, "controller_auth_disabled", snapshot_addr=str(server.admin_address))
