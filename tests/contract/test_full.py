"""A full Redis refuses reports by name, still answers, and still forgets, which is how it gets room again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from inference_cache.errors import StoreFull
from tests.contract.build import MODEL, NOW, TTL, Client, blocks, series
from tests.contract.stores import check_at_rest, opened
from tests.support.servers import Server, binary_of, single_kinds

KNOWN = series("known", 600)


@pytest.fixture(params=single_kinds())
def small(request: pytest.FixtureRequest) -> Iterator[Server]:
    """Yield a server of each kind whose memory the test may limit."""
    server = Server(binary_of(request.param))
    yield server.start()
    server.stop()


@pytest.fixture
async def full(small: Server, key_prefix: str) -> AsyncIterator[Client]:
    """Yield a model of a store without any memory left for more than it holds."""
    async with opened(small.url, key_prefix) as store:
        client = Client(store)
        await client.tell("early", series("early", 600), at=NOW - TTL)
        await client.tell("r", KNOWN)
        await client.tell("s", blocks(KNOWN, 0, 300))
        small.ask("CONFIG", "SET", "maxmemory", 1)
        yield client


async def test_reports_are_refused(full: Client, small: Server, key_prefix: str) -> None:
    """New blocks and re-reports alike get the error that says why, and nothing is stored."""
    for keys in (KNOWN, series("more", 10)):
        with pytest.raises(StoreFull):
            await full.tell("r", keys)
        with pytest.raises(StoreFull):
            await full.tell("new", keys)
    assert await full.depths(KNOWN) == {"r": 600, "s": 300}
    assert await full.prefixes() == 1200
    check_at_rest(small, key_prefix)


async def test_a_report_runs_full_in_the_middle(small: Server, key_prefix: str) -> None:
    """Whichever call of a report is the one too many, what is stored stays whole and counted."""
    async with opened(small.url, key_prefix) as store:
        client = Client(store)
        await client.tell("r", KNOWN)
        with small.admin() as admin:
            used = int(admin.info("memory")["used_memory"])
        small.ask("CONFIG", "SET", "maxmemory", used + 1_500_000)
        with pytest.raises(StoreFull):
            await client.tell("r", series("endless", 60_000))
        stored = (await client.depths(series("endless", 60_000)))["r"]
        assert stored % 512 == 0
        assert await client.prefixes() == 600 + stored
        check_at_rest(small, key_prefix)


async def test_lookups_are_answered(full: Client) -> None:
    """Reading needs no memory."""
    assert await full.depths(KNOWN) == {"r": 600, "s": 300}
    assert [one.replica_id for one in await full.holders(KNOWN[:8])] == ["r", "s"]
    assert (await full.presence()).model
    assert await full.rows() == {}


async def test_evictions_and_clears_are_done(full: Client, small: Server, key_prefix: str) -> None:
    """Removing is never refused, from the middle or with a fence either, and absence is exact."""
    assert await full.evict("r", blocks(KNOWN, 100, 200)) == 100
    assert await full.evict("s", blocks(KNOWN, 0, 100), fence=NOW) == 100
    assert await full.clear("early", fence=NOW - TTL) == 600
    assert await full.depths(KNOWN) == {"r": 100}
    check_at_rest(small, key_prefix)
    assert await full.clear("s", fence=NOW - 1) == 0
    assert await full.clear("r") == 500
    assert await full.clear("s") == 200
    assert await full.prefixes() == 0
    assert not (await full.presence(expired=0)).index
    check_at_rest(small, key_prefix)


async def test_sweeps_make_room(full: Client, small: Server, key_prefix: str) -> None:
    """A sweep takes out what is expired; with room again, reports are stored."""
    swept = await full.store.expire(lambda _: NOW - TTL)
    assert (swept.holdings, swept.failed) == ({MODEL.tenant_id: 600}, 0)
    check_at_rest(small, key_prefix)
    small.ask("CONFIG", "SET", "maxmemory", 0)
    await full.tell("r", series("more", 10))
    assert await full.depths(series("more", 10)) == {"r": 10}
