"""The demo over real servers, small."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import orjson
import pytest
import pytest_asyncio

from inference_cache._pb import inferencecache_pb2 as pb
from inference_cache._pb.inferencecache_pb2_grpc import InferenceCacheStub
from inference_cache.errors import InferenceCacheError
from inference_cache.sim.compare import CACHE_AWARE, LEAST_LOADED, ROUND_ROBIN, YARDSTICK, Fleet, compare
from inference_cache.sim.demo import SLICE, Prompts, Result, prompts_for
from inference_cache.sim.gateway import CacheAware, Gateway, Scope
from inference_cache.sim.generate import ChatShape, generate
from inference_cache.sim.launch import check_serving, is_serving, launched
from inference_cache.sim.report import ServiceReporter
from inference_cache.sim.simulate import play
from inference_cache.sim.trace import Request, write_trace

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHATS = generate(ChatShape(requests=250, duration_ms=75_000), 5)
PATIENT_S = 60.0
FLEET = Fleet(cache_blocks=2_500, engines=4)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def servers() -> AsyncIterator[list[str]]:
    async with launched(2, os.environ, "--lookup-timeout-ms", "60000") as addresses:
        yield addresses


class _Quiet:
    def begin(self, stage: str, steps: int) -> None:
        pass

    def advance(self) -> None:
        pass


async def test_the_index_knows_what_the_engines_cache(servers: list[str]) -> None:
    """After prompts, evictions and re-stores through two servers, lookups tell every engine's true match."""
    scope = Scope(tenant_id="agreement")
    engines = FLEET.build()
    async with grpc.aio.insecure_channel(servers[0]) as one, grpc.aio.insecure_channel(servers[1]) as two:
        stubs = [InferenceCacheStub(one), InferenceCacheStub(two)]
        gateways = [Gateway(stub, scope, PATIENT_S) for stub in stubs]
        reporter = ServiceReporter({engine.replica_id: stubs[n % 2] for n, engine in enumerate(engines)}, scope)
        await play(CHATS, engines, CacheAware(gateways, FLEET.rule), reporter)
        assert reporter.evicted > 1000
        told = 0
        for number, request in enumerate(CHATS):
            scores = await gateways[number % 2].lookup(request)
            truth = {engine.replica_id: 16 * engine.cache.match(request.spans()) for engine in engines}
            if any(score.matched_tokens for score in scores):
                told += 1
                assert {score.replica_id: score.matched_tokens for score in scores} == {
                    name: tokens for name, tokens in truth.items() if tokens >= 64
                }
            else:
                assert max(truth.values()) < 64 or len(set(truth.values())) == 1
        assert told > len(CHATS) / 2
        await reporter.clear(engines)
        state = await stubs[0].GetCacheState(
            pb.GetCacheStateRequest(tenant_id=scope.tenant_id, model_id=scope.model_id)
        )
    assert (state.summary.total_prefixes, len(state.replicas)) == (0, 0)


async def test_cache_aware_routing_pays(servers: list[str]) -> None:
    """The comparison has one result a routing, and the service's is near the yardstick and above the blind ones."""
    prompts = Prompts(CHATS, "test", "all")
    result = Result(prompts, FLEET, await compare(CHATS, FLEET, servers, _Quiet()))
    assert [one.routing for one in result.figures] == [CACHE_AWARE, ROUND_ROBIN, LEAST_LOADED, YARDSTICK]
    ours = result.of(CACHE_AWARE)
    assert sum(ours.reasons.values()) == len(CHATS)
    assert ours.calls["ReportCacheState"] == len(CHATS)
    assert ours.token_hit_rate > 1.2 * result.of(ROUND_ROBIN).token_hit_rate
    assert result.share_of_yardstick > 0.9
    assert ours.lookup_p99_ms is not None
    assert result.of(YARDSTICK).lookup_p99_ms is None


async def test_without_a_server_there_is_no_comparison() -> None:
    """An address where nobody serves is named."""
    with pytest.raises(InferenceCacheError, match=r"127\.0\.0\.1:1$"):
        await check_serving(["127.0.0.1:1"], patience_s=0.2)


async def test_a_server_that_does_not_start_says_why() -> None:
    """Its last words reach the user, and nothing is left behind."""
    with pytest.raises(InferenceCacheError, match=r"a server did not start: .*\S"):
        async with launched(1, {**os.environ, "PYTHONPATH": "", "PYTHONHOME": "/nonexistent"}):
            raise AssertionError("it cannot have started")


async def test_servers_end_with_their_user() -> None:
    """Whoever is cancelled in the middle leaves no server running."""
    addresses: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()

    async def use() -> None:
        async with launched(1, os.environ) as started:
            addresses.set_result(started)
            await asyncio.Event().wait()

    task = asyncio.create_task(use())
    (address,) = await addresses
    assert await is_serving(address)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not await is_serving(address)


async def test_the_command_plays_a_trace_and_writes_what_it_found(servers: list[str], tmp_path: Path) -> None:
    """JSON on stdout, the same and a picture in --out, the slice named in it."""
    trace = tmp_path / "trace.jsonl"
    write_trace(trace, CHATS[:60])
    code, out, err = await _demo(
        "--trace", str(trace), "--server", ",".join(servers), "--out", str(tmp_path / "out"), "--output", "json"
    )
    assert code == 0, err
    document = orjson.loads(out)
    assert document["trace"]["slice"] == "the first 60 requests (--full plays all)"
    assert [one["routing"] for one in document["routings"]] == [CACHE_AWARE, ROUND_ROBIN, LEAST_LOADED, YARDSTICK]
    assert orjson.loads((tmp_path / "out" / "demo.json").read_bytes()) == document
    assert (tmp_path / "out" / "demo.png").read_bytes().startswith(b"\x89PNG")


async def test_an_interrupted_demo_stops_its_servers() -> None:
    """Ctrl-C in the middle ends with a sentence, its own exit status, and no server left."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "inference_cache", "demo", "--full"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "COLUMNS": "200"},
    )
    assert process.stderr is not None
    addresses: list[str] = []
    while not addresses:
        line = (await process.stderr.readline()).decode()
        assert line, "it ended before its servers were ready"
        if "servers ready: " in line:
            addresses = line.split(": ")[1].strip().split(", ")
    assert all([await is_serving(address) for address in addresses])
    process.send_signal(signal.SIGINT)
    _, err = await process.communicate()
    assert process.returncode == 130
    assert b"interrupted" in err
    assert not any([await is_serving(address) for address in addresses])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(("--trace", "nowhere.jsonl"), "nowhere.jsonl"), (("--out", "/dev/null/x"), "--out /dev/null/x")],
)
async def test_unusable_arguments_are_named(arguments: tuple[str, ...], words: str) -> None:
    """Wrong usage is told before anything is started."""
    code, _, err = await _demo(*arguments)
    assert (code, words in err, "Traceback" in err) == (2, True, False)


async def test_a_slice_is_played_unless_all_is_asked_for(tmp_path: Path) -> None:
    """The head of a long trace is played, and the words for it say so."""
    path = tmp_path / "long.jsonl"
    write_trace(path, [Request(n, 16, 0, (n,)) for n in range(SLICE + 5)])
    head, whole = (prompts_for(path, full=full, seed=0) for full in (False, True))
    assert (len(head.requests), head.part) == (SLICE, "the first 3,000 requests (--full plays all)")
    assert (len(whole.requests), whole.part) == (SLICE + 5, "all 3,005 requests")


async def _demo(*arguments: str) -> tuple[int | None, bytes, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "inference_cache", "demo", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    return process.returncode, out, err.decode()
