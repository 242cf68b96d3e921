"""What every process of a server is put together from, made from the configuration in one place."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from inference_cache.background import Sweeper
from inference_cache.capacity import Capacity
from inference_cache.config import ServeConfig
from inference_cache.domain.policy import Policy, PolicySource
from inference_cache.errors import ConfigError
from inference_cache.metrics import Metrics
from inference_cache.policies.keeper import PolicyKeeper
from inference_cache.store.connection import Connection, open_connection
from inference_cache.store.policies import PolicyStore
from inference_cache.store.redis import RedisStore


@asynccontextmanager
async def open_store(config: ServeConfig) -> AsyncIterator[tuple[Connection, RedisStore]]:
    """Connect to the configured Redis, or start the embedded one, for as long as the block runs.

    Raises:
        ConfigError: the Redis URL or the directory is unusable.
        StoreUnavailable: the embedded Valkey did not start.
    """
    redis = config.redis
    connection = await open_connection(
        redis.redis_url,
        embedded_dir=redis.embedded_dir or None,
        sentinel_username=redis.redis_sentinel_username or None,
        sentinel_password=redis.redis_sentinel_password or None,
        max_replica_lag_ms=redis.redis_max_replica_lag_ms if redis.redis_read_from == "replica" else None,
    )
    store = RedisStore(connection, key_prefix=redis.redis_key_prefix)
    try:
        yield connection, store
    finally:
        await store.close()


def keeper_of(config: ServeConfig, connection: Connection, metrics: Metrics, *, writes: bool) -> PolicyKeeper:
    """Return what keeps a process's policies; one process of each server ``writes`` the policy directory."""
    directory = policy_directory(config) if writes else None
    return PolicyKeeper(
        PolicyStore(connection, key_prefix=config.redis.redis_key_prefix),
        replace(Policy(), ttl_ms=config.retention.default_ttl_ms),
        metrics,
        host=socket.gethostname(),
        directory=directory,
    )


def policy_directory(config: ServeConfig) -> Path | None:
    """Return the configured directory of manifests.

    Raises:
        ConfigError: it is no directory now, so it is probably a typing mistake.
    """
    if not config.policies.policy_dir:
        return None
    directory = Path(config.policies.policy_dir)
    if not directory.is_dir():
        raise ConfigError(f"--policy-dir (environment: INFERENCE_CACHE_POLICY_DIR): {directory} is not a directory")
    return directory


def capacity_of(config: ServeConfig, store: RedisStore, policies: PolicySource, metrics: Metrics) -> Capacity:
    """Return what keeps a process's tenants to their quotas and the index to its cap."""
    retention = config.retention
    return Capacity(store, policies, metrics, max_entries=retention.max_entries, retry_ms=retention.sweep_period_ms)


def sweeper_of(
    config: ServeConfig,
    connection: Connection,
    store: RedisStore,
    policies: PolicySource,
    metrics: Metrics,
    capacity: Capacity,
) -> Sweeper:
    """Return what removes expired holdings; one for each server, however many workers it has."""
    return Sweeper(
        store,
        policies,
        metrics,
        capacity,
        period_ms=config.retention.sweep_period_ms,
        clock_is_certain=lambda: connection.clock.certain,
    )
