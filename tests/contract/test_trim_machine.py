"""Random reports, hits, quotas and caps: the victims are the ones that the rules name.

Single blocks are compared with the oracle one by one, names and all. Chains have no oracle, which knows no runs; there
the rules themselves are held against what is left.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, product
from typing import Any, ClassVar, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from inference_cache.domain.credits import Delivery, credits_of
from inference_cache.domain.models import Batch, Credit, Expired, ModelKey, Partition, Trimmed
from inference_cache.store.base import Store
from inference_cache.store.connection import open_connection
from inference_cache.store.model import ModelStore
from inference_cache.store.redis import RedisStore
from tests.contract.build import NOW, TTL, blocks, chain, each, gone, key, series
from tests.contract.stores import check_at_rest, forget
from tests.contract.test_machine import LONG, MINUTES, QUICK
from tests.support.servers import Cluster, Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(0 if LONG else 900)]

STEP_MS = 1000
LFU_TENANT = "B"
MODELS = [ModelKey(tenant, model) for tenant in ("A", LFU_TENANT) for model in ("x", "y")]
PARTITIONS = [Partition("s"), Partition("s", "a"), Partition("z")]
REPLICAS = ["r1", "r2", "r10"]
NAMES = [key(number) for number in range(12)]
A_MODEL, A_PARTITION, A_REPLICA = st.sampled_from(MODELS), st.sampled_from(PARTITIONS), st.sampled_from(REPLICAS)
_Answer = TypeVar("_Answer")


def lfu(tenant_id: str) -> bool:
    return tenant_id == LFU_TENANT


def nothing_expired(_tenant_id: str) -> int:
    return 0


@dataclass(slots=True)
class Ground:
    """Where machines run: each gets an empty store of its own on one Redis."""

    loop: asyncio.AbstractEventLoop
    server: Server | Cluster
    connection: Any
    prefixes: Iterator[str] = field(default_factory=lambda: (f"x{uuid.uuid4().hex}-{at}" for at in count()))
    prefix: str = ""

    def fresh(self) -> RedisStore:
        if self.prefix:
            forget(self.server, self.prefix)
        self.prefix = next(self.prefixes)
        return RedisStore(self.connection, key_prefix=self.prefix)


class Machine(RuleBasedStateMachine):
    """What both machines have in common: a store, and a way to wait for it."""

    ground: ClassVar[Ground]

    def __init__(self) -> None:
        super().__init__()
        self.store: Store = self.ground.fresh()

    def wait(self, answer: Awaitable[_Answer]) -> _Answer:
        async def whole() -> _Answer:
            return await answer

        return self.ground.loop.run_until_complete(whole())

    @invariant()
    def layout(self) -> None:
        """What is stored keeps the rules of the layout."""
        check_at_rest(self.ground.server, self.ground.prefix)


class Blocks(Machine):
    """Unrelated blocks, any times: the oracle must be met exactly."""

    def __init__(self) -> None:
        super().__init__()
        self.oracle: Store = ModelStore(lambda: NOW)

    def both(self, call: Callable[[Store], Coroutine[Any, Any, _Answer]]) -> _Answer:
        expected, got = self.wait(call(self.oracle)), self.wait(call(self.store))
        assert got == expected
        return got

    @rule(
        model=A_MODEL,
        partition=A_PARTITION,
        replica=A_REPLICA,
        keys=st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True),
        age=st.integers(0, 6),
    )
    def report(self, model: ModelKey, partition: Partition, replica: str, keys: list[bytes], age: int) -> None:
        """A replica reports prefixes of one length."""
        batch = chain(b"".join(keys), partition, step=0, first=16, breaks=range(1, len(keys)))
        at = NOW - age * STEP_MS
        self.both(lambda s: s.ingest(model, replica, [batch], reported_ms=at, ttl_ms=TTL, lfu=lfu(model.tenant_id)))

    @rule(model=A_MODEL, replica=A_REPLICA, one=st.sampled_from(NAMES))
    def evict(self, model: ModelKey, replica: str, one: bytes) -> None:
        """A replica drops a block."""
        self.both(lambda s: s.evict(model, replica, gone(one)))

    @rule(model=A_MODEL, replica=A_REPLICA)
    def clear(self, model: ModelKey, replica: str) -> None:
        """A replica drops everything."""
        self.both(lambda s: s.clear(model, replica, fence_ms=None))

    @rule(age=st.integers(4, 7))
    def sweep(self, age: int) -> None:
        """A server sweeps."""

        async def swept(store: Store) -> dict[str, int]:
            found: Expired = await store.expire(lambda _tenant: NOW - age * STEP_MS)
            return {tenant: number for tenant, number in found.holdings.items() if number}

        self.both(swept)

    @rule(
        model=st.sampled_from([each_ for each_ in MODELS if lfu(each_.tenant_id)]),
        partition=A_PARTITION,
        one=st.sampled_from(NAMES),
        times=st.sampled_from([1, 1, 2, 5]),
    )
    def hit(self, model: ModelKey, partition: Partition, one: bytes, times: int) -> None:
        """A prefix is looked up so often."""

        async def credited(store: Store) -> tuple[int, int] | None:
            found = await store.lookup_exact(model, partition, one, expired_at_ms=0, want_warm=False, want_path=True)
            if found.path is None:
                return None
            held = tuple((holder.replica_id, 1) for holder in found.holders)
            hits = [
                Credit(c.place, c.replica_id, c.depth, c.version, times) for c in credits_of(Delivery(found.path, held))
            ]
            return await store.credit(model, partition, hits, hot_threshold=3), len(hits)

        self.both(credited)

    @rule(tenant=st.sampled_from(["A", LFU_TENANT, "nobody"]), limit=st.integers(0, 10))
    def quota(self, tenant: str, limit: int) -> None:
        """A tenant is brought down to a quota."""
        self.both(lambda s: s.trim_tenant(tenant, limit, 0, lfu=lfu(tenant)))

    @rule(limit=st.integers(0, 25))
    def cap(self, limit: int) -> None:
        """The index is brought down to a cap."""
        self.both(lambda s: s.trim_index(limit, nothing_expired, lfu))

    @invariant()
    def same(self) -> None:
        """Whatever happened, both hold the same at the same places, and the same is hot."""
        places = list(product(MODELS, PARTITIONS, NAMES))

        async def evidence(store: Store) -> list[object]:
            asked = (store.lookup_exact(*place, expired_at_ms=0, want_warm=False) for place in places)
            return [*await asyncio.gather(*asked), *await asyncio.gather(*map(store.state, MODELS))]

        self.both(evidence)


CHAINS = [series(number, 6) for number in range(4)]
Run = tuple[ModelKey, Partition, int, str]
"""What one replica holds of one chain: model, partition, number of the chain, replica."""


@dataclass(slots=True)
class Stretch:
    """What is known of a run: the times of its blocks, head first, and its hits."""

    times: list[int]
    hits: int = 0
    depth: int = 0

    def rank(self, at: int) -> tuple[int, int]:
        """Return what orders a block: hits it has part in, and its last report."""
        return (self.hits if at < self.depth else 0), self.times[at]


class Chains(Machine):
    """Chains that are always reported from their head, by a clock that only goes on.

    So heads are never older than their tails, and for each victim holds: it was the last block of its run, and no run
    that is left ends in a block with a lower rank. Exactly what is too much goes, and a quota takes nobody else's.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = NOW
        self.runs: dict[Run, Stretch] = {}

    @initialize(data=st.data())
    def fill(self, data: st.DataObject) -> None:
        """Begin with some runs, so that there is something to lose."""
        for _ in range(data.draw(st.integers(2, 6))):
            self.report(
                data.draw(A_MODEL), data.draw(A_PARTITION), data.draw(A_REPLICA), data.draw(st.integers(0, 3)), 6
            )

    @rule(
        model=A_MODEL,
        partition=A_PARTITION,
        replica=A_REPLICA,
        number=st.integers(0, len(CHAINS) - 1),
        length=st.integers(1, 6),
    )
    def report(self, model: ModelKey, partition: Partition, replica: str, number: int, length: int) -> None:
        """A replica reports the head of a chain, some time after the last report of anybody."""
        self.now += STEP_MS
        batch: Batch = chain(blocks(CHAINS[number], 0, length), partition)
        self.wait(
            self.store.ingest(model, replica, [batch], reported_ms=self.now, ttl_ms=TTL, lfu=lfu(model.tenant_id))
        )
        known = self.runs.setdefault((model, partition, number, replica), Stretch([]))
        known.times[:length] = [self.now] * length

    @rule(
        model=st.sampled_from([each_ for each_ in MODELS if lfu(each_.tenant_id)]),
        partition=A_PARTITION,
        number=st.integers(0, len(CHAINS) - 1),
        length=st.integers(1, 6),
    )
    def hit(self, model: ModelKey, partition: Partition, number: int, length: int) -> None:
        """The head of a chain is looked up."""
        asked = blocks(CHAINS[number], 0, length)
        found = self.wait(self.store.lookup_chain(model, partition, asked, expired_at_ms=0, want_path=True))
        assert found.path is not None
        hits = list(credits_of(Delivery(found.path, tuple((run.replica_id, run.blocks) for run in found.runs))))
        assert self.wait(self.store.credit(model, partition, hits, hot_threshold=2)) == len(hits)
        for run in found.runs:
            stretch = self.runs[model, partition, number, run.replica_id]
            stretch.hits, stretch.depth = stretch.hits + 1, max(stretch.depth, run.blocks)

    @rule(tenant=st.sampled_from(["A", LFU_TENANT]), limit=st.integers(0, 30))
    def quota(self, tenant: str, limit: int) -> None:
        """A tenant is brought down to a quota: whole prefixes go, from the end of a chain, the stalest first."""
        before = self.freshness(tenant)
        trimmed = self.wait(self.store.trim_tenant(tenant, limit, 0, lfu=lfu(tenant)))
        excess = max(0, sum(map(len, before.values())) - limit)
        assert trimmed == Trimmed({tenant: excess} if excess else {})
        victims = self.forget_lost()
        assert all(run[0].tenant_id == tenant for run in victims)
        after = self.freshness(tenant)
        lost = [time for place, times in before.items() for time in times[len(after.get(place, [])) :]]
        assert len(lost) == excess
        assert max(lost, default=0) <= min((times[-1] for times in after.values()), default=self.now)

    @rule(limit=st.integers(0, 60))
    def cap(self, limit: int) -> None:
        """The index is brought down to a cap: holdings go, from the end of a run, the lowest rank first."""
        before = sum(len(stretch.times) for stretch in self.runs.values())
        trimmed = self.wait(self.store.trim_index(limit, nothing_expired, lfu))
        victims = self.forget_lost()
        lost = [rank for ranks in victims.values() for rank in ranks]
        assert sum(trimmed.removed.values()) == len(lost) == max(0, before - limit)
        assert (trimmed.expired, trimmed.failed) == ({}, 0)
        by_tenant = {run[0].tenant_id for run in victims}
        assert {tenant for tenant, number in trimmed.removed.items() if number} == by_tenant
        ends = [stretch.rank(len(stretch.times) - 1) for stretch in self.runs.values()]
        assert max(lost, default=(0, 0)) <= min(ends, default=(self.now, 0))

    def freshness(self, tenant: str) -> dict[tuple[ModelKey, Partition, int], list[int]]:
        """Return the freshest report of each prefix of a tenant's chains, head first."""
        found: dict[tuple[ModelKey, Partition, int], list[int]] = {}
        for (model, partition, number, _), stretch in self.runs.items():
            if model.tenant_id == tenant:
                known = found.setdefault((model, partition, number), [])
                known[:] = [max(pair) for pair in _padded(known, stretch.times)]
        return found

    def forget_lost(self) -> dict[Run, list[tuple[int, int]]]:
        """Take what the store no longer holds out of what is known; return the ranks that went, run by run.

        Fails when a run lost anything but its last blocks.
        """
        lost: dict[Run, list[tuple[int, int]]] = {}
        for (model, partition, number, replica), stretch in list(self.runs.items()):
            held = self.held(model, partition, number, replica)
            left = held.index(False) if False in held else len(held)
            assert True not in held[left:], "a head went before its tail"
            assert left <= len(stretch.times)
            if left < len(stretch.times):
                run = (model, partition, number, replica)
                lost[run] = [stretch.rank(at) for at in range(left, len(stretch.times))]
                del stretch.times[left:]
                stretch.depth = min(stretch.depth, left)
                if not left:
                    del self.runs[run]
        return lost

    def held(self, model: ModelKey, partition: Partition, number: int, replica: str) -> Sequence[bool]:
        """Return for each block of a chain whether a replica holds it."""

        async def ask() -> list[bool]:
            asked = (
                self.store.lookup_exact(model, partition, one, expired_at_ms=0, want_warm=False)
                for one in each(CHAINS[number])
            )
            return [
                replica in [holder.replica_id for holder in found.holders] for found in await asyncio.gather(*asked)
            ]

        return self.wait(ask())


def _padded(one: list[int], other: list[int]) -> Iterator[tuple[int, int]]:
    length = max(len(one), len(other))
    return zip(one + [0] * (length - len(one)), other + [0] * (length - len(other)), strict=True)


@pytest.fixture
def ground(server: Server | Cluster) -> Iterator[Ground]:
    """Return where machines run."""
    loop = asyncio.new_event_loop()
    connection = loop.run_until_complete(open_connection(server.url))
    yield Ground(loop, server, connection)
    loop.run_until_complete(connection.close())
    loop.close()


@pytest.mark.parametrize(("machine", "examples"), [(Blocks, 8), (Chains, 12)])
def test_the_victims_are_the_ones_the_rules_name(ground: Ground, machine: type[Machine], examples: int) -> None:
    """After each step of random walks, and nothing else is touched; the layout keeps its rules."""
    here = type("Here", (machine,), {"ground": ground})
    until = time.monotonic() + MINUTES * 60
    run_state_machine_as_test(here, settings=settings(QUICK, max_examples=examples))
    while LONG and time.monotonic() < until:
        run_state_machine_as_test(here, settings=settings(QUICK, max_examples=5 * examples))
    forget(ground.server, ground.prefix)
