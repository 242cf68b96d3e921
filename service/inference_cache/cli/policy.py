"""`inference-cache policy`: see and set the policies that all servers share."""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Iterable
from typing import Annotated, Any

import typer

from inference_cache.cli.admin import DEFAULT_ADMIN, Admin, AdminOption
from inference_cache.cli.client import DEFAULT_TIMEOUT_S, TimeoutOption
from inference_cache.cli.output import USAGE, Output, OutputOption, fail, print_json, print_table
from inference_cache.cli.policy_files import read_set
from inference_cache.domain.policy_set import canonical_body, digest

HELP = """See and set the policies and quotas that all servers share.

They are written as CachePolicy and CacheTenant manifests; a set replaces everything that was in force."""

APPLY_EPILOG = """\b
Examples:
  inference-cache policy apply policies/
  inference-cache policy apply team-a.yaml team-b.yaml --admin http://cache-0:8081
  echo '{"version": 7}' | inference-cache policy apply -        (clears everything)

Exit status: 0 stored and in force, 1 refused or no answer, 2 the files cannot be used."""

GET_EPILOG = """\b
Examples:
  inference-cache policy get
  inference-cache policy get --output json

Exit status: 0 answered, 1 no answer, 2 wrong usage."""

DIFF_EPILOG = """\b
Example:
  inference-cache policy diff policies/

Exit status: 0 no difference, 1 a difference, 2 no answer, or the files cannot be used."""

FilesArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="FILE...",
        help="Manifests (YAML or JSON), directories of them, or one JSON body of POST /policy; - is standard input.",
        show_default=False,
    ),
]

DIFFERENT = 1
_NS_PER_S = 10**9


def build_policy_app() -> typer.Typer:
    """Build the group of commands."""
    app = typer.Typer(help=HELP, no_args_is_help=True, rich_markup_mode=None)
    app.command("apply", epilog=APPLY_EPILOG)(apply)
    app.command("get", epilog=GET_EPILOG)(get)
    app.command("diff", epilog=DIFF_EPILOG)(diff)
    return app


def apply(
    files: FilesArgument,
    admin: AdminOption = DEFAULT_ADMIN,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
    output: OutputOption = Output.TABLE,
) -> None:
    """Replace all policies and quotas by those of the files."""
    given = read_set(files)
    found, body = given.policy_set, canonical_body(given.policy_set)
    if not (found.policies or found.quotas or given.is_body):
        fail('no policy and no quota in these files; to clear everything, apply the body {"version": 7}', USAGE)
    server = Admin(admin, timeout)
    changed = server.get()["digest"] != digest(body)
    server.put(body)
    shown = server.get()
    result = {"changed": changed, "policies": len(found.policies), "tenants": len(found.quotas)}
    result |= {name: shown[name] for name in ("generation", "digest")}
    if output is Output.JSON:
        print_json(result)
    else:
        word = "applied" if changed else "unchanged"
        sys.stdout.write(
            f"{word}: {result['policies']} policies, {result['tenants']} quotas; generation {result['generation']}\n"
        )


def get(
    admin: AdminOption = DEFAULT_ADMIN,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the policies in force on a server, and who wrote them when."""
    shown = Admin(admin, timeout).get()
    if output is Output.JSON:
        print_json(shown)
    else:
        _print(shown)


def diff(
    files: FilesArgument,
    admin: AdminOption = DEFAULT_ADMIN,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show what applying the files would change."""
    wanted = json.loads(canonical_body(read_set(files).policy_set))
    shown = Admin(admin, timeout, USAGE).get()
    names = (f"in force (generation {shown['generation']})", " ".join(files))
    lines = list(difflib.unified_diff(_lines(shown["policy"]), _lines(wanted), *names, lineterm=""))
    if output is Output.JSON:
        print_json({"different": bool(lines), "diff": lines})
    elif lines:
        sys.stdout.write("\n".join(lines) + "\n")
    if lines:
        raise typer.Exit(DIFFERENT)


def _lines(body: Any) -> list[str]:
    return json.dumps(body, indent=2, ensure_ascii=False).splitlines()


def _print(shown: dict[str, Any]) -> None:
    written = f" by {shown['source']} on {shown['host']} at {shown['writtenAt']}" if shown["writtenAt"] else ""
    title = f"generation {shown['generation']}, written{written or ' by nobody'}; in force since {shown['appliedAt']}"
    policies, tenants = shown["policy"].get("policies") or [], shown["policy"].get("tenants") or []
    columns = (
        "namespace",
        "TTL",
        "eviction",
        "min prefix",
        "min matched",
        "floor",
        "timeout ms",
        "affinity",
        "strategy",
    )
    print_table(title, columns, map(_policy_row, policies), f"digest {shown['digest']}")
    rows = [(row["tenantID"], row.get("maxIndexEntries", 0), row.get("isolationMode", "")) for row in tenants]
    print_table("quotas", ("tenant", "max entries", "isolation"), rows, f"{len(rows)} quotas")


def _policy_row(row: dict[str, Any]) -> Iterable[object]:
    ttl_ns = row.get("evictionTTL", 0)
    strategy = row.get("strategy", {})
    return (
        row["namespace"],
        f"{ttl_ns / _NS_PER_S:g} s" if ttl_ns else "default",
        row.get("eviction", "lru"),
        row.get("minimumPrefixTokens", 0) or "off",
        row.get("minimumMatchedTokens", 0) or "off",
        row.get("routingFloorScore", "default"),
        row.get("lookupTimeoutMs", "default"),
        _switch(row.get("affinityRouting")),
        ", ".join(f"{name} {_switch(value)}" for name, value in strategy.items()) or "default",
    )


def _switch(value: bool | None) -> str:
    return "default" if value is None else "on" if value else "off"
