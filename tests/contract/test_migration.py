"""Slots of a Cluster move, key by key, under reports, removals and lookups: a call is whole or refused."""

from __future__ import annotations

import asyncio

import pytest

from inference_cache.errors import StoreUnavailable
from inference_cache.store.base import Store
from inference_cache.store.keys import Keys
from inference_cache.store.redis import RedisStore
from tests.contract.build import MODEL, NOW, TTL, Client, blocks, series
from tests.contract.stores import check_at_rest
from tests.support.servers import Cluster

STEM = series("stem", 200)
WRITERS = 6
ROUNDS = 15


class Traffic:
    """Writers and readers that go on until they are told to stop, and count what was refused."""

    def __init__(self, stores: list[RedisStore]) -> None:
        self.stores = stores
        self.going = True
        self.refused = 0
        self.read_whole = 0

    async def insist(self, store: Store, call: str, replica_id: str, keys: bytes) -> None:
        """Send something until it is acknowledged, as a producer does."""
        client = Client(store)
        while True:
            try:
                if call == "report":
                    await client.tell(replica_id, keys)
                elif call == "evict":
                    await client.evict(replica_id, keys)
                else:
                    await client.clear(replica_id)
            except StoreUnavailable:
                self.refused += 1
                await asyncio.sleep(0.005)
            else:
                return

    async def write(self, number: int) -> None:
        """Report, evict and clear in turn; at the end leave the stem and ``number`` blocks more."""
        store, replica_id = self.stores[number % 2], f"r{number}"
        whole = STEM + series(number, 150)
        while self.going:
            await self.insist(store, "report", replica_id, whole)
            await self.insist(store, "evict", replica_id, blocks(whole, 100, 300))
            await self.insist(store, "clear", replica_id, b"")
        await self.insist(store, "report", replica_id, blocks(whole, 0, 200 + number))

    async def read(self, number: int) -> None:
        """Look the stem up: whoever answers knows who always held all of it."""
        while self.going:
            try:
                assert (await Client(self.stores[number % 2]).depths(STEM))["rock"] == 200
                self.read_whole += 1
            except StoreUnavailable:
                self.refused += 1
                await asyncio.sleep(0.005)


def _move(cluster: Cluster, key_prefix: str) -> None:
    """Move the model's slot to the next node, a few keys at a time."""
    totals = Keys(key_prefix).totals(MODEL)
    migration = cluster.migration(totals)
    with migration.source.admin() as admin:
        left = sorted(admin.scan_iter(totals.removesuffix(b"totals") + b"*", count=1000))
    for at in range(0, len(left), 5):
        migration.move(left[at : at + 5])
    migration.finish()


@pytest.mark.slow
@pytest.mark.parametrize("server", ["cluster"], indirect=True)
async def test_a_moving_slot_loses_nothing(server: Cluster, pair: list[RedisStore], key_prefix: str) -> None:
    """While a slot goes round the Cluster, what was refused and sent again is all there, once, and at rest."""
    await Client(pair[0]).tell("rock", STEM)
    traffic = Traffic(pair)

    async def move() -> None:
        try:
            for _ in range(ROUNDS):
                await asyncio.to_thread(_move, server, key_prefix)
                await asyncio.sleep(0.05)
        finally:
            traffic.going = False

    writers = (traffic.write(number) for number in range(WRITERS))
    await asyncio.gather(move(), *writers, *(traffic.read(number) for number in range(2)))
    # A clear that was refused between its steps had hidden everything; a sweep takes it out.
    await pair[0].expire(lambda _: NOW - TTL)
    assert traffic.refused
    assert traffic.read_whole
    for number in range(WRITERS):
        assert await Client(pair[0]).depths(STEM + series(number, 150)) == {
            "rock": 200,
            **{f"r{other}": 200 + (number if other == number else 0) for other in range(WRITERS)},
        }
    assert await Client(pair[1]).prefixes() == 200 + sum(range(WRITERS))
    check_at_rest(server, key_prefix)
