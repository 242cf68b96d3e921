"""Structured events on stderr: one JSON object or one readable line each.

An event has a fixed name and typed fields, so that logs can be searched without parsing sentences. Prompts,
their hashes, template variables and passwords are never fields.
"""

from __future__ import annotations

import logging
import sys
import time
from typing import Any, TextIO

import orjson

_FIELDS = "event_fields"
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def configure(level: str, style: str, stream: TextIO | None = None) -> None:
    """Send every log of the process to ``stream`` (stderr) as ``json`` or ``text``, from ``level`` up."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_JsonFormatter() if style == "json" else _TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(_LEVELS[level])


def event(logger: logging.Logger, level: int, name: str, **fields: object) -> None:
    """Log the event ``name`` with its fields."""
    if logger.isEnabledFor(level):
        logger.log(level, name, extra={_FIELDS: fields})


def _record_fields(formatter: logging.Formatter, record: logging.LogRecord) -> dict[str, Any]:
    fields: dict[str, Any] = {"logger": record.name, **getattr(record, _FIELDS, {})}
    if record.exc_info:
        fields["exception"] = formatter.formatException(record.exc_info)
    return fields


def _time(record: logging.LogRecord) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {"time": _time(record), "level": record.levelname.lower(), "event": record.getMessage()}
        return orjson.dumps(line | _record_fields(self, record), default=str).decode()


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = _record_fields(self, record)
        del fields["logger"]
        trace = fields.pop("exception", "")
        words = [_time(record), record.levelname.lower().ljust(7), record.getMessage()]
        words += [f"{name}={orjson.dumps(value, default=str).decode()}" for name, value in fields.items()]
        return " ".join(words) + (f"\n{trace}" if trace else "")
