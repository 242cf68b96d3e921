"""JSON without the leniencies: one value, exact UTF-8, no key twice, no NaN, and numbers as written.

A number with a fraction or an exponent is a ``float``, any other an ``int``, so that ``1.0`` is not a whole number.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

_LONG_NUMBER = 40
"""Digits beyond which an integer literal fits no type of ours; converting a huge one would take quadratic time."""


class JsonError(ValueError):
    """A text that is not strict JSON; the message says where and why."""


def loads(data: bytes) -> Any:
    """Return the value that a text stands for.

    Raises:
        JsonError: it is not exactly one JSON value.
    """
    try:
        return json.loads(
            data.decode(),
            object_pairs_hook=_object,
            parse_constant=_constant,
            parse_int=lambda literal: int(literal) if len(literal) <= _LONG_NUMBER else float(literal),
        )
    except UnicodeDecodeError as error:
        raise JsonError(f"not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        what = "something behind the value" if error.msg == "Extra data" else "not JSON"
        raise JsonError(f"{what} at line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise JsonError("nested too deeply") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise JsonError(f"the key {twice[:60]!r} is twice in one object")
    return values


def _constant(word: str) -> NoReturn:
    raise JsonError(f"not JSON: {word} is no number")
