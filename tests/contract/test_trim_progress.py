"""Making room ends, whatever it meets: tails that nobody holds, lost models, nodes that do not answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from inference_cache.domain.models import Credit, ModelKey, Retention
from inference_cache.errors import StoreUnavailable
from inference_cache.store.connection import open_connection
from inference_cache.store.keys import Keys
from inference_cache.store.packing import pack_fences
from inference_cache.store.redis import RedisStore
from inference_cache.store.scripts import load
from tests.contract.build import BASE, TTL, blocks, chain, gone, long_chain, series
from tests.support.servers import Server

ONE, OTHER = ModelKey("tenant", "one"), ModelKey("tenant", "other")


@pytest.fixture
async def store(own_valkey: Server) -> AsyncIterator[RedisStore]:
    """Yield a store on a server that the test may empty."""
    opened = RedisStore(await open_connection(own_valkey.url))
    yield opened
    await opened.close()


async def ingest(store: RedisStore, model: ModelKey, name: str, length: int, replica: str = "r", **more: Any) -> None:
    """Report one chain, now."""
    batches = list(long_chain(series(name, length)))
    await store.ingest(model, replica, batches, reported_ms=store.now_ms(), ttl_ms=more.pop("ttl_ms", TTL), **more)


async def ends(trim: Any) -> Any:
    """Wait for a trim; a hang is a failure, not a stuck test run."""
    async with asyncio.timeout(30):
        return await trim


async def test_a_quota_meets_tails_that_an_eviction_had_to_leave(store: RedisStore) -> None:
    """An eviction whose server died before it rebuilt leaves uncut tails; the tenant's quota is met all the same."""
    await store.trim_tenant("tenant", 10**6, 0)
    keys = [series(name, 1024) for name in ("a", "b", "c")]
    for each in keys:
        await store.ingest(ONE, "r", list(long_chain(each)), reported_ms=store.now_ms(), ttl_ms=TTL)
    await ends(store.trim_tenant("tenant", 3000, 0))
    fences = pack_fences([(0, None)])

    async def raw(joined: bytes) -> None:
        await store._connection.run(load("evict"), Keys().totals(ONE), ("r", "*", joined, fences, "", 0))

    for each in keys[1:]:
        for start in range(512, 1023, 256):
            await raw(blocks(each, start, min(start + 256, 1023)))
    await raw(b"".join(blocks(each, 1023, 1024) for each in keys[1:]))
    await ends(store.trim_tenant("tenant", 100, 0))
    assert (await store.state(ONE)).total_prefixes <= 100


async def test_a_cap_passes_over_a_model_whose_keys_are_lost(store: RedisStore, own_valkey: Server) -> None:
    """Where the catalog names a model that is gone, it is told so, and the others give way."""
    await ingest(store, ONE, "a", 100)
    await ingest(store, OTHER, "b", 50)
    with own_valkey.admin() as admin:
        admin.delete(*admin.scan_iter("ic:1:{tenant/one}*"))
    await ends(store.trim_index(20, lambda _: 0, lambda _: False))
    assert (await store.state(OTHER)).total_prefixes == 20


async def test_a_quota_passes_over_a_model_whose_node_does_not_answer(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first quota of a tenant lists the segments of its models; one that cannot be asked does not hold it up."""
    await ingest(store, ONE, "a", 100)
    await ingest(store, OTHER, "b", 100)
    run = store._connection.run

    async def away(script: Any, key: bytes, args: Sequence[bytes | int | str]) -> Any:
        if b"tenant/one" in key:
            raise StoreUnavailable("its node is away", "down")
        return await run(script, key, args)

    monkeypatch.setattr(store._connection, "run", away)
    trimmed = await ends(store.trim_tenant("tenant", 120, 0))
    assert trimmed.failed
    assert trimmed.removed == {"tenant": 80}


async def test_waiting_trims_share_one(store: RedisStore) -> None:
    """Many that wait for their turn remove what is too much once, not each anew."""
    await ingest(store, ONE, "a", 400)
    done = await ends(asyncio.gather(*(store.trim_index(300, lambda _: 0, lambda _: False) for _ in range(20))))
    assert sum(sum(each.removed.values()) for each in done) == 100


async def test_a_scope_that_begins_anew_is_another_one(store: RedisStore, own_valkey: Server) -> None:
    """Servers remember a membership by its version: after everything was lost no version comes a second time."""
    await ingest(store, ONE, "a", 4, "old")
    assert (await store.lookup_chain(ONE, BASE, series("a", 4), expired_at_ms=0)).serving == ("old",)
    own_valkey.ask("FLUSHALL")
    await ingest(store, ONE, "a", 4, "new")
    assert (await store.lookup_chain(ONE, BASE, series("a", 4), expired_at_ms=0)).serving == ("new",)


async def test_a_raised_ttl_renews_all_keys_although_reports_go_on(store: RedisStore, own_valkey: Server) -> None:
    """A report under the new TTL renews its own keys only; the sweep still renews those of silent replicas."""
    await ingest(store, ONE, "a", 4, "silent")
    await ingest(store, ONE, "b", 4, "busy")
    await ingest(store, ONE, "b", 5, "busy", ttl_ms=48 * TTL)
    await store.expire(lambda _: 0, lambda _: Retention(48 * TTL))
    with own_valkey.admin() as admin:
        lives = {key: admin.pttl(key) for key in admin.scan_iter("ic:1:{tenant/one}*")}
    assert min(lives.values()) > 2 * 48 * TTL, lives


async def test_credits_below_the_tail_are_forgotten_too(store: RedisStore) -> None:
    """A tenant that goes to LRU and back begins with no hits, also where only the head of a stretch was hit."""
    await ingest(store, ONE, "a", 10, lfu=True)
    found = await store.lookup_chain(ONE, BASE, series("a", 5), expired_at_ms=0, want_path=True)
    assert found.path is not None
    place, offset, size = found.path.places[0]
    credit = Credit(place, "r", offset + size, found.path.version, hits=3)
    await store.credit(ONE, BASE, [credit], hot_threshold=2)
    assert (await store.state(ONE)).hot_prefixes == 5
    await store.expire(lambda _: 0, lambda _: Retention(TTL, lfu=False))
    await store.expire(lambda _: 0, lambda _: Retention(TTL, lfu=True))
    assert (await store.state(ONE)).hot_prefixes == 0


async def test_a_sweep_rebuilds_what_a_dead_server_left(store: RedisStore, own_valkey: Server) -> None:
    """A segment that is mostly held by nobody is named by the eviction, and by every sweep until it is rebuilt."""
    await store.ingest(ONE, "r", [chain(series("a", 100))], reported_ms=store.now_ms(), ttl_ms=TTL)
    fences = pack_fences([(0, None)])
    args = ("r", "*", blocks(series("a", 100), 0, 90), fences, "", 0)
    await store._connection.run(load("evict"), Keys().totals(ONE), args)
    await store.expire(lambda _: 1)
    await store.evict(ONE, "nobody", gone(series("a", 1)))
    await store.ingest(ONE, "s", [chain(series("c", 1))], reported_ms=store.now_ms(), ttl_ms=TTL)
    await store.expire(lambda _: 1)
    with own_valkey.admin() as admin:
        assert admin.hlen("ic:1:{tenant/one}:P:vllm/:blocks") == 10 + 1 + 1
        assert not admin.exists("ic:1:{tenant/one}:rebuild")
