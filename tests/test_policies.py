"""Policies end to end: real servers, told over HTTP or by a directory, asked over gRPC."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from inference_cache._pb import inferencecache_pb2 as pb
from inference_cache._pb.inferencecache_pb2_grpc import InferenceCacheStub
from inference_cache.store.keys import Keys
from tests.support.process import Serving, run, serving
from tests.support.servers import Server, valkey_binary, wait_until
from tests.test_app import BLOCKS, COUNTS

MINUTE_NS = 60 * 10**9
AGE_US = 10 * 60 * 10**6
QUIET = ("--lookup-timeout-ms", "5000", "--sweep-period", "1h")
"""A sweep would remove what a raised TTL shall bring back."""

MANIFEST = """\
apiVersion: inferencecache.io/v1alpha1
kind: CachePolicy
metadata: {name: p, namespace: %s}
spec: {evictionTTL: %dm}
"""


def body(ttl_minutes: int, tenant: str = "acme") -> dict[str, Any]:
    """Return policies by which what is ten minutes old counts, or does not."""
    row = {"namespace": tenant, "evictionTTL": ttl_minutes * MINUTE_NS, "minimumMatchedTokens": 64}
    return {"version": 7, "policies": [row]}


def push(server: Serving, policies: dict[str, Any]) -> int:
    """Send policies to a server and return the status."""
    url = f"http://{server.wait_for('startup')['snapshot_addr']}/policy"
    request = urllib.request.Request(url, data=json.dumps(policies).encode(), method="POST")
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:  # noqa: S310 - our own server
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def shown(server: Serving) -> dict[str, Any]:
    """Return what a server shows of its policies."""
    status, text = server.get("/policy", str(server.wait_for("startup")["snapshot_addr"]))
    assert status == 200
    found: dict[str, Any] = json.loads(text)
    return found


def matches(server: Serving, tenant: str = "acme") -> bool:
    """Whether a lookup, over a connection of its own, counts what is ten minutes old."""
    request = pb.LookupRouteRequest(
        tenant_id=tenant, model_id="llama", hash_scheme="vllm", block_hashes=BLOCKS, block_token_counts=COUNTS
    )
    with grpc.insecure_channel(server.grpc, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        answer = InferenceCacheStub(channel).LookupRoute(request, timeout=10, wait_for_ready=True)
    return str(answer.reason_code) == "PREFIX_MATCH"


def report(server: Serving, tenant: str = "acme") -> None:
    """Report blocks as ten minutes old, with the tenant's default TTL of half an hour."""
    update = pb.CacheStateUpdate(
        tenant_id=tenant,
        model_id="llama",
        hash_scheme="vllm",
        replica_id="pod-1",
        timestamp_us=time.time_ns() // 1000 - AGE_US,
        prefixes=[pb.PrefixEntry(block_hashes=BLOCKS, block_token_counts=COUNTS)],
    )
    with grpc.insecure_channel(server.grpc) as channel:
        assert InferenceCacheStub(channel).ReportCacheState(iter([update]), timeout=10).accepted


@pytest.fixture
def redis() -> Iterator[Server]:
    """Yield a Valkey that servers share and that the test may hurt; it keeps its port over a restart."""
    server = Server(valkey_binary())
    yield server.start()
    server.stop()


def within_a_second(condition: Any, what: str) -> None:
    """Wait for a condition, and hold it to the promise that it comes true within a second."""
    began = time.monotonic()
    wait_until(condition, what)
    assert time.monotonic() - began < 1, what


def test_a_ttl_counts_from_the_next_lookup_on(redis: Server, tmp_path: Path) -> None:
    """On the server that was told at once, on the other within a second, in both directions."""
    with (
        serving(tmp_path, "--redis-url", redis.url, *QUIET) as one,
        serving(tmp_path, "--redis-url", redis.url, *QUIET) as other,
    ):
        report(one)
        assert (matches(one), matches(other)) == (True, True)
        for told, untold in ((one, other), (other, one), (one, other)):
            for ttl_minutes, counts in ((5, False), (60, True)):
                assert push(told, body(ttl_minutes)) == 204
                assert matches(told) is counts
                within_a_second(lambda counts=counts, untold=untold: matches(untold) is counts, "the other server")
        assert (shown(one)["generation"], shown(other)["generation"]) == (6, 6)


def test_pushes_through_both_servers_at_once(redis: Server, tmp_path: Path) -> None:
    """All are accepted, and both servers end with the same one, the one that Redis has."""
    with serving(tmp_path, "--redis-url", redis.url) as one, serving(tmp_path, "--redis-url", redis.url) as other:
        with ThreadPoolExecutor(8) as pool:
            pushes = pool.map(lambda at: push((one, other)[at % 2], body(at + 1)), range(40))
            assert set(pushes) == {204}
        within_a_second(lambda: shown(one)["generation"] == shown(other)["generation"] == 40, "agreement")
        assert shown(one)["policy"] == shown(other)["policy"]
        assert redis.ask("HGET", Keys().policy, "digest").decode() == shown(one)["digest"]


def test_policies_outlive_redis_and_servers(redis: Server, tmp_path: Path) -> None:
    """Redis is emptied: the servers write them back. The servers are killed: the next ones find them there."""
    with serving(tmp_path, "--redis-url", redis.url) as one, serving(tmp_path, "--redis-url", redis.url) as other:
        assert push(one, body(5)) == 204
        within_a_second(lambda: shown(other)["generation"] == 1, "the other server")
        redis.ask("FLUSHALL")
        wait_until(lambda: redis.ask("EXISTS", Keys().policy) == 1, "the policies to come back")
        before = shown(one)
    with serving(tmp_path, "--redis-url", redis.url) as next_one:
        after = shown(next_one)
        assert {**after, "appliedAt": None} == {**before, "appliedAt": None}
        report(next_one)
        assert not matches(next_one)


def test_while_redis_is_away_the_last_policies_stay(redis: Server, tmp_path: Path) -> None:
    """A push is refused with 503; when Redis comes back empty, it gets what was in force before."""
    with serving(tmp_path, "--redis-url", redis.url, *QUIET) as server:
        assert push(server, body(5)) == 204
        redis.kill()
        assert push(server, body(60)) == 503
        assert shown(server)["policy"]["policies"][0]["evictionTTL"] == 5 * MINUTE_NS
        wait_until(
            lambda: 'inferencecache_policy_read_errors_total{reason="' in server.get("/metrics")[1], "the counter"
        )
        redis.start()
        wait_until(lambda: server.get("/readyz")[0] == 200, "readiness")
        wait_until(lambda: redis.ask("EXISTS", Keys().policy) == 1, "the policies to come back")
        report(server)
        assert not matches(server)


def test_policies_that_cannot_be_read_are_told_and_harm_nothing(redis: Server, tmp_path: Path) -> None:
    """A server of today beside one of tomorrow goes on with its own, is ready, and says so."""
    with serving(tmp_path, "--redis-url", redis.url, *QUIET) as server:
        assert push(server, body(5)) == 204
        assert server.get("/readyz") == (200, "ok\n")
        redis.ask("HSET", Keys().policy, "generation", 9, "digest", "x", "body", '{"version":8}')
        told = "policies: this version cannot read generation 9, generation 1 stays in force"
        wait_until(lambda: server.get("/readyz") == (200, f"ok\n{told}\n"), "the detail")
        assert "inferencecache_policy_generation 1.0\n" in server.get("/metrics")[1]
        report(server)
        assert not matches(server)


def test_every_worker_uses_policies_before_the_204(redis: Server, tmp_path: Path) -> None:
    """Whichever of them the next connection reaches."""
    with serving(tmp_path, "--redis-url", redis.url, "--workers", "2", *QUIET) as server:
        report(server)
        for ttl_minutes, counts in ((5, False), (60, True)) * 3:
            assert push(server, body(ttl_minutes)) == 204
            assert {matches(server) for _ in range(16)} == {counts}


def test_a_directory_is_in_force_from_the_first_request_on(redis: Server, tmp_path: Path) -> None:
    """On the server that has it and on the others; a change follows, a broken one is told and left out."""
    manifests = tmp_path / "policies"
    manifests.mkdir()
    (manifests / "a.yaml").write_text(MANIFEST % ("acme", 5))
    where = ("--redis-url", redis.url, *QUIET)
    with serving(tmp_path, *where, "--policy-dir", str(manifests)) as owner, serving(tmp_path, *where) as other:
        report(owner)
        assert (matches(owner), matches(other)) == (False, False)
        assert owner.get("/readyz") == (200, "ok\npolicy directory: in force\n")
        assert "inferencecache_policy_directory_in_force 1.0\n" in owner.get("/metrics")[1]
        assert shown(other)["source"] == "directory"

        (manifests / "a.yaml").write_text(MANIFEST % ("acme", 60))
        wait_until(lambda: matches(owner) and matches(other), "the change")
        (manifests / "b.yaml").write_text("kind: CachePolicy")
        wait_until(lambda: "inferencecache_policy_directory_in_force 0.0\n" in owner.get("/metrics")[1], "the gauge")
        assert "b.yaml" in owner.get("/readyz")[1]
        assert owner.wait_for("policy_directory_unusable")["problems"]
        assert matches(owner)

        (manifests / "b.yaml").unlink()
        wait_until(lambda: owner.get("/readyz")[1] == "ok\npolicy directory: in force\n", "the mended directory")
        assert push(other, body(5)) == 204
        wait_until(lambda: not matches(owner), "the push")
        wait_until(lambda: "not in force, generation 3 came from api" in owner.get("/readyz")[1], "the detail")


def test_a_directory_that_is_none_is_a_usage_error(tmp_path: Path) -> None:
    """A mistyped path is told at the start, with the flag and its twin."""
    ended = run("serve", "--policy-dir", str(tmp_path / "nowhere"))
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "--policy-dir (environment: INFERENCE_CACHE_POLICY_DIR)" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_policies_in_an_embedded_directory_survive_a_restart(tmp_path: Path) -> None:
    """A single durable server keeps its policies with its index."""
    data = ("--embedded-dir", str(tmp_path / "data"))
    with serving(tmp_path, *data) as first:
        assert push(first, body(5)) == 204
        before = shown(first)
        first.signal()
        assert first.ended() == 0
    with serving(tmp_path, *data) as second:
        assert {**shown(second), "appliedAt": None} == {**before, "appliedAt": None}
