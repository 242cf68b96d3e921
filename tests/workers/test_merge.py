from __future__ import annotations

from functools import reduce

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from inference_cache.domain.models import ModelKey
from inference_cache.metrics import Metrics
from inference_cache.workers.merge import MergedCollector, Snapshot, counted, merged, snapshot, value
from inference_cache.workers.tally import Tally

LOOKUPS = "lookup_route_calls_total"


def looked_up(metrics: Metrics, model: str, seconds: float = 0.001) -> None:
    metrics.looked_up(model, "NO_HINT", hint=False, index_knows=True, seconds=seconds)


def worker(*models: str, up: bool = True) -> Metrics:
    """Return the metrics of a worker that answered a lookup of each model."""
    metrics = Metrics()
    metrics.serving(up, tls=False)
    metrics.store_state(True)
    for model in models:
        looked_up(metrics, model)
    return metrics


def shown(parent: Metrics, *snapshots: Snapshot) -> dict[str, float]:
    """Return what a scrape of the merged metrics gives, by series."""
    registry = CollectorRegistry()
    registry.register(MergedCollector(parent.registry, lambda: list(snapshots)))
    return {
        sample.name + "".join(f",{label}={text}" for label, text in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
    }


def test_counters_and_histograms_add_up() -> None:
    """The sums over the workers are what one process would have counted."""
    one, other, alone = worker("a", "b"), worker("b"), worker("a", "b", "b")
    for metrics in (one, alone):
        looked_up(metrics, "a", 0.02)
    both = shown(Metrics(), snapshot(one.registry), snapshot(other.registry))
    single = shown(alone)
    ours = {series for series in single if series.startswith("inferencecache_lookup") and "_created" not in series}
    assert len(ours) > 20
    assert {series: both[series] for series in ours} == {series: single[series] for series in ours}


def test_gauges_follow_their_rule() -> None:
    """A state is the worst or the best of all, an amount is the sum; none is multiplied by the number of workers."""
    parent, one, other = worker(), worker(), worker(up=False)
    for metrics in (parent, one):
        metrics.store_policy(True)
    for metrics in (one, other):
        metrics.evictions_waiting(2)
    one.entries({ModelKey("t", "m"): 5}, complete=True)
    other.entries({ModelKey("t", "m"): 7}, complete=True)
    found = shown(parent, snapshot(one.registry), snapshot(other.registry))
    assert found["inferencecache_server_up"] == 1
    assert found["inferencecache_store_up"] == 1
    assert found["inferencecache_store_noeviction"] == 0
    assert found["inferencecache_evictions_waiting"] == 4
    assert found["inferencecache_index_entries,model=m"] == 7


def test_a_scraper_understands_what_is_merged() -> None:
    """Both formats parse, in OpenMetrics with its strict rules on order and grouping; the process is the parent's."""
    registry = CollectorRegistry()
    snapshots = [snapshot(worker("a", "c").registry), snapshot(worker("b", "a").registry)]
    registry.register(MergedCollector(Metrics().registry, lambda: snapshots))
    encode, _ = choose_encoder("application/openmetrics-text; version=1.0.0")
    strict = list(parse_openmetrics(encode(registry).decode()))  # type: ignore[no-untyped-call]
    assert len({family.name for family in strict}) == len(strict)
    plain = generate_latest(registry).decode()
    assert plain.count("\nprocess_cpu_seconds_total ") == 1
    assert len(list(text_string_to_metric_families(plain))) > 20


def test_what_a_worker_counted_outlives_it() -> None:
    """Counters never fall when a worker ends and its successor begins at 0; its gauges go with it."""
    tally = Tally()
    first = worker("a", "a")
    first.evictions_waiting(3)
    assert tally.note(snapshot(first.registry)) == 2
    looked_up(first, "b")
    assert tally.note(snapshot(first.registry)) == 1
    tally.close()
    found = merged(tally.snapshots)
    assert value(found, LOOKUPS) == 3
    assert "inferencecache_evictions_waiting" not in found
    assert tally.note(snapshot(worker("a").registry)) == 1
    tally.close()
    assert value(merged(tally.snapshots), LOOKUPS) == 4


def test_a_tally_never_counts_back() -> None:
    """A model that made room for another takes its series along; that is no negative number of calls."""
    tally = Tally()
    tally.note(snapshot(worker("a", "b").registry))
    assert tally.note(snapshot(worker("a").registry)) == 0


def test_restarts_do_not_add_series_without_end() -> None:
    """However many models come and go with workers, the oldest are `other`, and no call is lost."""
    kept: Snapshot = reduce(
        lambda before, each: counted(merged([before, snapshot(worker(*each).registry)]), max_models=3),
        (("a", "b"), ("c", "a"), ("d", "e")),
        Snapshot(),
    )
    series = [dict(labels) for _, labels in kept["inferencecache_lookup_route_calls"].samples]
    assert {labels["model"] for labels in series} == {"other", "c", "d", "e"}
    assert value(kept, LOOKUPS) == 6
    counts = kept["inferencecache_lookup_route_latency_seconds"].samples
    assert sum(number for (name, _), number in counts.items() if name.endswith("_count")) == 6


def test_what_was_never_counted_is_0() -> None:
    """A worker that has not answered anything has answered nothing."""
    assert value({}, LOOKUPS) == 0
    assert value(snapshot(Metrics().registry), LOOKUPS) == 0
