"""The report of a run, as Markdown; what is printed at the end of a run is the same text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from loadtest.bench.result import Cell, Item, Results, Table
from loadtest.bench.stats import Spread
from loadtest.bench.targets import verdicts

_INTRODUCTION = (
    "Written by `python -m loadtest.bench report` from the JSON of one run of `make bench`; not edited by hand. A "
    "figure is the median of several runs, with the smallest and the largest of them in parentheses. Figures are "
    "ratios against a baseline of the same run, or costs on the server's side; wall-clock rates belong to the "
    "machine below."
)
_SIGNIFICANT = 3


def render(results: Results, pictures: str = "") -> str:
    """Return the whole report; ``pictures`` is the way to the PNGs from where it will lie, empty for none."""
    parts = ["# Benchmarks", _INTRODUCTION, "## Machine", _facts(results), "## Targets", targets(results)]
    for item in results.items:
        parts += _item(item, pictures)
    return "\n\n".join(parts) + "\n"


def _facts(results: Results) -> str:
    rows = [*results.machine.items(), *results.settings.items()]
    return grid(("", ""), rows)


def targets(results: Results) -> str:
    """Return the targets and what was measured, as a table."""
    rows = []
    for target, value, word in verdicts(results.figures):
        bound = f"{'≥' if target.at_least else '≤'} {number(target.bound)} {target.unit}"
        rows.append((target.text, bound, cell(value) if value else "", word))
    return grid(("figure", "target", "measured", ""), rows)


def _item(item: Item, pictures: str) -> list[str]:
    parts = [f"## {item.title}", item.method, *item.notes]
    for table in item.tables:
        parts += [f"### {table.title}", markdown(table)]
    if pictures:
        parts += [f"![{curve.title}]({pictures}/{curve.name}.png)" for curve in item.curves]
    return parts


def markdown(table: Table) -> str:
    """Return a table as Markdown."""
    return grid(table.columns, [[cell(value) for value in row] for row in table.rows])


def grid(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return rows of text as a Markdown table, its columns aligned for readers of the source.

    >>> print(grid(("a", "b"), [("one", "1")]))
    | a   | b |
    |-----|---|
    | one | 1 |
    """
    lines = [list(heads), *(list(row) for row in rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(heads))]
    head, *body = (
        "| " + " | ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) + " |" for line in lines
    )
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([head, rule, *body])


def cell(value: Cell) -> str:
    """Return a cell as text.

    >>> cell(Spread(41.27, 40.0, 55.5, 5)), cell(7), cell("lone")
    ('41.3 (40.0-55.5)', '7', 'lone')
    """
    if isinstance(value, Spread):
        if value.runs == 1 or value.low == value.high:
            return number(value.median)
        return f"{number(value.median)} ({number(value.low)}-{number(value.high)})"
    return value if isinstance(value, str) else number(value)


def number(value: float) -> str:
    """Return a number with about three significant digits.

    >>> number(123456.7), number(41.27), number(2.345), number(0.01234), number(8192), number(0.0)
    ('123,457', '41.3', '2.35', '0.0123', '8,192', '0')
    """
    if isinstance(value, int) or value == 0 or abs(value) >= 100:  # noqa: PLR2004 - three digits before the point
        return f"{round(value):,}"
    if abs(value) < 1:
        return f"{value:.{_SIGNIFICANT}g}"
    return f"{value:.{_SIGNIFICANT - len(str(int(abs(value))))}f}"
