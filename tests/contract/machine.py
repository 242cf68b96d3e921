"""A random walk over two stores at once: after every step both must know exactly the same."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar, TypeVar

from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from inference_cache.domain.models import Batch, Expired, ModelKey, Partition, Removal
from inference_cache.store.base import Store
from inference_cache.store.model import ModelStore
from tests.contract.build import NOW, TTL, each, key
from tests.contract.shapes import (
    A_MODEL,
    A_PARTITION,
    A_REPLICA,
    LETTERS,
    MODELS,
    PARTITIONS,
    REPLICAS,
    STEP_MS,
    TTL_STEPS,
    Shape,
    fences,
    removals,
    reports,
    requests,
    stats_rows,
)

BORDERS = 6
"""So many of the last report times serve as fences and as borders of expiry."""
CHAINS = 8
"""So many of the last reported chains are looked up after every step."""
_Answer = TypeVar("_Answer")
LayoutCheck = Callable[[Store], Awaitable[None]]
"""Raises ``AssertionError`` when what a store keeps is not laid out as its design says."""


@dataclass(frozen=True, slots=True)
class Ground:
    """Where a walk takes place.

    Attributes:
        shape: how large chains and batches are.
        loop: where the stores live; it is driven by the machine.
        make: gives an empty store to compare with the oracle.
        check_layout: awaited after every step with the store under test.
    """

    shape: Shape
    loop: asyncio.AbstractEventLoop
    make: Callable[[], Awaitable[Store]]
    check_layout: LayoutCheck


class Walk(RuleBasedStateMachine):
    """Reports, removals, sweeps and the clock at random on some ground; evidence compared after each."""

    ground: ClassVar[Ground]
    seen = Bundle("seen")

    def __init__(self) -> None:
        super().__init__()
        self.shape = self.ground.shape
        self.step = 0
        self.oracle: Store = ModelStore(lambda: NOW)
        self.store = self.wait(self.ground.make())
        self.times = [NOW]
        self.chains: list[bytes] = []
        self.touched: set[tuple[ModelKey, Partition]] = set()
        self.known: dict[bytes, None] = dict.fromkeys([*LETTERS, key("unknown")])

    def wait(self, answer: Awaitable[_Answer]) -> _Answer:
        """Run something to its end."""

        async def whole() -> _Answer:
            return await answer

        return self.ground.loop.run_until_complete(whole())

    def both(self, call: Callable[[Store], Coroutine[Any, Any, _Answer]]) -> _Answer:
        """Do the same to both stores; their answers must be equal."""
        expected, got = self.wait(call(self.oracle)), self.wait(call(self.store))
        assert got == expected
        return got

    def expired_at(self, tenant_id: str) -> int:
        """Return the border of expiry for a tenant."""
        return NOW + (self.step - TTL_STEPS[tenant_id]) * STEP_MS

    def touch_all(self, model: ModelKey) -> None:
        """Note that any partition of a model may have changed."""
        self.touched |= {(model, partition) for partition in PARTITIONS}

    def store_report(
        self, model: ModelKey, replica_id: str, batches: list[Batch], age: int, data: st.DataObject
    ) -> None:
        """Send one report to both."""
        row = data.draw(st.none() | st.none() | stats_rows(self.step))
        at = NOW + (self.step - age) * STEP_MS
        self.times = [*(known for known in self.times if known != at), at][-BORDERS:]
        self.both(lambda s: s.ingest(model, replica_id, batches, reported_ms=at, ttl_ms=TTL, stats=row))
        self.touched |= {(model, batch.partition) for batch in batches}
        chain = b"".join(dict.fromkeys(one for batch in batches for one in each(batch.keys)))
        self.chains = [*(known for known in self.chains if known != chain), chain][-CHAINS:]
        self.known.update(dict.fromkeys(one for batch in batches for one in each(batch.keys)))

    @rule(
        target=seen,
        model=A_MODEL,
        replica_id=A_REPLICA,
        age=st.sampled_from([0, 0, 1, 2, 4, 7]),
        data=st.data(),
    )
    def report(self, model: ModelKey, replica_id: str, age: int, data: st.DataObject) -> list[Batch]:
        """A replica reports chains it has not reported just so before."""
        batches = data.draw(reports(self.shape))
        self.store_report(model, replica_id, batches, age, data)
        return batches

    @rule(
        model=A_MODEL,
        replica_id=A_REPLICA,
        batches=seen,
        age=st.sampled_from([0, 0, 1, 2, 5]),
        data=st.data(),
    )
    def report_again(
        self, model: ModelKey, replica_id: str, batches: list[Batch], age: int, data: st.DataObject
    ) -> None:
        """The same or another replica reports something once more."""
        self.store_report(model, replica_id, batches, age, data)

    @rule(model=A_MODEL, replica_id=A_REPLICA, data=st.data())
    def evict(self, model: ModelKey, replica_id: str, data: st.DataObject) -> None:
        """A replica drops blocks."""
        removal = data.draw(removals(self.shape, list(self.known), self.times))
        removed = self.both(lambda s: s.evict(model, replica_id, removal))
        note(f"removed {removed}")
        self.touch_all(model)

    @rule(model=A_MODEL, replica_id=A_REPLICA, batches=seen, data=st.data())
    def evict_again(self, model: ModelKey, replica_id: str, batches: list[Batch], data: st.DataObject) -> None:
        """A replica drops just what it, or another one, reported at once."""
        batch = data.draw(st.sampled_from(batches))
        adapter_id = data.draw(st.sampled_from(["", batch.partition.adapter_id]))
        removal = Removal(batch.keys, ((0, data.draw(st.none() | fences(self.times))),), adapter_id)
        removed = self.both(lambda s: s.evict(model, replica_id, removal))
        note(f"removed {removed}")
        self.touch_all(model)

    @rule(model=A_MODEL, replica_id=A_REPLICA, data=st.data())
    def clear(self, model: ModelKey, replica_id: str, data: st.DataObject) -> None:
        """A replica drops everything up to a time."""
        fence_ms = data.draw(fences(self.times))
        removed = self.both(lambda s: s.clear(model, replica_id, fence_ms=fence_ms))
        note(f"removed {removed}")
        self.touch_all(model)

    @rule(model=A_MODEL, replica_id=A_REPLICA, age=st.integers(0, 10))
    def touch(self, model: ModelKey, replica_id: str, age: int) -> None:
        """A replica shows a sign of life."""
        alive_ms = NOW + (self.step - age) * STEP_MS
        self.both(lambda s: s.touch(model, replica_id, alive_ms=alive_ms))

    @rule(steps=st.sampled_from([1, 1, 2, 4]))
    def pass_time(self, steps: int) -> None:
        """The clock goes on."""
        self.step += steps

    @rule()
    def sweep(self) -> None:
        """A server sweeps."""
        expected, got = (self.wait(s.expire(self.expired_at)) for s in (self.oracle, self.store))
        assert _comparable(got) == _comparable(expected)
        for model in MODELS:
            self.touch_all(model)

    @rule(model=A_MODEL, partition=A_PARTITION, data=st.data())
    def look_up(self, model: ModelKey, partition: Partition, data: st.DataObject) -> None:
        """A gateway asks for any chain."""
        self.compare_chain(model, partition, data.draw(requests(self.shape)))

    def compare_chain(self, model: ModelKey, partition: Partition, keys: bytes) -> None:
        """Both stores find the same runs and serving replicas."""
        for expired in (self.expired_at(model.tenant_id), 0):
            self.both(lambda s, at=expired: s.lookup_chain(model, partition, keys, expired_at_ms=at))  # type: ignore[misc]

    def compare_blocks(self, model: ModelKey, partition: Partition, keys: Iterable[bytes]) -> None:
        """Both stores have the same holdings, expired ones included."""
        keys = list(keys)

        async def ask(store: Store) -> list[object]:
            asked = (store.lookup_exact(model, partition, one, expired_at_ms=0, want_warm=True) for one in keys)
            return list(await asyncio.gather(*asked))

        self.both(ask)

    def compare_borders(self, model: ModelKey) -> None:
        """Both stores know the same of who serves and what is present, wherever expiry begins."""

        async def ask(store: Store) -> list[object]:
            scopes = [
                store.lookup_chain(model, partition, b"", expired_at_ms=border)
                for border, partition in product(self.times, PARTITIONS[::2])
            ]
            presences = [store.presence(model, lambda _, border=border: border) for border in self.times]  # type: ignore[misc]
            return [*await asyncio.gather(*scopes), *await asyncio.gather(*presences)]

        self.both(ask)

    @invariant()
    def same_evidence(self) -> None:
        """What was touched by the last step is the same in both, and so is what is present."""
        for model, partition in sorted(self.touched, key=repr):
            self.compare_blocks(model, partition, self.probes())
            for chain in self.chains:
                self.compare_chain(model, partition, chain)
        for model in {model for model, _ in self.touched}:
            self.compare_borders(model)
        for model in MODELS:
            self.both(lambda s, model=model: s.state(model))  # type: ignore[misc]
            self.both(lambda s, model=model: s.presence(model, self.expired_at))  # type: ignore[misc]
        self.touched.clear()
        self.wait(self.ground.check_layout(self.store))

    def probes(self) -> list[bytes]:
        """Return the keys to ask for one by one, spread over all known ones."""
        known = list(self.known)
        return known[:: max(1, len(known) // self.shape.probes)]

    def teardown(self) -> None:
        """At the end every block of every partition is the same; cleared of all, nothing is left."""
        for model, partition in product(MODELS, PARTITIONS):
            self.compare_blocks(model, partition, self.probes())
        for model, replica_id in product(MODELS, REPLICAS):
            self.both(lambda s, m=model, r=replica_id: s.clear(m, r, fence_ms=None))  # type: ignore[misc]
        for model in MODELS:
            self.touch_all(model)
        self.same_evidence()


def _comparable(swept: Expired) -> tuple[object, ...]:
    """Return a sweep's result without entries that say nothing."""
    return (
        {tenant_id: count for tenant_id, count in swept.holdings.items() if count},
        swept.stats_rows,
        {model: left for model, left in swept.prefixes.items() if left},
        swept.failed,
    )
