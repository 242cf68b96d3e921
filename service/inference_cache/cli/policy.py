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
from inference_cache.cli.output import USAGE, Output, OutputOption, fail, plural, print_json, print_table, printable
from inference_cache.cli.policy_files import read_set
from inference_cache.domain.durations import duration_text
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
        policies = plural(result["policies"], "policy", "policies")
        quotas = plural(result["tenants"], "quota", "quotas")
        sys.stdout.write(f"{word}: {policies}, {quotas}; generation {printable(str(result['generation']))}\n")


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
        sys.stdout.write("\n".join(map(printable, lines)) + "\n")
    if lines:
        raise typer.Exit(DIFFERENT)


def _lines(body: Any) -> list[str]:
    return json.dumps(body, indent=2, ensure_ascii=False).splitlines()


def _print(shown: dict[str, Any]) -> None:
    sys.stdout.write("".join(f"{printable(line)}\n" for line in _about(shown)))
    policies, tenants = shown["policy"].get("policies") or [], shown["policy"].get("tenants") or []
    if policies:
        columns = ("namespace", "TTL", "eviction", "everything else that is set")
        counted = plural(len(policies), "policy", "policies")
        print_table("policies", columns, map(_policy_row, policies), counted, left=columns)
    if tenants:
        rows = [(row["tenantID"], row.get("maxIndexEntries", 0), row.get("isolationMode", "")) for row in tenants]
        print_table("quotas", ("tenant", "max entries", "isolation"), rows, plural(len(rows), "quota", "quotas"))
    if not (policies or tenants):
        sys.stdout.write("no policies, no quotas: the defaults are in force for every tenant\n")


def _about(shown: dict[str, Any]) -> Iterable[str]:
    """Say which generation it is, from whom and since when, as far as the server knows."""
    problem = shown.get("problem")
    if problem:
        yield str(problem)
    if shown["writtenAt"]:
        yield f"generation {shown['generation']}, written by {shown['source']} on {shown['host']}"
        yield f"at {shown['writtenAt']}, in force here since {shown['appliedAt'] or shown['writtenAt']}"
        yield f"digest {shown['digest']}"
    elif not problem:
        yield "generation 0, written by nobody"


def _policy_row(row: dict[str, Any]) -> Iterable[object]:
    ttl_ns = row.get("evictionTTL", 0)
    return (
        row["namespace"],
        duration_text(ttl_ns) if ttl_ns else "default",
        row.get("eviction", "lru"),
        ", ".join(_others(row)),
    )


def _others(row: dict[str, Any]) -> Iterable[str]:
    yield f"min prefix {row.get('minimumPrefixTokens', 0) or 'off'}"
    yield f"min matched {row.get('minimumMatchedTokens', 0) or 'off'}"
    if "routingFloorScore" in row:
        yield f"floor {row['routingFloorScore']}"
    if "lookupTimeoutMs" in row:
        yield f"timeout {row['lookupTimeoutMs']}ms"
    switches = {"affinity": row.get("affinityRouting"), **row.get("strategy", {})}
    yield from (f"{name} {'on' if value else 'off'}" for name, value in switches.items() if value is not None)
