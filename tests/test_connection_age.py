"""`--max-connection-age` on real servers: who is served by whom, and what becomes of calls under way."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest

from inference_cache._pb import inferencecache_pb2 as pb
from inference_cache._pb.inferencecache_pb2_grpc import InferenceCacheStub
from inference_cache.sim.gateway import Gateway, Scope
from inference_cache.sim.live.channel import balanced
from inference_cache.sim.trace import Request
from tests.support.dns import NameServer
from tests.support.process import Serving, serving
from tests.support.servers import Server, free_ports, wait_until

SCOPE = Scope("acme")
GRACE = ("--max-connection-age-grace", "10m")
BUDGET = ("--lookup-timeout-ms", "5000")
SEES_THIRD_S = 10.0


def update(number: int) -> pb.CacheStateUpdate:
    chain = pb.PrefixEntry(block_hashes=[bytes([number]) * 8], block_token_counts=[16])
    return pb.CacheStateUpdate(
        tenant_id="acme", model_id="llama", hash_scheme="vllm", replica_id="pod-1", prefixes=[chain]
    )


def held(address: str) -> int:
    request = pb.GetCacheStateRequest(tenant_id="acme", model_id="llama")
    with grpc.insecure_channel(address) as channel:
        return InferenceCacheStub(channel).GetCacheState(request, timeout=10).summary.total_prefixes


def lookups(server: Serving) -> int:
    found = re.findall(
        r"^inferencecache_lookup_route_calls_total\{.*\} (\S+)$", server.get("/metrics")[1], re.MULTILINE
    )
    return int(sum(float(one) for one in found))


class Stream:
    """A report whose stream stays open, on a connection of its own whose states are remembered."""

    def __init__(self, address: str) -> None:
        self.states: list[grpc.ChannelConnectivity] = []
        self.channel = grpc.insecure_channel(address)
        self.channel.subscribe(self.states.append)
        self._stop = False
        self.call = InferenceCacheStub(self.channel).ReportCacheState.future(self._messages())

    def _messages(self) -> Iterator[pb.CacheStateUpdate]:
        yield update(1)
        while not self._stop:
            time.sleep(0.01)

    def told_to_go(self) -> bool:
        """Whether the connection was ready and is not used for new calls any more."""
        ready = grpc.ChannelConnectivity.READY
        return ready in self.states and self.states[-1] is not ready

    def end(self) -> pb.Ack:
        self._stop = True
        return self.call.result(timeout=20)

    def close(self) -> None:
        self._stop = True
        self.channel.close()


def test_report_that_ends_within_the_grace_is_acknowledged(tmp_path: Path) -> None:
    """An old connection takes no new calls, but a stream on it has the grace to end by itself."""
    with serving(tmp_path, "--max-connection-age", "300ms", *GRACE) as server:
        stream = Stream(server.grpc)
        try:
            wait_until(stream.told_to_go, "the server to send the client away")
            assert stream.end().accepted
            assert held(server.grpc) == 1
        finally:
            stream.close()


def test_report_that_outlasts_the_grace_ends_unavailable_and_may_be_sent_again(tmp_path: Path) -> None:
    """A producer learns that it has no Ack, sends again elsewhere, and nothing that was acknowledged is lost."""
    with serving(tmp_path, "--max-connection-age", "300ms", "--max-connection-age-grace", "300ms") as server:
        with grpc.insecure_channel(server.grpc) as channel:
            assert InferenceCacheStub(channel).ReportCacheState(iter([update(2)]), timeout=10).accepted
        stream = Stream(server.grpc)
        try:
            with pytest.raises(grpc.RpcError) as cut:
                stream.call.result(timeout=20)
            assert cut.value.code() is grpc.StatusCode.UNAVAILABLE
            again = InferenceCacheStub(stream.channel)
            assert again.ReportCacheState(iter([update(1)]), timeout=10, wait_for_ready=True).accepted
            assert held(server.grpc) == 2
        finally:
            stream.close()


async def test_lookups_notice_nothing_of_connections_that_end(tmp_path: Path) -> None:
    """While connections come to their age again and again, every lookup is answered."""
    flags = ("--max-connection-age", "200ms", "--max-connection-age-grace", "5s", *BUDGET)
    with serving(tmp_path, *flags) as server:
        states: list[grpc.ChannelConnectivity] = []
        async with grpc.aio.insecure_channel(server.grpc) as channel:
            watching = asyncio.create_task(_watch(channel, states))
            gateway = Gateway(InferenceCacheStub(channel), SCOPE, deadline_s=20)
            while states.count(grpc.ChannelConnectivity.READY) < 5:
                await asyncio.gather(*(gateway.lookup(Request(0, 64, 1, (n,))) for n in range(8)))
            watching.cancel()
    assert set(gateway.reasons) == {"NO_HINT"}


async def _watch(channel: grpc.aio.Channel, states: list[grpc.ChannelConnectivity]) -> None:
    state = channel.get_state(try_to_connect=True)
    while True:
        states.append(state)
        await channel.wait_for_state_change(state)
        state = channel.get_state(try_to_connect=True)


async def test_server_that_is_added_gets_its_share_within_ten_seconds(tmp_path: Path, own_valkey: Server) -> None:
    """Two servers behind a name become three: a gateway that follows the name reaches all and sees no failure."""
    (port,) = free_ports(1)
    flags = ("--redis-url", own_valkey.url, "--max-connection-age", "2s", *GRACE, *BUDGET)

    def started(number: int) -> Serving:
        home = tmp_path / str(number)
        home.mkdir()
        bind = ("--grpc-bind-address", f"127.0.0.{number}:{port}")
        return stack.enter_context(serving(home, *flags, *bind))

    with ExitStack() as stack, NameServer("127.0.0.1", "127.0.0.2") as names:
        servers = [started(1), started(2)]
        async with balanced(names.target(port)) as channel:
            gateway = Gateway(InferenceCacheStub(channel), SCOPE, deadline_s=20)
            await _look_up_until(gateway, lambda: all(lookups(one) for one in servers))
            servers.append(await asyncio.to_thread(started, 3))
            names.addresses.append("127.0.0.3")
            async with asyncio.timeout(SEES_THIRD_S):
                await _look_up_until(gateway, lambda: lookups(servers[2]) > 0)
            before = [lookups(one) for one in servers]
            await _look_up_until(
                gateway, lambda: all(lookups(one) > was for one, was in zip(servers, before, strict=True))
            )
    assert set(gateway.reasons) == {"NO_HINT"}


async def _look_up_until(gateway: Gateway, reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not await asyncio.to_thread(reached):
            for number in range(10):
                await gateway.lookup(Request(0, 64, 1, (number,)))
