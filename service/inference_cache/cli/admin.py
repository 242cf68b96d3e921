"""Requests from the command line to a server's admin port, with errors a person can act on."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from typing import Annotated, Any

import typer

from inference_cache.admin.policy import SOURCE_HEADER
from inference_cache.cli.output import FAILED, USAGE, fail

AdminOption = Annotated[
    str, typer.Option("--admin", help="URL of a server's admin port.", envvar="INFERENCE_CACHE_ADMIN", metavar="URL")
]
DEFAULT_ADMIN = "http://127.0.0.1:8081"
_SHOWN_CHARACTERS = 4000
_PARTS = {"generation", "source", "host", "writtenAt", "appliedAt", "digest", "policy"}


class Admin:
    """One server's `/policy`; whatever fails ends the command with a sentence.

    Args:
        url: of the admin port.
        timeout_s: for each answer.
        status: exit status of a failure.
    """

    def __init__(self, url: str, timeout_s: float, status: int = FAILED) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.netloc:
            fail("--admin must be a URL such as http://127.0.0.1:8081", USAGE)
        self._url = url.rstrip("/").removesuffix("/policy") + "/policy"
        self._timeout_s = timeout_s
        self._status = status
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # the port is not for outsiders

    def get(self) -> dict[str, Any]:
        """Return the policies in force, with their writer."""
        try:
            shown = json.loads(self._ask("GET", None))
        except ValueError:
            fail(f"{self._url}: the answer is not JSON; is this the admin port?", self._status)
        if not isinstance(shown, dict) or not shown.keys() >= _PARTS or not isinstance(shown["policy"], dict):
            fail(f"{self._url}: the answer is not about policies; is this the admin port?", self._status)
        return shown

    def put(self, body: bytes) -> None:
        """Set the policies; they are stored and in force on this server when this returns."""
        self._ask("POST", body)

    def _ask(self, method: str, body: bytes | None) -> bytes:
        headers = {SOURCE_HEADER: "cli", "Content-Type": "application/json"}
        request = urllib.request.Request(self._url, data=body, method=method, headers=headers)  # noqa: S310 - checked
        try:
            with self._opener.open(request, timeout=self._timeout_s) as answer:
                text: bytes = answer.read()
                return text
        except urllib.error.HTTPError as error:
            with error:
                fail(f"{self._url}: {_refusal(error)}", self._status)
        except (OSError, http.client.HTTPException) as error:
            why = getattr(error, "reason", None) or error
            fail(f"{self._url}: no answer, is `inference-cache serve` running? ({why})", self._status)


def _refusal(error: urllib.error.HTTPError) -> str:
    said = error.read(_SHOWN_CHARACTERS).decode("utf-8", "replace").strip()
    if error.code == http.HTTPStatus.NOT_FOUND:
        return "404, there is no /policy here; is this the admin port?"
    return f"{error.code}, {said or error.reason}"
