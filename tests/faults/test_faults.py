"""Redis falls ill in every way we know, under load: gateways notice only that there is no hint, and it heals by itself.

One server process goes through all of it and is never restarted.
"""

from __future__ import annotations

import statistics
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
import pytest_asyncio

from tests.faults.load import Load, Seen
from tests.faults.scenarios import SCENARIOS, Scenario
from tests.faults.sickbay import Sickbay, sickbay, until
from tests.support.servers import redis_binary, valkey_binary

Bays = Callable[[str], Awaitable[Sickbay]]

BUDGET_MS = 100
MATCH = "PREFIX_MATCH"
SPARED = "store_errors_total", 'reason="circuit_open"'
US = 1000
MOSTLY_LATE_MS = 200
"""What the slowest tenth of the answers may need beyond the budget: this machine may have better things to do."""
LATE_MS = 3000
"""What no answer may need beyond it; the server gives up on connections only after 1 s and on calls after 5 s."""
AT_ONCE_US = 1000
GROWTH_BYTES = 64 * 2**20
ENOUGH = 25
ENOUGH_OF = {"TIMEOUT": 1}
"""How many answers of a reason tell that they are no left-overs; timeouts end as soon as the circuit opens."""


def cases() -> list[Any]:
    """Return every fault with each kind of Redis, or with one where it makes no difference."""
    return [
        pytest.param(binary, scenario, id=f"{name}-{scenario.name}")
        for name, binary in (("valkey", valkey_binary()), ("redis7", redis_binary()))
        for scenario in SCENARIOS
        if binary is not None and (name == "valkey" or not scenario.line)
    ]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bays(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bays]:
    """Yield what opens a server for a kind of Redis: one for all faults, one after the other."""
    opened: dict[str, Sickbay] = {}
    async with AsyncExitStack() as stack:

        async def bay(binary: str) -> Sickbay:
            if binary not in opened:
                home = tmp_path_factory.mktemp("faults")
                flags = ("--lookup-timeout-ms", str(BUDGET_MS))
                opened[binary] = await stack.enter_async_context(sickbay(binary, home, *flags))
            return opened[binary]

        yield bay


async def in_health(bay: Sickbay, load: Load) -> None:
    """Wait until everybody gets what he wants, and the server says that it is ready."""
    load.seen = seen = Seen()

    def well() -> bool:
        return seen.reasons[MATCH] >= ENOUGH and seen.acks >= ENOUGH and seen.evictions > 0

    await until(well, "hints and acknowledgements")
    while not await bay.ready():
        pass


async def in_sickness(load: Load, scenario: Scenario) -> Seen:
    """Wait until everything that the scenario promises has been seen, enough of each to judge it."""
    load.seen = seen = Seen()

    def all_seen() -> bool:
        return (
            all(seen.reasons[reason] >= ENOUGH_OF.get(reason, 5) for reason in scenario.lookups)
            and seen.reasons.total() >= 2 * ENOUGH
            and all(seen.refusals[status] for status in scenario.producers)
            and (bool(scenario.producers) or seen.acks > 0)
            and (seen.evictions > 0 or not scenario.evictions)
        )

    await until(all_seen, f"{scenario}, so far {seen.reasons} {seen.refusals}")
    return seen


async def still_there(load: Load) -> None:
    """Check every acknowledged report and eviction; a lookup that ran out of time on a busy machine is asked again."""
    for chain in load.held:
        reason = ""
        while (reason := await load.ask(chain)) in {"TIMEOUT", "INDEX_UNAVAILABLE"}:
            pass
        assert reason == MATCH, chain
    for chain in load.gone:
        assert await load.ask(chain) != MATCH, chain


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(("binary", "scenario"), cases())
async def test_gateways_notice_only_that_there_is_no_hint(bays: Bays, binary: str, scenario: Scenario) -> None:
    """Lookups never fail and keep their budget, producers learn what to do, nothing acknowledged is lost."""
    bay = await bays(binary)
    load = Load(bay.stub, uuid.uuid4().hex)
    async with load:
        await in_health(bay, load)
        before, spared = bay.resident_bytes, await bay.counted(*SPARED)
        async with scenario.struck(bay):
            seen = await in_sickness(load, scenario)
            grown, spared = bay.resident_bytes - before, await bay.counted(*SPARED) - spared
        if not scenario.keeps:
            load.forget()
        await in_health(bay, load)
    assert load.broken == []
    await still_there(load)
    assert load.broken == []

    # Where the machine itself is too slow for the budget, a few timeouts in a row open the circuit.
    slow_machine = {"TIMEOUT", "INDEX_UNAVAILABLE"} if load.timeouts else set()
    assert set(seen.reasons) <= scenario.lookups | scenario.also | slow_machine | {MATCH}
    assert set(seen.refusals) <= scenario.producers
    assert all(detail.endswith(")") and " " in detail for detail in seen.details)
    slowest = sorted(us for latencies in seen.latencies_us.values() for us in latencies)
    assert slowest[len(slowest) * 9 // 10] <= (BUDGET_MS + MOSTLY_LATE_MS) * US
    assert slowest[-1] <= (BUDGET_MS + LATE_MS) * US
    assert grown < GROWTH_BYTES
    if scenario.silent:
        assert spared > 0
        assert statistics.median(seen.latencies_us["INDEX_UNAVAILABLE"]) <= AT_ONCE_US
