from __future__ import annotations

import ast
import re
from pathlib import Path

import inference_cache

ROOT = Path(__file__).resolve().parent.parent
SERVICE = ROOT / "service" / "inference_cache"


def test_every_test_states_the_behaviour_it_guards() -> None:
    """A failing test must tell its reader which promise broke, so each has a docstring."""
    silent = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
        and not ast.get_docstring(node)
    ]
    assert silent == []


def test_changelog_speaks_of_the_version_in_the_package() -> None:
    """The newest heading of the changelog names the version that is built."""
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert re.search(r"\d+\.\d+\.\d+", headings[0]).group() == inference_cache.__version__  # type: ignore[union-attr]


def test_modules_stay_small() -> None:
    """A module above 400 lines has more than one idea in it."""
    large = {
        str(path.relative_to(ROOT)): lines
        for path in SERVICE.rglob("*.py")
        if "_pb" not in path.parts and (lines := len(path.read_text().splitlines())) > 400
    }
    assert large == {}


def test_every_exact_version_is_pinned() -> None:
    """Each line of the constraints is one exact version, without addresses, and covers what we depend on."""
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+_-]+", line)] == []
    pinned = {re.sub(r"[-_.]+", "-", line.split("==")[0]).lower() for line in lines}
    wanted = set(
        re.findall(r'^    "([a-z0-9-]+)(?:\[[a-z]+\])?[>=]=', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    )
    assert wanted
    assert wanted - pinned == set()
