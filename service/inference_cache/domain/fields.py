"""Reading an untyped tree, as JSON and YAML give it, strictly: each field once, by its exact name, by its exact type.

What is wrong is noted with its path and reading goes on, so that one answer names everything. A null says nothing, as
an absent field does.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from inference_cache.domain.float32 import f32

MAX_PROBLEMS = 20
_SHOWN_CHARS = 60


class Problems:
    """What was found wrong, in order; beyond :data:`MAX_PROBLEMS` only counted.

    Attributes:
        place: where the text that is being read stands, put before every path.
    """

    def __init__(self) -> None:
        self.place = ""
        self._told: list[str] = []
        self._untold = 0

    def add(self, path: str, sentence: str) -> None:
        """Note what is wrong at a path, ``""`` for the text itself."""
        if len(self._told) < MAX_PROBLEMS:
            self._told.append(": ".join(part for part in (self.place, path, sentence) if part))
        else:
            self._untold += 1

    def __bool__(self) -> bool:
        return bool(self._told)

    def sentences(self) -> list[str]:
        """Return what to tell whoever wrote the text."""
        return self._told + ([f"and {self._untold} more"] if self._untold else [])


class Fields:
    """One object of the tree. Read every field that may be there, then call :meth:`close`.

    Args:
        values: the object as it was decoded.
        path: where it stands, ``""`` for the whole text.
        problems: where to note what is wrong.
    """

    def __init__(self, values: Mapping[Any, Any], path: str, problems: Problems) -> None:
        self._values = values
        self._path = path
        self._problems = problems
        self._read: list[str] = []

    def at(self, name: str) -> str:
        """Return the path of a field."""
        return f"{self._path}.{name}" if self._path else name

    def wrong(self, name: str, sentence: str) -> None:
        """Note what is wrong with a field."""
        self._problems.add(self.at(name), sentence)

    def value(self, name: str) -> Any:
        """Return a field as it is, ``None`` when absent."""
        self._read.append(name)
        return self._values.get(name)

    def text(self, name: str) -> str | None:
        """Return a string."""
        value = self.value(name)
        if value is None:
            return None
        if not isinstance(value, str):
            self._expected(name, "a string", value)
        elif any("\ud800" <= char <= "\udfff" for char in value):
            self.wrong(name, "expected characters, got half of a surrogate pair")
        else:
            return value
        return None

    def required(self, name: str) -> str:
        """Return a string that must be there; an empty one when it is not, which is noted."""
        text = self.text(name)
        if self._values.get(name) is None:
            self.wrong(name, "required")
        elif text == "":
            self.wrong(name, "must not be empty")
        return text or ""

    def flag(self, name: str) -> bool | None:
        """Return a boolean."""
        value = self.value(name)
        if value is None or isinstance(value, bool):
            return value
        self._expected(name, "a boolean", value)
        return None

    def whole(self, name: str, minimum: int, maximum: int) -> int | None:
        """Return a whole number within bounds; one with a fraction or exponent is none, whatever its value."""
        value = self.value(name)
        if value is None or (type(value) is int and minimum <= value <= maximum):
            return value
        self._expected(name, f"a whole number from {minimum} to {maximum}", value)
        return None

    def float32(self, name: str) -> float | None:
        """Return a number as the float32 value next to it; it must be finite."""
        value = self.value(name)
        if value is None:
            return None
        if type(value) in {int, float} and math.isfinite(number := f32(float(value))):
            return number
        self._expected(name, "a number that fits a float32", value)
        return None

    def word(self, name: str, words: Sequence[str]) -> str | None:
        """Return one of some words, written exactly so."""
        value = self.value(name)
        if value is None or (isinstance(value, str) and value in words):
            return value
        self._expected(name, f"one of {', '.join(words)}", value)
        return None

    def inner(self, name: str) -> Fields:
        """Return an object; one without fields when it is absent."""
        value = self.value(name)
        if value is not None and not isinstance(value, dict):
            self._expected(name, "an object", value)
        return Fields(value if isinstance(value, dict) else {}, self.at(name), self._problems)

    def items(self, name: str) -> Iterator[Fields]:
        """Yield the objects of a list, none when it is absent. A null among them has no fields."""
        value = self.value(name)
        if value is not None and not isinstance(value, list):
            self._expected(name, "a list", value)
            return
        for index, item in enumerate(value or ()):
            place = f"{name}[{index}]"
            if item is not None and not isinstance(item, dict):
                self._expected(place, "an object", item)
            yield Fields(item if isinstance(item, dict) else {}, self.at(place), self._problems)

    def close(self) -> None:
        """Note every field that nobody asked for: a misspelt knob must not be taken for one that was not set."""
        lower = {name.lower(): name for name in self._read}
        for name in self._values:
            if name not in self._read:
                meant = lower.get(str(name).lower())
                self.wrong(shown(name), "unknown field" + (f", did you mean {meant}?" if meant else ""))

    def _expected(self, name: str, wanted: str, value: Any) -> None:
        self.wrong(name, f"expected {wanted}, got {shown(value)}")


def shown(value: object) -> str:
    """Return a value as it may be shown in a message: its kind, or a scalar, short, on one line, plain words bare."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    text = repr(value) if isinstance(value, str) and not (value.isascii() and value.isalnum()) else str(value)
    return text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "..."
