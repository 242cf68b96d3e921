"""The picture of a comparison. Imported only when one is wanted: the plotting library takes its time to load."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from inference_cache.sim.compare import CACHE_AWARE
from inference_cache.sim.demo import Result

_OURS, _OTHERS, _LINE = "#1b7f5c", "#9aa5b1", "#c0392b"


def draw(result: Result, path: Path) -> None:
    """Write a PNG: token hit rates against the ideal, and times to first token."""
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    hits, waits = figure.subplots(1, 2)
    _draw_hits(hits, result)
    _draw_waits(waits, result)
    figure.suptitle(f"{result.prompts.source}: {result.prompts.part}")
    figure.savefig(path, dpi=120)


def _draw_hits(axes: Axes, result: Result) -> None:
    names = [one.routing for one in result.figures]
    rates = [100 * one.token_hit_rate for one in result.figures]
    bars = axes.bar(names, rates, color=[_OURS if name == CACHE_AWARE else _OTHERS for name in names])
    axes.bar_label(bars, fmt="%.1f")
    ideal = 100 * result.figures[0].ideal_token_hit_rate
    axes.axhline(ideal, color=_LINE, linestyle="--", label=f"one cache of the same total size: {ideal:.1f}")
    axes.set_ylim(0, 1.25 * max(ideal, *rates, 1))
    axes.set_title("Token hit rate, %")
    axes.legend(loc="upper right")


def _draw_waits(axes: Axes, result: Result) -> None:
    places = range(len(result.figures))
    median = [one.ttft_p50_ms / 1000 for one in result.figures]
    slowest = [one.ttft_p99_ms / 1000 for one in result.figures]
    axes.bar_label(axes.bar([at - 0.2 for at in places], median, 0.4, color=_OURS, label="p50"), fmt="%.2f")
    axes.bar_label(axes.bar([at + 0.2 for at in places], slowest, 0.4, color=_OTHERS, label="p99"), fmt="%.2f")
    axes.set_xticks(list(places), [one.routing for one in result.figures])
    axes.set_ylim(0, 1.25 * max(0.001, *slowest))
    axes.set_title("Simulated time to first token, s")
    axes.legend(loc="upper right")
