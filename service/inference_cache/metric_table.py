"""The table of metrics: what each is called, what it counts, which labels it has and how workers add up.

The documentation is generated from it and :class:`~inference_cache.metrics.Metrics` is built from it, so neither can
name a metric that the other lacks.
"""

from __future__ import annotations

from dataclasses import dataclass

LATENCY_BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1)
"""Upper bounds of the lookup latency histogram, in seconds."""


@dataclass(frozen=True, slots=True)
class Definition:
    """One metric as scraped, without the prefix ``inferencecache_``."""

    name: str
    kind: str
    """``"counter"``, ``"gauge"`` or ``"histogram"``."""
    help: str
    labels: tuple[str, ...] = ()
    merge: str = "sum"
    """What a gauge shows of parent and workers: the ``"sum"``, ``"max"`` or ``"min"``. Counters always add up."""

    @property
    def full_name(self) -> str:
        """The name under which the metric is scraped."""
        return f"inferencecache_{self.name}"


DEFINITIONS = (
    Definition("server_up", "gauge", "1 while the server serves, 0 once it has stopped.", merge="max"),
    Definition("server_grpc_tls_enabled", "gauge", "1 when the gRPC port speaks TLS.", merge="max"),
    Definition(
        "index_entries",
        "gauge",
        "Distinct prefixes held, over all tenants; exact after a sweep.",
        ("model",),
        merge="max",
    ),
    Definition("index_evictions_total", "counter", "Holdings removed by the server itself.", ("algorithm", "reason")),
    Definition(
        "tenant_evictions_total",
        "counter",
        "Distinct prefixes removed to keep a tenant to its quota.",
        ("tenant_id", "reason"),
    ),
    Definition(
        "trim_failures_total",
        "counter",
        "Times when a quota or the cap could not be kept at once; the next sweep tries again.",
        ("limit", "reason"),
    ),
    Definition("lfu_credits_total", "counter", "Hits of stretches of blocks that were counted for LFU."),
    Definition(
        "lfu_credits_dropped_total",
        "counter",
        "Hits that were not: their blocks are gone, or they got lost.",
        ("reason",),
    ),
    Definition(
        "index_sweeps_total",
        "counter",
        "Turns to sweep for expired holdings, by how they ended; standby: another server sweeps.",
        ("result",),
    ),
    Definition("sweeper", "gauge", "1 while this server is the one that sweeps.", merge="max"),
    Definition("stats_rows_expired_total", "counter", "Statistics rows removed because their replica fell silent."),
    Definition(
        "lookup_route_calls_total", "counter", "LookupRoute calls answered.", ("model", "reason_code", "hint_used")
    ),
    Definition("lookup_route_latency_seconds", "histogram", "Time a LookupRoute call took in the server.", ("model",)),
    Definition("lookup_shed_total", "counter", "Lookups answered NO_HINT unasked: too many were under way."),
    Definition("lookup_malformed_total", "counter", "Lookups whose input could not be used.", ("reason",)),
    Definition("report_updates_total", "counter", "CacheStateUpdate messages applied."),
    Definition("report_holdings_added_total", "counter", "Holdings that reports added to the index."),
    Definition("report_dropped_total", "counter", "Entries, or parts of them, that a report lost.", ("reason",)),
    Definition("events_total", "counter", "CacheEvent messages applied.", ("type",)),
    Definition("events_ignored_total", "counter", "Cache events, or hashes in them, without effect.", ("reason",)),
    Definition("event_holdings_removed_total", "counter", "Holdings that events removed.", ("type",)),
    Definition("evictions_waiting", "gauge", "PREFIX_EVICTED events that wait for their turn at the store."),
    Definition("clamped_timestamps_total", "counter", "Timestamps moved into [0, now].", ("source", "direction")),
    Definition("reserved_tenant_total", "counter", "Messages for the reserved tenant, not applied.", ("rpc",)),
    Definition("store_errors_total", "counter", "Calls that the index could not serve.", ("rpc", "reason")),
    Definition("rpc_errors_total", "counter", "Calls answered with a gRPC error.", ("rpc", "code")),
    Definition("unexpected_errors_total", "counter", "Errors that nobody foresaw; the log has each.", ("rpc",)),
    Definition("workers_ready", "gauge", "Worker processes that are ready; 0 in a server of one process."),
    Definition("worker_restarts_total", "counter", "Worker processes that ended and were replaced.", ("reason",)),
    Definition("worker_lookups_total", "counter", "LookupRoute calls answered by each worker process.", ("worker",)),
    Definition(
        "policy_generation", "gauge", "Generation of the policies in force; 0 = none was ever pushed.", merge="min"
    ),
    Definition("policy_applied_timestamp_seconds", "gauge", "When these policies came into force.", merge="min"),
    Definition(
        "policy_read_timestamp_seconds",
        "gauge",
        "When the policies in Redis were last compared with those in force; their age is time() minus this.",
        merge="min",
    ),
    Definition("policy_read_errors_total", "counter", "Times when the policies could not be read.", ("reason",)),
    Definition("policy_restored_total", "counter", "Times when Redis had lost policies and got them back."),
    Definition(
        "policy_pushes_total", "counter", "Requests to set policies, by what became of them.", ("source", "result")
    ),
    Definition("policy_rows_ignored_total", "counter", "What pushed policies say without effect.", ("reason",)),
    Definition(
        "policy_directory_in_force",
        "gauge",
        "1 while the policies in force are those of --policy-dir, or without it.",
        merge="min",
    ),
    Definition("policy_directory_errors_total", "counter", "Contents of --policy-dir that could not be used."),
    Definition("store_up", "gauge", "1 while the store answers.", merge="min"),
    Definition("store_clock_offset_seconds", "gauge", "The store's clock minus this host's.", merge="max"),
    Definition(
        "store_noeviction", "gauge", "1 when the store refuses writes at its memory limit, as it must.", merge="min"
    ),
    Definition(
        "store_calls_in_flight", "gauge", "Calls whose reply the store owes, abandoned ones included.", ("lane",)
    ),
    Definition("store_calls_waiting", "gauge", "Calls that wait for their turn at the store.", ("lane",)),
    Definition(
        "store_circuits_open",
        "gauge",
        "Servers of the store left alone because they do not answer.",
        ("lane",),
        merge="max",
    ),
    Definition("store_circuit_openings_total", "counter", "How often a server of the store was left alone.", ("lane",)),
    Definition(
        "store_restarts_total", "counter", "Times when the embedded Valkey ended by itself and was started again."
    ),
    Definition("store_reconnects_total", "counter", "Lost connections to the store that were made again.", ("lane",)),
    Definition("store_replicas", "gauge", "Replicas that serve lookups (used), or lag too far (skipped).", ("state",)),
    Definition(
        "store_replica_lag_seconds",
        "gauge",
        "How far the furthest replica is behind at most, skipped ones too.",
        merge="max",
    ),
    Definition(
        "store_replica_lookups_total",
        "counter",
        "Lookups' calls to the store, by who answered (replica, primary), where replicas may.",
        ("served_by",),
    ),
)


def describe() -> tuple[Definition, ...]:
    """Return every metric of the server, for the documentation."""
    return DEFINITIONS
