"""The ACL user of the documentation, made on a test's server with exactly the rights that the page lists."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from tests.support.servers import Cluster, Server

PAGES = Path(__file__).resolve().parent.parent.parent / "docs" / "redis"
PAGE = PAGES / "acl.md"
PASSWORD = "of-a-test-only"  # noqa: S105 - of a test only


def least() -> list[str]:
    """Return the rules of the page's ``ACL SETUSER``, without the user's name."""
    (example,) = re.findall(r"```sh\nredis-cli ACL SETUSER inference-cache (.*?)```", PAGE.read_text(), re.DOTALL)
    return shlex.split(example.replace("\\\n", " "))


def of_sentinels() -> str:
    """Return a Sentinel's directive for the user of the page on Sentinel."""
    page = (PAGES / "sentinel.md").read_text()
    (example,) = re.findall(r"```sh\nredis-cli -p 26379 ACL SETUSER (.*?)```", page, re.DOTALL)
    return " ".join(["user", *shlex.split(example.replace("\\\n", " "))]).replace("PASSWORD", PASSWORD)


def further(where: str) -> list[str]:
    """Return the rights that the page's table has for one kind of set-up."""
    (cell,) = re.findall(rf"^\| (?:\[?){re.escape(where)}(?:\]\(.*?\))? \| `(.*?)` \|", PAGE.read_text(), re.MULTILINE)
    return str(cell).replace("\\|", "|").split()


def grant(server: Server | Cluster, key_prefix: str, *rules: str) -> str:
    """Make a user for one key prefix, named like it, and return the URL with its account.

    Args:
        server: where; on every node of a Cluster.
        key_prefix: in place of the page's ``ic``.
        rules: beyond the page's least rights.
    """
    own = [
        rule.replace("ic:*", f"{key_prefix}:*").replace("PASSWORD", PASSWORD)
        for rule in (*least(), *(further("Cluster") if isinstance(server, Cluster) else ()), *rules)
    ]
    for node in server.nodes if isinstance(server, Cluster) else [server]:
        node.ask("ACL", "SETUSER", key_prefix, *own)
    return account(server.url, key_prefix, PASSWORD)


def revoke(server: Server | Cluster, key_prefix: str) -> None:
    """Remove the user of a key prefix."""
    for node in server.nodes if isinstance(server, Cluster) else [server]:
        node.ask("ACL", "DELUSER", key_prefix)


def account(url: str, user: str, password: str) -> str:
    """Return a URL with a user and a password."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{user}:{password}@{parts.netloc}"))
