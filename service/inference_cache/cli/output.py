"""What every command shares: where output goes, how an error reads, which exit status it has.

Results go to stdout, everything else to stderr, so that ``--output json`` can be piped. Status 0 is success, 1 a
failure outside the command (no server, no Redis, a taken port), 2 a mistake in how it was called.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Annotated, Any, NoReturn

import orjson
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

FAILED = 1
USAGE = 2


class Output(StrEnum):
    """How a result is printed."""

    TABLE = "table"
    JSON = "json"


OutputOption = Annotated[Output, typer.Option("--output", "-o", help="table for people, json for programs.")]


def printable(text: str) -> str:
    """Return text of a peer as it may reach a terminal: what does not print is written as an escape."""
    return "".join(each if each.isprintable() or each == "\n" else _escaped(each) for each in text)


def _escaped(each: str) -> str:
    return each.encode("unicode_escape", "surrogatepass").decode("ascii")


def plural(number: int, one: str, many: str) -> str:
    """Return a number with the word that goes with it.

    >>> plural(1, "policy", "policies"), plural(0, "policy", "policies")
    ('1 policy', '0 policies')
    """
    return f"{number} {one if number == 1 else many}"


def fail(message: str, status: int = FAILED) -> NoReturn:
    """Print one sentence to stderr and end the command."""
    Console(stderr=True, soft_wrap=True, highlight=False).print(f"[red]error:[/red] {escape(printable(message))}")
    raise typer.Exit(status)


def print_json(value: Mapping[str, Any]) -> None:
    """Print one JSON object to stdout; what does not print is written as JSON's own escapes."""
    text = orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()
    if not text.replace("\n", "").isprintable():
        text = "".join(each if each.isprintable() or each == "\n" else json.dumps(each)[1:-1] for each in text)
    sys.stdout.write(text + "\n")


def print_table(
    title: str, columns: Iterable[str], rows: Iterable[Iterable[object]], caption: str, left: Iterable[str] = ()
) -> None:
    """Print a table to stdout; ids are shown as they are, whatever markup they resemble.

    Columns after the first are aligned right, other than those named in ``left``.
    """
    texts = set(left)
    table = Table(title=escape(printable(title)), caption=escape(caption), title_justify="left", caption_justify="left")
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index and column not in texts else "left", overflow="fold")
    for row in rows:
        table.add_row(*(escape(printable(str(cell))) for cell in row))
    Console().print(table)
