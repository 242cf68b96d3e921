"""Every fault of Redis that the service is tried on: what makes it ill, what mends it, what is seen meanwhile.

A scenario's first line says what happens to Redis, its second paragraph what users see. The table of
`docs/faults.md` has a row for each.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeAlias

import redis

from tests.faults.sickbay import Sickbay, until

Strikes: TypeAlias = Callable[[Sickbay], AsyncIterator[None]]

UNAVAILABLE = "UNAVAILABLE"
NOBODY = "127.0.0.1", 1
"""An address at which nobody listens."""

_LATE_S = 0.4
_POPULATION = 3000


@dataclass(frozen=True, slots=True)
class Scenario:
    """One fault.

    Attributes:
        strikes: makes Redis ill, yields once, and mends it.
        lookups: reasons that gateways get meanwhile; each of them is waited for.
        also: further reasons that they may get.
        producers: statuses that producers get; each of them is waited for.
        evictions: whether evictions are acknowledged meanwhile although reports are not; waited for, too.
        keeps: whether Redis still has afterwards what was acknowledged.
        silent: whether Redis says nothing at all, so that the circuit opens and lookups need not ask.
        line: whether it is the line that is ill, whatever is at its end.
    """

    strikes: Strikes
    lookups: frozenset[str]
    also: frozenset[str]
    producers: frozenset[str]
    evictions: bool
    keeps: bool
    silent: bool
    line: bool

    @asynccontextmanager
    async def struck(self, bay: Sickbay) -> AsyncIterator[None]:
        """Have Redis ill for as long as the block runs, and mend it however the block ends."""
        phases = self.strikes(bay)
        await anext(phases)
        try:
            yield
        finally:
            async for _ in phases:
                raise AssertionError("a scenario yields once")

    @property
    def name(self) -> str:
        """What the table calls it."""
        return self.strikes.__name__.replace("_", " ")

    @property
    def what_happens(self) -> str:
        """The first line of its description."""
        return (inspect.getdoc(self.strikes) or "").partition("\n")[0]


SCENARIOS: list[Scenario] = []


def fault(
    *lookups: str,
    also: str = "",
    producers: str = "",
    evictions: bool = False,
    keeps: bool = True,
    silent: bool = False,
    line: bool = False,
) -> Callable[[Strikes], None]:
    """Add a scenario to the list."""

    def add(strikes: Strikes) -> None:
        reasons = frozenset(lookups), frozenset(also.split())
        SCENARIOS.append(Scenario(strikes, *reasons, frozenset(producers.split()), evictions, keeps, silent, line))

    return add


@fault("INDEX_UNAVAILABLE", producers=UNAVAILABLE, silent=True, line=True)
async def refused(bay: Sickbay) -> AsyncIterator[None]:
    """Nobody listens at the address of Redis.

    Gateways are told at once that there is no hint, engines that they should send it again later.
    """
    bay.line.refuse()
    yield
    await bay.line.listen()


@fault("INDEX_UNAVAILABLE", also="TIMEOUT", producers=UNAVAILABLE, silent=True)
async def killed(bay: Sickbay) -> AsyncIterator[None]:
    """Redis is killed, and started again with its append-only file.

    As refused; when it is back, everything that was acknowledged is, too.
    """
    bay.redis.kill()
    yield
    bay.redis.start()


@fault(
    "INDEX_UNAVAILABLE",
    also="TIMEOUT NO_HINT AFFINITY_HINT UNKNOWN_HASH_SCHEME",
    producers=UNAVAILABLE,
    keeps=False,
    silent=True,
)
async def replaced(bay: Sickbay) -> AsyncIterator[None]:
    """Redis is killed, and an empty one comes in its place.

    As refused; then the index is cold and fills as engines report.
    """
    bay.redis.kill()
    yield
    bay.redis.start(appendonly="no")
    bay.redis.ask("CONFIG", "SET", "appendonly", "yes")
    await bay.told("persistence", "aof_rewrite_in_progress:0")


@fault("AFFINITY_HINT", also="NO_HINT UNKNOWN_HASH_SCHEME", keeps=False)
async def emptied(bay: Sickbay) -> AsyncIterator[None]:
    """Somebody runs FLUSHALL.

    The index is cold: no hints but stable replicas, and no errors for anybody.
    """
    bay.redis.ask("FLUSHALL")
    yield


@fault("PREFIX_MATCH")
async def forgetful(bay: Sickbay) -> AsyncIterator[None]:
    """Somebody runs SCRIPT FLUSH.

    Nobody notices: scripts are loaded again by the calls that miss them.
    """
    bay.redis.ask("SCRIPT", "FLUSH")
    yield


@fault("TIMEOUT", "INDEX_UNAVAILABLE", producers=UNAVAILABLE, silent=True)
async def frozen(bay: Sickbay) -> AsyncIterator[None]:
    """The process of Redis is stopped: connections stay open, nothing answers.

    The first lookups use up their budget, then all are told at once that there is no hint. Engines wait for 5 s.
    """
    bay.redis.pause()
    yield
    bay.redis.resume()


@fault("TIMEOUT", "INDEX_UNAVAILABLE", producers=UNAVAILABLE, silent=True, line=True)
async def half_open(bay: Sickbay) -> AsyncIterator[None]:
    """Requests reach Redis, replies are lost, and no connection ends.

    As frozen. What engines sent meanwhile may have been stored or not: they send it again.
    """
    bay.line.swallowing = True
    yield
    bay.line.swallowing = False


@fault("TIMEOUT", "INDEX_UNAVAILABLE", producers=UNAVAILABLE, silent=True, line=True)
async def clogged(bay: Sickbay) -> AsyncIterator[None]:
    """The line to Redis takes nothing and brings nothing, and no connection ends.

    As frozen.
    """
    bay.line.stalling = True
    yield
    bay.line.stalling = False


@fault("TIMEOUT", also="INDEX_UNAVAILABLE", line=True)
async def slow(bay: Sickbay) -> AsyncIterator[None]:
    """Every reply comes later than a lookup may take.

    Lookups use up their budget, engines just wait. A late reply never answers another question.
    """
    bay.line.delay_s = _LATE_S
    yield
    bay.line.delay_s = 0.0


@fault("INDEX_UNAVAILABLE", also="TIMEOUT", producers=UNAVAILABLE, silent=True, line=True)
async def cut(bay: Sickbay) -> AsyncIterator[None]:
    """Each connection ends where its next reply should come.

    As refused. What engines sent meanwhile may have been stored or not: they send it again.
    """
    bay.line.cutting = True
    yield
    bay.line.cutting = False


@fault("INDEX_UNAVAILABLE", also="TIMEOUT", producers=UNAVAILABLE, silent=True, line=True)
async def torn(bay: Sickbay) -> AsyncIterator[None]:
    """Each connection ends in the middle of its next reply.

    As cut; half a reply is none.
    """
    bay.line.cut_after = 2
    yield
    bay.line.cut_after = None


@fault("INDEX_UNAVAILABLE", also="TIMEOUT", producers=UNAVAILABLE, silent=True, line=True)
async def garbled(bay: Sickbay) -> AsyncIterator[None]:
    """Something answers that does not speak the Redis protocol.

    As cut; nothing of it is taken for an answer.
    """
    bay.line.garbage = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"
    yield
    bay.line.garbage = b""


@fault("PREFIX_MATCH", producers="RESOURCE_EXHAUSTED", evictions=True)
async def full(bay: Sickbay) -> AsyncIterator[None]:
    """Redis has reached maxmemory.

    Lookups and evictions go on, reports are refused.
    """
    bay.redis.ask("CONFIG", "SET", "maxmemory", "1")
    yield
    bay.redis.ask("CONFIG", "SET", "maxmemory", "0")


@fault("PREFIX_MATCH", also="INDEX_UNAVAILABLE", producers=UNAVAILABLE)
async def read_only(bay: Sickbay) -> AsyncIterator[None]:
    """Redis has become a replica, as after a failover that the server does not follow.

    Lookups go on with what it has, but for those under way while Redis 7 cuts its connections; writes are refused.
    """
    bay.redis.ask("REPLICAOF", *NOBODY)
    yield
    bay.redis.ask("REPLICAOF", "NO", "ONE")


@fault("INDEX_UNAVAILABLE", producers=UNAVAILABLE)
async def orphaned(bay: Sickbay) -> AsyncIterator[None]:
    """Redis has become a replica that lost its primary and must not serve old data.

    As refused.
    """
    bay.redis.ask("CONFIG", "SET", "replica-serve-stale-data", "no")
    bay.redis.ask("REPLICAOF", *NOBODY)
    yield
    bay.redis.ask("REPLICAOF", "NO", "ONE")
    bay.redis.ask("CONFIG", "SET", "replica-serve-stale-data", "yes")


@fault("INDEX_UNAVAILABLE", also="TIMEOUT", producers=UNAVAILABLE)
async def loading(bay: Sickbay) -> AsyncIterator[None]:
    """Redis is back and still reads its data.

    As refused, until it has read everything.
    """
    bay.redis.ask("DEBUG", "POPULATE", _POPULATION, "ballast")
    bay.redis.ask("BGREWRITEAOF")
    await bay.told("persistence", "aof_rewrite_in_progress:0")
    bay.redis.kill()
    bay.redis.start(key_load_delay="500", loading_process_events_interval_bytes="1024")
    yield
    await bay.told("persistence", "\nloading:0")
    bay.redis.ask("CONFIG", "SET", "key-load-delay", "0")
    bay.redis.ask("UNLINK", *(f"ballast:{number}" for number in range(_POPULATION)))


@fault("PREFIX_MATCH", producers=UNAVAILABLE)
async def unsaved(bay: Sickbay) -> AsyncIterator[None]:
    """Redis cannot save to its disk and refuses writes (MISCONF).

    Lookups go on, writes are refused.
    """
    in_the_way = bay.redis.directory / "dump.rdb"
    in_the_way.mkdir()
    bay.redis.ask("CONFIG", "SET", "save", "3600 1")
    bay.redis.ask("BGSAVE")
    await bay.told("persistence", "rdb_last_bgsave_status:err")
    yield
    in_the_way.rmdir()
    bay.redis.ask("BGSAVE")
    await bay.told("persistence", "rdb_last_bgsave_status:ok")
    bay.redis.ask("CONFIG", "SET", "save", "")


@fault("INDEX_UNAVAILABLE", also="TIMEOUT", producers=UNAVAILABLE)
async def busy(bay: Sickbay) -> AsyncIterator[None]:
    """Somebody's script runs and does not end (BUSY).

    As refused, after a moment in which lookups use up their budget.
    """
    bay.redis.ask("CONFIG", "SET", "busy-reply-threshold", "20")
    script = asyncio.create_task(asyncio.to_thread(_run_for_ever, bay))
    yield
    await until(lambda: _killed_script(bay) or script.done(), "the script to be killed")
    await script
    bay.redis.ask("CONFIG", "SET", "busy-reply-threshold", "5000")


def _run_for_ever(bay: Sickbay) -> None:
    try:
        bay.redis.ask("EVAL", "while true do end", 0)
    except redis.ResponseError as killed_script:
        assert "SCRIPT KILL" in str(killed_script)  # noqa: PT017 - any other end is none


def _killed_script(bay: Sickbay) -> bool:
    try:
        bay.redis.ask("SCRIPT", "KILL")
    except redis.ResponseError:  # not begun yet
        return False
    return True
