"""Every Prometheus metric of the server, counted through one object.

What there is stands in :mod:`inference_cache.metric_table`. Every metric lives in a registry of its own
:class:`Metrics`; nothing is global, so that two servers of one process count apart.

Labels are bounded. Where a label is a word of ours (a reason, a code), the words are few. Where it is a caller's
(``model``), it is shown only for models that the index is known to hold, and for :data:`MAX_MODELS` of them at
most; everything else is :data:`OTHER`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.metrics import MetricWrapperBase

from inference_cache.domain.models import RESERVED_TENANT, ModelKey
from inference_cache.metric_table import DEFINITIONS, LATENCY_BUCKETS, Definition

OTHER = "other"
"""The ``model`` label of models that the index does not know."""

MAX_MODELS = 1000
"""How many models have series of their own."""

MAX_TENANTS = 1000
"""How many tenants above their quota have series of their own; the rest is :data:`OTHER`."""


class Metrics:
    """The server's counters; each method names what happened.

    Every method is cheap, never waits and never raises.

    Args:
        max_models: how many models get series of their own.
    """

    def __init__(self, max_models: int = MAX_MODELS) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        ProcessCollector(registry=self.registry)
        self._counters: dict[str, Counter] = {}
        self._gauges: dict[str, Gauge] = {}
        self._histograms: dict[str, Histogram] = {}
        self._bound: dict[tuple[str, ...], MetricWrapperBase] = {}
        self._totals: dict[tuple[str, ...], int] = {}
        self._lookups: dict[tuple[str, str, bool], tuple[Callable[[], None], Callable[[float], None]]] = {}
        self._entries: dict[str, int] = {}
        self._tenants: set[str] = set()
        self._max_models = max_models
        for each in DEFINITIONS:
            self._define(each)

    def serving(self, up: bool, *, tls: bool) -> None:
        """Say whether the server serves, and whether with TLS."""
        self._gauges["server_up"].set(up)
        self._gauges["server_grpc_tls_enabled"].set(tls)

    def store_state(self, up: bool) -> None:
        """Say whether the store answers."""
        self._gauges["store_up"].set(up)

    def store_restarts(self, total: int) -> None:
        """Say how often the embedded store has been started again since the start."""
        self._count_to("store_restarts_total", total)

    def store_clock(self, offset_seconds: float) -> None:
        """Say how far the store's clock is ahead of this host's."""
        self._gauges["store_clock_offset_seconds"].set(offset_seconds)

    def store_policy(self, noeviction: bool) -> None:
        """Say whether the store is set not to evict on its own."""
        self._gauges["store_noeviction"].set(noeviction)

    def store_lane(
        self, lane: str, *, in_flight: int, waiting: int, circuits_open: int, circuit_openings: int, reconnects: int
    ) -> None:
        """Say what goes on between here and the store.

        Args:
            lane: reads for lookups, writes for everything else.
            in_flight: calls whose reply is owed.
            waiting: calls that wait for their turn.
            circuits_open: servers that are left alone.
            circuit_openings: how often that has happened since the start.
            reconnects: how many lost connections have been made again since the start.
        """
        self._gauges["store_calls_in_flight"].labels(lane).set(in_flight)
        self._gauges["store_calls_waiting"].labels(lane).set(waiting)
        self._gauges["store_circuits_open"].labels(lane).set(circuits_open)
        self._count_to("store_circuit_openings_total", circuit_openings, lane)
        self._count_to("store_reconnects_total", reconnects, lane)

    def store_replicas(self, *, used: int, skipped: int, lag_s: float, by_replica: int, by_primary: int) -> None:
        """Say what lookups get from replicas of the store.

        Args:
            used: replicas near enough to be asked.
            skipped: replicas that are not.
            lag_s: how far the furthest is behind.
            by_replica: calls that replicas have answered since the start.
            by_primary: calls that went to the primary instead.
        """
        self._gauges["store_replicas"].labels("used").set(used)
        self._gauges["store_replicas"].labels("skipped").set(skipped)
        self._gauges["store_replica_lag_seconds"].set(lag_s)
        self._count_to("store_replica_lookups_total", by_replica, "replica")
        self._count_to("store_replica_lookups_total", by_primary, "primary")

    def looked_up(self, model_id: str, reason: str, *, hint: bool, index_knows: bool, seconds: float) -> None:
        """Count one answered lookup; ``index_knows`` when the answer proves that the index holds the model."""
        if index_knows:
            self._admit(model_id)
        key = self._label(model_id), reason, hint
        bound = self._lookups.get(key)
        if bound is None:
            bound = self._lookups[key] = self._bind_lookup(*key)
        count, observe = bound
        count()
        observe(seconds)

    def lookup_shed(self) -> None:
        """Count a lookup that was answered without asking the index because too many were under way."""
        self._count("lookup_shed_total", 1)

    def lookup_malformed(self, reason: str) -> None:
        """Count a lookup whose input could not be used."""
        self._count("lookup_malformed_total", 1, reason)

    def reported(self, model: ModelKey, *, holdings: int, prefixes: int) -> None:
        """Count an applied update and what it added to the index."""
        self._count("report_updates_total", 1)
        self._count("report_holdings_added_total", holdings)
        if prefixes and self._admit(model.model_id):
            self._set_entries(model.model_id, self._entries[model.model_id] + prefixes)

    def report_dropped(self, reason: str, number: int = 1) -> None:
        """Count entries, or parts of them, that a report lost."""
        self._count("report_dropped_total", number, reason)

    def event(self, kind: str) -> None:
        """Count an applied event."""
        self._count("events_total", 1, kind)

    def removed(self, kind: str, holdings: int) -> None:
        """Count the holdings that events of one type removed."""
        self._count("event_holdings_removed_total", holdings, kind)

    def event_ignored(self, reason: str, number: int = 1) -> None:
        """Count events, or hashes in them, that have no effect."""
        self._count("events_ignored_total", number, reason)

    def evictions_waiting(self, change: int) -> None:
        """Move the number of evictions that wait for their turn."""
        self._gauges["evictions_waiting"].inc(change)

    def clamped(self, source: str, timestamp_us: int) -> None:
        """Count a timestamp that was moved; ``source`` is report or event."""
        self._count("clamped_timestamps_total", 1, source, "past" if timestamp_us < 0 else "future")

    def reserved_tenant(self, rpc: str) -> None:
        """Count a message for the reserved tenant."""
        self._count("reserved_tenant_total", 1, rpc)

    def store_error(self, rpc: str, reason: str) -> None:
        """Count a call that the index could not serve."""
        self._count("store_errors_total", 1, rpc, reason)

    def rpc_error(self, rpc: str, code: str) -> None:
        """Count a call answered with a gRPC error."""
        self._count("rpc_errors_total", 1, rpc, code)

    def unexpected_error(self, rpc: str) -> None:
        """Count an error that nobody foresaw."""
        self._count("unexpected_errors_total", 1, rpc)

    def workers_ready(self, number: int) -> None:
        """Say how many worker processes serve."""
        self._gauges["workers_ready"].set(number)

    def worker_restarted(self, reason: str) -> None:
        """Count a worker that ended and is replaced: ``reason`` exited, killed, hung or start."""
        self._count("worker_restarts_total", 1, reason)

    def worker_lookups(self, worker: str, number: float) -> None:
        """Count the calls that one worker answered; ``worker`` is its number."""
        self._count("worker_lookups_total", number, worker)

    def policy_applied(self, generation: int) -> None:
        """Say that policies came into force, now."""
        self._gauges["policy_generation"].set(generation)
        self._gauges["policy_applied_timestamp_seconds"].set_to_current_time()

    def policy_read(self) -> None:
        """Say that the policies were read, now."""
        self._gauges["policy_read_timestamp_seconds"].set_to_current_time()

    def policy_read_failed(self, reason: str) -> None:
        """Count a time when the policies could not be read."""
        self._count("policy_read_errors_total", 1, reason)

    def policy_restored(self) -> None:
        """Count policies that were written back after Redis had lost them."""
        self._count("policy_restored_total", 1)

    def policy_pushed(self, source: str, result: str) -> None:
        """Count a request: ``source`` api, cli or directory; ``result`` changed, same, invalid, too_large, failed."""
        self._count("policy_pushes_total", 1, source, result)

    def policy_rows_ignored(self, reason: str, number: int) -> None:
        """Count rows or values of pushed policies that have no effect."""
        self._count("policy_rows_ignored_total", number, reason)

    def policy_directory(self, in_force: bool) -> None:
        """Say whether the policies in force are those of the directory."""
        self._gauges["policy_directory_in_force"].set(in_force)

    def policy_directory_failed(self) -> None:
        """Count a content of the directory that could not be used."""
        self._count("policy_directory_errors_total", 1)

    def index_evicted(self, algorithm: str, reason: str, holdings: int) -> None:
        """Count holdings that the server removed itself: ``algorithm`` lru or lfu, ``reason`` ttl or cap."""
        if holdings:
            self._count("index_evictions_total", holdings, algorithm, reason)

    def tenant_evicted(self, tenant_id: str, prefixes: int) -> None:
        """Count distinct prefixes that a tenant's quota had no room for."""
        if tenant_id not in self._tenants and len(self._tenants) < MAX_TENANTS:
            self._tenants.add(tenant_id)
        label = tenant_id if tenant_id in self._tenants else OTHER
        self._count("tenant_evictions_total", prefixes, label, "over_entries")

    def trim_failed(self, limit: str, reason: str, number: int = 1) -> None:
        """Count a time when a limit, quota or cap, could not be kept; ``reason`` is the store's or models_skipped."""
        self._count("trim_failures_total", number, limit, reason)

    def credited(self, number: int) -> None:
        """Count hits of stretches that the index took."""
        self._count("lfu_credits_total", number)

    def credits_dropped(self, reason: str, number: int) -> None:
        """Count those that it did not: ``reason`` gone, queue_full or the store's."""
        if number:
            self._count("lfu_credits_dropped_total", number, reason)

    def sweeping(self, mine: bool) -> None:
        """Say whether this server is the one that sweeps."""
        self._gauges["sweeper"].set(mine)

    def swept(self, result: str, *, stats_rows: int = 0) -> None:
        """Count a turn to sweep: ``result`` ok, partial, failed, clock_uncertain or standby."""
        self._count("index_sweeps_total", 1, result)
        self._count("stats_rows_expired_total", stats_rows)

    def entries(self, prefixes: Mapping[ModelKey, int], *, complete: bool) -> None:
        """Set how many prefixes each model holds, as a sweep found them.

        Args:
            prefixes: distinct prefixes of each (tenant, model).
            complete: whether every model is named; then models that are not hold nothing.
        """
        found: dict[str, int] = dict.fromkeys(self._entries, 0) if complete else {}
        for model, number in prefixes.items():
            if model.tenant_id != RESERVED_TENANT:
                found[model.model_id] = found.get(model.model_id, 0) + number
        for model_id, number in sorted(found.items(), key=lambda item: item[1]):
            if model_id in self._entries or (number and self._admit(model_id)):
                self._set_entries(model_id, number)

    def _define(self, definition: Definition) -> None:
        name, text, labels = definition.full_name, definition.help, definition.labels
        if definition.kind == "counter":
            self._counters[definition.name] = Counter(name, text, labels, registry=self.registry)
        elif definition.kind == "gauge":
            self._gauges[definition.name] = Gauge(name, text, labels, registry=self.registry)
        else:
            self._histograms[definition.name] = Histogram(
                name, text, labels, registry=self.registry, buckets=LATENCY_BUCKETS
            )

    def _count(self, name: str, number: float, *labels: str) -> None:
        counter = self._counters[name]
        if labels:
            bound = self._bound.get((name, *labels))
            if bound is None:
                bound = self._bound[name, *labels] = counter.labels(*labels)
            bound.inc(number)  # type: ignore[attr-defined]
        else:
            counter.inc(number)

    def _count_to(self, name: str, total: int, *labels: str) -> None:
        """Count up to a total that somebody else keeps."""
        key = (name, *labels)
        self._count(name, max(0, total - self._totals.get(key, 0)), *labels)
        self._totals[key] = total

    def _bind_lookup(self, model: str, reason: str, hint: bool) -> tuple[Callable[[], None], Callable[[float], None]]:
        calls = self._counters["lookup_route_calls_total"].labels(model, reason, "true" if hint else "false")
        return calls.inc, self._histograms["lookup_route_latency_seconds"].labels(model).observe

    def _label(self, model_id: str) -> str:
        return model_id if model_id in self._entries else OTHER

    def _admit(self, model_id: str) -> bool:
        """Give a model series of its own, in place of one that holds nothing when all places are taken."""
        if model_id in self._entries:
            return True
        if len(self._entries) >= self._max_models:
            empty = next((known for known, number in self._entries.items() if not number), None)
            if empty is None:
                return False
            self._forget(empty)
        self._entries[model_id] = 0
        return True

    def _forget(self, model_id: str) -> None:
        del self._entries[model_id]
        self._gauges["index_entries"].remove_by_labels({"model": model_id})
        self._counters["lookup_route_calls_total"].remove_by_labels({"model": model_id})
        self._histograms["lookup_route_latency_seconds"].remove_by_labels({"model": model_id})
        self._bound = {key: bound for key, bound in self._bound.items() if model_id not in key[1:]}
        self._lookups = {key: bound for key, bound in self._lookups.items() if key[0] != model_id}

    def _set_entries(self, model_id: str, number: int) -> None:
        self._entries[model_id] = number
        self._gauges["index_entries"].labels(model_id).set(number)
