"""`/policy` on the admin port: set the policies of all tenants, or read them.

A 204 says: stored in Redis, and used by every process of this server from the next call on. Other servers follow
within a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import orjson
from aiohttp import ETag, web

from inference_cache.domain.policy_wire import MAX_BODY_BYTES, PolicyBody, read_policy_body
from inference_cache.errors import PolicyError, StoreError
from inference_cache.metrics import Metrics
from inference_cache.policies.live import Held, LivePolicies
from inference_cache.policies.sync import PolicySync

Everywhere = Callable[[], Awaitable[None]]
"""Returns when every process of this server uses what was just stored; raises ``StoreError`` when one does not."""

SOURCE_HEADER = "Inference-Cache-Source"
"""Set to ``cli`` by our own command line; everybody else is ``api``."""

_ALLOW = "GET, POST, PUT"
_CHUNK = 1 << 16


async def only_here() -> None:
    """Apply everywhere in a server of one process, which has applied already."""


class PolicyEndpoint:
    """Answers `/policy`.

    Args:
        sync: stores and applies in this process.
        live: the policies in force in this process.
        metrics: where pushes are counted.
        apply_everywhere: awaited before a 204, for the other processes of this server.
    """

    def __init__(
        self, sync: PolicySync, live: LivePolicies, metrics: Metrics, apply_everywhere: Everywhere = only_here
    ) -> None:
        self._sync = sync
        self._live = live
        self._metrics = metrics
        self._everywhere = apply_everywhere

    async def answer(self, request: web.Request) -> web.Response:
        """Answer a request of any method; HEAD is refused, as the contract wants.

        A request that a browser sends for a web page is refused too: the port may listen on loopback without
        authentication, where any page that an operator has open could reach it.
        """
        if "Origin" in request.headers:
            return _text(403, "forbidden: not for web pages")
        if request.method in {"POST", "PUT"}:
            return await self._set(request)
        if request.method == "GET":
            return self._get(request)
        return _text(405, f"method not allowed; use {_ALLOW}", Allow=_ALLOW)

    async def _set(self, request: web.Request) -> web.Response:
        source = "cli" if request.headers.get(SOURCE_HEADER) == "cli" else "api"
        data = await _read(request)
        if data is None:
            self._metrics.policy_pushed(source, "too_large")
            return _text(413, f"decode policy: body: larger than {MAX_BODY_BYTES} bytes")
        try:
            body = await asyncio.to_thread(read_policy_body, data)
        except PolicyError as error:
            self._metrics.policy_pushed(source, "invalid")
            return _text(400, f"decode policy: {error}")
        return await self._store(body, source)

    async def _store(self, body: PolicyBody, source: str) -> web.Response:
        try:
            fresh = await self._sync.push(body.policy_set, source)
            await self._everywhere()
        except StoreError as error:
            self._metrics.policy_pushed(source, "failed")
            return _text(503, f"policies are not known to be stored and applied ({error.reason}); push them again")
        self._metrics.policy_pushed(source, "changed" if fresh else "same")
        for reason, number in body.ignored.items():
            self._metrics.policy_rows_ignored(reason, number)
        return web.Response(status=204)

    def _get(self, request: web.Request) -> web.Response:
        held, problem = self._live.held, self._sync.problem()
        tag = ETag(f"{held.snapshot.generation}-{held.snapshot.digest}", is_weak=True)
        if problem is None and any(asked.value in {tag.value, "*"} for asked in request.if_none_match or ()):
            answer = web.Response(status=304)
        else:
            answer = web.Response(body=described(held, problem), content_type="application/json")
        answer.etag = tag
        answer.headers["Cache-Control"] = "no-cache"
        return answer


def described(held: Held, problem: str | None) -> bytes:
    """Return a generation as JSON; ``policy`` is a body that can be posted back, ``problem`` why it may be old."""
    snapshot = held.snapshot
    about = {
        "generation": snapshot.generation,
        "source": snapshot.source or "default",
        "host": snapshot.host,
        "writtenAt": _time(snapshot.written_ms),
        "appliedAt": _time(held.applied_ms),
        "digest": snapshot.digest,
        "problem": problem,
        "policy": orjson.Fragment(snapshot.body),
    }
    return orjson.dumps(about) + b"\n"


async def _read(request: web.Request) -> bytes | None:
    """Return the body, ``None`` when it is larger than allowed; never holds more of it than that."""
    if (request.content_length or 0) > MAX_BODY_BYTES:
        return None
    data = bytearray()
    async for chunk in request.content.iter_chunked(_CHUNK):
        data += chunk
        if len(data) > MAX_BODY_BYTES:
            return None
    return bytes(data)


def _time(ms: int) -> str | None:
    if not ms:
        return None
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _text(status: int, text: str, **headers: str) -> web.Response:
    return web.Response(status=status, text=text + "\n", headers={"X-Content-Type-Options": "nosniff", **headers})
