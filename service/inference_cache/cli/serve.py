"""`inference-cache serve`: the options come from the configuration's own fields, so neither can lag behind."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from typing import Annotated, Any

import typer

from inference_cache.cli.interrupt import ends_quietly
from inference_cache.cli.output import FAILED, USAGE, fail
from inference_cache.config import CONCERNS, read_config
from inference_cache.errors import ConfigError, InferenceCacheError
from inference_cache.settings import Setting, settings_of

EPILOG = """\b
Examples:
  inference-cache serve
  inference-cache serve --redis-url rediss://user:password@redis.internal:6380/2
  INFERENCE_CACHE_LOG_FORMAT=text inference-cache serve --grpc-bind-address 127.0.0.1:0

Exit status: 0 after SIGTERM or SIGINT; 1 a port or the embedded Valkey could not be had; 2 a setting is unusable."""


def _serve(**given: str | bool | None) -> None:
    """Run a server until it is told to stop.

    Every flag has an environment twin: --redis-url is INFERENCE_CACHE_REDIS_URL. The flag wins.
    """
    flags = {name: str(value) if isinstance(value, bool) else value for name, value in given.items()}
    try:
        config = read_config(flags, os.environ)
    except ConfigError as error:
        fail(str(error), USAGE)
    try:
        with ends_quietly():  # until the server has handlers of its own
            from inference_cache.app import run  # noqa: PLC0415 - no other command needs the server

            status = run(config)
    except ConfigError as error:
        fail(str(error), USAGE)
    except (InferenceCacheError, OSError) as error:
        fail(str(error), FAILED)
    raise typer.Exit(status)


def _option(item: Setting, panel: str) -> inspect.Parameter:
    default = item.default or "empty"
    unit = f" {item.unit}" if item.unit and item.unit != "duration" else ""
    also = f"; also {', '.join(item.env[1:])}" if item.env[1:] else ""
    text = f"{item.help} (default {default}{unit}{also})"
    names = [item.flag, "--no-" + item.flag.removeprefix("--")] if item.switch else [item.flag]
    declared = f"{names[0]}/{names[1]}" if item.switch else names[0]
    metavar = None if item.switch else (item.unit or "text").upper()
    option = typer.Option(declared, help=text, show_default=False, metavar=metavar, rich_help_panel=panel)
    kind: Any = bool | None if item.switch else str | None
    return inspect.Parameter(
        item.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option]
    )


def serve_command() -> Callable[..., None]:
    """Return the command with one option for each setting."""
    parameters = [
        _option(item, (concern.__doc__ or "").rstrip("."))
        for concern in CONCERNS.values()
        for item in settings_of(concern)
    ]

    def serve(**given: str | bool | None) -> None:
        _serve(**given)

    serve.__doc__ = _serve.__doc__
    serve.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    serve.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return serve
