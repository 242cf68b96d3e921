from __future__ import annotations

import contextlib
import io
import json
import queue
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

import inference_cache
from inference_cache._pb import inferencecache_pb2 as pb
from inference_cache._pb.inferencecache_pb2_grpc import InferenceCacheStub
from inference_cache.store.keys import LAYOUT
from tests.support.process import Serving, run, serving
from tests.support.servers import Server, free_ports, valkey_binary, wait_until

README = Path(__file__).resolve().parent.parent / "README.md"
BLOCKS = [bytes([n]) * 8 for n in range(4)]
COUNTS = [16] * len(BLOCKS)
QUESTION = pb.LookupRouteRequest(
    tenant_id="acme", model_id="llama", hash_scheme="vllm", block_hashes=BLOCKS, block_token_counts=COUNTS
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """Yield one server on an embedded Valkey for all tests that leave it as it is."""
    with serving(tmp_path_factory.mktemp("app"), "--lookup-timeout-ms", "5000") as started:
        yield started


def update() -> pb.CacheStateUpdate:
    chain = pb.PrefixEntry(block_hashes=BLOCKS, block_token_counts=COUNTS)
    return pb.CacheStateUpdate(
        tenant_id="acme", model_id="llama", hash_scheme="vllm", replica_id="pod-1", prefixes=[chain]
    )


def report(address: str) -> None:
    with grpc.insecure_channel(address) as channel:
        assert InferenceCacheStub(channel).ReportCacheState(iter([update()]), timeout=10).accepted


def reason(address: str) -> str:
    with grpc.insecure_channel(address) as channel:
        return InferenceCacheStub(channel).LookupRoute(QUESTION, timeout=10).reason_code


def total(address: str) -> int:
    request = pb.GetCacheStateRequest(tenant_id="acme", model_id="llama")
    with grpc.insecure_channel(address) as channel:
        return InferenceCacheStub(channel).GetCacheState(request, timeout=10).summary.total_prefixes


def health(address: str) -> str:
    with grpc.insecure_channel(address) as channel:
        answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)
        return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))


class OpenReport:
    """A report in flight: its stream is open until it is told to end."""

    def __init__(self, address: str) -> None:
        self._messages: queue.SimpleQueue[pb.CacheStateUpdate | None] = queue.SimpleQueue()
        self._channel = grpc.insecure_channel(address)
        self._messages.put(update())
        self.call = InferenceCacheStub(self._channel).ReportCacheState.future(iter(self._messages.get, None))
        wait_until(lambda: total(address) == len(BLOCKS), "the open report to be applied")

    def end(self) -> pb.Ack:
        self._messages.put(None)
        return self.call.result(timeout=10)

    def close(self) -> None:
        self._messages.put(None)
        self._channel.close()


@pytest.fixture
def reports() -> Iterator[list[OpenReport]]:
    opened: list[OpenReport] = []
    yield opened
    for one in opened:
        one.close()


def test_start_is_announced_with_version_and_real_addresses(server: Serving) -> None:
    """Whoever reads the log learns what runs and where; a port of 0 is told as the one that was taken."""
    started = server.wait_for("startup")
    assert started["version"] == inference_cache.__version__
    assert started["redis"] == "embedded"
    assert started["layout"] == LAYOUT
    for name in ("grpc_addr", "http_addr", "snapshot_addr"):
        assert re.fullmatch(r"127\.0\.0\.1:[1-9]\d*", started[name])


def test_ready_server_says_so_everywhere(server: Serving) -> None:
    """HTTP, gRPC health and the gauges agree."""
    assert server.get("/healthz") == (200, "ok\n")
    assert server.get("/readyz") == (200, "ok\n")
    assert health(server.grpc) == "SERVING"
    status, text = server.get("/metrics")
    assert status == 200
    for gauge in ("server_up", "store_up", "store_noeviction"):
        assert f"inferencecache_{gauge} 1.0\n" in text


def test_admin_port_listens_and_has_no_endpoint(server: Serving) -> None:
    """The operator's port is bound, and empty."""
    assert server.get("/metrics", server.wait_for("startup")["snapshot_addr"])[0] == 404


def test_readme_example_prints_what_the_readme_says(server: Serving) -> None:
    """The first program that a user copies works, and the commands then show the same."""
    text = README.read_text()
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (promised,) = re.findall(r"^prints `(.*)`\.$", text, re.MULTILINE)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(example.replace("127.0.0.1:9090", server.grpc), {})  # noqa: S102 - our own README
    assert printed.getvalue() == promised + "\n"

    where = ("--server", server.grpc, "--tenant", "acme", "--model", "llama", "--output", "json")
    (hashes,) = re.findall(r" --hash ([0-9a-f,]+)$", text, re.MULTILINE)
    answer = json.loads(run("lookup", *where, "--hash", hashes, "--timeout", "10").stdout)
    assert (answer["reason_code"], answer["replica_scores"][0]["matched_tokens"]) == ("PREFIX_MATCH", 64)
    assert json.loads(run("state", *where).stdout)["total_prefixes"] == len(BLOCKS)


@pytest.mark.parametrize("flag", ["grpc", "http", "snapshot"])
def test_second_server_on_a_port_fails_loudly(server: Serving, flag: str) -> None:
    """A taken port ends the start with status 1 and a sentence; two servers never share one."""
    taken = str(server.wait_for("startup")[f"{flag}_addr"])
    ports = {"grpc": "127.0.0.1:0", "http": "127.0.0.1:0", "snapshot": "127.0.0.1:0"} | {flag: taken}
    flags = [word for name, address in ports.items() for word in (f"--{name}-bind-address", address)]
    ended = run("serve", *flags)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert f"error: cannot listen on {taken}: Address already in use" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["--redis-url", "http://user:hunter2@host"],
        ["--redis-url", "redis://user:hunter2@host", "--embedded-dir", "data"],
        ["--redis-url", "redis://user:hunter2@host:port"],
    ],
)
def test_unusable_redis_settings_are_status_2_without_the_password(arguments: list[str]) -> None:
    """A mistake in the URL is a usage error, and no part of the URL reaches the log."""
    ended = run("serve", *arguments)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "--redis-url" in ended.stderr
    assert "hunter2" not in ended.stderr
    assert "Traceback" not in ended.stderr


def test_server_starts_without_its_redis_and_follows_it(tmp_path: Path) -> None:
    """Readiness, health and answers follow Redis, down at the start, up, and down again, without a restart."""
    redis = Server(valkey_binary(), port=free_ports(1)[0])
    try:
        with serving(tmp_path, "--redis-url", redis.url, "--lookup-timeout-ms", "5000") as server:
            assert server.get("/readyz") == (503, "the store does not answer\n")
            assert server.get("/healthz") == (200, "ok\n")
            assert health(server.grpc) == "NOT_SERVING"
            assert reason(server.grpc) == "INDEX_UNAVAILABLE"

            redis.start()
            wait_until(lambda: server.get("/readyz")[0] == 200, "readiness")
            assert health(server.grpc) == "SERVING"
            report(server.grpc)
            assert reason(server.grpc) == "PREFIX_MATCH"

            redis.kill()
            wait_until(lambda: server.get("/readyz")[0] == 503, "unreadiness")
            assert health(server.grpc) == "NOT_SERVING"
            assert "inferencecache_store_up 0.0\n" in server.get("/metrics")[1]
            server.signal()
            assert server.ended() == 0
    finally:
        redis.stop()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_a_server_with_status_0(tmp_path: Path, number: int) -> None:
    """Both ways to ask for an end are clean ones, told in order."""
    with serving(tmp_path) as server:
        server.signal(number)
        assert server.ended() == 0
        assert [name for name in server.names() if name.startswith("graceful")] == [
            "graceful_shutdown_started",
            "graceful_shutdown_done",
        ]


def test_call_in_flight_is_finished_while_no_new_one_is_invited(tmp_path: Path, reports: list[OpenReport]) -> None:
    """During a drain the server is not ready and tells watchers so; a stream that then ends gets its Ack."""
    with serving(tmp_path, "--shutdown-grace", "10m") as server:
        in_flight = OpenReport(server.grpc)
        reports.append(in_flight)
        server.signal()
        server.wait_for("graceful_shutdown_started")
        wait_until(lambda: server.get("/readyz") == (503, "shutting down\n"), "unreadiness")
        assert in_flight.end().accepted
        assert server.ended() == 0


def test_call_that_outlasts_the_grace_is_cut(tmp_path: Path, reports: list[OpenReport]) -> None:
    """A drain is bounded: a producer that never ends its stream cannot hold a server."""
    with serving(tmp_path, "--shutdown-grace", "100ms") as server:
        reports.append(OpenReport(server.grpc))
        server.signal()
        assert server.ended() == 0
        with pytest.raises(grpc.RpcError):
            reports[0].call.result(timeout=10)


def test_second_signal_cuts_at_once(tmp_path: Path, reports: list[OpenReport]) -> None:
    """Whoever asks twice does not want to wait for the grace period."""
    with serving(tmp_path, "--shutdown-grace", "60m") as server:
        reports.append(OpenReport(server.grpc))
        server.signal()
        server.wait_for("graceful_shutdown_started")
        server.signal()
        assert server.ended() == 0
        assert server.names()[-1] == "graceful_shutdown_done"


def test_expired_holdings_leave_totals_by_themselves(tmp_path: Path) -> None:
    """The sweep of a server removes what has outlived the TTL and counts it."""
    with serving(tmp_path, "--default-ttl", "1s", "--sweep-period", "100ms") as server:
        report(server.grpc)
        wait_until(lambda: total(server.grpc) == 0, "the sweep")
        swept = f'inferencecache_index_evictions_total{{algorithm="lru",reason="ttl"}} {len(BLOCKS)}.0\n'
        wait_until(lambda: swept in server.get("/metrics")[1], "the counter of the sweep")


def test_index_in_a_directory_survives_a_restart(tmp_path: Path) -> None:
    """With a directory the embedded Valkey is durable: a restarted server answers as before."""
    data = ("--embedded-dir", str(tmp_path / "data"), "--lookup-timeout-ms", "5000")
    with serving(tmp_path, *data) as first:
        report(first.grpc)
        first.signal()
        assert first.ended() == 0
    with serving(tmp_path, *data) as second:
        wait_until(lambda: second.get("/readyz")[0] == 200, "readiness")
        assert reason(second.grpc) == "PREFIX_MATCH"
