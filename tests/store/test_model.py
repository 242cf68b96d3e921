"""The oracle itself, pinned by hand where a mistake would make every comparison agree with it."""

from __future__ import annotations

import pytest

from inference_cache.domain.models import (
    Batch,
    CacheState,
    ChainEvidence,
    ExactEvidence,
    Holder,
    Ingested,
    ModelKey,
    Partition,
    Presence,
    Removal,
    ReplicaStats,
    Run,
)
from inference_cache.errors import WalkTooLong
from inference_cache.store import model as model_module
from inference_cache.store.model import ModelStore

MODEL = ModelKey("tenant", "model")
BASE = Partition("vllm")
A, B, C = b"a" * 8, b"b" * 8, b"c" * 8


@pytest.fixture
def store() -> ModelStore:
    """Return an empty oracle whose clock stands at 1000 ms."""
    return ModelStore(lambda: 1000)


async def _report(store: ModelStore, replica_id: str, keys: bytes, at: int, tier: int = 1) -> Ingested:
    batch = Batch(BASE, keys, ((0, tier),), ((0, 16, 16),))
    return await store.ingest(MODEL, replica_id, [batch], reported_ms=at, ttl_ms=1000)


async def test_runs_are_cut_at_gaps_and_at_expired_blocks(store: ModelStore) -> None:
    """A run ends where its replica lacks the block, and likewise where the block is expired."""
    await _report(store, "whole", A + B + C, 500)
    await _report(store, "gap", A + C, 500)
    await _report(store, "stale", A + C, 500, tier=2)
    await _report(store, "stale", B, 400)
    found = await store.lookup_chain(MODEL, BASE, A + B + C, expired_at_ms=400)
    assert found == ChainEvidence(
        (Run("gap", 1, 500, 1), Run("stale", 1, 500, 2), Run("whole", 3, 500, 1)), ("gap", "stale", "whole")
    )


async def test_a_run_is_as_old_and_as_cold_as_its_worst_block(store: ModelStore) -> None:
    """The oldest time and the coldest tier of a run are answered, wherever in it they are."""
    await _report(store, "r", A + C, 500, tier=3)
    await _report(store, "r", B, 450)
    found = await store.lookup_chain(MODEL, BASE, A + B + C, expired_at_ms=0)
    assert found.runs == (Run("r", 3, 450, 3),)


async def test_the_serving_time_is_an_upper_bound_until_nothing_is_held(store: ModelStore) -> None:
    """Losing the newest block leaves the bound; losing the last one forgets it."""
    await _report(store, "r", A, 100)
    await _report(store, "r", B, 900)
    await store.evict(MODEL, "r", Removal(B, ((0, None),)))
    assert (await store.lookup_chain(MODEL, BASE, b"", expired_at_ms=800)).serving == ("r",)
    await store.evict(MODEL, "r", Removal(A, ((0, None),)))
    await _report(store, "r", A, 100)
    assert (await store.lookup_chain(MODEL, BASE, b"", expired_at_ms=800)).serving == ()
    assert (await store.lookup_chain(MODEL, BASE, b"", expired_at_ms=99)).serving == ("r",)


async def test_presence_follows_the_largest_time_of_a_model(store: ModelStore) -> None:
    """A model is present by its own upper bound; its tenant and the index by any of their models'."""
    await _report(store, "r", A, 500)
    await store.ingest(ModelKey("tenant", "rows"), "r", [], reported_ms=900, ttl_ms=1, stats=ReplicaStats())
    assert await store.presence(ModelKey("tenant", "rows"), lambda _: 499) == Presence(True, True, False)
    assert await store.presence(MODEL, lambda _: 500) == Presence(False, False, False)
    assert await store.presence(ModelKey("other", "model"), lambda _: 0) == Presence(True, False, False)


async def test_an_exact_lookup_returns_what_is_stored(store: ModelStore) -> None:
    """Count, time and tier of the last report are answered; warm rows come only on a wanted miss."""
    row = ReplicaStats(hit_rate=0.5)
    await store.ingest(
        MODEL, "r", [Batch(BASE, A + B, ((0, 1), (1, 4)), ((0, 7, 0), (1, 3, 0)))], reported_ms=9, ttl_ms=1, stats=row
    )
    hit = await store.lookup_exact(MODEL, BASE, B, expired_at_ms=8, want_warm=True)
    assert hit == ExactEvidence((Holder("r", 3, 9, 4, row),), ("r",), ())
    miss = await store.lookup_exact(MODEL, BASE, C, expired_at_ms=8, want_warm=True)
    assert miss == ExactEvidence((), ("r",), (("r", row),))
    assert (await store.lookup_exact(MODEL, BASE, C, expired_at_ms=8, want_warm=False)).warm == ()


async def test_numbers_of_a_report_and_of_a_sweep(store: ModelStore) -> None:
    """New holdings and new prefixes are counted apart; a sweep names what it left."""
    assert await _report(store, "r", A + B, 10) == Ingested(2, 2)
    assert await _report(store, "s", B + C, 20) == Ingested(2, 1)
    assert await store.state(MODEL) == CacheState((), 3)
    swept = await store.expire(lambda _: 10)
    assert (swept.holdings, swept.stats_rows, swept.prefixes, swept.failed) == ({"tenant": 2}, 0, {MODEL: 2}, 0)
    assert (await store.expire(lambda _: 20)).prefixes == {MODEL: 0}
    assert (await store.expire(lambda _: 20)).prefixes == {}


async def test_fences_are_inclusive(store: ModelStore) -> None:
    """A removal takes what was reported at or before its fence, and leaves what is newer."""
    await _report(store, "r", A, 10)
    await _report(store, "r", B, 11)
    assert await store.evict(MODEL, "r", Removal(A + B, ((0, 9), (1, 10)))) == 0
    assert await store.clear(MODEL, "r", fence_ms=10) == 1
    assert await store.evict(MODEL, "r", Removal(A + B, ((0, None), (1, 11)))) == 1


async def test_a_walk_has_a_bound(store: ModelStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that reaches the bound while the chain goes on is refused; one that ends there is answered."""
    monkeypatch.setattr(model_module, "MAX_WALK_BLOCKS", 2)
    await _report(store, "r", A + B, 10)
    assert (await store.lookup_chain(MODEL, BASE, A + B, expired_at_ms=0)).runs == (Run("r", 2, 10, 1),)
    assert (await store.lookup_chain(MODEL, BASE, C + B + A, expired_at_ms=0)).runs == ()
    with pytest.raises(WalkTooLong):
        await store.lookup_chain(MODEL, BASE, A + B + C, expired_at_ms=0)


@pytest.mark.parametrize(
    "batch",
    [
        Batch(BASE, A + A, ((0, 1),), ((0, 1, 0),)),
        Batch(BASE, b"", (), ()),
        Batch(BASE, A[:7], ((0, 1),), ((0, 1, 0),)),
        Batch(BASE, A + B, ((1, 1),), ((0, 1, 0),)),
        Batch(BASE, A + B, ((0, 1),), ((0, 1, 0), (0, 2, 0))),
        Batch(BASE, A + B, ((0, 1), (2, 2)), ((0, 1, 0),)),
        Batch(BASE, A + B, ((0, 1),), ((0, 1, 0),), breaks=(2,)),
        Batch(BASE, A + B, ((0, 1),), ((0, 1, 0),), after=b"half"),
    ],
)
async def test_a_batch_that_breaks_its_own_rules_is_a_bug_of_the_caller(store: ModelStore, batch: Batch) -> None:
    """The oracle refuses what no caller may build, so that a test never compares nonsense."""
    with pytest.raises(ValueError, match=r"batch|block keys|cover"):
        await store.ingest(MODEL, "r", [batch], reported_ms=1, ttl_ms=1)
