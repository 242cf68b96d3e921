"""Many writers and readers on shared chains, through two servers: nothing is lost, torn or counted twice."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from inference_cache.domain.models import Partition, Removal
from inference_cache.store.base import Store
from inference_cache.store.model import ModelStore
from inference_cache.store.redis import RedisStore
from tests.contract.build import BASE, MODEL, NOW, TTL, Client, blocks, chain, each, odd, series
from tests.contract.compare import same
from tests.contract.stores import check_at_rest
from tests.support.servers import Cluster, Server

STEM = series("stem", 150)
PROMPTS = [blocks(STEM, 0, 30 * fork) + series(fork, 120) for fork in range(6)]
PLACES = [BASE, BASE, Partition("vllm", "lora"), Partition("sglang")]
Act = Callable[[Store], Awaitable[object]]


def _report(replica_id: str, dice: random.Random) -> Act:
    prompt, place = dice.choice(PROMPTS), dice.choice(PLACES)
    start = dice.choice((0, 0, 0, 20, 100))
    length, tier, at = dice.randint(1, 300), dice.randint(1, 4), NOW - dice.randint(0, 3)
    batch = chain(blocks(prompt, start, start + length), place, first=16 * start, tier=tier)
    return lambda store: store.ingest(MODEL, replica_id, [batch], reported_ms=at, ttl_ms=TTL)


def _eviction(replica_id: str, dice: random.Random) -> Act:
    start = dice.randrange(100)
    doomed = blocks(dice.choice(PROMPTS), start, start + dice.choice((1, 10, 200)))
    removal = Removal(doomed, ((0, dice.choice((None, NOW - 2))),), dice.choice(("", "lora")))
    return lambda store: store.evict(MODEL, replica_id, removal)


def _clear(replica_id: str, dice: random.Random) -> Act:
    fence_ms = dice.choice((None, NOW, NOW - 2))
    return lambda store: store.clear(MODEL, replica_id, fence_ms=fence_ms)


def _day(replica_id: str, seed: int) -> list[Act]:
    """Return what one replica does, in order."""
    dice = random.Random(seed)
    makers = [_report, _report, _report, _report, _eviction, _eviction, _clear]
    return [dice.choice(makers)(replica_id, dice) for _ in range(40)]


async def _while(readers: list[Coroutine[Any, Any, None]], work: Awaitable[object]) -> None:
    """Do some work while endless readers read; fail with the first of them that fails."""
    tasks = [asyncio.create_task(reader) for reader in readers]
    await work
    for task in tasks:
        task.cancel()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(outcome, asyncio.CancelledError), outcome


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
async def test_writers_on_shared_chains_end_where_each_alone_would(
    pair: list[RedisStore], key_prefix: str, server: Server | Cluster, seed: int
) -> None:
    """What replicas did at once, in any order among them, equals what the oracle was told one after the other."""
    days = [_day(f"r{number}", 100 * seed + number) for number in range(16)]
    oracle = ModelStore(lambda: NOW)
    for store in (oracle, pair[0]):
        # Somebody always holds something: when the model was last empty would depend on the order.
        await Client(store).tell("rock", STEM)
    for day in days:
        for act in day:
            await act(oracle)

    async def live(number: int, day: list[Act]) -> None:
        for hour, act in enumerate(day):
            await act(pair[(number + hour) % 2])

    async def read(store: Store) -> None:
        while True:
            assert (await Client(store).depths(STEM))["rock"] == 150

    await _while([read(store) for store in pair], asyncio.gather(*(live(*numbered) for numbered in enumerate(days))))
    keys = sorted({one for prompt in (STEM, *PROMPTS) for one in each(prompt)})
    for store in pair:
        await same(oracle, store, MODEL, PLACES, keys, [STEM, *PROMPTS])
    check_at_rest(server, key_prefix)


async def test_every_new_prefix_is_counted_once(pair: list[RedisStore]) -> None:
    """Of many replicas that report the same chains at once, exactly one is told that a block was new."""
    prompts = [STEM + series(branch, 20) for branch in range(5)]
    told = await asyncio.gather(
        *(Client(pair[number % 2]).tell(f"r{number}", prompts[number % 5]) for number in range(50))
    )
    assert sum(one.holdings for one in told) == 50 * 170
    assert sum(one.prefixes for one in told) == 150 + 5 * 20
    assert await Client(pair[0]).prefixes() == 150 + 5 * 20
    assert await Client(pair[1]).depths(prompts[3]) == {
        f"r{number}": 170 if number % 5 == 3 else 150 for number in range(50)
    }


async def test_every_holding_is_removed_once(pair: list[RedisStore], server: Server | Cluster, key_prefix: str) -> None:
    """Evictions, clears and sweeps that race for the same blocks share them out, and none counts one twice."""
    whole = series("contested", 400)
    for number in range(6):
        await Client(pair[0]).tell(f"r{number}", whole, at=NOW - 100)
    evicted = [
        Client(pair[turn % 2]).evict(f"r{number}", blocks(whole, 50 * turn, 50 * turn + 100))
        for number in range(3)
        for turn in range(8)
    ]
    cleared = [
        Client(store).clear(f"r{number}", fence=fence)
        for number in (2, 3, 4)
        for store, fence in zip(pair, (None, NOW - 50), strict=True)
    ]
    sweeps = [store.expire(lambda _: NOW - 100) for store in pair * 2]
    removed = await asyncio.gather(*evicted, *cleared)
    assert sum(removed[: len(evicted)]) + sum(removed[len(evicted) :]) == 5 * 400
    swept = await asyncio.gather(*sweeps)
    assert sum(one.holdings.get(MODEL.tenant_id, 0) for one in swept) == 400
    assert await Client(pair[0]).prefixes() == 0
    check_at_rest(server, key_prefix)


async def test_a_report_of_one_call_is_seen_whole_or_not_at_all(pair: list[RedisStore]) -> None:
    """While a replica rewrites, drops and restores a whole chain, nobody sees a part of it."""
    whole = series("flicker", 400)
    writer, reader = Client(pair[0]), Client(pair[1])
    seen: set[tuple[int, int]] = set()

    async def read() -> None:
        while True:
            runs = await reader.runs(whole)
            seen.update((run.blocks, run.tier) for run in runs)
            assert seen <= {(400, 1), (400, 2)}

    async def write() -> None:
        for _ in range(40):
            await writer.tell("r", whole, tier=1)
            await writer.tell("r", whole, tier=2, at=NOW - 1)
            await writer.evict("r", whole)

    await _while([read() for _ in range(3)], write())
    assert seen


async def test_the_last_of_racing_reports_wins_as_a_whole(pair: list[RedisStore]) -> None:
    """When many servers report the same blocks of one replica at once, what is stored is one of the reports."""
    whole = series("race", 300)
    reports = [odd(whole, [number] * 300, [1 + number % 4] * 300) for number in range(24)]
    told = await asyncio.gather(
        *(Client(pair[number % 2]).report("r", batch, at=NOW - number) for number, batch in enumerate(reports))
    )
    assert sum(one.holdings for one in told) == 300
    found = {held for one in each(whole) for held in await Client(pair[0]).holders(one)}
    assert len(found) == 1
    (winner,) = found
    assert (winner.reported_ms, winner.tier) == (NOW - winner.token_count, 1 + winner.token_count % 4)


async def test_a_clear_spares_what_others_report_meanwhile(
    pair: list[RedisStore], key_prefix: str, server: Server | Cluster
) -> None:
    """A large clear goes on in steps; reports of other replicas on the same blocks between them stay."""
    prompts = [STEM + series(branch, 200) for branch in range(12)]
    for prompt in prompts:
        await Client(pair[0]).tell("leaving", prompt)
    reports = (Client(pair[1]).tell(f"r{number}", prompts[number % 12]) for number in range(48))
    cleared, told = await asyncio.gather(Client(pair[0]).clear("leaving"), asyncio.gather(*reports))
    assert cleared == 150 + 12 * 200
    assert sum(one.holdings for one in told) == 48 * 350
    for number, prompt in enumerate(prompts):
        depths = await Client(pair[1]).depths(prompt)
        assert depths == {f"r{other}": 350 if other % 12 == number else 150 for other in range(48)}
    assert await Client(pair[0]).prefixes() == 150 + 12 * 200
    check_at_rest(server, key_prefix)


async def test_a_replica_that_reports_while_it_is_cleared(
    pair: list[RedisStore], key_prefix: str, server: Server | Cluster
) -> None:
    """Clears and reports of one replica from two servers end in a state that some order of them gives."""
    prompts = [series(branch, 300) for branch in range(8)]
    held = 0
    for _ in range(5):
        for prompt in prompts:
            held += (await Client(pair[0]).tell("r", prompt)).holdings
        reports = (Client(pair[1]).tell("r", prompt) for prompt in prompts)
        removed, told = await asyncio.gather(Client(pair[0]).clear("r"), asyncio.gather(*reports))
        held += sum(one.holdings for one in told) - removed
        depths = [(await Client(pair[0]).depths(prompt)).get("r", 0) for prompt in prompts]
        assert set(depths) <= {0, 300}
        assert held == sum(depths) == await Client(pair[0]).prefixes()
        check_at_rest(server, key_prefix)
