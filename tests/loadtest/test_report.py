from __future__ import annotations

import doctest
from pathlib import Path

import pytest

from loadtest.bench import __main__ as command
from loadtest.bench import layouts, profile, report, result, stats
from loadtest.bench.result import Curve, Item, Results, Table
from loadtest.bench.stats import Spread, spread
from loadtest.bench.targets import TARGETS, verdicts

LOOKUP = "lookup_512_us_valkey"


def results(**figures: Spread) -> Results:
    """Return a run with one item that has a bit of everything."""
    item = Item("redis_cost", "What a lookup costs", "How it was measured.", seconds=1.5)
    item.tables.append(Table("Lookup", ("blocks", "µs", "where"), [(512, spread([40.0, 41.25, 50.0]), "Valkey")]))
    item.curves.append(
        Curve("lookup", "Lookup", "blocks", "µs", "xy", {"Valkey": [(1, spread([2.0])), (8, spread([3.0]))]})
    )
    item.figures |= figures
    item.notes.append("Something about this run.")
    return Results({"processor": "some"}, {"scale": "quick"}, [item])


@pytest.mark.parametrize("module", [stats, report, layouts, profile])
def test_examples_in_docstrings_hold(module: object) -> None:
    """What a docstring shows is what the function does."""
    tried = doctest.testmod(module)  # type: ignore[arg-type]
    assert tried.attempted > 0
    assert tried.failed == 0


def test_results_come_back_from_json(tmp_path: Path) -> None:
    """A report made later from the file is the report of the run."""
    run = results(**{LOOKUP: spread([30.0, 31.0])})
    result.write(run, tmp_path / "deep" / "results.json")
    again = result.read(tmp_path / "deep" / "results.json")
    assert again == run
    assert report.render(again) == report.render(run)


def test_a_report_shows_median_and_spread() -> None:
    """Each figure stands with the smallest and largest run, so that a reader sees how much it is worth."""
    text = report.render(results())
    assert "| 512    | 41.2 (40.0-50.0) | Valkey |" in text
    assert "How it was measured." in text
    assert "Something about this run." in text


@pytest.mark.parametrize(("value", "word"), [(45.0, "met"), (45.1, "missed")])
def test_a_target_is_met_at_its_bound(value: float, word: str) -> None:
    """The verdict comes from the figure's median and the bound, and stands in the report."""
    figures = {LOOKUP: spread([value])}
    assert [found for target, _, found in verdicts(figures) if target.figure == LOOKUP] == [word]
    line = next(line for line in report.render(results(**figures)).splitlines() if "512-block lookup" in line)
    assert line.endswith(f"| {word.ljust(12)} |")


def test_more_is_better_where_the_target_says_so() -> None:
    """A rate below its bound is a miss, one above it is not."""
    words = [
        next(
            word
            for target, _, word in verdicts({"two_servers_ratio": spread([value])})
            if target.figure == "two_servers_ratio"
        )
        for value in (1.79, 1.81)
    ]
    assert words == ["missed", "met"]


def test_nothing_measured_is_nothing_met() -> None:
    """A target whose item was left out is said to be open."""
    assert {word for _, value, word in verdicts({}) if value is None} == {"not measured"}
    assert len({target.figure for target in TARGETS}) == len(TARGETS)


def test_the_document_is_written_from_the_file(tmp_path: Path) -> None:
    """`report JSON` needs no server: it writes the document, and the pictures where the document looks for them."""
    result.write(results(), tmp_path / "results.json")
    assert command.main(["report", str(tmp_path / "results.json"), "--to", str(tmp_path / "bench.md")]) == 0
    assert "![Lookup](bench/lookup.png)" in (tmp_path / "bench.md").read_text()
    assert (tmp_path / "bench" / "lookup.png").read_bytes().startswith(b"\x89PNG")


def test_a_missing_file_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A report of nothing ends with a sentence and an exit status, not with a traceback."""
    assert command.main(["report", str(tmp_path / "none.json")]) == 1
    assert "none.json" in capsys.readouterr().err


def test_an_unknown_item_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """A misspelt item is not a run without it."""
    with pytest.raises(SystemExit):
        command.main(["--only", "redis_cots"])
    assert "redis_cots" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("item", "picture", "words"), [("redis_cost", "lookup.png", "segments walked"), ("trace", "", "tokens")]
)
def test_a_quick_run_leaves_json_tables_and_pictures(
    item: str, picture: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The whole way works on real servers: measured, printed, written, drawn."""
    assert command.main(["--quick", "--runs", "1", "--only", item, "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert words in printed
    assert "Targets" in printed
    (found,) = result.read(tmp_path / "results.json").items
    assert found.name == item
    assert found.tables[0].rows
    assert not picture or (tmp_path / picture).stat().st_size > 0
