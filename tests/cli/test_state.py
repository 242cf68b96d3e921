from __future__ import annotations

import json

import grpc
import pytest
from typer.testing import CliRunner, Result

from inference_cache._pb import inferencecache_pb2 as pb
from inference_cache.cli.commands import build_app
from inference_cache.errors import StoreUnavailable
from inference_cache.rpc.convert import status_of
from tests.cli.canned import Canned

runner = CliRunner(env={"COLUMNS": "120"})


def state(server: str, *arguments: str) -> Result:
    return runner.invoke(build_app(), ["state", "--server", server, "--tenant", "t", "--model", "m", *arguments])


def one_replica() -> pb.GetCacheStateResponse:
    row = pb.ReplicaStats(
        replica_id="pod-1",
        cache_memory_bytes=3 * 2**20,
        hit_rate=0.75,
        pressure=0.25,
        client_version="1.2",
        t2_hit_tokens=5,
        t2_query_tokens=6,
    )
    return pb.GetCacheStateResponse(replicas=[row], summary=pb.CacheSummary(total_prefixes=42, hot_prefixes=7))


def test_table_shows_statistics_and_totals(canned: Canned) -> None:
    """A person sees each replica's figures and the size of the index, of the model that was asked for."""
    canned.cache_state = one_replica()
    answer = state(canned.address)
    assert canned.asked == [pb.GetCacheStateRequest(tenant_id="t", model_id="m")]
    for word in ("t / m", "pod-1", "0.750", "0.250", "3.0", "5/6", "1.2", "42 prefixes"):
        assert word in answer.stdout


def test_json_has_the_names_of_the_wire(canned: Canned) -> None:
    """A program gets every field."""
    canned.cache_state = one_replica()
    assert json.loads(state(canned.address, "-o", "json").stdout) == {
        "total_prefixes": 42,
        "hot_prefixes": 7,
        "replicas": [
            {
                "replica_id": "pod-1",
                "cache_memory_bytes": 3 * 2**20,
                "hit_rate": 0.75,
                "pressure": 0.25,
                "client_version": "1.2",
                "t2_hit_tokens": 5,
                "t2_query_tokens": 6,
            }
        ],
    }


def test_empty_table_says_who_would_be_listed(canned: Canned) -> None:
    """Prefixes without a replica beside them are no contradiction: replicas are known by their statistics."""
    canned.cache_state = pb.GetCacheStateResponse(summary=pb.CacheSummary(total_prefixes=1))
    assert "1 prefix in the index; no replica has sent statistics" in state(canned.address).stdout


def test_a_server_without_its_index_is_not_a_server_that_is_away(canned: Canned) -> None:
    """A person is sent to Redis, not to the server, and is not told what producers should do."""
    canned.refusal_code, canned.refusal = status_of(StoreUnavailable("gone", "down"))
    assert canned.refusal_code is grpc.StatusCode.UNAVAILABLE
    answer = state(canned.address)
    assert answer.exit_code == 1
    assert "the server answered, but its index (Redis) does not: down" in answer.stderr
    assert "send it again" not in answer.stderr


@pytest.mark.parametrize("arguments", [["--tenant", "t"], ["--tenant", "t", "--model", ""]])
def test_model_is_required(arguments: list[str]) -> None:
    """Without a model there is nothing to show: a usage error."""
    assert runner.invoke(build_app(), ["state", *arguments]).exit_code == 2
