"""A sweep removes what is expired, everywhere, and tells what it removed and what is left."""

from __future__ import annotations

from inference_cache.domain.models import Expired, Ingested, ModelKey, Partition, ReplicaStats, Run
from tests.contract.build import NOW, Client, blocks, chain, each, long_chain, series

WHOLE = series("prompt", 6)
OLD, NEW = NOW - 100, NOW
ROW = ReplicaStats(hit_rate=0.5, reported_ms=NEW, alive_ms=NEW)


async def _sweep(client: Client, expired: int = OLD) -> tuple[dict[str, int], int, dict[ModelKey, int]]:
    swept: Expired = await client.store.expire(lambda _tenant: expired)
    assert swept.failed == 0
    removed = {tenant_id: count for tenant_id, count in swept.holdings.items() if count}
    return removed, swept.stats_rows, {model: left for model, left in swept.prefixes.items() if left}


async def test_an_empty_index_is_swept(client: Client) -> None:
    """There is nothing to remove and nothing to list."""
    assert await _sweep(client) == ({}, 0, {})


async def test_what_lives_is_left(client: Client) -> None:
    """A sweep without expired holdings removes nothing and lists the models' prefixes."""
    await client.report("r", chain(WHOLE), at=OLD + 1, stats=ROW)
    await client.tell("s", WHOLE, at=NEW)
    assert await _sweep(client) == ({}, 0, {client.model: 6})
    assert await client.depths(WHOLE) == {"r": 6, "s": 6}
    assert await client.rows() == {"r": ROW}


async def test_expired_holdings_go_by_the_block(client: Client) -> None:
    """Within one run only the expired blocks go; the rest is matched as before."""
    await client.tell("r", WHOLE, at=OLD)
    await client.tell("r", blocks(WHOLE, 2, 4), at=NEW)
    await client.tell("s", blocks(WHOLE, 0, 3), at=NEW)
    assert await _sweep(client) == ({"tenant": 4}, 0, {client.model: 4})
    assert await client.prefixes() == 4
    assert await client.depths(WHOLE, expired=0) == {"s": 3}
    assert await client.depths(blocks(WHOLE, 2), expired=0) == {"r": 2, "s": 1}
    assert await _sweep(client) == ({}, 0, {client.model: 4})


async def test_a_swept_block_is_new_again(client: Client) -> None:
    """After a sweep the same report counts as new."""
    await client.tell("r", WHOLE, at=OLD)
    await _sweep(client)
    assert await client.tell("r", WHOLE, at=NEW) == Ingested(6, 6)
    assert await client.runs(WHOLE) == (Run("r", 6, NEW, 1),)


async def test_a_re_report_saves_blocks_from_the_sweep(client: Client) -> None:
    """What counts is the last time reported, also when that is the older one."""
    await client.tell("r", WHOLE, at=OLD)
    await client.tell("r", blocks(WHOLE, 0, 5), at=NEW)
    await client.tell("r", blocks(WHOLE, 4, 5), at=OLD - 1)
    assert await _sweep(client) == ({"tenant": 2}, 0, {client.model: 4})
    assert await client.depths(WHOLE) == {"r": 4}


async def test_everything_expired_leaves_nothing(client: Client) -> None:
    """A model whose every holding is gone is neither present nor served, and sweeps find nothing more."""
    places = [Partition("vllm"), Partition("vllm", "lora"), Partition("sglang")]
    for replica_id in "rst":
        await client.report(replica_id, *(chain(WHOLE, place) for place in places), at=OLD)
    assert await _sweep(client) == ({"tenant": 54}, 0, {})
    assert (await client.prefixes(), await client.serving(expired=0)) == (0, ())
    assert not (await client.presence(expired=0)).index
    assert await _sweep(client, expired=NOW) == ({}, 0, {})


async def test_rows_go_by_their_last_sign_of_life(client: Client) -> None:
    """A touched row lives on though its payload is old; a silent one goes though its payload claims to be new."""
    await client.report("touched", stats=ReplicaStats(reported_ms=OLD, alive_ms=OLD))
    await client.store.touch(client.model, "touched", alive_ms=OLD + 1)
    await client.report("silent", stats=ReplicaStats(reported_ms=NEW, alive_ms=OLD))
    await client.report("silent too", chain(WHOLE), at=NEW, stats=ReplicaStats(alive_ms=OLD - 5))
    assert await _sweep(client) == ({}, 2, {client.model: 6})
    assert set(await client.rows()) == {"touched"}
    assert await client.runs(WHOLE) == (Run("silent too", 6, NEW, 1),)
    assert await _sweep(client, expired=OLD + 1) == ({}, 1, {client.model: 6})


async def test_rows_of_a_model_without_blocks_are_swept(client: Client) -> None:
    """Statistics alone do not keep a model for ever."""
    await client.report("r", stats=ReplicaStats(reported_ms=OLD, alive_ms=OLD))
    assert await _sweep(client) == ({}, 1, {})
    assert await client.rows() == {}


async def test_every_tenant_has_its_own_ttl(client: Client) -> None:
    """The border is asked per tenant, and removals are told per tenant over its models."""
    models = [ModelKey(tenant, model) for tenant in ("short", "long") for model in ("m1", "m2")]
    for number, model in enumerate(models):
        other = Client(client.store, model)
        await other.report("r", *long_chain(series(number, 3 + number)), at=OLD, stats=ReplicaStats(alive_ms=OLD))
    swept = await client.store.expire(lambda tenant: OLD if tenant == "short" else OLD - 1)
    assert {tenant: count for tenant, count in swept.holdings.items() if count} == {"short": 3 + 4}
    assert swept.stats_rows == 2
    left = {model: count for model, count in swept.prefixes.items() if count}
    assert left == {models[2]: 5, models[3]: 6}


async def test_the_border_is_inclusive(client: Client) -> None:
    """A time equal to the border is expired, here as in lookups."""
    await client.tell("r", WHOLE, at=NOW)
    assert (await _sweep(client, expired=NOW - 1))[0] == {}
    assert (await _sweep(client, expired=NOW))[0] == {"tenant": 6}


async def test_a_large_model_is_swept_in_one_call(client: Client) -> None:
    """Thousands of expired blocks of several replicas and partitions go in one sweep."""
    places = [Partition("vllm"), Partition("vllm", "lora"), Partition("sglang")]
    for number in range(12):
        whole = series("stem", 50) + series(number, 350)
        await client.report(f"r{number % 5}", *long_chain(whole, places[number % 3]), at=OLD - number)
    await client.report("young", *long_chain(series("stem", 50) + series(0, 350)), at=NEW)
    # Chains of one replica in one partition share the stem: none here, as 5 and 3 meet again only after 15.
    assert await _sweep(client) == ({"tenant": 12 * 400}, 0, {client.model: 400})
    assert await client.depths(series("stem", 50) + series(0, 350)) == {"young": 400}
    assert await client.depths(series("stem", 50), places[1], expired=0) == {}


async def test_a_run_of_many_ages_is_swept_from_the_old_end(client: Client) -> None:
    """Sweeps that follow the clock take a growing part of a run and never more."""
    whole = series("aging", 60)
    for at, one in enumerate(each(whole)):
        await client.tell("r", one, at=OLD + at)
    for taken in range(0, 60, 7):
        await _sweep(client, expired=OLD + taken - 1)
        assert await client.prefixes() == 60 - taken
        assert await client.depths(blocks(whole, taken), expired=0) == {"r": 60 - taken}
        if taken:
            assert await client.holders(blocks(whole, taken - 1, taken), expired=0) == ()
