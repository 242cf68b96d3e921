"""Loads the Lua commands: expands their includes, reads their contract blocks, knows their digests.

A command is one file ``lua/<verb>.lua``: a ``#!lua`` line with its flags, a contract block, includes, then the
body. A line ``--- @include NAME`` is replaced by ``lua/lib/NAME.lua``, depth first, each fragment once. Redis
reports errors by line of the expanded text; :meth:`Script.locate` turns them back into file and line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from hashlib import sha1
from pathlib import Path

from inference_cache.errors import ConfigError

_INCLUDE = re.compile(r"^--- @include (\w+)$")
_SECTION = re.compile(r"^([A-Z]+)$")
_ENTRY = re.compile(r"^ {1,3}(\d+|\*) (\w+)  +(\S.*)$")
_SHEBANG = re.compile(r"^#!lua(?: flags=([\w,-]+))?$")
_POSITION = re.compile(r"user_script:(\d+)")


@dataclass(frozen=True, slots=True)
class Contract:
    """What a command's contract block declares.

    Attributes:
        keys: names of ``KEYS``, in order.
        args: names of the fixed ``ARGV``, in order.
        variadic: whether more arguments may follow.
    """

    keys: tuple[str, ...]
    args: tuple[str, ...]
    variadic: bool


@dataclass(frozen=True, slots=True)
class Script:
    """One Lua command, ready to be loaded.

    Attributes:
        name: the verb.
        text: the expanded source, as sent to Redis.
        sha: SHA-1 of the text in hex: what EVALSHA calls it by.
        flags: the flags of its first line.
        contract: its declared keys and arguments.
        lines: file and line that each line of ``text`` came from.
    """

    name: str
    text: str
    sha: str
    flags: frozenset[str]
    contract: Contract
    lines: tuple[tuple[str, int], ...]

    @property
    def read_only(self) -> bool:
        """Whether the command never writes, so that a replica of Redis may run it."""
        return "no-writes" in self.flags

    @property
    def may_lag(self) -> bool:
        """Whether it serves lookups only, which an operator may allow to see what was a moment ago."""
        return self.read_only and self.name.startswith("lookup_")

    def locate(self, message: str) -> str:
        """Return an error message of Redis with its positions as ``file:line``."""

        def position(match: re.Match[str]) -> str:
            line = int(match.group(1))
            if not 0 < line <= len(self.lines):
                return match.group(0)
            return "{}:{}".format(*self.lines[line - 1])

        return _POSITION.sub(position, message)


def directory() -> Path:
    """Return where the Lua files are: inside an installed package, else at the top of the repository."""
    package = Path(__file__).resolve().parent.parent
    for candidate in (package / "_lua", package.parent.parent / "lua"):
        if (candidate / "lookup_chain.lua").is_file():
            return candidate
    msg = "the Lua scripts are missing from this installation"
    raise ConfigError(msg)


def names() -> tuple[str, ...]:
    """Return the verbs of all commands, sorted."""
    return tuple(sorted(path.stem for path in directory().glob("*.lua")))


@cache
def load(name: str) -> Script:
    """Load one command by its verb."""
    source: list[tuple[str, tuple[str, int]]] = []
    _expand(directory(), f"{name}.lua", set(), source)
    text = "\n".join(line for line, _ in source) + "\n"
    flags = _SHEBANG.match(source[0][0])
    if flags is None:
        msg = f"lua/{name}.lua: the first line must be #!lua"
        raise ConfigError(msg)
    return Script(
        name,
        text,
        sha1(text.encode(), usedforsecurity=False).hexdigest(),
        frozenset(filter(None, (flags.group(1) or "").split(","))),
        parse_contract(name, text),
        tuple(origin for _, origin in source),
    )


def parse_contract(name: str, text: str) -> Contract:
    """Read the contract block of a command.

    Raises:
        ConfigError: there is none, or it numbers keys or arguments with a gap.
    """
    block = re.search(r"--\[\[\n(.*?)\n\]\]", text, re.DOTALL)
    if block is None:
        msg = f"lua/{name}.lua has no contract block"
        raise ConfigError(msg)
    section, declared = "", {"KEYS": [], "ARGV": []}  # type: tuple[str, dict[str, list[str]]]
    variadic = False
    for line in block.group(1).splitlines():
        if heading := _SECTION.match(line):
            section = heading.group(1)
        elif section in declared and (entry := _ENTRY.match(line)):
            number, word, _ = entry.groups()
            if number == "*":
                variadic = True
            elif int(number) == len(declared[section]) + 1:
                declared[section].append(word)
            else:
                msg = f"lua/{name}.lua: {section}[{number}] is out of order"
                raise ConfigError(msg)
    return Contract(tuple(declared["KEYS"]), tuple(declared["ARGV"]), variadic)


def _expand(root: Path, relative: str, done: set[str], out: list[tuple[str, tuple[str, int]]]) -> None:
    for number, line in enumerate((root / relative).read_text().splitlines(), 1):
        include = _INCLUDE.match(line)
        if include is None:
            out.append((line, (f"lua/{relative}", number)))
        elif include.group(1) not in done:
            done.add(include.group(1))
            _expand(root, f"lib/{include.group(1)}.lua", done, out)
