"""Policies from the files that a command was given: manifests, or one body of the policy API."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from inference_cache.cli.output import USAGE, fail
from inference_cache.domain.manifests import MAX_SET_BYTES, ManifestSet, parse_manifests
from inference_cache.domain.policy_set import PolicySet
from inference_cache.domain.policy_wire import read_policy_body
from inference_cache.errors import PolicyError
from inference_cache.policies.files import read_directory

STDIN = "-"


@dataclass(frozen=True, slots=True)
class Given:
    """What the files say, and whether they are a body of the policy API, which may also say nothing."""

    policy_set: PolicySet
    is_body: bool


def read_set(paths: Iterable[str]) -> Given:
    """Read files and directories as one set; what is wrong with them ends the command.

    Args:
        paths: files of manifests, directories of them, ``-`` for standard input; or one JSON body with a version.
    """
    files: dict[str, bytes] = {}
    try:
        for path in paths:
            files |= _read(path)
        body = _body(files)
        found = body or parse_manifests(files)
    except PolicyError as error:
        fail("\n".join(error.problems), USAGE)
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}", USAGE)
    for warning in found.warnings:
        sys.stderr.write(f"warning: {warning}\n")
    return Given(found.policy_set, is_body=body is not None)


def _read(path: str) -> dict[str, bytes]:
    if path == STDIN:
        return {"standard input": sys.stdin.buffer.read(MAX_SET_BYTES + 1)}
    if Path(path).is_dir():
        return {str(Path(path) / name): data for name, data in read_directory(Path(path)).files.items()}
    with Path(path).open("rb") as file:
        return {path: file.read(MAX_SET_BYTES + 1)}


def _body(files: dict[str, bytes]) -> ManifestSet | None:
    """Return what a body of the policy API says, ``None`` where the files are manifests."""
    bodies = [name for name, data in files.items() if _is_body(data)]
    if not bodies:
        return None
    if len(files) > 1:
        raise PolicyError(f"{bodies[0]}: a policy body says everything, so it must be the only file")
    body = read_policy_body(files[bodies[0]])
    warnings = [f"{bodies[0]}: {number} without effect: {reason}" for reason, number in body.ignored.items()]
    return ManifestSet(body.policy_set, tuple(warnings))


def _is_body(data: bytes) -> bool:
    if not data.lstrip().startswith(b"{"):
        return False
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and "apiVersion" not in value and "version" in value
