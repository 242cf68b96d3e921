"""Adapters and schemes part the keys; the serving scope knows only the scheme."""

from __future__ import annotations

from inference_cache.domain.models import Ingested, Partition
from tests.contract.build import Client, chain, series

RUN = series("run", 5)
LORA = Partition("vllm", "lora")
LORA_2 = Partition("vllm", "lora2")
SGLANG = Partition("sglang")


async def test_hashes_of_different_partitions_never_match(client: Client) -> None:
    """A block reported under one adapter or scheme is unknown under every other."""
    await client.report("r", chain(RUN, LORA))
    assert await client.depths(RUN, LORA) == {"r": 5}
    for other in (Partition("vllm"), LORA_2, SGLANG, Partition("sglang", "lora"), Partition("lora", "vllm")):
        assert await client.depths(RUN, other) == {}
        assert await client.holders(RUN[:8], other) == ()


async def test_one_report_may_touch_many_partitions(client: Client) -> None:
    """The batches of one update go where each says, and each place counts its own prefixes."""
    batches = (chain(RUN), chain(RUN, LORA), chain(RUN[:16], SGLANG), chain(RUN[:8], LORA_2))
    assert await client.report("r", *batches) == Ingested(13, 13)
    assert await client.prefixes() == 13
    assert await client.depths(RUN, SGLANG) == {"r": 2}
    assert await client.depths(RUN, LORA_2) == {"r": 1}


async def test_the_serving_scope_is_blind_to_adapters(client: Client) -> None:
    """Whoever holds anything of a scheme serves it, under whatever adapter."""
    await client.report("base", chain(RUN))
    await client.report("adapter", chain(RUN, LORA))
    await client.report("elsewhere", chain(RUN, SGLANG))
    for partition in (Partition("vllm"), LORA, Partition("vllm", "unseen")):
        assert (await client.find(RUN, partition)).serving == ("adapter", "base")
    assert await client.serving("sglang") == ("elsewhere",)
    assert await client.serving("unseen") == ()


async def test_a_scope_is_left_with_its_last_block_under_any_adapter(client: Client) -> None:
    """A replica serves until it holds nothing under all adapters of the scheme."""
    await client.report("r", chain(RUN[:8]), chain(RUN[:8], LORA), chain(RUN[:8], SGLANG))
    await client.evict("r", RUN[:8], adapter="lora")
    assert await client.serving() == ("r",)
    await client.evict("r", RUN[:8])
    assert await client.serving() == ()
    assert await client.serving("sglang") == ()


async def test_many_adapters(client: Client) -> None:
    """A hundred adapters of one model stay apart and are counted together."""
    for number in range(100):
        await client.report(f"r{number % 3}", chain(RUN[: 8 * (1 + number % 5)], Partition("vllm", f"a{number}")))
    assert await client.prefixes() == sum(1 + number % 5 for number in range(100))
    for number in range(100):
        found = await client.depths(RUN, Partition("vllm", f"a{number}"))
        assert found == {f"r{number % 3}": 1 + number % 5}
    assert await client.clear("r0") == sum(1 + number % 5 for number in range(0, 100, 3))
    assert await client.depths(RUN, Partition("vllm", "a3")) == {}
    assert await client.depths(RUN, Partition("vllm", "a4")) == {"r1": 5}
