"""Durations as Go writes them: ``30m``, ``1h30m``, ``1.5s``, ``250ms``, ``0``."""

from __future__ import annotations

import re
from typing import Final

_UNITS_NS: Final = {
    "ns": 1,
    "us": 1_000,
    "\u00b5s": 1_000,
    "\u03bcs": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
_MAX_CHARS = 100
_MAX_NS = 2**63 - 1
_PART: Final = re.compile("([0-9]*)(?:\\.([0-9]*))?(ns|us|\u00b5s|\u03bcs|ms|s|m|h)")


def duration_ns(text: str) -> int:
    """Return the nanoseconds of a duration, after the grammar of Go's ``time.ParseDuration``.

    A number needs a unit, except 0; what is below a nanosecond is cut off.

    >>> duration_ns("1h30m"), duration_ns("-1.5us"), duration_ns("0")
    (5400000000000, -1500, 0)

    Raises:
        ValueError: it is no duration, or does not fit 64 bits.
    """
    sign, body = (-1, text[1:]) if text.startswith("-") else (1, text.removeprefix("+"))
    if body == "0":
        return 0
    if len(text) > _MAX_CHARS or not re.fullmatch(f"(?:{_PART.pattern})+", body):
        raise ValueError("no duration")
    total_ns = sum(_part_ns(*part.groups(default="")) for part in _PART.finditer(body))
    if total_ns > _MAX_NS:
        raise ValueError("too long a duration")
    return sign * total_ns


def duration_text(ns: int) -> str:
    """Write a duration of 0 or more as :func:`duration_ns` reads it, in whole units.

    >>> duration_text(0), duration_text(900 * 10**9), duration_text(5_400_250 * 10**6)
    ('0', '15m', '1h30m250ms')
    """
    parts = []
    for unit in ("h", "m", "s", "ms", "us", "ns"):
        number, ns = divmod(ns, _UNITS_NS[unit])
        if number:
            parts.append(f"{number}{unit}")
    return "".join(parts) or "0"


def _part_ns(digits: str, fraction: str, unit: str) -> int:
    if not digits and not fraction:
        raise ValueError("a unit without a number")
    scale: int = 10 ** len(fraction)
    return int(digits or 0) * _UNITS_NS[unit] + int(fraction or 0) * _UNITS_NS[unit] // scale
