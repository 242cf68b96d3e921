"""Structured events on stderr: one JSON object or one readable line each.

An event has a fixed name and typed fields, so that logs can be searched without parsing sentences. Prompts,
their hashes, template variables and passwords are never fields.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping
from typing import Any, TextIO

import orjson

_FIELDS = "event_fields"
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def configure(level: str, style: str, stream: TextIO | None = None, *, worker: int | None = None) -> None:
    """Send every log of the process to ``stream`` (stderr) as ``json`` or ``text``, from ``level`` up.

    Args:
        level: least severe level.
        style: ``json`` or ``text``.
        stream: where to.
        worker: this process' number among the workers of a server; every line then says it.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    who = {} if worker is None else {"worker": worker}
    handler.setFormatter(_JsonFormatter(who) if style == "json" else _TextFormatter(who))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(_LEVELS[level])


def event(logger: logging.Logger, level: int, name: str, **fields: object) -> None:
    """Log the event ``name`` with its fields."""
    if logger.isEnabledFor(level):
        logger.log(level, name, extra={_FIELDS: fields})


class _Formatter(logging.Formatter):
    """Knows the fields of a record; ``who`` is said in every line."""

    def __init__(self, who: Mapping[str, Any]) -> None:
        super().__init__()
        self._who = who

    def fields(self, record: logging.LogRecord) -> dict[str, Any]:
        fields: dict[str, Any] = {"logger": record.name, **self._who, **getattr(record, _FIELDS, {})}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return fields


def _time(record: logging.LogRecord) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"


class _JsonFormatter(_Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {"time": _time(record), "level": record.levelname.lower(), "event": record.getMessage()}
        return orjson.dumps(line | self.fields(record), default=str).decode()


class _TextFormatter(_Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = self.fields(record)
        del fields["logger"]
        trace = fields.pop("exception", "")
        words = [_time(record), record.levelname.lower().ljust(7), record.getMessage()]
        words += [f"{name}={orjson.dumps(value, default=str).decode()}" for name, value in fields.items()]
        return " ".join(words) + (f"\n{trace}" if trace else "")
