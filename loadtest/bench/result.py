"""What a benchmark leaves: tables, curves and named figures, as plain data that becomes JSON and comes back.

A cell of a table is text, a number or a :class:`~loadtest.bench.stats.Spread`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from loadtest.bench.stats import Spread

Cell: TypeAlias = str | int | float | Spread


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under a title; the first column says what each row is."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[Cell, ...]]


@dataclass(frozen=True, slots=True)
class Curve:
    """One picture: several lines over one x axis, each point with its spread.

    Attributes:
        name: of the file.
        log: which axes are logarithmic: ``"x"``, ``"xy"`` or ``""``.
        lines: ``label -> [(x, spread), ...]``.
    """

    name: str
    title: str
    x: str
    y: str
    log: str
    lines: dict[str, list[tuple[float, Spread]]]


@dataclass(slots=True)
class Item:
    """What one benchmark found.

    Attributes:
        name: the word for ``--only``.
        title: the heading.
        method: how it was measured, and against what.
        figures: the numbers that targets refer to, by name.
        notes: what a reader must know about this very run.
        seconds: how long it took.
    """

    name: str
    title: str
    method: str
    tables: list[Table] = field(default_factory=list)
    curves: list[Curve] = field(default_factory=list)
    figures: dict[str, Spread] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Results:
    """A whole run."""

    machine: dict[str, str]
    settings: dict[str, str]
    items: list[Item]

    @property
    def figures(self) -> dict[str, Spread]:
        """All figures of all items."""
        return {name: value for item in self.items for name, value in item.figures.items()}


def write(results: Results, path: Path) -> None:
    """Write a run as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(results), indent=1, ensure_ascii=False) + "\n")


def read(path: Path) -> Results:
    """Read what :func:`write` wrote."""
    raw = json.loads(path.read_text())
    return Results(raw["machine"], raw["settings"], [_item(one) for one in raw["items"]])


def _item(raw: Mapping[str, Any]) -> Item:
    return Item(
        raw["name"],
        raw["title"],
        raw["method"],
        [
            Table(one["title"], tuple(one["columns"]), [tuple(map(_cell, row)) for row in one["rows"]])
            for one in raw["tables"]
        ],
        [_curve(one) for one in raw["curves"]],
        {name: Spread(**value) for name, value in raw["figures"].items()},
        list(raw["notes"]),
        raw["seconds"],
    )


def _curve(raw: Mapping[str, Any]) -> Curve:
    lines = {label: [(x, Spread(**value)) for x, value in points] for label, points in raw["lines"].items()}
    return Curve(raw["name"], raw["title"], raw["x"], raw["y"], raw["log"], lines)


def _cell(raw: Any) -> Cell:
    return Spread(**raw) if isinstance(raw, dict) else raw
