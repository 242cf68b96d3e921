"""Write the tables of the README from the code they describe, or check that they are up to date.

    python scripts/generate_docs.py            rewrite README.md between its markers
    python scripts/generate_docs.py --check    exit 1 when a table differs from the code

Tables: flags (:mod:`inference_cache.config`), metrics (:mod:`inference_cache.metric_table`) and reason codes
(:mod:`inference_cache.domain.reasons`, where the string under each constant is its explanation).
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path

from inference_cache.config import all_settings
from inference_cache.domain import reasons
from inference_cache.metric_table import describe

README = Path(__file__).resolve().parent.parent / "README.md"


def flag_table() -> str:
    """Return the settings of `serve`."""
    rows = [
        (
            f"`{item.flag}`",
            ", ".join(f"`{name}`" for name in item.env),
            f"`{item.default}`" if item.default else "empty",
            item.unit,
            item.help,
        )
        for item in all_settings()
    ]
    return table(("flag", "environment", "default", "unit", "what it does"), rows)


def metric_table() -> str:
    """Return every metric of the server."""
    rows = [
        (f"`{one.full_name}`", one.kind, ", ".join(f"`{label}`" for label in one.labels), one.help)
        for one in describe()
    ]
    return table(("metric", "type", "labels", "meaning"), rows)


def reason_table() -> str:
    """Return every reason code with its explanation."""
    told = explanations(Path(reasons.__file__).read_text())
    return table(("reason code", "meaning"), [(f"`{code}`", told[code]) for code in reasons.REASON_CODES])


def explanations(source: str) -> dict[str, str]:
    """Return the string that follows each constant of a module, by the constant's name."""
    body = ast.parse(source).body
    return {
        one.target.id: " ".join(str(ast.literal_eval(after.value)).split())
        for one, after in pairwise(body)
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name) and isinstance(after, ast.Expr)
    }


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table."""
    columns = list(head)
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in lines)


TABLES: dict[str, Callable[[], str]] = {"reasons": reason_table, "flags": flag_table, "metrics": metric_table}


def generated(text: str) -> str:
    """Return the README with every table written anew.

    Raises:
        ValueError: a marker is missing or twice there.
    """
    for name, make in TABLES.items():
        marked = re.compile(rf"(<!-- begin {name}:[^\n]*-->\n).*?(<!-- end {name} -->)", re.DOTALL)
        found = marked.findall(text)
        if len(found) != 1:
            raise ValueError(f"README.md needs one pair of markers for {name}, and has {len(found)}")
        before, after = text[: text.index(found[0][0])] + found[0][0], text[text.index(found[0][1]) :]
        text = f"{before}\n{make()}\n\n{after}"
    return text


def main() -> int:
    """Run as a command; return the exit status."""
    parser = argparse.ArgumentParser(description="Write the README's tables from the code.")
    parser.add_argument("--check", action="store_true", help="compare instead of writing; exit 1 on a difference")
    check = parser.parse_args().check
    text = README.read_text()
    fresh = generated(text)
    if not check:
        README.write_text(fresh)
    elif fresh != text:
        print("README.md differs from the code: run make docs", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
