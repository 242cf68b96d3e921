"""Everything an operator can set, by concern, and the one reader.

A flag wins over its environment twin, which wins over the default. An empty variable counts as unset. To add
a setting, add a field here: the command line, the environment, the README table and its test follow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from inference_cache.domain.policy import DEFAULT_TTL_MS
from inference_cache.errors import ConfigError
from inference_cache.settings import (
    Address,
    Setting,
    address,
    boolean,
    choice,
    duration,
    integer,
    matching,
    number,
    setting,
    settings_of,
)

DEFAULT_BLOCK_SIZE = 16
MAX_CONNECTION_MS = 7 * 24 * 3_600_000


def _block_size(text: str) -> int:
    """Parse a block size; the contract lets 0 and less fall back to the default."""
    value: int = integer(-(2**31), 65536)(text)
    return value if value > 0 else DEFAULT_BLOCK_SIZE


@dataclass(frozen=True, slots=True)
class Listen:
    """Where clients, scrapers and operators connect, and for how long."""

    grpc_bind_address: Address = setting(
        ":9090", address, "Where the gRPC service listens; an empty host means every interface."
    )
    http_bind_address: Address = setting(
        ":8080", address, "Where /healthz, /readyz and /metrics are served; an empty host means every interface."
    )
    snapshot_bind_address: Address = setting(
        "127.0.0.1:8081",
        address,
        "Where the operator's endpoint /policy listens; beyond loopback this needs --insecure-disable-auth.",
    )
    insecure_disable_auth: bool = setting(
        "false", boolean, "Let the operator's endpoints listen beyond loopback without authentication."
    )
    max_connection_age_ms: int = setting(
        "0",
        duration(0, MAX_CONNECTION_MS),
        "Age, give or take a tenth, at which a gRPC client is asked to connect anew, so that servers that were added "
        "get their share; 0 = never.",
        flag="--max-connection-age",
        unit="duration",
    )
    max_connection_age_grace_ms: int = setting(
        "10s",
        duration(0, MAX_CONNECTION_MS),
        "How much longer calls under way on such a connection may take, report streams too; then they end with "
        "UNAVAILABLE, and what was not acknowledged is to be sent again.",
        flag="--max-connection-age-grace",
        unit="duration",
    )


@dataclass(frozen=True, slots=True)
class Logs:
    """What is written to stderr."""

    log_level: str = setting(
        "info",
        choice("debug", "info", "warning", "error", empty="info", aliases={"warn": "warning"}),
        "Least severe event that is logged: debug, info, warn, warning or error.",
    )
    log_format: str = setting(
        "json", choice("json", "text", empty="json"), "json for one object a line, text for people."
    )


@dataclass(frozen=True, slots=True)
class Redis:
    """Where the index lives."""

    redis_url: str = setting(
        "embedded:",
        str,
        "embedded: for a Valkey of the server's own, or redis://, rediss://, unix://, redis+cluster:// or "
        "redis+sentinel:// with user, password and database for yours; docs/redis has a page for each.",
        also_env=("REDIS_URL",),
        secret=True,
    )
    redis_key_prefix: str = setting(
        "ic",
        matching(r"[A-Za-z0-9._-]{1,64}", "must be 1 to 64 of the characters A-Z a-z 0-9 . _ -"),
        "First part of every key, so that several indexes can share one Redis.",
    )
    redis_sentinel_username: str = setting(
        "", str, "User at the Sentinels of redis+sentinel://; the URL has the one at the servers that they watch."
    )
    redis_sentinel_password: str = setting("", str, "Password of that user, or of the Sentinels.", secret=True)
    redis_read_from: str = setting(
        "primary",
        choice("primary", "replica"),
        "Who answers lookups: primary, or replica, which takes load off the primary, and then answers may lack what "
        "was acknowledged within --redis-max-replica-lag.",
    )
    redis_max_replica_lag_ms: int = setting(
        "1s",
        duration(100, 600_000),
        "How far a replica may be behind; one that is further, or whose lag is unknown, is left out.",
        flag="--redis-max-replica-lag",
        unit="duration",
    )
    embedded_dir: str = setting(
        "",
        str,
        "Directory in which the embedded Valkey keeps an append-only file, so that its index survives a restart; "
        "empty keeps it in memory.",
    )


@dataclass(frozen=True, slots=True)
class Lookup:
    """What one lookup may take and how an input becomes a chain."""

    lookup_timeout_ms: int = setting(
        "50",
        integer(0, 600_000),
        "Budget of a lookup's index stage, after which it answers TIMEOUT; a tenant's policy replaces it; 0 = none.",
        unit="ms",
    )
    max_lookups_in_flight: int = setting(
        "1024",
        integer(1, 1_000_000),
        "Lookups that a process has under way at once, so that a Redis which stalls cannot fill its memory; those "
        "beyond answer NO_HINT at once.",
        unit="lookups",
    )
    engine_block_size: int = setting(
        str(DEFAULT_BLOCK_SIZE),
        _block_size,
        "Tokens in a KV block of the engines, used to fingerprint token_ids; 0 or less falls back to 16.",
        unit="tokens",
    )
    max_token_ids: int = setting(
        "1048576", integer(1, 2**26), "Longest token_ids a lookup may carry; longer ones get NO_HINT.", unit="tokens"
    )
    max_prompt_bytes: int = setting(
        "1048576",
        integer(1, 2**28),
        "Longest prompt_text a lookup may carry, in UTF-8; longer ones get NO_HINT.",
        unit="bytes",
    )
    affinity: str = setting(
        "modulo",
        choice("modulo", "rendezvous"),
        "How a prompt that nobody holds gets a stable replica: modulo, or rendezvous, which moves only its own share "
        "when replicas come and go.",
    )


@dataclass(frozen=True, slots=True)
class Ranking:
    """How evidence becomes a score."""

    pressure_weight: float = setting(
        "1.0", number(0, 1000), "How much a replica's pressure lowers its score: score * (1 - weight * pressure)."
    )
    slo_threshold_ms: int = setting(
        "200",
        integer(0, 2**31 - 1),
        "A request whose ttft_ms lies between 0 and this prefers fresh entries; 0 = never.",
        unit="ms",
    )
    slo_bias: float = setting(
        "1.0", number(0, 1000), "How much such a request prefers them: score * (1 + bias * freshness)."
    )
    tenant_hot_min_hit_rate: float = setting(
        "0.1", number(0, 1), "Least hit rate of a replica that TENANT_HOT may name; equal passes."
    )
    tenant_hot_max_age_ms: int = setting(
        "5m",
        duration(0),
        "TENANT_HOT ignores statistics of this age or older; 0 turns TENANT_HOT off.",
        flag="--tenant-hot-max-age",
        unit="duration",
    )


@dataclass(frozen=True, slots=True)
class Policies:
    """Where the rules of single tenants come from."""

    policy_dir: str = setting(
        "",
        str,
        "Directory of CachePolicy and CacheTenant manifests (*.yaml, *.yml, *.json), all of them or none; written for "
        "all servers at start and when it changes; empty = none, policies come by POST /policy only.",
    )


@dataclass(frozen=True, slots=True)
class Retention:
    """How long and how much the index remembers."""

    default_ttl_ms: int = setting(
        f"{DEFAULT_TTL_MS // 60_000}m",
        duration(1000),
        "How long a report counts for tenants without a policy of their own.",
        flag="--default-ttl",
        unit="duration",
    )
    sweep_period_ms: int = setting(
        "10s",
        duration(100, 3_600_000),
        "How often what has expired is removed, by one of the servers that share a Redis; lookups judge expiry "
        "themselves, so only totals and gauges lag.",
        flag="--sweep-period",
        unit="duration",
    )
    max_entries: int = setting(
        "1000000",
        integer(0),
        "Cap on holdings in the index, all tenants together; what was reported longest ago gives way, in LFU tenants "
        "what was hit least; 0 = none.",
        unit="holdings",
    )
    replica_liveness_ttl_ms: int = setting(
        "0",
        duration(0),
        "Leave out of answers a replica that once sent statistics and has given no sign of life for longer than this, "
        "neither by them nor by a report; 0 = never.",
        flag="--replica-liveness-ttl",
        unit="duration",
    )
    hot_threshold: int = setting(
        "2",
        integer(1, 2**31 - 1),
        "Hits from which on a block counts as hot (hot_prefixes), in tenants whose eviction is LFU.",
        unit="hits",
    )


@dataclass(frozen=True, slots=True)
class Process:
    """How many processes serve, and how they end."""

    workers: int = setting(
        "1",
        integer(1, 64),
        "Processes that serve the gRPC port together; above 1 a further one supervises them, sweeps, and has the HTTP "
        "ports. One a core at most.",
        unit="processes",
    )
    shutdown_grace_ms: int = setting(
        "10s",
        duration(0, 3_600_000),
        "How long a stopping server lets calls in flight finish before it cuts them.",
        flag="--shutdown-grace",
        unit="duration",
    )


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """All that `inference-cache serve` can be told."""

    listen: Listen = field(default_factory=Listen)
    logs: Logs = field(default_factory=Logs)
    redis: Redis = field(default_factory=Redis)
    lookup: Lookup = field(default_factory=Lookup)
    ranking: Ranking = field(default_factory=Ranking)
    policies: Policies = field(default_factory=Policies)
    retention: Retention = field(default_factory=Retention)
    process: Process = field(default_factory=Process)


CONCERNS: dict[str, type[Any]] = {
    "listen": Listen,
    "logs": Logs,
    "redis": Redis,
    "lookup": Lookup,
    "ranking": Ranking,
    "policies": Policies,
    "retention": Retention,
    "process": Process,
}


def all_settings() -> Iterator[Setting]:
    """Yield every setting of `serve`, in the order in which people should read them."""
    for concern in CONCERNS.values():
        yield from settings_of(concern)


def read_config(flags: Mapping[str, str | None], environ: Mapping[str, str]) -> ServeConfig:
    """Read the configuration of `serve`.

    Args:
        flags: what the command line said, by field name; ``None`` or absent = not said.
        environ: the environment.

    Raises:
        ConfigError: a value is unusable, or values contradict each other.
    """
    parts = {
        name: concern(**{item.name: _value(item, flags, environ) for item in settings_of(concern)})
        for name, concern in CONCERNS.items()
    }
    config = ServeConfig(**parts)
    _check_together(config)
    return config


def _value(item: Setting, flags: Mapping[str, str | None], environ: Mapping[str, str]) -> Any:
    text = flags.get(item.name)
    if text is not None:
        return item.read(text, "the command line")
    for variable in item.env:
        if environ.get(variable):
            return item.read(environ[variable], variable)
    return item.parse(item.default)


def _check_together(config: ServeConfig) -> None:
    listen = config.listen
    if not listen.snapshot_bind_address.is_loopback and not listen.insecure_disable_auth:
        raise ConfigError(
            "--snapshot-bind-address (environment: INFERENCE_CACHE_SNAPSHOT_BIND_ADDRESS) reaches beyond loopback, "
            "where the operator's endpoints would be open to everybody; bind 127.0.0.1, or say --insecure-disable-auth"
        )
