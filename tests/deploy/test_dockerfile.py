from __future__ import annotations

import json
import re
from fnmatch import fnmatch
from pathlib import Path

import inference_cache

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "deploy" / "docker" / "Dockerfile").read_text()
STEPS = [
    (step.split()[0], " ".join(step.split()[1:]))
    for step in re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", TEXT, flags=re.MULTILINE)).splitlines()
    if step.strip()
]


def arguments(instruction: str) -> list[str]:
    return [rest for name, rest in STEPS if name == instruction]


def test_builds_from_the_python_image_alone() -> None:
    """No frontend and no second image is fetched, so it builds wherever a Python image is."""
    assert "syntax=" not in TEXT
    assert arguments("ARG") == ["PYTHON_IMAGE=python:3.11-slim"]
    assert arguments("FROM") == ["${PYTHON_IMAGE} AS build", "${PYTHON_IMAGE}"]
    assert not re.search(r"--mount|apt-get|/usr/local|python3\.\d", TEXT)


def test_everything_installed_is_pinned() -> None:
    """Each pip call that fetches has the constraints; the one without fetches nothing."""
    calls = re.findall(r"pip (?:--python \S+ )?(?:install|wheel) ([^&\n]+)", "\n".join(arguments("RUN")))
    assert len(calls) == 4
    assert all("-c constraints.txt" in call or "--no-deps" in call for call in calls)
    assert "--no-build-isolation" in calls[2]


def test_what_runs_is_the_wheel_and_not_the_source() -> None:
    """One wheel is built, in the stage that is thrown away; only the installed environment is copied over."""
    last = STEPS[[number for number, (name, _) in enumerate(STEPS) if name == "FROM"][-1] :]
    assert [rest for name, rest in last if name == "COPY"] == ["--from=build /opt/inference-cache /opt/inference-cache"]
    assert not [name for name, _ in last if name == "RUN"]
    assert TEXT.count("pip wheel") == 1


def test_context_has_what_the_wheel_needs_and_nothing_else() -> None:
    """Neither secrets nor tests of the checkout reach the builder; Lua, licence and readme do."""
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert lines[0] == "*"
    kept = {line[1:] for line in lines if line.startswith("!")}
    assert kept == {"LICENSE", "README.md", "constraints.txt", "lua", "pyproject.toml", "service"}
    assert all((ROOT / name).exists() for name in kept)
    assert not any(fnmatch(name, pattern) for name in kept for pattern in lines[1:] if not pattern.startswith("!"))


def test_runs_as_nobody_in_particular() -> None:
    """The user is a number that is not root's, so that a cluster can check it."""
    (user,) = arguments("USER")
    number, _, group = user.partition(":")
    assert int(number) > 0
    assert int(group) > 0


def test_signals_reach_the_server() -> None:
    """Exec form everywhere: no shell stands between the container's first process and SIGTERM."""
    assert json.loads(arguments("ENTRYPOINT")[0]) == ["inference-cache"]
    assert json.loads(arguments("CMD")[0]) == ["serve"]
    (check,) = arguments("HEALTHCHECK")
    words = json.loads(check[check.index("[") :])
    assert words[:2] == ["python", "-I"]
    assert "/readyz" in words[-1]


def test_writes_nowhere_but_to_tmp() -> None:
    """With a read-only root file system, home and temporary files are on the one mount that can be written."""
    (variables,) = [rest for rest in arguments("ENV") if "PATH=" in rest]
    assert {"HOME=/tmp", "TMPDIR=/tmp"} <= set(variables.split())


def test_labels_say_what_it_is() -> None:
    """The version is that of the package in it."""
    (labels,) = arguments("LABEL")
    found = dict(re.findall(r'org\.opencontainers\.image\.(\w+)="([^"]*)"', labels))
    assert found["version"] == inference_cache.__version__
    assert found["licenses"] == "Apache-2.0"
    assert found.keys() == {"title", "description", "version", "licenses"}
