"""The one place that turns ``--redis-url`` into a connection."""

from __future__ import annotations

from inference_cache.errors import ConfigError
from inference_cache.store.connection.address import Address, Kind, parse_address
from inference_cache.store.connection.cluster import ClusterConnection
from inference_cache.store.connection.dial import Dialer
from inference_cache.store.connection.embedded import start_embedded
from inference_cache.store.connection.sentinel import PrimaryDialer, SentinelConnection
from inference_cache.store.connection.standalone import StandaloneConnection
from inference_cache.store.connection.transport import Connection, Limits

EMBEDDED_URL = "embedded:"


async def open_connection(
    url: str = EMBEDDED_URL,
    *,
    embedded_dir: str | None = None,
    limits: Limits | None = None,
    sentinel_username: str | None = None,
    sentinel_password: str | None = None,
    max_replica_lag_ms: int | None = None,
) -> Connection:
    """Connect to the Redis that a URL names, or start our own.

    A Redis that is away is no error here: calls fail until it comes, and the clock is this machine's and not
    ``certain``. Use :meth:`Connection.ping` to know at once.

    Args:
        url: ``embedded:``, ``redis://``, ``rediss://``, ``unix://``, ``redis+cluster://`` or ``redis+sentinel://``; see
            :func:`~inference_cache.store.connection.address.parse_address`.
        embedded_dir: where the embedded server keeps its data; ``None`` for nowhere.
        limits: deadlines and bounds; the defaults of :class:`Limits` if ``None``.
        sentinel_username: our ACL user at the Sentinels; the URL has the one at the servers that they watch.
        sentinel_password: of that user.
        max_replica_lag_ms: how far a replica may be behind to be asked for lookups; ``None`` never asks replicas.

    Raises:
        ConfigError: the URL or the directory is unusable, or something is said that has no meaning with the URL.
        StoreUnavailable: the embedded server did not start.
    """
    address = parse_address(url)
    limits = limits if limits is not None else Limits()
    if embedded_dir is not None and address.kind is not Kind.EMBEDDED:
        raise ConfigError("--embedded-dir (INFERENCE_CACHE_EMBEDDED_DIR) needs the embedded server, not --redis-url")
    if (sentinel_username or sentinel_password) and address.kind is not Kind.SENTINEL:
        raise ConfigError(
            "--redis-sentinel-username and --redis-sentinel-password (INFERENCE_CACHE_REDIS_SENTINEL_USERNAME, "
            "INFERENCE_CACHE_REDIS_SENTINEL_PASSWORD) need a --redis-url of redis+sentinel://"
        )
    if max_replica_lag_ms is not None and address.kind is Kind.EMBEDDED:
        raise ConfigError(
            "--redis-read-from (INFERENCE_CACHE_REDIS_READ_FROM) says replica, but the embedded server has none"
        )
    connection: StandaloneConnection | ClusterConnection
    of_cluster = address.kind is Kind.CLUSTER
    if of_cluster:
        connection = ClusterConnection(address, limits)
    elif address.kind is Kind.SENTINEL:
        connection = SentinelConnection(PrimaryDialer(address, limits, sentinel_username, sentinel_password))
    elif address.kind is Kind.EMBEDDED:
        child = await start_embedded(embedded_dir)
        connection = StandaloneConnection(Dialer(Address(Kind.UNIX, path=child.socket_path), None, limits), child)
    else:
        connection = StandaloneConnection(Dialer(address, address.hosts[0] if address.hosts else None, limits))
    if max_replica_lag_ms is not None:
        connection.read_from_replicas(
            lambda host: Dialer(address, host, limits, of_replica=of_cluster), max_replica_lag_ms
        )
    try:
        await connection.start()
    except BaseException:
        await connection.close()
        raise
    return connection
