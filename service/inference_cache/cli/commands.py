"""All sub-commands, put together."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

import inference_cache
from inference_cache.cli import demo, lookup, policy, serve, simulate, state

HELP = """Which engine replica holds a prompt's KV cache?

Run a server with `serve`, see what it gains with `demo`, ask it with `lookup` and `state`,
tune it for single tenants with `policy`."""


def version() -> None:
    """Print the version."""
    sys.stdout.write(f"inference-cache {inference_cache.__version__}\n")


def _version(asked: bool) -> None:
    if asked:
        version()
        raise typer.Exit


def _root(
    _asked: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Take what stands before the command."""


def build_app() -> typer.Typer:
    """Build the command with its sub-commands."""
    # Plain help: the framed one cuts the names of long options on a terminal of 80 columns.
    app = typer.Typer(
        help=HELP, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False
    )
    app.callback(help=HELP)(_root)
    app.command("serve", epilog=serve.EPILOG)(serve.serve_command())
    app.command("lookup", epilog=lookup.EPILOG)(lookup.lookup)
    app.command("state", epilog=state.EPILOG)(state.state)
    app.add_typer(policy.build_policy_app(), name="policy")
    app.command("demo", epilog=demo.EPILOG)(demo.demo)
    app.add_typer(simulate.build_simulate_app(), name="simulate")
    app.command("version")(version)
    return app
