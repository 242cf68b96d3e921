"""`serve --workers`: several processes behind one port, one store and one set of metrics, with real processes."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import pytest

from inference_cache._pb.inferencecache_pb2_grpc import InferenceCacheStub
from tests.support.process import Serving, run, serving
from tests.support.servers import wait_until
from tests.test_app import BLOCKS, QUESTION, OpenReport, report

LOOKUPS = "inferencecache_lookup_route_calls_total"
ALL_READY = (200, "2 of 2 workers are ready\n")
SPREAD = 64


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """Yield one server of two workers for the tests that leave it as it is."""
    with serving(tmp_path_factory.mktemp("workers"), "--workers", "2", "--lookup-timeout-ms", "5000") as started:
        yield started


def pids(server: Serving) -> dict[int, int]:
    """Return the process that last started in each worker's place."""
    return {each["worker"]: each["pid"] for each in server.events() if each["event"] == "worker_started"}


def look_up(address: str, times: int) -> list[str]:
    """Ask so often, each time over a connection of its own, and return the reasons."""
    reasons = []
    for _ in range(times):
        with grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            answer = InferenceCacheStub(channel).LookupRoute(QUESTION, timeout=10, wait_for_ready=True)
            reasons.append(answer.reason_code)
    return reasons


def series(server: Serving, name: str) -> dict[str, float]:
    """Return the values of a metric by the text of its labels."""
    found = re.findall(rf"^{name}(?:\{{(.*)\}})? (\S+)$", server.get("/metrics")[1], re.MULTILINE)
    return {labels: float(value) for labels, value in found}


def total(server: Serving, name: str) -> float:
    """Return the value of a metric over all its labels."""
    return sum(series(server, name).values())


def alive(pid: int) -> bool:
    """Whether a process runs; a dead one that nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def children(pid: int) -> list[int]:
    """Return the processes that a process started and that still run."""
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_start_says_how_many_serve_and_each_line_who_wrote_it(server: Serving) -> None:
    """The operator sees one start of one server, and can tell its processes apart."""
    assert server.wait_for("startup")["workers"] == 2
    started: list[dict[str, Any]] = [each for each in server.events() if each["event"] == "store_state"]
    assert sorted(str(each.get("worker", "parent")) for each in started) == ["0", "1", "parent"]
    assert len(set(pids(server).values())) == 2
    assert server.get("/readyz") == ALL_READY


def test_calls_are_spread_and_counted_as_one_servers(server: Serving) -> None:
    """Connections reach every worker, all see one index, and the sums are the calls that were made."""
    report(server.grpc)
    before = total(server, LOOKUPS)
    assert look_up(server.grpc, SPREAD) == ["PREFIX_MATCH"] * SPREAD
    assert total(server, LOOKUPS) - before == SPREAD
    assert total(server, "inferencecache_lookup_route_latency_seconds_count") == total(server, LOOKUPS)
    shares = series(server, "inferencecache_worker_lookups_total")
    assert set(shares) == {'worker="0"', 'worker="1"'}
    assert all(share > 0 for share in shares.values())
    assert sum(shares.values()) == total(server, LOOKUPS)


def test_merged_metrics_name_each_series_once(server: Serving) -> None:
    """A scraper refuses an answer in which a series appears twice; gauges of the server are not added up."""
    text = server.get("/metrics")[1]
    names = [line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")]
    assert len(names) == len(set(names))
    for line in ("server_up 1.0", "store_up 1.0", "store_noeviction 1.0", "workers_ready 2.0"):
        assert f"\ninferencecache_{line}\n" in text
    assert text.count("\nprocess_cpu_seconds_total ") == 1


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize("flag", ["grpc", "http", "snapshot"])
def test_second_server_on_the_port_fails_loudly(server: Serving, flag: str, workers: str) -> None:
    """Workers share their port with each other, and with no other server, whether or not that one would share."""
    taken = str(server.wait_for("startup")[f"{flag}_addr"])
    ports = {"grpc": "127.0.0.1:0", "http": "127.0.0.1:0", "snapshot": "127.0.0.1:0"} | {flag: taken}
    flags = [word for name, address in ports.items() for word in (f"--{name}-bind-address", address)]
    ended = run("serve", "--workers", workers, *flags)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert f"error: cannot listen on {taken}" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_several_workers_fail_on_the_port_of_a_single_server(tmp_path: Path) -> None:
    """One worker means no sharing: not even with a server whose workers share."""
    with serving(tmp_path) as single:
        assert single.wait_for("startup")["workers"] == 1
        assert children(single.process.pid) != []
        ended = run("serve", "--workers", "2", "--grpc-bind-address", single.grpc, "--http-bind-address", "127.0.0.1:0")
        assert ended.returncode == 1
        assert f"error: cannot listen on {single.grpc}" in ended.stderr


def test_killed_worker_is_replaced_and_counters_never_fall(tmp_path: Path) -> None:
    """A worker that is gone costs its connections; the server goes on, and what was counted stays counted."""
    with serving(tmp_path, "--workers", "2", "--lookup-timeout-ms", "5000") as server:
        report(server.grpc)
        look_up(server.grpc, SPREAD)
        before = series(server, LOOKUPS)
        first = pids(server)
        for place, pid in first.items():
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda place=place, pid=pid: pids(server)[place] != pid, "another worker")  # type: ignore[misc]
        wait_until(lambda: server.get("/readyz") == ALL_READY, "readiness")
        assert series(server, LOOKUPS) == before
        assert set(look_up(server.grpc, SPREAD)) == {"PREFIX_MATCH"}
        after = series(server, LOOKUPS)
        assert all(after[labels] >= value for labels, value in before.items())
        assert sum(after.values()) == sum(before.values()) + SPREAD
        assert series(server, "inferencecache_worker_restarts_total") == {'reason="killed"': 2.0}
        ended = [each for each in server.events() if each["event"] == "worker_ended"]
        assert [(each["pid"], each["reason"]) for each in ended] == [(pid, "killed") for pid in first.values()]


def test_worker_told_to_stop_says_what_it_counted_and_is_replaced(tmp_path: Path) -> None:
    """A worker that ends in order loses no count, scraped or not."""
    with serving(tmp_path, "--workers", "2", "--lookup-timeout-ms", "5000") as server:
        look_up(server.grpc, SPREAD)
        first = pids(server)
        os.kill(first[0], signal.SIGTERM)
        wait_until(lambda: pids(server)[0] != first[0], "another worker")
        assert total(server, LOOKUPS) == SPREAD
        assert series(server, "inferencecache_worker_restarts_total") == {'reason="exited"': 1.0}


def test_worker_that_hangs_is_not_counted_as_ready(tmp_path: Path) -> None:
    """Readiness counts workers that answer; a scrape does without one that does not, and keeps its last counts."""
    with serving(tmp_path, "--workers", "2", "--lookup-timeout-ms", "5000") as server:
        look_up(server.grpc, SPREAD)
        before = series(server, LOOKUPS)
        stopped = pids(server)[1]
        os.kill(stopped, signal.SIGSTOP)
        wait_until(lambda: server.get("/readyz") == (200, "1 of 2 workers are ready\n"), "the silence to be noticed")
        assert series(server, LOOKUPS) == before
        os.kill(stopped, signal.SIGCONT)
        wait_until(lambda: server.get("/readyz") == ALL_READY, "readiness")
        assert pids(server)[1] == stopped


def test_nothing_outlives_a_parent_that_is_killed(tmp_path: Path) -> None:
    """SIGKILL leaves no chance to clean up: the workers and the embedded store go all the same."""
    with serving(tmp_path, "--workers", "2") as server:
        family = children(server.process.pid)
        assert set(pids(server).values()) < set(family)
        assert len(family) == 3
        server.signal(signal.SIGKILL)
        server.ended()
        wait_until(lambda: not any(alive(pid) for pid in family), "all processes to end")


def test_drain_waits_for_a_stream_in_any_worker(tmp_path: Path) -> None:
    """SIGTERM lets every worker finish its calls; the server then ends with status 0 and leaves nobody behind."""
    with serving(tmp_path, "--workers", "2", "--shutdown-grace", "10m") as server:
        family = children(server.process.pid)
        with closing(OpenReport(server.grpc)) as in_flight:
            server.signal()
            server.wait_for("graceful_shutdown_started")
            wait_until(lambda: server.get("/readyz") == (503, "shutting down\n"), "unreadiness")
            assert in_flight.end().accepted
            assert server.ended() == 0
        assert server.names()[-1] == "graceful_shutdown_done"
        assert not any(alive(pid) for pid in family)


@pytest.mark.parametrize(("grace", "signals"), [("100ms", 1), ("60m", 2)])
def test_drain_is_bounded(tmp_path: Path, grace: str, signals: int) -> None:
    """A stream that never ends is cut after the grace, or by a second signal, and the status is 0."""
    with (
        serving(tmp_path, "--workers", "2", "--shutdown-grace", grace) as server,
        closing(OpenReport(server.grpc)) as in_flight,
    ):
        for _ in range(signals):
            server.signal()
            server.wait_for("graceful_shutdown_started")
        assert server.ended() == 0
        with pytest.raises(grpc.RpcError):
            in_flight.call.result(timeout=10)


def test_index_in_a_directory_survives_a_restart(tmp_path: Path) -> None:
    """The one embedded store of all workers is as durable as a single server's."""
    flags = ("--workers", "2", "--embedded-dir", str(tmp_path / "a directory"), "--lookup-timeout-ms", "5000")
    with serving(tmp_path, *flags) as first:
        report(first.grpc)
        first.signal()
        assert first.ended() == 0
    with serving(tmp_path, *flags) as second:
        assert set(look_up(second.grpc, 4)) == {"PREFIX_MATCH"}


def test_sweep_runs_once_and_every_worker_hears_of_it(tmp_path: Path) -> None:
    """The parent sweeps for all; models that hold nothing any more are shown so, whichever worker had them."""
    flags = ("--workers", "2", "--default-ttl", "1s", "--sweep-period", "100ms")
    entries = "inferencecache_index_entries"
    with serving(tmp_path, *flags) as server:
        report(server.grpc)
        wait_until(lambda: total(server, "inferencecache_index_evictions_total") == len(BLOCKS), "the sweep")
        wait_until(lambda: series(server, entries) == {'model="llama"': 0.0}, "the gauge to follow in all workers")
