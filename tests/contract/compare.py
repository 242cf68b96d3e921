"""Everything that can be asked of a store, asked of two."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from inference_cache.domain.models import ModelKey, Partition
from inference_cache.store.base import Store
from tests.contract.build import NOW


async def evidence(
    store: Store,
    model: ModelKey,
    partitions: Iterable[Partition],
    keys: Sequence[bytes],
    chains: Sequence[bytes],
    borders: Sequence[int] = (0, NOW - 2, NOW - 1),
) -> list[object]:
    """Return all that a store knows about these keys and chains, wherever expiry begins."""
    asked = [store.presence(model, lambda _, border=border: border) for border in borders]  # type: ignore[misc]
    found: list[object] = [await store.state(model), *await asyncio.gather(*asked)]
    for partition in sorted(set(partitions), key=repr):
        exact = (store.lookup_exact(model, partition, one, expired_at_ms=0, want_warm=True) for one in keys)
        walks = (
            store.lookup_chain(model, partition, one, expired_at_ms=border) for border in borders for one in chains
        )
        found += [partition, *await asyncio.gather(*exact), *await asyncio.gather(*walks)]
    return found


async def same(
    oracle: Store,
    store: Store,
    model: ModelKey,
    partitions: Iterable[Partition],
    keys: Sequence[bytes],
    chains: Sequence[bytes],
) -> None:
    """Fail unless both stores know the same."""
    partitions = list(partitions)
    expected = await evidence(oracle, model, partitions, keys, chains)
    got = await evidence(store, model, partitions, keys, chains)
    for mine, theirs in zip(expected, got, strict=True):
        assert theirs == mine
