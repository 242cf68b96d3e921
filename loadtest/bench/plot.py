"""The curves of a run as PNG files. Imported only when they are wanted: the plotting library takes its time to load."""

from __future__ import annotations

from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from loadtest.bench.result import Curve, Results


def draw(results: Results, directory: Path) -> list[Path]:
    """Write each curve of a run and return the files."""
    directory.mkdir(parents=True, exist_ok=True)
    return [_draw(curve, directory / f"{curve.name}.png") for item in results.items for curve in item.curves]


def _draw(curve: Curve, path: Path) -> Path:
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for label, points in curve.lines.items():
        xs = [x for x, _ in points]
        (line,) = axes.plot(xs, [value.median for _, value in points], marker="o", label=label)
        lows, highs = [value.low for _, value in points], [value.high for _, value in points]
        axes.fill_between(xs, lows, highs, color=line.get_color(), alpha=0.15)
    if "x" in curve.log:
        axes.set_xscale("log")
    if "y" in curve.log:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.set_title(curve.title)
    axes.set_xlabel(curve.x)
    axes.set_ylabel(curve.y)
    axes.grid(visible=True, which="major", alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=110)
    return path
