"""What every process of a server is put together from, made from the configuration in one place."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from inference_cache.background import Sweeper
from inference_cache.config import ServeConfig
from inference_cache.domain.policy import DefaultPolicies, Policy, PolicySource
from inference_cache.metrics import Metrics
from inference_cache.store.connection import Connection, open_connection
from inference_cache.store.redis import RedisStore


@asynccontextmanager
async def open_store(config: ServeConfig) -> AsyncIterator[tuple[Connection, RedisStore]]:
    """Connect to the configured Redis, or start the embedded one, for as long as the block runs.

    Raises:
        ConfigError: the Redis URL or the directory is unusable.
        StoreUnavailable: the embedded Valkey did not start.
    """
    connection = await open_connection(config.redis.redis_url, embedded_dir=config.redis.embedded_dir or None)
    store = RedisStore(connection, key_prefix=config.redis.redis_key_prefix)
    try:
        yield connection, store
    finally:
        await store.close()


def default_policies(config: ServeConfig) -> DefaultPolicies:
    """Return the rules of tenants without a policy of their own."""
    return DefaultPolicies(replace(Policy(), ttl_ms=config.retention.default_ttl_ms))


def sweeper_of(
    config: ServeConfig, connection: Connection, store: RedisStore, policies: PolicySource, metrics: Metrics
) -> Sweeper:
    """Return what removes expired holdings; one for each server, however many workers it has."""
    return Sweeper(
        store,
        policies,
        metrics,
        period_ms=config.retention.sweep_period_ms,
        clock_is_certain=lambda: connection.clock.certain,
    )
