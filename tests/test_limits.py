"""Limits end to end: real servers that share a Redis, told over HTTP, asked over gRPC, killed when it hurts."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from inference_cache._pb import inferencecache_pb2 as pb
from inference_cache._pb.inferencecache_pb2_grpc import InferenceCacheStub
from tests.support.process import Serving, serving
from tests.support.servers import Server, valkey_binary, wait_until
from tests.test_policies import push

TENANT, MODEL = "acme", "llama"
QUIET = ("--lookup-timeout-ms", "5000", "--sweep-period", "1h")
SWEEPING = ("--lookup-timeout-ms", "5000", "--sweep-period", "300ms")
MINUTE_US = 60 * 10**6


@pytest.fixture
def redis() -> Iterator[Server]:
    """Yield a Valkey that servers share."""
    server = Server(valkey_binary())
    yield server.start()
    server.stop()


def report(server: Serving, *hashes: bytes, minutes: int = 0) -> None:
    """Report prefixes of 64 tokens, over a connection of its own."""
    update = pb.CacheStateUpdate(
        tenant_id=TENANT,
        model_id=MODEL,
        hash_scheme="vllm",
        replica_id="pod-1",
        timestamp_us=time.time_ns() // 1000 - minutes * MINUTE_US,
        prefixes=[pb.PrefixEntry(prefix_hash=each, token_count=64) for each in hashes],
    )
    with grpc.insecure_channel(server.grpc, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        assert InferenceCacheStub(channel).ReportCacheState(iter([update]), timeout=10, wait_for_ready=True).accepted


def ask(server: Serving, one: bytes, timeout: float | None = 10) -> str:
    """Look a prefix up and return the reason."""
    request = pb.LookupRouteRequest(tenant_id=TENANT, model_id=MODEL, hash_scheme="vllm", prefix_hash=one)
    with grpc.insecure_channel(server.grpc) as channel:
        return str(InferenceCacheStub(channel).LookupRoute(request, timeout=timeout, wait_for_ready=True).reason_code)


def summary(server: Serving) -> pb.CacheSummary:
    """Return what a server says that the model holds."""
    request = pb.GetCacheStateRequest(tenant_id=TENANT, model_id=MODEL)
    with grpc.insecure_channel(server.grpc) as channel:
        state: pb.GetCacheStateResponse = InferenceCacheStub(channel).GetCacheState(
            request, timeout=10, wait_for_ready=True
        )
        return state.summary


def policies(**more: object) -> dict[str, object]:
    """Return a body in which the tenant has no floors, and what more is said."""
    quota = more.pop("quota", None)
    row = {"namespace": TENANT, "minimumMatchedTokens": 0, "routingFloorScore": 0, "affinityRouting": False, **more}
    tenants = [] if quota is None else [{"tenantID": TENANT, "maxIndexEntries": quota}]
    return {"version": 7, "policies": [row], "tenants": tenants}


def names(number: int) -> list[bytes]:
    return [b"block%03d" % at for at in range(number)]


def test_a_quota_told_to_one_server_is_kept_by_the_other(redis: Server, tmp_path: Path) -> None:
    """The tenant's next report through whichever server brings it down; its metric is on that server."""
    a, b, c = names(3)
    where = ("--redis-url", redis.url, *QUIET)
    with serving(tmp_path, *where) as one, serving(tmp_path, *where) as other:
        report(one, a, minutes=3)
        report(one, b, minutes=2)
        assert push(one, policies(quota=2)) == 204
        generation = "inferencecache_policy_generation 1.0"
        wait_until(lambda: generation in other.get("/metrics")[1], "the policies at the other server")
        assert summary(other).total_prefixes == 2
        report(other, c, minutes=1)
        assert [ask(one, each) == "PREFIX_MATCH" for each in (a, b, c)] == [False, True, True]
        counted = f'inferencecache_tenant_evictions_total{{reason="over_entries",tenant_id="{TENANT}"}} 1.0'
        assert counted in other.get("/metrics")[1]
        assert "inferencecache_tenant_evictions_total{" not in one.get("/metrics")[1]


def test_a_cap_over_workers(redis: Server, tmp_path: Path) -> None:
    """Whichever worker takes a report keeps the cap for all."""
    where = ("--redis-url", redis.url, *QUIET, "--workers", "2", "--max-entries", "5")
    with serving(tmp_path, *where) as server:
        for at, each in enumerate(names(12)):
            report(server, each, minutes=15 - at)
        assert summary(server).total_prefixes == 5
        counted = 'inferencecache_index_evictions_total{algorithm="lru",reason="cap"} 7.0'
        wait_until(lambda: counted in server.get("/metrics")[1], "the counter of all workers")


def test_hits_are_not_lost_when_a_server_ends(redis: Server, tmp_path: Path) -> None:
    """Lookups that were answered just before SIGTERM are counted: the next server sees what is hot."""
    a, b = names(2)
    where = ("--redis-url", redis.url, *QUIET)
    with serving(tmp_path, *where) as server:
        assert push(server, policies(eviction="lfu")) == 204
        report(server, a, b)
        assert [ask(server, a), ask(server, a)] == ["PREFIX_MATCH"] * 2
        server.signal(signal.SIGTERM)
        assert server.ended() == 0
    with serving(tmp_path, *where) as server:
        assert summary(server).hot_prefixes == 1


def sweeps(server: Serving) -> bool:
    return "inferencecache_sweeper 1.0" in server.get("/metrics")[1]


def test_when_the_sweeping_server_is_killed_the_other_goes_on(redis: Server, tmp_path: Path) -> None:
    """One of two sweeps; it dies without a word, and what expires is swept by the other one."""
    where = ("--redis-url", redis.url, *SWEEPING, "--default-ttl", "30m")
    with serving(tmp_path, *where) as one, serving(tmp_path, *where) as other:
        wait_until(lambda: sweeps(one) or sweeps(other), "somebody to sweep")
        dead, alive = (one, other) if sweeps(one) else (other, one)
        report(dead, *names(4), minutes=29)
        dead.signal(signal.SIGKILL)
        dead.process.wait()
        assert push(alive, policies(evictionTTL=60 * 10**9)) == 204
        wait_until(lambda: summary(alive).total_prefixes == 0, "the sweep of the other server")
        assert sweeps(alive)
        assert 'inferencecache_index_evictions_total{algorithm="lru",reason="ttl"} 4.0' in alive.get("/metrics")[1]


def test_a_server_whose_clock_is_an_hour_ahead_does_no_harm(redis: Server, tmp_path: Path) -> None:
    """Servers go by Redis' time: one on a host with a wrong clock finds, stores and sweeps as the others do."""
    (tmp_path / "sitecustomize.py").write_text(
        "import time\n_time, _ns = time.time, time.time_ns\n"
        "time.time = lambda: _time() + 3600\ntime.time_ns = lambda: _ns() + 3600 * 10**9\n"
    )
    ahead = {"PYTHONPATH": str(tmp_path)}
    where = ("--redis-url", redis.url, *SWEEPING)
    with serving(tmp_path, *where, environment=ahead) as fast, serving(tmp_path, *where) as right:
        shown = re.search(r"^inferencecache_store_clock_offset_seconds (\S+)$", fast.get("/metrics")[1], re.MULTILINE)
        assert shown
        assert -3700 < float(shown[1]) < -3500
        a, b, c = names(3)
        assert push(right, policies()) == 204
        report(right, a)
        report(fast, b, minutes=25)
        report(fast, c)
        time.sleep(1)  # several periods: whoever sweeps has done so
        # Without a deadline: gRPC's own reckons with the real clock, which this process does not see.
        found = [ask(server, each, timeout=None) for server in (fast, right) for each in (a, b, c)]
        assert found == ["PREFIX_MATCH"] * 6
        assert summary(right).total_prefixes == 3


def test_a_silent_replica_is_left_out_by_flag(redis: Server, tmp_path: Path) -> None:
    """The same index, asked of a server that judges liveness and of one that does not."""
    (a,) = names(1)
    where = ("--redis-url", redis.url, *QUIET)
    with serving(tmp_path, *where, "--replica-liveness-ttl", "5m") as strict, serving(tmp_path, *where) as lenient:
        update = pb.CacheStateUpdate(
            tenant_id=TENANT,
            model_id=MODEL,
            hash_scheme="vllm",
            replica_id="pod-1",
            timestamp_us=time.time_ns() // 1000 - 10 * MINUTE_US,
            prefixes=[pb.PrefixEntry(prefix_hash=a, token_count=64)],
            stats=pb.ReplicaStats(hit_rate=0.5),
        )
        with grpc.insecure_channel(strict.grpc) as channel:
            assert InferenceCacheStub(channel).ReportCacheState(iter([update]), timeout=10).accepted
        assert (ask(strict, a), ask(lenient, a)) == ("NO_HINT", "PREFIX_MATCH")
