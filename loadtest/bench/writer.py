"""Writes that are metered: each kind of operation a few times, on data made for it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random

from inference_cache.domain.models import KEY_BYTES, Partition, Removal
from inference_cache.store.redis import RedisStore
from loadtest.bench import data
from loadtest.bench.costs import HOLDERS, PROMPT, metered, opened
from loadtest.bench.metered import Metered, Operation
from loadtest.bench.redis_process import RedisProcess
from loadtest.bench.stats import Spread, spread

EXPIRED_MS = 1_000
_SEED = 20_242
Act = Callable[[int], Awaitable[object]]
"""One operation, by its number."""


class Writer:
    """An index on one server: a plain store prepares, a metered one does what is measured.

    Args:
        server: where it lives.
        store: the plain store.
        writer: the metered store.
        meter: its connection.
        operations: how many a run has.
    """

    def __init__(
        self, server: RedisProcess, store: RedisStore, writer: RedisStore, meter: Metered, operations: int
    ) -> None:
        self.server = server
        self.store = store
        self._writer = writer
        self._meter = meter
        self._operations = operations
        self._random = Random(_SEED)
        self._filled = 0
        self._names = 0

    async def fill(self, placements: int) -> float:
        """Put in blocks of others until there are so many; return blocks a second of Redis' processor time."""
        began, missing = self.server.cpu_s(), placements - self._filled
        await data.fill(self.store, max(0, missing), self._random)
        self._filled = max(self._filled, placements)
        return missing / max(1e-9, self.server.cpu_s() - began)

    async def add_partitions(self, count: int) -> None:
        """Let another replica hold something in so many adapter partitions."""
        for number in range(count):
            adapter = Partition(data.PARTITION.hash_scheme, f"lora-{number}")
            keys = data.random_keys(16, self._random)
            await data.report(self.store, keys, data.replicas(1, "tenant"), partition=adapter)

    def name(self) -> str:
        """Return the id of a replica that has not been here."""
        self._names += 1
        return f"vllm-engine-7d9c6b5f4-w{self._names:05d}"

    def chains(self, blocks: int = PROMPT) -> list[bytes]:
        """Return a new chain for each operation of a run."""
        return [data.random_keys(blocks, self._random) for _ in range(self._operations)]

    async def prompts(self) -> list[bytes]:
        """Let replicas report chains for lookups."""
        chains = self.chains()
        for keys in chains:
            await data.report(self.store, keys, data.replicas(HOLDERS))
        return chains

    async def reports(self, chains: Sequence[bytes], holder: str) -> list[Operation]:
        """Meter reports of chains by one replica."""
        return await self._run(lambda at: data.report(self._writer, chains[at], [holder]))

    async def new(self) -> list[Operation]:
        """Meter reports of chains that are new."""
        return await self.reports(self.chains(), self.name())

    async def evict_one(self) -> list[Operation]:
        """Meter evictions of the last block of a chain."""
        holder, chains = await self._reported()
        return await self._run(lambda at: self._evict(holder, chains[at][-KEY_BYTES:]))

    async def evict_many(self) -> list[Operation]:
        """Meter evictions of a whole chain."""
        holder, chains = await self._reported()
        return await self._run(lambda at: self._evict(holder, chains[at]))

    async def clear(self, blocks: int = PROMPT, times: int = 0) -> list[Operation]:
        """Meter clears of replicas that hold so many blocks each."""
        names = [self.name() for _ in range(times or self._operations)]
        for name in names:
            for _ in range(blocks // PROMPT):
                await data.report(self.store, data.random_keys(PROMPT, self._random), [name])
        return await self._run(lambda at: self._writer.clear(data.MODEL, names[at], fence_ms=None), len(names))

    async def sweep(self) -> list[Operation]:
        """Meter a sweep that finds one expired chain."""
        await data.report(self.store, data.random_keys(PROMPT, self._random), [self.name()], at_ms=EXPIRED_MS)
        return await self._run(lambda _: self._writer.expire(lambda _: EXPIRED_MS), 1)

    async def _reported(self) -> tuple[str, list[bytes]]:
        holder, chains = self.name(), self.chains()
        for keys in chains:
            await data.report(self.store, keys, [holder])
        return holder, chains

    async def _evict(self, holder: str, keys: bytes) -> int:
        return await self._writer.evict(data.MODEL, holder, Removal(keys, ((0, None),)))

    async def _run(self, act: Act, times: int = 0) -> list[Operation]:
        return [await self._meter.operation(act(at)) for at in range(times or self._operations)]


@asynccontextmanager
async def writing(server: RedisProcess, operations: int) -> AsyncIterator[Writer]:
    """Open an empty index for metered writes."""
    async with opened(server) as store, metered(server) as (writer, meter):
        yield Writer(server, store, writer, meter, operations)


@dataclass(slots=True)
class Series:
    """The runs of one kind of operation."""

    runs: list[list[Operation]]

    @property
    def medians_us(self) -> list[float]:
        """Each run's median operation, all its calls together."""
        return [spread(operation.total_us for operation in run).median for run in self.runs]

    def cost(self, blocks: int = 1) -> Spread:
        """Return the spread of the runs' medians, for each of an operation's blocks."""
        return spread(median / blocks for median in self.medians_us)

    @property
    def longest(self) -> Spread:
        """Of each run the longest call."""
        return spread(max(operation.longest_us for operation in run) for run in self.runs)


async def series(runs: int, *acts: Callable[[], Awaitable[list[Operation]]]) -> list[Series]:
    """Run acts in turns, so that what disturbs the machine for a while disturbs them all."""
    found = [Series([]) for _ in acts]
    for _ in range(runs):
        for act, one in zip(acts, found, strict=True):
            one.runs.append(await act())
    return found
