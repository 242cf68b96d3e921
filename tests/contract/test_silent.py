"""Silence is judged by the last sign of life: of statistics, or of a report in the scope."""

from __future__ import annotations

from inference_cache.domain.models import Partition, ReplicaStats
from tests.contract.build import BASE, NOW, TTL, Client, chain, key, series

WHOLE = series("prompt", 3)
OLD = NOW - 100


async def silent(client: Client, at: int | None, partition: Partition = BASE) -> tuple[str, ...]:
    """Return who is silent, as both kinds of lookups must say."""
    ask = {"expired_at_ms": NOW - TTL, "silent_at_ms": at}
    walked = await client.store.lookup_chain(client.model, partition, WHOLE, **ask)  # type: ignore[arg-type]
    hit = await client.store.lookup_exact(client.model, partition, WHOLE[:8], want_warm=True, **ask)  # type: ignore[arg-type]
    miss = await client.store.lookup_exact(client.model, partition, key("?"), want_warm=True, **ask)  # type: ignore[arg-type]
    assert walked.silent == hit.silent == miss.silent
    return walked.silent


async def test_the_border_is_inclusive(client: Client) -> None:
    """A last sign at the border is silence, one later is not; nobody is without a border."""
    await client.report("r", chain(WHOLE), at=OLD, stats=ReplicaStats(alive_ms=OLD))
    assert [await silent(client, at) for at in (OLD - 1, OLD, None)] == [(), ("r",), ()]


async def test_the_later_sign_counts(client: Client) -> None:
    """A young report makes up for old statistics and the other way round."""
    await client.report("reports", chain(WHOLE), at=NOW, stats=ReplicaStats(alive_ms=OLD))
    await client.report("lives", chain(WHOLE), at=OLD, stats=ReplicaStats(alive_ms=OLD))
    await client.store.touch(client.model, "lives", alive_ms=NOW)
    await client.report("quiet", chain(WHOLE), at=OLD, stats=ReplicaStats(reported_ms=NOW, alive_ms=OLD))
    await client.report("mute", chain(WHOLE), at=OLD)
    assert await silent(client, OLD) == ("quiet",)
    assert await silent(client, NOW) == ("lives", "quiet", "reports")


async def test_a_report_counts_in_its_scheme(client: Client) -> None:
    """Adapters share a scope, schemes do not."""
    other = Partition("sglang")
    for place in (BASE, other):
        await client.report("r", chain(WHOLE, place), at=OLD, stats=ReplicaStats(alive_ms=OLD))
    await client.report("r", chain(WHOLE, Partition("vllm", "lora")), at=NOW)
    assert (await silent(client, OLD), await silent(client, OLD, other)) == ((), ("r",))


async def test_only_who_serves_is_named(client: Client) -> None:
    """Statistics alone, and blocks that have all expired, are nobody's silence."""
    await client.report("stats", stats=ReplicaStats(alive_ms=OLD))
    await client.report("expired", chain(WHOLE), at=NOW - TTL, stats=ReplicaStats(alive_ms=OLD))
    assert await silent(client, OLD) == ()
