"""The metrics of several processes as those of one server.

Counters and histograms add up, and what a worker counted stays in the sum when it ends, so that they never fall.
Gauges are merged as their definition says, over the processes that run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from inference_cache.metric_table import DEFINITIONS
from inference_cache.metrics import MAX_MODELS, OTHER

SeriesKey: TypeAlias = tuple[str, tuple[tuple[str, str], ...]]
"""Name of a sample and its labels, in the order in which they were declared."""

_PREFIX = "inferencecache_"
_MODEL = "model"
_CREATED = "_created"
_COMBINE: dict[str, Callable[[Iterable[float]], float]] = {"sum": sum, "max": max, "min": min}
_RULES = {each.full_name: each.merge for each in DEFINITIONS if each.kind == "gauge"}


@dataclass(slots=True)
class Family:
    """One metric of one process or of several: its samples by name and labels, in the order of exposition."""

    kind: str
    help: str
    samples: dict[SeriesKey, float] = field(default_factory=dict)


Snapshot: TypeAlias = dict[str, Family]
"""What one process counted until some moment, by the name of the metric. Never changed once it is taken."""


def snapshot(registry: CollectorRegistry) -> Snapshot:
    """Return what a process counted; metrics about the process itself are left out."""
    return {
        metric.name: Family(
            metric.type,
            metric.documentation,
            {(each.name, tuple(each.labels.items())): each.value for each in metric.samples},
        )
        for metric in registry.collect()
        if metric.name.startswith(_PREFIX)
    }


def merged(snapshots: Iterable[Snapshot]) -> Snapshot:
    """Return the snapshots as one; a gauge takes the sum, the largest or the smallest value, as it is defined."""
    total: Snapshot = {}
    for each in snapshots:
        for name, family in each.items():
            into = total.setdefault(name, Family(family.kind, family.help)).samples
            rule = _RULES.get(name, "sum")
            for key, number in family.samples.items():
                _add(into, key, number, rule)
    return total


def counted(ended: Snapshot, max_models: int = MAX_MODELS) -> Snapshot:
    """Return what lasts of a process that has ended: what it counted, and of no more models than one process has.

    The oldest models beyond ``max_models`` are counted as ``other`` from then on, so that restarts do not add series
    without end.
    """
    lasting = {name: family for name, family in ended.items() if family.kind != "gauge"}
    series = [labels for family in lasting.values() for _, labels in family.samples]
    models = dict.fromkeys(text for labels in series for label, text in labels if label == _MODEL and text != OTHER)
    excess = set(list(models)[: max(0, len(models) - max_models)])
    return {name: _folded(family, excess) for name, family in lasting.items()} if excess else lasting


def value(taken: Snapshot, name: str) -> float:
    """Return a counter over all its labels, 0 when nothing was counted; ``name`` is without the prefix."""
    family = taken.get(_PREFIX + name.removesuffix("_total"))
    if family is None:
        return 0.0
    return sum(number for (sample, _), number in family.samples.items() if sample == _PREFIX + name)


class MergedCollector(Collector):
    """Shows snapshots, and the parent's own registry, as one server's.

    Args:
        own: the parent's registry; what it says of the process itself is shown too.
        snapshots: says what the workers counted.
    """

    def __init__(self, own: CollectorRegistry, snapshots: Callable[[], list[Snapshot]]) -> None:
        self._own = own
        self._snapshots = snapshots

    def collect(self) -> Iterator[Metric]:
        """Yield every metric once."""
        yield from (metric for metric in self._own.collect() if not metric.name.startswith(_PREFIX))
        for name, family in merged([snapshot(self._own), *self._snapshots()]).items():
            metric = Metric(name, family.help, family.kind)
            for (sample, labels), number in family.samples.items():
                metric.add_sample(sample, dict(labels), number)
            yield metric


def _add(samples: dict[SeriesKey, float], key: SeriesKey, number: float, rule: str) -> None:
    if key in samples:
        rule = "min" if key[0].endswith(_CREATED) else rule
        number = _COMBINE[rule]((samples[key], number))
    samples[key] = number


def _folded(family: Family, excess: set[str]) -> Family:
    """Return the family with the models of the excess counted as `other`."""
    folded = Family(family.kind, family.help)
    for (sample, labels), number in family.samples.items():
        kept = tuple((label, OTHER if label == _MODEL and text in excess else text) for label, text in labels)
        _add(folded.samples, (sample, kept), number, "sum")
    return folded
