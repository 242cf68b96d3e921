"""How a setting is declared, parsed and described: once, for the flag, the environment and the README.

A setting is a dataclass field made by :func:`setting`. Its flag and environment twin follow from the
field's name, so that nothing has to be kept in step. :mod:`inference_cache.config` says what can be set.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from typing import Any

from inference_cache.domain.durations import duration_ns, duration_text
from inference_cache.errors import ConfigError

ENV_PREFIX = "INFERENCE_CACHE_"
MAX_PORT = 65535
_SHOWN_CHARACTERS = 100
Parser = Callable[[str], Any]
"""Turns the text of a flag or variable into a value; raises ``ValueError`` with what would be right."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One thing an operator can set.

    Attributes:
        name: the dataclass field that holds the parsed value.
        flag: its command-line flag.
        env: its environment variables, first match wins.
        default: the default as an operator would write it.
        unit: what the number counts, empty for text.
        help: one sentence.
        switch: whether the flag takes no value.
        secret: whether the value must not be shown.
        parse: from text to value.
    """

    name: str
    flag: str
    env: tuple[str, ...]
    default: str
    unit: str
    help: str
    switch: bool
    secret: bool
    parse: Parser

    def read(self, text: str, source: str) -> Any:
        """Parse ``text``, which came from ``source``; the error names the flag, the variable and the value.

        A value that may carry a password stays out.
        """
        try:
            return self.parse(text)
        except ValueError as error:
            shown = "" if self.secret or "@" in text else f" {text[:_SHOWN_CHARACTERS]!r}"
            message = f"{self.flag} (environment: {self.env[0]}) {error}; the value{shown} from {source} is unusable"
            raise ConfigError(message) from None


def setting(
    default: str,
    parse: Parser,
    sentence: str,
    *,
    flag: str = "",
    unit: str = "",
    also_env: tuple[str, ...] = (),
    secret: bool = False,
) -> Any:
    """Declare a dataclass field as a setting.

    Args:
        default: the default as an operator would write it.
        parse: from text to value.
        sentence: what it does, for the help and the README.
        flag: needed where the field's name carries a unit that the flag does not.
        unit: what the number counts.
        also_env: further environment variables, read after the twin.
        secret: whether the value must not show when the configuration is printed.
    """
    metadata = {"default": default, "parse": parse, "help": sentence, "flag": flag, "unit": unit, "also_env": also_env}
    metadata["secret"] = secret
    return field(default=parse(default), repr=not secret, metadata=metadata)


def settings_of(concern: type[Any]) -> Iterator[Setting]:
    """Yield the settings that a dataclass declares, in order."""
    for item in fields(concern):
        declared = item.metadata
        flag = declared["flag"] or "--" + item.name.replace("_", "-")
        twin = ENV_PREFIX + flag.removeprefix("--").replace("-", "_").upper()
        yield Setting(
            name=item.name,
            flag=flag,
            env=(twin, *declared["also_env"]),
            default=declared["default"],
            unit=declared["unit"],
            help=declared["help"],
            switch=declared["parse"] is boolean,
            secret=declared["secret"],
            parse=declared["parse"],
        )


@dataclass(frozen=True, slots=True)
class Address:
    """Where a listener binds. An empty host means every interface, port 0 any free port."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect. A name other than ``localhost`` could be anything, so it is not."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def address(text: str) -> Address:
    """Parse ``host:port``, ``[v6]:port`` or ``:port``."""
    host, colon, port = text.strip().rpartition(":")
    if not colon or not re.fullmatch("[0-9]{1,5}", port) or int(port) > MAX_PORT:
        raise ValueError(f"must be host:port, [ipv6]:port or :port, with a port of 0 to {MAX_PORT}")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if (":" in bare) != (bare != host) or (bare != host and not _is_ipv6(bare)):
        raise ValueError("must have an IPv6 address, and nothing else, in brackets, as in [::1]:9090")
    return Address(bare, int(port))


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def boolean(text: str) -> bool:
    """Parse true or false, as people write them in environments."""
    word = text.strip().lower()
    if word in {"1", "true", "yes", "on"}:
        return True
    if word in {"0", "false", "no", "off"}:
        return False
    raise ValueError("must be true or false")


def choice(*words: str, empty: str = "", aliases: dict[str, str] | None = None) -> Parser:
    """Accept one of ``words``, in any case and with spaces around; an empty text is ``empty`` where that is given."""

    def parse(text: str) -> str:
        word = text.strip().lower() or empty
        word = (aliases or {}).get(word, word)
        if word not in words:
            raise ValueError(f"must be one of {', '.join([*words, *(aliases or {})])}")
        return word

    return parse


def integer(minimum: int, maximum: int = 2**53) -> Parser:
    """Accept a whole number within bounds."""

    def parse(text: str) -> int:
        if not re.fullmatch(r"[+-]?[0-9]{1,18}", text.strip()) or not minimum <= int(text) <= maximum:
            raise ValueError(f"must be a whole number from {minimum} to {maximum}")
        return int(text)

    return parse


def number(minimum: float, maximum: float) -> Parser:
    """Accept a finite number within bounds."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not minimum <= value <= maximum:
            raise ValueError(f"must be a number from {minimum:g} to {maximum:g}")
        return value

    return parse


_NS_PER_MS = 1_000_000


def duration(minimum_ms: int, maximum_ms: int = 366 * 24 * 3_600_000) -> Parser:
    """Accept a Go-style duration (``30m``, ``1h30m``, ``1.5s``, ``250ms``, ``0``); the value is in milliseconds.

    A bare number other than 0 is refused: it does not say its unit.
    """
    least, most = (duration_text(ms * _NS_PER_MS) for ms in (minimum_ms, maximum_ms))
    bounds = f"must be a duration such as 250ms, 10s, 30m or 1h30m, from {least} to {most}"

    def parse(text: str) -> int:
        try:
            total_ms = round(duration_ns(text.strip()) / _NS_PER_MS)
        except ValueError:
            raise ValueError(bounds) from None
        if not minimum_ms <= total_ms <= maximum_ms:
            raise ValueError(bounds)
        return total_ms

    return parse


def matching(pattern: str, meaning: str) -> Parser:
    """Accept text that matches ``pattern`` entirely."""

    def parse(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(meaning)
        return text

    return parse
