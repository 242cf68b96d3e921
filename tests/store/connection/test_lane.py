"""Many callers on one socket: nobody gets another's reply, and nobody waits for a server that does not answer."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import uvloop

from inference_cache.errors import StoreError, StoreUnavailable
from inference_cache.store.connection import Connection, Limits, open_connection
from inference_cache.store.connection.breaker import FAILURES_TO_OPEN
from inference_cache.store.connection.standalone import StandaloneConnection
from tests.support.patience import until, until_it_runs
from tests.support.proxy import Proxy
from tests.support.scripts import COUNT, ECHO, Script
from tests.support.servers import Server

LINE_UP = Script("#!lua\nreturn redis.call('RPUSH', KEYS[1], ARGV[1])")
LARGE = 5 * 1024 * 1024
BUDGET_S = 0.05
IMPATIENT = Limits(connect_ms=500, call_ms=300)

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]
on_both_loops = pytest.mark.parametrize("loop", LOOPS, ids=["asyncio", "uvloop"])


def run(loop: Callable[[], asyncio.AbstractEventLoop], work: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(work)


@asynccontextmanager
async def opened(url: str, limits: Limits | None = None) -> AsyncIterator[StandaloneConnection]:
    connection = await open_connection(url, limits=limits)
    assert isinstance(connection, StandaloneConnection)
    try:
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def behind_a_proxy(server: Server, limits: Limits | None = None) -> AsyncIterator[tuple[Connection, Proxy]]:
    async with (
        Proxy(server.socket_path) as proxy,
        opened(f"redis://127.0.0.1:{proxy.port}", limits) as connection,
    ):
        await connection.run(ECHO, b"k", [b"warm"])
        yield connection, proxy


async def reason_of(connection: Connection, script: Script = ECHO) -> str:
    with pytest.raises(StoreUnavailable) as caught:
        await connection.run(script, b"k", [b"x"])
    return caught.value.reason


async def look_up(connection: Connection) -> str:
    """Look up as a gateway's request does, with a budget; return how it ended."""
    try:
        async with asyncio.timeout(BUDGET_S):
            await connection.run(ECHO, b"k", [b"x"])
    except TimeoutError:
        return "gave up"
    except StoreError as error:
        return error.reason
    return "ok"


# Order and bounds.


@pytest.mark.parametrize("in_flight", [1, 7, 128])
async def test_calls_apply_in_their_order(own_valkey: Server, in_flight: int) -> None:
    """However narrow the window, commands of one kind reach Redis in the order in which they were called."""
    numbers = [b"%d" % number for number in range(1000)]
    async with opened(own_valkey.url, Limits(in_flight=in_flight)) as connection:
        lengths = await asyncio.gather(*(connection.run(LINE_UP, b"k", [number]) for number in numbers))
    assert lengths == list(range(1, 1001))
    assert own_valkey.ask("LRANGE", "k", 0, -1) == numbers


async def test_lookups_do_not_queue_behind_writes(own_valkey: Server) -> None:
    """A lookup that comes after a thousand writes has its answer long before the last of them."""
    async with opened(own_valkey.url, Limits(in_flight=2)) as connection:
        await connection.run(ECHO, b"k", [b"warm"])
        writes = [asyncio.create_task(connection.run(COUNT, b"k", [])) for _ in range(1000)]
        await asyncio.sleep(0)
        await connection.run(ECHO, b"k", [b"x"])
        assert sum(write.done() for write in writes) < 500
        assert sorted(await asyncio.gather(*writes)) == list(range(1, 1001))


async def test_calls_that_arrive_together_leave_together(own_valkey: Server) -> None:
    """Lookups of one iteration of the event loop share one write, and so a round trip."""
    async with opened(own_valkey.url) as connection:
        await connection.run(ECHO, b"k", [b"warm"])
        before = _reads_of(own_valkey)
        await asyncio.gather(*(connection.run(ECHO, b"k", [b"x"]) for _ in range(100)))
        assert _reads_of(own_valkey) - before <= 10  # of these, some are the asking client's


def _reads_of(server: Server) -> int:
    """Return how often a server has read from a socket so far."""
    return int(server.ask("INFO", "stats").partition(b"total_reads_processed:")[2].split()[0])


async def test_ten_thousand_calls_at_once_are_bounded(own_valkey: Server) -> None:
    """A burst waits with us and not in sockets, and is served to the last."""
    async with opened(own_valkey.url, Limits(call_ms=100_000)) as connection:
        calls = [asyncio.create_task(connection.run(ECHO, b"k", [number])) for number in range(10_000)]
        most = 0
        while not all(call.done() for call in calls[-100:]):
            await asyncio.sleep(0)
            most = max(most, connection.traffic()["reads"].in_flight)
        assert [reply[1] for reply in await asyncio.gather(*calls)] == [b"%d" % number for number in range(10_000)]
        assert most == Limits().in_flight
        assert connection.traffic()["reads"].waiting == 0


async def test_callers_beyond_the_queue_are_refused(own_valkey: Server) -> None:
    """Of a burst beyond all bounds exactly as many are served as the socket and the queue hold; the others know."""
    async with opened(own_valkey.url, Limits(in_flight=10, waiting=100)) as connection:
        await connection.run(ECHO, b"k", [b"warm"])
        ends = await asyncio.gather(
            *(connection.run(ECHO, b"k", [b"x"]) for _ in range(10_000)), return_exceptions=True
        )
        assert sum(isinstance(end, list) for end in ends) == 110
        assert {end.reason for end in ends if isinstance(end, StoreUnavailable)} == {"crowded"}
        assert await connection.run(ECHO, b"k", [b"x"]) == [b"k", b"x"]


async def test_waiting_too_long_for_a_turn_is_not_held_against_redis(own_valkey: Server) -> None:
    """Callers that the queue keeps for longer than a call may last are told; a server that answers others is well."""
    async with behind_a_proxy(own_valkey, Limits(in_flight=1, call_ms=1000)) as (connection, proxy):
        proxy.delay_s = 0.4
        calls = (connection.run(ECHO, b"k", [b"x"]) for _ in range(4 * FAILURES_TO_OPEN))
        ends = await asyncio.gather(*calls, return_exceptions=True)
        late = [end.reason for end in ends if isinstance(end, StoreUnavailable)]
        assert late == ["timeout"] * len(late)
        assert len(late) > FAILURES_TO_OPEN
        assert connection.traffic()["reads"].circuit_openings == 0


async def test_large_replies_and_arguments(own_valkey: Server) -> None:
    """Megabytes in both directions, among small calls on the same socket, arrive whole and in order."""
    large = [os.urandom(LARGE) for _ in range(3)]
    async with opened(own_valkey.url) as connection:
        texts = [text for number in range(3) for text in (large[number], b"%d" % number)]
        replies = await asyncio.gather(*(connection.run(ECHO, b"k", [text]) for text in texts))
    assert [reply[1] for reply in replies] == texts


async def test_a_server_that_does_not_read_fills_no_memory(own_valkey: Server) -> None:
    """While a server reads nothing, at most one large call is taken out of its caller's hands."""
    text = bytes(LARGE)
    async with opened(own_valkey.url) as connection:
        await connection.run(LINE_UP, b"other", [b"warm"])
        own_valkey.pause()
        writes = [asyncio.create_task(connection.run(LINE_UP, b"k", [text])) for _ in range(20)]
        await asyncio.sleep(0.05)
        flow = connection.traffic()["writes"]
        assert flow.in_flight == 1
        assert flow.waiting == 19
        own_valkey.resume()
        assert await asyncio.gather(*writes) == list(range(1, 21))


async def test_a_mistake_harms_nobody_else(own_valkey: Server) -> None:
    """Arguments that cannot be sent fail their own call, as a mistake and not as an outage."""
    async with opened(own_valkey.url) as connection:
        await connection.run(ECHO, b"k", [b"warm"])
        mistaken = connection.run(ECHO, b"k", [object()])  # type: ignore[list-item]
        ends = await asyncio.gather(connection.run(ECHO, b"k", [b"x"]), mistaken, return_exceptions=True)
        assert ends[0] == [b"k", b"x"]
        assert isinstance(ends[1], TypeError)
        with pytest.raises(UnicodeEncodeError):
            await connection.run(ECHO, b"k", ["\ud800"])
        assert await connection.run(ECHO, b"k", [b"x"]) == [b"k", b"x"]


# Giving up.


async def _storm(server: Server, seed: int) -> None:
    """Give calls up at every possible moment, over a slow line with a narrow window."""
    seeded = random.Random(seed)
    written: list[int] = []

    async def one(connection: Connection, number: int) -> None:
        text = b"%d" % number + bytes(seeded.choice([0, 0, 10, 100_000]))
        if number % 3 == 0:
            written.append(await connection.run(COUNT, b"count", []))
        else:
            assert await connection.run(ECHO, b"k", [text]) == [b"k", text]

    async def given_up(connection: Connection, number: int) -> bool:
        call = asyncio.create_task(one(connection, number))
        for _ in range(seeded.choice([0, 1, 2, 5])):
            await asyncio.sleep(0)
        if seeded.random() < 0.5:
            await asyncio.sleep(seeded.random() * 0.02)
        if seeded.random() < 0.7:
            call.cancel()
        await asyncio.wait([call])
        if call.cancelled():
            return True
        failure = call.exception()
        assert failure is None or (isinstance(failure, StoreUnavailable) and failure.reason == "circuit_open"), failure
        return False

    async with behind_a_proxy(server, Limits(in_flight=8)) as (connection, proxy):
        proxy.delay_s = 0.001
        ends = await asyncio.gather(*(given_up(connection, number) for number in range(600)))
        assert {True, False} <= set(ends)
        assert len(set(written)) == len(written)  # nobody has the reply of another
        assert written == sorted(written)
        await until_it_runs(connection, ECHO, b"k", [b"after"])
        flows = connection.traffic().values()
        assert [flow.waiting for flow in flows] == [0, 0]
        assert [flow.reconnects for flow in flows] == [0, 0]


@on_both_loops
@pytest.mark.parametrize("seed", range(3))
def test_no_reply_reaches_another_call(
    own_valkey: Server, loop: Callable[[], asyncio.AbstractEventLoop], seed: int
) -> None:
    """Calls given up before, while and after they are sent: whoever stays has the reply to its own question."""
    run(loop, _storm(own_valkey, seed))


async def test_giving_up_in_good_health_does_not_open_the_circuit(own_valkey: Server) -> None:
    """Callers that change their mind at once say nothing about a server that had no time to answer."""
    async with opened(own_valkey.url) as connection:
        for _ in range(10 * FAILURES_TO_OPEN):
            await connection.run(ECHO, b"k", [b"x"])
            hasty = [asyncio.create_task(connection.run(ECHO, b"k", [b"x"])) for _ in range(FAILURES_TO_OPEN)]
            await asyncio.sleep(0)
            for call in hasty:
                call.cancel()
            await asyncio.wait(hasty)
        assert connection.traffic()["reads"].circuit_openings == 0


async def _stall(server: Server) -> None:
    async with opened(server.url) as connection:
        await connection.run(ECHO, b"k", [b"warm"])
        for _ in range(3):
            lookups = [asyncio.create_task(look_up(connection)) for _ in range(10 * FAILURES_TO_OPEN)]
            for _ in range(3):
                await asyncio.sleep(0)
            time.sleep(5 * BUDGET_S)  # noqa: ASYNC251 - this process hangs, not Redis
            await asyncio.gather(*lookups)
        assert connection.traffic()["reads"].circuit_openings == 0


@on_both_loops
def test_our_own_stall_is_not_held_against_redis(
    own_valkey: Server, loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """When this process hangs for longer than every budget, the replies are there and only wait to be read."""
    run(loop, _stall(own_valkey))


# A line that breaks.


async def test_a_half_open_connection_is_cut(own_valkey: Server) -> None:
    """A line that has gone silent fails all its calls when the first is overdue, and another line is opened."""
    async with behind_a_proxy(own_valkey, IMPATIENT) as (connection, proxy):
        proxy.swallowing = True
        ends = await asyncio.gather(*(connection.run(ECHO, b"k", [b"x"]) for _ in range(3)), return_exceptions=True)
        assert [end.reason for end in ends if isinstance(end, StoreUnavailable)] == ["timeout"] * 3
        proxy.swallowing = False
        assert await until_it_runs(connection, ECHO, b"k", [b"new"]) == [b"k", b"new"]
        assert connection.traffic()["reads"].reconnects == 1
        assert connection.traffic()["writes"].reconnects == 0


async def test_replies_of_a_cut_line_reach_nobody(own_valkey: Server) -> None:
    """Replies that were on their way when the line was cut are not taken for those to calls on the next line."""
    async with behind_a_proxy(own_valkey, IMPATIENT) as (connection, proxy):
        proxy.delay_s = 0.6
        assert await reason_of(connection) == "timeout"
        proxy.delay_s = 0
        for number in range(50):
            assert await until_it_runs(connection, ECHO, b"k", [b"%d" % number]) == [b"k", b"%d" % number]
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("length", [1, 5, 12])
async def test_a_line_that_breaks_within_a_reply(own_valkey: Server, length: int) -> None:
    """The beginning of a reply is no reply: its call fails, and the rest of it is not waited for on the next line."""
    async with behind_a_proxy(own_valkey) as (connection, proxy):
        proxy.cut_after = length
        assert await reason_of(connection) == "down"
        proxy.cut_after = None
        assert await until_it_runs(connection, ECHO, b"k", [b"new"]) == [b"k", b"new"]


@pytest.mark.parametrize(
    "garbage", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x15\x03\x01\x00\x02", b"*1000\r\n$abc\r\n"]
)
async def test_garbage_cuts_the_line(own_valkey: Server, garbage: bytes) -> None:
    """What is no reply means that something else answers: its calls fail by that name, and we try again."""
    async with behind_a_proxy(own_valkey) as (connection, proxy):
        proxy.garbage = garbage
        assert await reason_of(connection) == "protocol"
        assert await reason_of(connection) == "protocol"
        proxy.garbage = b""
        assert await until_it_runs(connection, ECHO, b"k", [b"new"]) == [b"k", b"new"]


async def test_a_reply_that_nobody_asked_for_cuts_the_line(own_valkey: Server) -> None:
    """One reply too many means that the order is lost, so nothing that follows on this line is believed."""
    async with behind_a_proxy(own_valkey) as (connection, proxy):
        proxy.garbage = b"+one\r\n+two\r\n"
        await connection.run(ECHO, b"k", [b"x"])
        proxy.garbage = b""
        assert await until_it_runs(connection, ECHO, b"k", [b"new"]) == [b"k", b"new"]
        assert connection.traffic()["reads"].reconnects == 1


async def test_a_server_that_hangs_up_on_every_call_is_not_run_over(own_valkey: Server) -> None:
    """A line that breaks before it has served is followed by a pause, whatever the introduction says."""
    async with behind_a_proxy(own_valkey) as (connection, proxy):
        proxy.cut_after = len(b"+OK\r\n")
        before = proxy.accepted
        give_up = time.monotonic() + 0.5
        while time.monotonic() < give_up:
            with suppress(StoreError):
                await connection.run(ECHO, b"k", [b"x"])
        assert proxy.accepted - before < 20


async def test_closing_ends_calls_under_way(own_valkey: Server) -> None:
    """Whoever waits when the connection is closed is told, in flight or in the queue."""
    async with opened(own_valkey.url, Limits(in_flight=5)) as connection:
        await connection.run(ECHO, b"k", [b"warm"])
        own_valkey.pause()
        calls = [asyncio.create_task(connection.run(ECHO, b"k", [b"x"])) for _ in range(20)]
        await asyncio.sleep(0)
        await connection.close()
        ends = await asyncio.gather(*calls, return_exceptions=True)
        assert [end.reason for end in ends if isinstance(end, StoreUnavailable)] == ["down"] * 20
        own_valkey.resume()


# A server that goes.


@on_both_loops
def test_a_frozen_server_is_left_alone(
    own_valkey: Server, loop: Callable[[], asyncio.AbstractEventLoop], caplog: pytest.LogCaptureFixture
) -> None:
    """Lookups that give up in vain open the circuit; then nothing is sent but probes, until the server goes on."""
    caplog.set_level(logging.INFO, "inference_cache.store.connection.breaker")

    async def freeze_and_thaw() -> None:
        async with opened(own_valkey.url) as connection:
            await connection.run(ECHO, b"k", [b"warm"])
            own_valkey.pause()
            assert [await look_up(connection) for _ in range(FAILURES_TO_OPEN)] == ["gave up"] * FAILURES_TO_OPEN
            await until(lambda: connection.traffic()["reads"].circuits_open == 1)
            # Without a budget: a busy machine must not make it end first.
            assert [await reason_of(connection) for _ in range(1000)] == ["circuit_open"] * 1000
            assert connection.traffic()["reads"].in_flight <= FAILURES_TO_OPEN + 1
            own_valkey.resume()
            await until(lambda: connection.traffic()["reads"].circuits_open == 0)
            assert await connection.run(ECHO, b"k", [b"x"]) == [b"k", b"x"]
            assert connection.traffic()["reads"].reconnects == 0

    run(loop, freeze_and_thaw())
    told = [record.getMessage().partition(":")[0] for record in caplog.records]
    assert told == ["circuit open", "circuit closed"]


async def test_a_burst_on_a_frozen_server_opens_the_circuit_at_once(own_valkey: Server) -> None:
    """The first lookups wait for their budget, together; whoever comes later does not wait at all."""
    async with opened(own_valkey.url) as connection:
        await connection.run(ECHO, b"k", [b"warm"])
        own_valkey.pause()
        assert set(await asyncio.gather(*(look_up(connection) for _ in range(500)))) == {"gave up"}
        await until(lambda: connection.traffic()["reads"].circuits_open == 1)
        assert await reason_of(connection) == "circuit_open"
        assert connection.traffic()["reads"].waiting <= 1  # the probe
        own_valkey.resume()


async def test_writes_that_time_out_open_the_circuit(own_valkey: Server) -> None:
    """Producers have no budget of their own: the overdue line is cut, and then they are told at once."""
    async with opened(own_valkey.url, IMPATIENT) as connection:
        await connection.run(COUNT, b"k", [])
        own_valkey.pause()
        writes = (connection.run(COUNT, b"k", []) for _ in range(2 * FAILURES_TO_OPEN))
        ends = await asyncio.gather(*writes, return_exceptions=True)
        assert {end.reason for end in ends if isinstance(end, StoreUnavailable)} == {"timeout"}
        assert await reason_of(connection, COUNT) == "circuit_open"
        own_valkey.resume()
        await until_it_runs(connection, COUNT, b"k")


async def test_a_server_that_is_gone_and_comes_back(own_valkey: Server) -> None:
    """Calls fail at once by name and soon without asking; the restarted server is found, and has its scripts again."""
    async with opened(own_valkey.url) as connection:
        await connection.run(ECHO, b"k", [b"x"])
        own_valkey.kill()
        reasons = [await reason_of(connection) for _ in range(2 * FAILURES_TO_OPEN)]
        assert reasons[0] == "down"
        assert reasons[-1] == "circuit_open"
        own_valkey.start()
        assert await until_it_runs(connection, ECHO, b"k", [b"x"]) == [b"k", b"x"]
        flow = connection.traffic()["reads"]
        assert (flow.circuits_open, flow.circuit_openings, flow.reconnects) == (0, 1, 1)


async def test_reconnecting_needs_no_calls(own_valkey: Server) -> None:
    """While nobody asks, the lane is mended all the same, so that the first call finds it well."""
    async with opened(own_valkey.url) as connection:
        await connection.ping()
        own_valkey.kill()
        await asyncio.sleep(0.1)
        own_valkey.start()
        await until(lambda: all(flow.reconnects for flow in connection.traffic().values()))
        assert await connection.run(ECHO, b"k", [b"x"]) == [b"k", b"x"]


async def test_a_lost_script_is_loaded_once_for_all(own_valkey: Server) -> None:
    """However many calls find their script missing at the same time, it is sent once."""
    async with opened(own_valkey.url) as connection:
        await connection.ping()
        before = _loads_of(own_valkey)
        await asyncio.gather(*(connection.run(ECHO, b"k", [b"x"]) for _ in range(100)))
        assert _loads_of(own_valkey) - before == 1


def _loads_of(server: Server) -> int:
    stats = server.ask("INFO", "commandstats").partition(b"cmdstat_script|load:calls=")[2]
    return int(stats.split(b",")[0] or 0)
