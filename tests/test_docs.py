from __future__ import annotations

import re
from pathlib import Path

import pytest

from inference_cache.config import all_settings
from inference_cache.domain.reasons import REASON_CODES
from inference_cache.metrics import DEFINITIONS
from scripts import generate_docs

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
LINK = re.compile(r"\]\((?!https?:)([^)#]+)\)")


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


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_lead_somewhere(name: str) -> None:
    """Every relative link names a file of the repository."""
    assert [link for link in LINK.findall((ROOT / name).read_text()) if not (ROOT / link).exists()] == []


def test_documented_make_targets_exist() -> None:
    """What the documents tell people to type is in the Makefile."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = README + (ROOT / "CONTRIBUTING.md").read_text()
    asked = set(re.findall(r"(?:`|^    )make ([a-z-]+)", text, re.MULTILINE))
    assert {"demo", "test", "setup", "lint", "proto", "bench"} <= targets
    assert asked
    assert asked <= targets
