"""What is present at all: per model, per tenant, in the whole index; rows do not count, expiry does."""

from __future__ import annotations

from inference_cache.domain.models import RESERVED_TENANT, ModelKey, Presence, ReplicaStats
from tests.contract.build import NOW, Client, blocks, series

RUN = series("run", 3)
NOTHING = Presence(index=False, tenant=False, model=False)
ALL = Presence(index=True, tenant=True, model=True)


def _at(client: Client, tenant: str, model: str) -> Client:
    return Client(client.store, ModelKey(tenant, model))


async def test_nothing_is_present_in_an_empty_index(client: Client) -> None:
    """Before the first report all three say no."""
    assert await client.presence(expired=0) == NOTHING


async def test_a_report_is_present_at_once(client: Client) -> None:
    """Once a report returned, its model, tenant and the index are present; others are told apart."""
    await _at(client, "t", "m").tell("r", RUN)
    assert await _at(client, "t", "m").presence() == ALL
    assert await _at(client, "t", "other").presence() == Presence(index=True, tenant=True, model=False)
    assert await _at(client, "other", "m").presence() == Presence(index=True, tenant=False, model=False)
    assert await _at(client, "", "").presence() == Presence(index=True, tenant=False, model=False)


async def test_absence_is_exact_after_an_eviction(client: Client) -> None:
    """Once the removal of the last block returned, the model is gone."""
    await client.tell("r", RUN)
    await client.tell("s", RUN)
    await client.evict("r", RUN)
    assert await client.presence() == ALL
    await client.evict("s", blocks(RUN, 0, 2))
    assert await client.presence() == ALL
    await client.evict("s", blocks(RUN, 2))
    assert await client.presence(expired=0) == NOTHING


async def test_absence_is_exact_after_a_clear(client: Client) -> None:
    """Clearing the last replica, fenced or not, leaves nothing present."""
    for fence in (None, NOW):
        await client.tell("r", RUN)
        await client.tell("s", RUN)
        await client.clear("r", fence=fence)
        assert await client.presence() == ALL
        await client.clear("s", fence=fence)
        assert await client.presence(expired=0) == NOTHING


async def test_a_model_comes_and_goes(client: Client) -> None:
    """Presence follows every change, whatever came before."""
    for _ in range(5):
        await client.tell("r", RUN)
        assert await client.presence() == ALL
        await client.evict("r", RUN)
        assert await client.presence() == NOTHING


async def test_rows_are_not_present(client: Client) -> None:
    """A model with statistics alone is as good as unknown."""
    await client.report("r", stats=ReplicaStats(reported_ms=NOW, alive_ms=NOW))
    assert await client.presence(expired=0) == NOTHING
    await client.store.touch(client.model, "r", alive_ms=NOW)
    assert await client.presence(expired=0) == NOTHING


async def test_expired_models_are_absent_before_any_sweep(client: Client) -> None:
    """Age is judged when asked, by each tenant's own TTL."""
    await _at(client, "short", "m").tell("r", RUN, at=NOW - 100)
    await _at(client, "long", "m").tell("r", RUN, at=NOW - 100)

    def expired_at(tenant: str) -> int:
        return NOW - (100 if tenant == "short" else 1000)

    presence = client.store.presence
    assert await presence(ModelKey("short", "m"), expired_at) == Presence(index=True, tenant=False, model=False)
    assert await presence(ModelKey("long", "m"), expired_at) == ALL
    assert await presence(ModelKey("long", "m"), lambda _: NOW - 100) == NOTHING


async def test_one_live_model_keeps_its_tenant(client: Client) -> None:
    """A tenant is present while any of its models is."""
    await _at(client, "t", "old").tell("r", RUN, at=NOW - 100)
    await _at(client, "t", "new").tell("r", RUN, at=NOW)
    assert await _at(client, "t", "old").presence(expired=NOW - 50) == Presence(index=True, tenant=True, model=False)
    await _at(client, "t", "new").clear("r")
    assert await _at(client, "t", "old").presence(expired=NOW - 50) == NOTHING
    assert await _at(client, "t", "old").presence(expired=NOW - 101) == ALL


async def test_the_reserved_tenant_is_content(client: Client) -> None:
    """What the self-test stored makes the index warm, but no tenant of a caller."""
    await _at(client, RESERVED_TENANT, "m").tell("r", RUN)
    assert await _at(client, "t", "m").presence() == Presence(index=True, tenant=False, model=False)
    assert await _at(client, RESERVED_TENANT, "m").presence() == ALL


async def test_many_models(client: Client) -> None:
    """Presence is told apart among many tenants and models, and follows their sweep."""
    for tenant in range(8):
        for model in range(5):
            await _at(client, f"t{tenant}", f"m{model}").tell("r", RUN, at=NOW - tenant)
    for tenant in range(8):
        live = tenant < 3
        expected = Presence(index=True, tenant=live, model=live)
        assert await _at(client, f"t{tenant}", "m2").presence(expired=NOW - 3) == expected
    await client.store.expire(lambda _: NOW - 3)
    for tenant in range(8):
        live = tenant < 3
        expected = Presence(index=True, tenant=live, model=live)
        assert await _at(client, f"t{tenant}", "m2").presence(expired=0) == expected
