"""Hits belong to what is held: they survive new reports, go with it, and never reach what came later."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from inference_cache.domain.credits import Delivery, credits_of
from inference_cache.domain.models import Credit, ModelKey, Path, Retention
from inference_cache.store.redis import RedisStore
from tests.contract.build import BASE, MODEL, NOW, TTL, Client, blocks, chain, each, long_chain, series
from tests.contract.stores import check_at_rest
from tests.support.servers import Cluster, Server

WHOLE = series("prompt", 6)


class Hitter(Client):
    """A client of an LFU tenant that also counts what its lookups find."""

    threshold = 2

    async def lfu(self, replica_id: str, joined: bytes, *, at: int = NOW) -> None:
        """Report a chain."""
        batches = list(long_chain(joined))
        await self.store.ingest(self.model, replica_id, batches, reported_ms=at, ttl_ms=TTL, lfu=True)

    async def seen(self, joined: bytes) -> tuple[Path, list[Credit]]:
        """Look a chain up; return its path and the credits of all who hold a part."""
        found = await self.store.lookup_chain(self.model, BASE, joined, expired_at_ms=0, want_path=True)
        assert found.path is not None
        held = tuple((run.replica_id, run.blocks) for run in found.runs)
        return found.path, list(credits_of(Delivery(found.path, held)))

    async def count(self, credits_: Sequence[Credit]) -> int:
        """Count credits; return how many found what they name."""
        return await self.store.credit(self.model, BASE, credits_, hot_threshold=self.threshold)

    async def hit(self, joined: bytes, times: int = 1) -> None:
        """Have a chain matched so often."""
        for _ in range(times):
            _, found = await self.seen(joined)
            assert await self.count(found) == len(found) > 0

    async def hot(self) -> int:
        """Return how many blocks are hot."""
        return (await self.store.state(self.model)).hot_prefixes

    async def trim(self, number: int, *, lfu: bool = True) -> None:
        """Take so many holdings out of the index."""
        held = sum([len(await self.holders(one, expired=0)) for one in each(WHOLE + series("other", 6))])
        await self.store.trim_index(held - number, lambda _tenant: 0, lambda _tenant: lfu)


@pytest.fixture
def hitter(client: Client) -> Hitter:
    """Return a client of each store."""
    return Hitter(client.store, client.model)


@pytest.fixture
def real(pair: list[RedisStore]) -> Hitter:
    """Return a client of each real store: the oracle knows no stretches."""
    return Hitter(pair[0])


async def test_hot_is_what_was_hit_often_enough(hitter: Hitter) -> None:
    """From the threshold on every block that the hits reached is hot, once however many hold it."""
    for replica_id in ("r", "s"):
        await hitter.lfu(replica_id, WHOLE)
    await hitter.hit(blocks(WHOLE, 0, 4))
    assert await hitter.hot() == 0
    await hitter.hit(blocks(WHOLE, 0, 4))
    assert await hitter.hot() == 4
    await hitter.hit(WHOLE, 2)
    assert await hitter.hot() == 6


async def test_the_threshold_is_the_callers(hitter: Hitter) -> None:
    """An operator may ask for more hits, or for one."""
    hitter.threshold = 1
    await hitter.lfu("r", WHOLE)
    await hitter.hit(WHOLE)
    assert await hitter.hot() == 6


async def test_hits_of_what_is_gone_are_dropped(hitter: Hitter) -> None:
    """A batch that comes too late credits nobody."""
    await hitter.lfu("r", WHOLE)
    _, late = await hitter.seen(WHOLE)
    await hitter.evict("r", WHOLE)
    assert await hitter.count(late * 5) == 0
    assert await hitter.hot() == 0


@pytest.mark.parametrize("away", ["evict", "clear", "sweep"])
async def test_hits_never_reach_what_came_later(hitter: Hitter, away: str) -> None:
    """What is stored anew begins with none, though it is the same block at the same replica."""
    await hitter.lfu("r", WHOLE, at=NOW - 5)
    await hitter.lfu("s", WHOLE)
    await hitter.hit(WHOLE, 3)
    _, late = await hitter.seen(WHOLE)
    late = [credit for credit in late if credit.replica_id == "r"]
    assert late
    if away == "evict":
        await hitter.evict("r", WHOLE)
    elif away == "clear":
        await hitter.clear("r")
    else:
        assert (await hitter.store.expire(lambda _tenant: NOW - 5)).failed == 0
    await hitter.lfu("r", WHOLE)
    assert await hitter.count(late * 5) == 0
    await hitter.evict("s", WHOLE)
    assert await hitter.hot() == 0


async def test_hits_survive_a_new_report(hitter: Hitter) -> None:
    """A re-report, older or younger, keeps the count."""
    await hitter.lfu("r", WHOLE)
    await hitter.hit(WHOLE)
    await hitter.lfu("r", WHOLE, at=NOW - 5)
    await hitter.hit(WHOLE)
    assert await hitter.hot() == 6


async def test_hits_of_nobody(hitter: Hitter) -> None:
    """A replica or a model that nobody knows is nobody's."""
    await hitter.lfu("r", WHOLE)
    path, _ = await hitter.seen(WHOLE)
    assert await hitter.count([Credit(path.places[0][0], "unknown", 1, path.version)]) == 0
    other = Hitter(hitter.store, ModelKey("nobody", "knows"))
    assert await other.count([Credit(path.places[0][0], "r", 1, path.version)]) == 0
    assert (await other.hot(), await other.prefixes()) == (0, 0)


async def test_many_hits_at_once(hitter: Hitter) -> None:
    """A batch of any length is counted, a bounded part a call."""
    names = series("single", 300)
    await hitter.report("r", chain(names, step=0, first=16, breaks=range(1, 300)))
    found = [credit for one in each(names) for credit in (await hitter.seen(one))[1]]
    assert await hitter.count(found + found) == 600
    assert await hitter.hot() == 300


async def test_what_was_hit_is_as_hot_after_a_part_left(hitter: Hitter) -> None:
    """Evicting some blocks leaves the others hot."""
    await hitter.lfu("r", WHOLE)
    await hitter.hit(WHOLE, 2)
    await hitter.evict("r", blocks(WHOLE, 2, 4))
    assert await hitter.hot() == 4
    await hitter.evict("r", blocks(WHOLE, 5, 6))
    assert await hitter.hot() == 3


async def test_blocks_beyond_the_depth_leave_first(real: Hitter) -> None:
    """Under LFU they count as never hit, and are older than a chain that was not either."""
    await real.lfu("r", WHOLE, at=NOW - 9)
    await real.hit(blocks(WHOLE, 0, 2), 3)
    await real.lfu("s", series("other", 2), at=NOW - 1)
    await real.trim(3)
    assert await real.depths(WHOLE) == {"r": 3}
    await real.trim(2)
    assert await real.depths(WHOLE) == {"r": 2}
    assert await real.depths(series("other", 2)) == {"s": 1}
    await real.trim(2)
    assert (await real.depths(WHOLE), await real.depths(series("other", 2))) == ({"r": 1}, {})


async def test_growing_after_the_hits(real: Hitter) -> None:
    """A chain that goes on in the same run has no hits in its new part."""
    await real.lfu("r", blocks(WHOLE, 0, 3), at=NOW - 9)
    await real.hit(blocks(WHOLE, 0, 3), 5)
    await real.lfu("r", WHOLE, at=NOW - 9)
    assert await real.hot() == 3
    await real.lfu("s", series("other", 2), at=NOW)
    await real.trim(4)
    assert (await real.depths(WHOLE), await real.depths(series("other", 2))) == ({"r": 3}, {"s": 1})


async def test_a_split_takes_hits_along(real: Hitter, server: Server | Cluster, key_prefix: str) -> None:
    """When many replicas hold many pieces of a run it is cut in two, and both parts are as hot as before."""
    whole = series("split", 400)
    await real.lfu("r", whole)
    await real.hit(whole, 2)
    assert await real.hot() == 400
    for at in range(0, 400, 2):
        await real.lfu("s", blocks(whole, at, at + 1), at=NOW - at)
    check_at_rest(server, key_prefix)
    path, _ = await real.seen(whole)
    assert len(path.places) > 1
    assert await real.hot() == 400
    await real.evict("r", blocks(whole, 150, 200))
    assert await real.hot() == 350


async def test_a_tenant_that_turns_to_lru_goes_by_time(real: Hitter, server: Server | Cluster, key_prefix: str) -> None:
    """Its hits are forgotten by the next sweep or trim; when it turns back it begins anew."""
    await real.lfu("r", WHOLE, at=NOW - 9)
    await real.hit(WHOLE, 7)
    await real.lfu("s", series("other", 6), at=NOW)
    await real.trim(2, lfu=False)
    assert (await real.depths(WHOLE), await real.depths(series("other", 6))) == ({"r": 4}, {"s": 6})
    check_at_rest(server, key_prefix)
    await real.trim(1)
    assert await real.depths(WHOLE) == {"r": 3}
    await real.hit(blocks(WHOLE, 0, 3))
    await real.trim(6)
    assert (await real.depths(WHOLE), await real.depths(series("other", 6))) == ({"r": 3}, {})
    check_at_rest(server, key_prefix)


async def test_a_sweep_forgets_them_too(real: Hitter, server: Server | Cluster, key_prefix: str) -> None:
    """A flip is put in order within one sweep, whatever the index' size."""
    await real.lfu("r", WHOLE, at=NOW - 9)
    await real.hit(WHOLE, 7)
    await real.lfu("s", series("other", 6), at=NOW)
    await real.store.expire(lambda _tenant: 0, lambda _tenant: Retention(TTL, lfu=False))
    check_at_rest(server, key_prefix)
    await real.store.expire(lambda _tenant: 0, lambda _tenant: Retention(TTL, lfu=True))
    await real.trim(3)
    assert (await real.depths(WHOLE), await real.depths(series("other", 6))) == ({"r": 3}, {"s": 6})


async def test_a_raised_ttl_renews_keys_within_one_sweep(
    server: Server | Cluster, key_prefix: str, real: Hitter
) -> None:
    """Backstops are at least twice the TTL of now, not of the time of the report; a lowered one shortens none."""
    await real.store.ingest(MODEL, "r", [chain(WHOLE)], reported_ms=NOW, ttl_ms=60_000, lfu=True)
    await real.hit(WHOLE)
    await real.store.trim_tenant(MODEL.tenant_id, 5, 0, lfu=True)
    for ttl_ms in (6_000_000, 60_000):
        await real.store.expire(lambda _tenant: 0, lambda _tenant, ttl=ttl_ms: Retention(ttl, lfu=True))  # type: ignore[misc]
        assert min(_expiries(server, key_prefix).values()) > 2 * 6_000_000


def _expiries(server: Server | Cluster, key_prefix: str) -> dict[bytes, int]:
    """Return how long each key has to live."""
    found: dict[bytes, int] = {}
    for node in server.nodes if isinstance(server, Cluster) else [server]:
        with node.admin() as admin:
            found |= {name: admin.pttl(name) for name in admin.scan_iter(f"{key_prefix}:*")}
    return found
