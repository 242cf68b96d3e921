"""`/policy` on the admin port, with a real Redis behind it."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from inference_cache.admin.http import HttpListener, admin_app
from inference_cache.admin.policy import SOURCE_HEADER, PolicyEndpoint
from inference_cache.errors import StoreUnavailable
from inference_cache.settings import Address
from tests.domain.policy_cases import BAD_BODIES
from tests.policies.conftest import DEFAULT, Host, hosts
from tests.support.servers import Server

MIB = 1 << 20
BODY = {"version": 7, "policies": [{"namespace": "t", "evictionTTL": 1_000_000_000, "minimumMatchedTokens": 64}]}
EMPTY = {"version": 7, "policies": [], "tenants": []}


class Admin:
    """A server's admin port, and a client of it."""

    def __init__(self, host: Host, url: str, session: aiohttp.ClientSession) -> None:
        self.host = host
        self.workers: list[Exception | None] = []
        self._url = url
        self._session = session

    async def ask(self, method: str, body: Any = None, **headers: str) -> tuple[int, str, aiohttp.ClientResponse]:
        """Return status, text and the whole answer of a request to /policy."""
        data = json.dumps(body).encode() if isinstance(body, dict) else body
        async with self._session.request(method, self._url, data=data, headers=headers) as answer:
            return answer.status, await answer.text(), answer

    async def shown(self) -> dict[str, Any]:
        """Return what GET answers."""
        status, text, _ = await self.ask("GET")
        assert status == 200
        found: dict[str, Any] = json.loads(text)
        return found


@pytest.fixture
async def admin(own_valkey: Server) -> AsyncIterator[Admin]:
    """Yield the admin port of one server that follows nothing by itself."""
    async with hosts(own_valkey.url, "p", 1, follow=False) as (host,), aiohttp.ClientSession() as session:
        made: Admin

        async def everywhere() -> None:
            for failure in made.workers:
                if failure is not None:
                    raise failure

        endpoint = PolicyEndpoint(host.sync, host.live, host.metrics, everywhere)
        listener = HttpListener(admin_app({"/policy": endpoint.answer}))
        bound = await listener.start(Address("127.0.0.1", 0))
        made = Admin(host, f"http://{bound}/policy", session)
        try:
            yield made
        finally:
            await listener.close()


@pytest.mark.parametrize("method", ["POST", "PUT"])
async def test_a_valid_body_is_in_force_at_the_answer(admin: Admin, method: str) -> None:
    """204 without a body, and the very next request of this process uses it."""
    status, text, _ = await admin.ask(method, BODY)
    assert (status, text) == (204, "")
    assert admin.host.ttl_ms() == 1000
    assert admin.host.counted("policy_pushes_total", source="api", result="changed") == 1


async def test_what_is_absent_from_a_body_is_gone(admin: Admin) -> None:
    """Each body replaces everything; one with nothing clears everything."""
    await admin.ask("POST", BODY | {"tenants": [{"tenantID": "t", "maxIndexEntries": 5}]})
    assert admin.host.live.for_tenant("t").max_index_entries == 5
    await admin.ask("POST", BODY)
    assert admin.host.live.for_tenant("t").max_index_entries is None
    assert (await admin.ask("POST", {"version": 7}))[0] == 204
    assert admin.host.ttl_ms() == DEFAULT.ttl_ms


@pytest.mark.parametrize("content_type", ["application/json", "text/plain", "application/x-www-form-urlencoded"])
async def test_the_content_type_does_not_matter(admin: Admin, content_type: str) -> None:
    """Clients that send none, or a wrong one, are understood."""
    status, _, _ = await admin.ask("POST", BODY, **{"Content-Type": content_type})
    assert status == 204


@pytest.mark.parametrize("method", ["HEAD", "DELETE", "PATCH", "OPTIONS"])
async def test_other_methods_are_refused_with_those_that_are_not(admin: Admin, method: str) -> None:
    """HEAD as well, by which deployments check that the path exists."""
    status, _, answer = await admin.ask(method)
    assert (status, answer.headers["Allow"]) == (405, "GET, POST, PUT")


async def test_a_bad_body_is_refused_and_changes_nothing(admin: Admin) -> None:
    """Status and message of every bad body there is a rule against, and the last good policies still in force."""
    await admin.ask("POST", BODY)
    for case, (body, problem) in BAD_BODIES.items():
        status, text, answer = await admin.ask("POST", io.BytesIO(body))
        assert status == (413 if len(body) > MIB else 400), case
        assert text.startswith("decode policy: "), case
        assert problem in text, case
        assert len(text) < 4000, case
        assert answer.headers["Content-Type"].startswith("text/plain")
        assert (admin.host.ttl_ms(), admin.host.generation) == (1000, 1), case
    refused = sum(admin.host.counted("policy_pushes_total", source="api", result=it) for it in ("invalid", "too_large"))
    assert refused == len(BAD_BODIES)


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_of_more_than_a_mebibyte_is_refused(admin: Admin, chunked: bool) -> None:
    """With or without a length said in advance; exactly a mebibyte is read."""
    padded = json.dumps(BODY).encode().ljust(MIB)
    assert (await admin.ask("POST", padded))[0] == 204

    async def pieces() -> AsyncIterator[bytes]:
        yield padded
        yield b" "

    status, text, _ = await admin.ask("POST", pieces() if chunked else io.BytesIO(padded + b" "))
    assert (status, text) == (413, "decode policy: body: larger than 1048576 bytes\n")
    assert admin.host.counted("policy_pushes_total", source="api", result="too_large") == 1


async def test_rows_without_effect_are_counted(admin: Admin) -> None:
    """They are accepted, as the contract wants, but not silently."""
    await admin.ask("POST", {"version": 7, "policies": [{"namespace": ""}, {"namespace": "t"}, {"namespace": "t"}]})
    assert admin.host.counted("policy_rows_ignored_total", reason="empty_namespace") == 1
    assert admin.host.counted("policy_rows_ignored_total", reason="duplicate_namespace") == 1


async def test_web_pages_are_refused(admin: Admin) -> None:
    """A page that an operator has open cannot reach a port that listens on loopback without authentication."""
    status, text, _ = await admin.ask("POST", EMPTY, Origin="https://example.org")
    assert (status, text) == (403, "forbidden: not for web pages\n")
    assert (await admin.shown())["generation"] == 0


async def test_get_tells_who_wrote_what_and_when(admin: Admin) -> None:
    """And shows the policies as a body of the newest version."""
    await admin.ask("POST", BODY)
    shown = await admin.shown()
    snapshot = admin.host.live.held.snapshot
    assert {name: shown[name] for name in ("generation", "source", "host", "digest")} == {
        "generation": 1,
        "source": "api",
        "host": "host-0",
        "digest": snapshot.digest,
    }
    assert shown["writtenAt"] <= shown["appliedAt"]
    assert shown["appliedAt"].endswith("Z")
    assert shown["policy"]["version"] == 7
    assert shown["policy"]["policies"][0]["evictionTTL"] == 1_000_000_000


async def test_what_get_shows_can_be_posted_back(admin: Admin) -> None:
    """It means the same, so nothing changes, not even the generation."""
    old = {"version": 3, "policies": [{"namespace": "t", "eviction": "LFU", "routingFloorScore": 0.3}]}
    await admin.ask("POST", old)
    before = await admin.shown()
    assert (await admin.ask("PUT", before["policy"]))[0] == 204
    assert await admin.shown() == before
    assert admin.host.counted("policy_pushes_total", source="api", result="same") == 1


async def test_get_before_any_push_shows_the_defaults(admin: Admin) -> None:
    """Generation 0, written by nobody, and an empty body that can be posted back."""
    shown = await admin.shown()
    assert (shown["generation"], shown["source"], shown["writtenAt"], shown["appliedAt"]) == (0, "default", None, None)
    assert shown["policy"] == EMPTY


async def test_an_unchanged_get_costs_no_body(admin: Admin) -> None:
    """ETag and If-None-Match, in each form that clients send."""
    await admin.ask("POST", BODY)
    tag = (await admin.ask("GET"))[2].headers["ETag"]
    for asked in (tag, f'"other", {tag}', tag.removeprefix("W/"), "*"):
        status, text, answer = await admin.ask("GET", **{"If-None-Match": asked})
        assert (status, text, answer.headers["ETag"]) == (304, "", tag)
    await admin.ask("POST", EMPTY)
    assert (await admin.ask("GET", **{"If-None-Match": tag}))[0] == 200


async def test_our_own_command_line_is_told_apart(admin: Admin) -> None:
    """Any other word in the header is no source of its own."""
    await admin.ask("POST", BODY, **{SOURCE_HEADER: "cli"})
    assert (await admin.shown())["source"] == "cli"
    await admin.ask("POST", EMPTY, **{SOURCE_HEADER: "made-up"})
    assert (await admin.shown())["source"] == "api"


async def test_without_redis_a_push_is_refused_and_get_still_answers(admin: Admin, own_valkey: Server) -> None:
    """503, and what is in force stays, here and in the answer."""
    await admin.ask("POST", BODY)
    before = await admin.shown()
    own_valkey.kill()
    status, text, _ = await admin.ask("POST", EMPTY)
    assert status == 503
    assert text.startswith("policies are not known to be stored")
    assert (admin.host.ttl_ms(), await admin.shown()) == (1000, before)
    assert admin.host.counted("policy_pushes_total", source="api", result="failed") == 1


async def test_a_worker_that_lags_behind_is_no_204(admin: Admin) -> None:
    """The promise is about every process of the server."""
    admin.workers = [None, StoreUnavailable("a worker has not applied the policies yet", "worker")]
    status, text, _ = await admin.ask("POST", BODY)
    assert (status, "(worker)" in text) == (503, True)
    admin.workers = [None, None]
    assert (await admin.ask("POST", BODY))[0] == 204


async def test_pushes_at_once_are_all_answered(admin: Admin) -> None:
    """And what holds in the end is what Redis has."""
    bodies = [{"version": 7, "policies": [{"namespace": "t", "evictionTTL": at * 1_000_000}]} for at in range(1, 21)]
    answers = await asyncio.gather(*(admin.ask("POST", body) for body in bodies))
    assert {status for status, _, _ in answers} == {204}
    in_force = admin.host.live.held
    await admin.host.sync.refresh()
    assert admin.host.live.held == in_force
    assert in_force.snapshot.generation == 20
