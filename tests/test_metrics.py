"""Metrics: what is scraped is what is documented, and no caller can make series without end."""

from __future__ import annotations

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from inference_cache.domain.models import RESERVED_TENANT, ModelKey
from inference_cache.metric_table import DEFINITIONS, LATENCY_BUCKETS, describe
from inference_cache.metrics import MAX_TENANTS, OTHER, Metrics


def lookups(metrics: Metrics) -> dict[str, float]:
    """Return the number of lookups by model label."""
    counted: dict[str, float] = {}
    for family in metrics.registry.collect():
        for sample in family.samples:
            if sample.name == "inferencecache_lookup_route_calls_total":
                model = sample.labels["model"]
                counted[model] = counted.get(model, 0) + sample.value
    return counted


def entries(metrics: Metrics) -> dict[str, float]:
    """Return the entry gauge by model label."""
    return {
        sample.labels["model"]: sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == "inferencecache_index_entries"
    }


def look_up(metrics: Metrics, model: str, *, known: bool) -> None:
    """Count a lookup of a model that the index knows or does not."""
    metrics.looked_up(model, "NO_HINT", hint=False, index_knows=known, seconds=0.001)


def exercise(metrics: Metrics) -> None:  # noqa: PLR0915 - a line for each method
    """Call every method once."""
    model = ModelKey("t", "m")
    metrics.serving(True, tls=False)
    metrics.store_state(True)
    metrics.store_clock(0.5)
    metrics.store_restarts(1)
    metrics.store_policy(True)
    metrics.store_replicas(used=2, skipped=1, lag_s=0.5, by_replica=7, by_primary=3)
    metrics.store_lane("reads", in_flight=1, waiting=2, circuits_open=1, circuit_openings=3, reconnects=4)
    look_up(metrics, "m", known=True)
    metrics.lookup_shed()
    metrics.lookup_malformed("word")
    metrics.reported(model, holdings=2, prefixes=1)
    metrics.report_dropped("word")
    metrics.event("PREFIX_EVICTED")
    metrics.removed("PREFIX_EVICTED", 3)
    metrics.event_ignored("word")
    metrics.evictions_waiting(1)
    metrics.clamped("event", -1)
    metrics.reserved_tenant("LookupRoute")
    metrics.store_error("LookupRoute", "word")
    metrics.rpc_error("PublishEvent", "UNAVAILABLE")
    metrics.unexpected_error("LookupRoute")
    metrics.policy_applied(3)
    metrics.policy_read()
    metrics.policy_read_failed("word")
    metrics.policy_restored()
    metrics.policy_pushed("api", "changed")
    metrics.policy_rows_ignored("word", 1)
    metrics.policy_directory(True)
    metrics.policy_directory_failed()
    metrics.workers_ready(2)
    metrics.worker_restarted("killed")
    metrics.worker_lookups("0", 3)
    metrics.index_evicted("lru", "ttl", 1)
    metrics.tenant_evicted("t", 1)
    metrics.trim_failed("cap", "word")
    metrics.credited(2)
    metrics.credits_dropped("gone", 1)
    metrics.sweeping(True)
    metrics.swept("ok", stats_rows=1)
    metrics.entries({model: 5}, complete=True)


def test_what_is_documented_is_what_is_scraped() -> None:
    """Every metric of the table shows up under its name with its type, labels and help, and no other of ours does."""
    metrics = Metrics()
    exercise(metrics)
    scraped = {}
    for family in text_string_to_metric_families(generate_latest(metrics.registry).decode()):
        if not family.name.startswith("inferencecache_") or family.name.endswith("_created"):
            continue
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        assert any(sample.value for sample in family.samples) or name.endswith("tls_enabled"), name
        scraped[name] = (family.type, labels, family.documentation)
    assert scraped == {each.full_name: (each.kind, set(each.labels), each.help) for each in describe()}


def test_the_baselines_names_are_kept() -> None:
    """Dashboards and alerts of the baseline find the names, labels and buckets that they know."""
    table = {each.full_name: each.labels for each in DEFINITIONS}
    assert table["inferencecache_server_up"] == ()
    assert table["inferencecache_server_grpc_tls_enabled"] == ()
    assert table["inferencecache_index_entries"] == ("model",)
    assert table["inferencecache_lookup_route_calls_total"] == ("model", "reason_code", "hint_used")
    assert table["inferencecache_lookup_route_latency_seconds"] == ("model",)
    assert table["inferencecache_index_evictions_total"] == ("algorithm", "reason")
    assert LATENCY_BUCKETS == (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1)


def test_unknown_models_share_a_label() -> None:
    """What callers merely name is `other`; what the index knows has series of its own from then on."""
    metrics = Metrics()
    for at in range(50):
        look_up(metrics, f"made-up-{at}", known=False)
    look_up(metrics, "m", known=True)
    look_up(metrics, "m", known=False)
    assert lookups(metrics) == {"other": 50, "m": 2}


def test_the_number_of_models_is_bounded() -> None:
    """Beyond the bound models are `other`; one that holds nothing makes room, and its series go."""
    metrics = Metrics(max_models=2)
    for name in "abc":
        metrics.reported(ModelKey("t", name), holdings=1, prefixes=1)
        look_up(metrics, name, known=True)
    assert lookups(metrics) == {"a": 1, "b": 1, "other": 1}
    metrics.entries({ModelKey("t", "b"): 1}, complete=True)
    assert entries(metrics) == {"a": 0, "b": 1}
    look_up(metrics, "c", known=True)
    assert lookups(metrics) == {"b": 1, "c": 1, "other": 1}
    assert set(entries(metrics)) == {"b"}
    look_up(metrics, "c", known=True)
    assert lookups(metrics) == {"b": 1, "c": 2, "other": 1}


def test_entries_add_up_over_tenants() -> None:
    """The gauge of a model is over all tenants but the reserved one."""
    metrics = Metrics()
    found = {ModelKey("a", "m"): 3, ModelKey("b", "m"): 4, ModelKey(RESERVED_TENANT, "m"): 5, ModelKey("a", "empty"): 0}
    metrics.entries(found, complete=True)
    assert entries(metrics) == {"m": 7}


@pytest.mark.parametrize(("complete", "left"), [(True, 0), (False, 3)])
def test_a_model_that_is_gone_stays_at_zero(complete: bool, left: int) -> None:
    """A model that a complete sweep does not name holds nothing; a partial sweep says nothing about it."""
    metrics = Metrics()
    metrics.entries({ModelKey("a", "m"): 3}, complete=True)
    metrics.entries({}, complete=complete)
    assert entries(metrics) == {"m": left}


def test_servers_of_one_process_count_apart() -> None:
    """Nothing is global."""
    one, other = Metrics(), Metrics()
    look_up(one, "m", known=True)
    assert (lookups(one), lookups(other)) == ({"m": 1}, {})


def test_the_direction_of_a_moved_time() -> None:
    """Times before the epoch and times to come are told apart."""
    metrics = Metrics()
    metrics.clamped("report", -1)
    metrics.clamped("event", 10**18)
    for source, direction in (("report", "past"), ("event", "future")):
        labels = {"source": source, "direction": direction}
        assert metrics.registry.get_sample_value("inferencecache_clamped_timestamps_total", labels) == 1


def test_totals_kept_elsewhere_are_counted_once() -> None:
    """A total that is told again counts only by what it has grown."""
    metrics = Metrics()
    for reconnects in (2, 2, 5):
        metrics.store_lane("reads", in_flight=0, waiting=0, circuits_open=0, circuit_openings=0, reconnects=reconnects)
    assert metrics.registry.get_sample_value("inferencecache_store_reconnects_total", {"lane": "reads"}) == 5


def test_only_so_many_tenants_have_series_of_their_own() -> None:
    """Quotas name tenants; however many of them exceed theirs, the label stays bounded and nothing is lost."""
    metrics = Metrics()
    for number in range(MAX_TENANTS + 5):
        metrics.tenant_evicted(f"t{number}", 2)
    metrics.tenant_evicted("t0", 1)
    series = {
        sample.labels["tenant_id"]: sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == "inferencecache_tenant_evictions_total"
    }
    assert len(series) == MAX_TENANTS + 1
    assert (series["t0"], series[OTHER]) == (3, 10)
