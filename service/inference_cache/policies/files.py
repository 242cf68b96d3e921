"""Reading a directory of manifests at one moment, though somebody may be changing it.

A mounted ConfigMap is changed by swapping one symbolic link (``..data``) under the files, an editor writes in place:
so what was read counts only if nothing had moved when the last file was read.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from inference_cache.domain.manifests import MAX_SET_BYTES
from inference_cache.errors import PolicyError

SUFFIXES = (".yaml", ".yml", ".json")
MAX_FILES = 1000
_ATTEMPTS = 5

Mark: TypeAlias = tuple[object, ...]
"""Differs when anything about the directory's files may have changed; compares cheaply."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The files of a directory at one moment, by name.

    Attributes:
        mark: what the directory looked like.
        files: their contents.
    """

    mark: Mark
    files: dict[str, bytes] = field(repr=False)


def mark_of(directory: Path) -> Mark:
    """Return what the directory looks like now: names, targets, sizes, inodes and times of its manifest files.

    Never raises: a directory that cannot be read has a mark as well.
    """
    try:
        names = _names(directory)
    except OSError as error:
        return (type(error).__name__,)
    return (_target(directory / "..data"), *((name, *_look(directory / name)) for name in names))


def read_directory(directory: Path) -> Reading:
    """Read every manifest file (``*.yaml``, ``*.yml``, ``*.json``) that lies in the directory itself and is not hidden.

    Raises:
        PolicyError: it cannot be read, is too large, or does not keep still.
    """
    for _ in range(_ATTEMPTS):
        mark = mark_of(directory)
        try:
            files, failure = _read(directory), None
        except OSError as error:
            files, failure = {}, error
        if mark != mark_of(directory):
            continue
        if failure is not None:
            where = Path(failure.filename or directory).name
            raise PolicyError(f"{where}: {failure.strerror or 'cannot be read'}")
        return Reading(mark, files)
    raise PolicyError(f"{directory.name}: changes while it is read")


def _read(directory: Path) -> dict[str, bytes]:
    names = _names(directory)
    if len(names) > MAX_FILES:
        raise PolicyError(f"{directory.name}: more than {MAX_FILES} files")
    files, left = {}, MAX_SET_BYTES
    for name in names:
        with (directory / name).open("rb") as file:
            files[name] = file.read(left + 1)
        left -= len(files[name])
        if left < 0:
            raise PolicyError(f"{directory.name}: more than {MAX_SET_BYTES} bytes")
    return files


def _names(directory: Path) -> list[str]:
    with os.scandir(directory) as entries:
        return sorted(
            entry.name
            for entry in entries
            if entry.name.endswith(SUFFIXES) and not entry.name.startswith(".") and not _is_other(entry)
        )


def _is_other(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a directory, a pipe or a device. A broken link is not: it is an error to tell."""
    try:
        return not stat.S_ISREG(entry.stat().st_mode)
    except FileNotFoundError:
        return False


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:
        return ""


def _look(path: Path) -> tuple[object, ...]:
    try:
        found = path.stat()
    except OSError as error:
        return (type(error).__name__,)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
