from __future__ import annotations

import re
from pathlib import Path

import pytest
import trustme

from inference_cache.config import all_settings
from inference_cache.metric_table import DEFINITIONS
from inference_cache.store.connection import faults
from inference_cache.store.connection.address import Kind, parse_address

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "redis"
KINDS = {
    "standalone.md": {Kind.TCP, Kind.UNIX},
    "tls.md": {Kind.TCP},
    "acl.md": {Kind.TCP},
    "sentinel.md": {Kind.SENTINEL},
    "cluster.md": {Kind.CLUSTER},
    "replicas.md": {Kind.TCP},
    "versions.md": {Kind.TCP},
}
"""What the URLs of each page must be read as."""
PAGES = sorted(FOLDER.glob("*.md"))
FAULTS = [
    *faults.WORDS.values(),
    *faults.PHRASES.values(),
    *(f for f in vars(faults).values() if isinstance(f, faults.Fault)),
]


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    """Return a file of an authority."""
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    return tmp_path / "ca.pem"


@pytest.mark.parametrize("page", KINDS)
def test_urls_of_the_pages_are_understood(page: str, authority: Path) -> None:
    """Who copies a URL from a page reaches that kind of Redis; only the authority's file is their own."""
    urls = re.findall(r"--redis-url (\S+)", (FOLDER / page).read_text())
    assert urls
    read = [parse_address(re.sub(r"(ssl_ca_certs=)[^&]+", rf"\1{authority}", url)) for url in urls]
    assert {address.kind for address in read} == KINDS[page]
    assert all((address.tls is not None) is (page == "tls.md") for address in read)


def test_every_page_is_listed() -> None:
    """The first page leads to each of the others, and each has a URL that is tested above."""
    linked = set(re.findall(r"\]\((\w+\.md)\)", (FOLDER / "README.md").read_text()))
    assert linked == set(KINDS) == {page.name for page in PAGES} - {"README.md"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_pages_name_is_there(page: Path) -> None:
    """Links, flags, variables and metrics of a page are those of this version."""
    text = page.read_text()
    links = [link.partition("#")[0] for link in re.findall(r"\]\((?!https?:)([^)]+)\)", text)]
    assert [link for link in links if not (page.parent / link).exists()] == []
    settings = list(all_settings())
    flags = {item.flag for item in settings} | {name for item in settings for name in item.env}
    named = set(re.findall(r"(--redis-[a-z-]+|INFERENCE_CACHE_(?!TEST)[A-Z_]+)", text))
    assert named <= flags
    metrics = set(re.findall(r"\binferencecache_\w+", text))
    series = {one.full_name for one in DEFINITIONS}
    assert metrics <= series


def test_reasons_of_the_pages_are_those_of_the_code() -> None:
    """The words by which operators find their failure are the ones that are counted."""
    reasons = {fault.reason for fault in FAULTS}
    cells = re.findall(r"^\| reason \|.*\n\|[ -|]+\n((?:\|.*\n)+)", (FOLDER / "sentinel.md").read_text(), re.MULTILINE)
    told = set(re.findall(r"`(\w+)`", " ".join(line.split("|")[1] for cell in cells for line in cell.splitlines())))
    for page in PAGES:
        told |= set(re.findall(r"reason `(\w+)`", page.read_text()))
        told |= set(re.findall(r"\(`(circuit_open)`\)", page.read_text()))
    assert len(told) > 8
    assert told <= reasons


def test_messages_of_the_pages_are_those_of_the_code() -> None:
    """What pages quote from the log can be searched for."""
    details = {fault.detail for fault in FAULTS}
    rows = re.findall(r"^\| `([^`]+)` \| `(\w+)` \|", (FOLDER / "acl.md").read_text(), re.MULTILINE)
    said = {(fault.detail, fault.reason) for fault in FAULTS}
    assert len(rows) == 3
    assert set(rows) <= said
    assert "no trusted TLS connection to Redis" in details
    assert "no trusted TLS connection to Redis" in " ".join((FOLDER / "tls.md").read_text().split())
