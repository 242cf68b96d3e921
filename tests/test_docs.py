from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from inference_cache.config import all_settings
from inference_cache.domain.manifests import parse_manifests
from inference_cache.domain.reasons import REASON_CODES
from inference_cache.metric_table import DEFINITIONS
from inference_cache.store.scripts import load, names
from scripts import generate_docs

ROOT = Path(__file__).resolve().parent.parent
SERVICE = ROOT / "service" / "inference_cache"
README = (ROOT / "README.md").read_text()
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()
LINK = re.compile(r"\]\((?!https?:)([^)#]+)\)")


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the table of the architecture whose first column has this heading."""
    table = re.search(rf"^\| {heading} \|.*\n\|[ -|]+\n((?:\|.*\n)+)", ARCHITECTURE, re.MULTILINE)
    assert table, heading
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.group(1).splitlines()]


def assigned(text: str, name: str) -> str:
    """Return the literal that a source assigns to a constant, in Python or Lua, alone or as one of several."""
    found = re.search(rf"^(?:local )?((?:\w+, )*{name}(?:, \w+)*) = ([^#\n]+?)(?: --.*)?$", text, re.MULTILINE)
    assert found, name
    return found.group(2).split(", ")[found.group(1).split(", ").index(name)]


def test_tables_are_what_the_code_says() -> None:
    """Flags, metrics and reason codes in the README are those of this version; `make docs` rewrites them."""
    assert generate_docs.generated(README) == README


def test_tables_name_everything() -> None:
    """The generator leaves nothing out."""
    for name in [item.flag for item in all_settings()] + [one.full_name for one in DEFINITIONS] + list(REASON_CODES):
        assert README.count(f"| `{name}` |") == 1


def test_missing_marker_is_an_error() -> None:
    """A table whose place was edited away is missed, not silently dropped."""
    with pytest.raises(ValueError, match="flags"):
        generate_docs.generated(README.replace("<!-- end flags -->", ""))


def test_manifests_of_the_readme_are_accepted() -> None:
    """Who copies them gets what they say, without a warning."""
    (example,) = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    found = parse_manifests({"README.md": example.encode()})
    assert (set(found.policy_set.policies), set(found.policy_set.quotas)) == ({"acme"}, {"acme"})
    assert found.warnings == ()


@pytest.mark.parametrize(
    "name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/architecture.md", "docs/faults.md"]
)
def test_links_lead_somewhere(name: str) -> None:
    """Every relative link names a file of the repository."""
    here = ROOT / name
    assert [link for link in LINK.findall(here.read_text()) if not (here.parent / link).exists()] == []


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "docs/architecture.md"])
def test_named_files_exist(name: str) -> None:
    """A file that the text sends its reader to is there."""
    named = re.findall(r"`([\w/]+\.(?:py|lua|md))[`:]", (ROOT / name).read_text())
    assert named
    assert [path for path in named if not (ROOT / path).exists() and not (SERVICE / path).exists()] == []


def test_every_script_has_its_row() -> None:
    """The table of scripts names each of them once, with the flags that its first line has."""
    stated = [(name, frozenset(re.findall(r"`([\w-]+)`", flags))) for name, flags, *_ in rows("script")]
    assert sorted(stated) == [(f"`{name}`", load(name).flags) for name in names()]


def test_bounds_of_scripts_are_stated() -> None:
    """Each bound that a script sets itself is among the numbers of its row."""
    checked = 0
    for name, _, _, cost in rows("script"):
        text = (ROOT / "lua" / f"{name.strip('`')}.lua").read_text()
        for constant in re.findall(r"\bMAX_[A-Z]+\b(?=[A-Z_, ]* = )", text):
            assert assigned(text, constant) in re.findall(r"\d+", cost), (name, constant)
            checked += 1
    assert checked


def test_bounds_are_those_of_the_code() -> None:
    """The table of bounds has the values that the sources assign."""
    table = rows("bound")
    assert table
    for constant, value, _ in table:
        file, _, name = constant.strip("`").partition(": ")
        path = ROOT / file if file.startswith("lua/") else SERVICE / file
        factors = [int(factor.replace("_", "")) for factor in assigned(path.read_text(), name).split(" * ")]
        assert math.prod(factors) == int(value), constant


def test_every_key_has_its_row() -> None:
    """The table of keys names each key that the scripts derive, and no other."""
    model = (ROOT / "lua" / "lib" / "keys.lua").read_text()
    catalog = "".join(path.read_text() for path in (ROOT / "lua").glob("catalog_*.lua"))
    letters = {"root": "M", "p": "P", "s": "S"}
    derived = {f"{letters[root]}:{name}" for root, name in re.findall(r"\b(root|p|s) \.\. ':([a-z]+):?'", model)}
    derived |= {f"C:{name}" for name in re.findall(r"root \.\. ':([a-z]+):?'", catalog)}
    given = {"M:totals", "C:models", "C:lease"}
    stated = {key for cell, *_ in rows("key") for key in re.findall(r"`([MPSC]:[a-z]+)", cell)}
    assert len(derived) > len(given)
    assert stated == derived | given


def test_documented_make_targets_exist() -> None:
    """What the documents tell people to type is in the Makefile."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = README + (ROOT / "CONTRIBUTING.md").read_text()
    asked = set(re.findall(r"(?:`|^    )make ([a-z-]+)", text, re.MULTILINE))
    assert {"demo", "test", "setup", "lint", "proto", "bench"} <= targets
    assert asked
    assert asked <= targets
