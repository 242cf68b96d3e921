"""The operators' table of faults is what the tests try."""

from __future__ import annotations

import re
from pathlib import Path

from tests.faults.scenarios import SCENARIOS, Scenario

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "faults.md").read_text()


def codes(names: frozenset[str]) -> str:
    """Return words as the table has them."""
    return ", ".join(f"`{name}`" for name in sorted(names))


def row(scenario: Scenario) -> str:
    """Return the row of a scenario."""
    producers = codes(scenario.producers) or "go on"
    cells = (
        scenario.name,
        scenario.what_happens,
        codes(scenario.lookups) + (f" (or {codes(scenario.also)})" if scenario.also else ""),
        producers + (", evictions go on" if scenario.evictions else ""),
        "kept" if scenario.keeps else "cold",
    )
    return f"| {' | '.join(cells)} |"


def test_each_fault_has_its_row_and_each_row_its_test() -> None:
    """Whoever reads the table can rely on every word of it, in the tests' order."""
    (table,) = re.findall(r"\| fault \|.*\n\|[ -|]+\n((?:\|.*\n)+)", TEXT)
    assert table.splitlines() == [row(each) for each in SCENARIOS]


def test_each_scenario_says_what_users_see() -> None:
    """A scenario is described for people: what happens in one line, and what they notice."""
    for each in SCENARIOS:
        what_happens, nothing, *seen = (each.strikes.__doc__ or "").splitlines()
        assert what_happens.endswith(".")
        assert nothing == ""
        assert "".join(seen).strip()
