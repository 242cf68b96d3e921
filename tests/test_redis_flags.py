"""The flags about Redis reach it, from a server's command line or its environment."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families

from inference_cache._pb import inferencecache_pb2 as pb
from inference_cache._pb.inferencecache_pb2_grpc import InferenceCacheStub
from tests.rpc.wire import MODEL, SCHEME, TENANT, asks, chain, hs, update
from tests.support.process import Serving, run, serving
from tests.support.rights import PASSWORD, of_sentinels
from tests.support.servers import Server, Watched, free_ports, valkey_binary, wait_until


def metric(server: Serving, name: str, **labels: str) -> float:
    """Return the value of a metric as scraped."""
    for family in text_string_to_metric_families(server.get("/metrics")[1]):
        for sample in family.samples:
            if sample.name == f"inferencecache_{name}" and sample.labels == labels:
                return float(sample.value)
    return 0.0


def test_lookups_are_asked_of_a_replica(tmp_path: Path) -> None:
    """With the flag lookups run there, reports are visible in time, and the metrics say so."""
    primary, replica = (Server(valkey_binary(), port=port).start() for port in free_ports(2))
    flags = ("--redis-read-from", "replica", "--redis-max-replica-lag", "30s", "--lookup-timeout-ms", "0")
    blocks = hs("a", "b", "c", "d")
    request = pb.LookupRouteRequest(tenant_id=TENANT, model_id=MODEL, hash_scheme=SCHEME, **asks(blocks))
    try:
        replica.follow(primary)
        with (
            serving(tmp_path, "--redis-url", primary.url, *flags) as server,
            grpc.insecure_channel(server.grpc) as channel,
        ):
            stub = InferenceCacheStub(channel)
            wait_until(lambda: metric(server, "store_replicas", state="used") == 1, "the replica to be used")
            stub.ReportCacheState(iter([update("r", chain(blocks))]), timeout=60)
            wait_until(lambda: stub.LookupRoute(request, timeout=60).reason_code == "PREFIX_MATCH", "the report")
            wait_until(lambda: metric(server, "store_replica_lookups_total", served_by="replica") > 0, "the count")
            assert metric(server, "store_replica_lookups_total", served_by="primary") == 0
            assert 0 < metric(server, "store_replica_lag_seconds") < 30
            assert b"cmdstat_evalsha_ro" in replica.ask("INFO", "commandstats")
    finally:
        replica.stop()
        primary.stop()


def test_the_account_at_the_sentinels_comes_from_the_environment(tmp_path: Path) -> None:
    """A password need not be on the command line, and none shows in the log."""
    watched = Watched(valkey_binary(), directives=["user default off", of_sentinels()])
    try:
        watched.servers[0].start()
        watched.sentinels[0].start()
        url = f"redis+sentinel://127.0.0.1:{watched.sentinels[0].port}/index"
        twins = ["INFERENCE_CACHE_REDIS_SENTINEL_USERNAME", "INFERENCE_CACHE_REDIS_SENTINEL_PASSWORD"]
        told = dict(zip(twins, ["asker", PASSWORD], strict=True))
        with serving(tmp_path, "--redis-url", url, environment=told) as server:
            wait_until(lambda: server.get("/readyz")[0] == 200, "the server to be ready")
            assert PASSWORD not in str(server.events())
        with serving(tmp_path, "--redis-url", url) as server:
            assert server.get("/readyz")[0] == 503
            assert any(event.get("reason") == "sentinel_auth" for event in server.events())
    finally:
        watched.stop()


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--redis-read-from", "replica"), "--redis-read-from"),
        (("--redis-sentinel-password", "hunter2"), "--redis-sentinel-password"),
    ],
)
def test_flags_without_a_meaning_are_refused(flags: tuple[str, ...], named: str) -> None:
    """Beside the embedded server they are mistakes: exit status 2 with the flag's name, and no password."""
    ended = run("serve", *flags)
    assert ended.returncode == 2
    assert named in ended.stderr
    assert "hunter2" not in ended.stderr + ended.stdout
