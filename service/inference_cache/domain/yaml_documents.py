"""YAML files as documents, strictly: no key twice in one mapping, no tags beyond the plain ones, dates as text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from inference_cache.domain.fields import Problems, shown

try:
    from yaml import CSafeLoader as _SafeLoader
except ImportError:  # built without libyaml: the same, at a tenth of the speed
    from yaml import SafeLoader as _SafeLoader  # type: ignore[assignment]

_UNREADABLE = (ValueError, LookupError, AttributeError, TypeError, ArithmeticError)
"""What the parser's own conversions of scalars raise: `0b_`, `!!bool x`, `!!timestamp x`."""

_SHOWN_DEPTH = 8
_DATE = "tag:yaml.org,2002:timestamp"


class _Loader(_SafeLoader):
    """Leaves dates as they are written: a tenant may be called 2024-01-31."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - the parent's declaration
        first: [(tag, pattern) for tag, pattern in resolvers if tag != _DATE]
        for first, resolvers in _SafeLoader.yaml_implicit_resolvers.items()
    }


def documents(name: str, data: bytes, problems: Problems) -> Iterator[tuple[str, Any]]:
    """Yield the place and the value of each document of a file that is not empty.

    What is wrong is noted in ``problems``, whose place is the document's while it is out; behind a syntax error the
    rest of the file cannot be read.
    """
    number = 0
    try:
        problems.place = name
        loader = _Loader(data.decode("utf-8-sig"))
        while loader.check_node():
            number += 1
            problems.place = f"{name}, document {number}"
            if (node := loader.get_node()) is not None:
                _keys_once(node, problems)
                if (value := loader.construct_document(node)) is not None:
                    yield problems.place, value
        loader.dispose()
    except UnicodeDecodeError as error:
        problems.add("", f"not UTF-8 at byte {error.start}")
    except yaml.YAMLError as error:
        problems.place = f"{name}, document {max(number, 1)}"
        problems.add("", f"not YAML: {_on_one_line(error)}")
    except RecursionError:
        problems.add("", "nested too deeply")
    except _UNREADABLE:
        problems.add("", "not YAML: a scalar that does not fit its tag")


def _keys_once(root: yaml.Node, problems: Problems) -> None:
    """Note each key that a mapping has twice: the parser would silently take the last."""
    seen: set[int] = set()
    waiting: list[tuple[yaml.Node, _Path | None]] = [(root, None)]
    while waiting:
        node, path = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            waiting += [(item, _Path(path, f"[{index}]")) for index, item in enumerate(node.value)]
        elif isinstance(node, yaml.MappingNode):
            waiting += _children(node, path, problems)


@dataclass(frozen=True, slots=True)
class _Path:
    """Where a node stands, as a chain: written out for each node it would grow with the square of the depth."""

    parent: _Path | None
    word: str

    def __str__(self) -> str:
        words: list[str] = []
        here: _Path | None = self
        while here is not None and len(words) < _SHOWN_DEPTH:
            words.append(here.word if here.word.startswith("[") or here.parent is None else f".{here.word}")
            here = here.parent
        return ("..." if here is not None else "") + "".join(reversed(words))


def _children(node: yaml.MappingNode, path: _Path | None, problems: Problems) -> list[tuple[yaml.Node, _Path | None]]:
    children: list[tuple[yaml.Node, _Path | None]] = []
    keys = set()
    for key, value in node.value:
        word = key.value if isinstance(key, yaml.ScalarNode) else "a key that is no scalar"
        inner = _Path(path, shown(word))
        if (key.tag, word) in keys:
            problems.add(str(inner), "twice in one mapping")
        keys.add((key.tag, word))
        children.append((value, inner))
    return children


def _on_one_line(error: yaml.YAMLError) -> str:
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    sentence = " ".join(str(problem or error).split())
    return f"line {mark.line + 1}: {sentence}" if mark else sentence
