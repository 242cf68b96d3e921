"""While a Cluster moves a model's slot key by key, no script does half of its work.

Every command is run with each single key of the model moved already, and with halves of them: it is whole or nothing.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack
from typing import Any

import pytest

from inference_cache.domain.models import ModelKey, ReplicaStats
from inference_cache.errors import StoreUnavailable
from inference_cache.store.connection import Connection, open_connection
from inference_cache.store.keys import Keys
from inference_cache.store.packing import pack_fences
from inference_cache.store.redis import RedisStore
from inference_cache.store.replies import read_clear, read_evict
from inference_cache.store.scripts import load, names
from tests.contract.build import BASE, TTL, blocks, chain, gone, series
from tests.support.layout import check_layout, dump
from tests.support.servers import Cluster, Server

MODEL = ModelKey("moving", "model")
PROMPT = series("moving", 40)
OLD_MS = 1_000
COMMANDS = (
    "ingest",
    "ingest of a new replica",
    "stats",
    "stats touch",
    "evict",
    "clear",
    "clear fenced",
    "free",
    "expire",
    "rebuild",
    "trim to a cap",
    "trim to a quota",
    "credit",
    "renew",
)
Write = Callable[[], Awaitable[Any]]


class Scene:
    """One model with every kind of key, and the raw commands to run on it."""

    def __init__(self, connection: Connection, prefix: str) -> None:
        self.connection = connection
        self.store = RedisStore(connection, key_prefix=prefix)
        self.keys = Keys(prefix)
        self.now = self.store.now_ms()
        self.place = b""
        self.hollow = b""

    async def run(self, name: str, *args: bytes | int | str) -> Any:
        """Run a command as the store would."""
        return await self.connection.run(load(name), self.keys.totals(MODEL), args)

    async def build(self) -> None:
        """Store two replicas with statistics, a retired slot and a segment that wants to be rebuilt."""
        for replica, length in (("a", 40), ("b", 20), ("gone", 30)):
            await self.store.ingest(
                MODEL, replica, [chain(blocks(PROMPT, 0, length))], reported_ms=self.now, ttl_ms=TTL
            )
        await self.store.ingest(MODEL, "a", [chain(series("old", 9))], reported_ms=OLD_MS, ttl_ms=TTL)
        await self.store.ingest(MODEL, "b", [chain(series("hollow", 9))], reported_ms=self.now, ttl_ms=TTL)
        row = ReplicaStats(hit_rate=0.5, reported_ms=self.now, alive_ms=self.now)
        await self.store.ingest(MODEL, "a", [], reported_ms=self.now, ttl_ms=TTL, stats=row)
        found = await self.store.lookup_chain(MODEL, BASE, PROMPT, expired_at_ms=0, want_path=True)
        self.place = found.path.places[0][0] if found.path else b""
        read_clear(await self.run("clear", "gone", "", 0))
        evicted = await self.run("evict", "b", "*", blocks(series("hollow", 9), 0, 8), pack_fences([(0, None)]), "", 0)
        self.hollow = read_evict(evicted).rebuild[0][1]

    def writes(self) -> dict[str, Write]:
        """Return each writing command with arguments that make it write."""
        store, now = self.store, self.now
        row = ReplicaStats(reported_ms=now, alive_ms=now)
        name = self.keys.partition(BASE)
        return {
            "ingest": lambda: store.ingest(MODEL, "a", [chain(series("moving", 44))], reported_ms=now, ttl_ms=TTL),
            "ingest of a new replica": lambda: store.ingest(
                MODEL, "new", [chain(series("new", 3))], reported_ms=now, ttl_ms=TTL
            ),
            "stats": lambda: store.ingest(MODEL, "b", [], reported_ms=now, ttl_ms=TTL, stats=row),
            "stats touch": lambda: store.touch(MODEL, "a", alive_ms=now - 1),
            "evict": lambda: store.evict(MODEL, "a", gone(blocks(PROMPT, 30, 40))),
            "clear": lambda: store.clear(MODEL, "a", fence_ms=None),
            "clear fenced": lambda: store.clear(MODEL, "a", fence_ms=OLD_MS),
            "free": lambda: self.run("free", 0),
            "expire": lambda: self.run("expire", now - TTL, "0", 0),
            "rebuild": lambda: self.run("rebuild", name, self.hollow),
            "trim to a cap": lambda: self.run("trim", "cap", 3, "", 0, 0, 0),
            "trim to a quota": lambda: self.run("trim", "quota", 3, "", 0, 0, 0),
            "credit": lambda: self.run("credit", name, 2, 1, self.place, 5, 2**53, 1, "a"),
            "renew": lambda: self.run("renew", 10 * TTL, "0"),
        }

    async def tidy(self) -> None:
        """Finish what the scene left undone on purpose, so that the layout is at rest."""
        await self.run("free", 0)
        await self.run("rebuild", self.keys.partition(BASE), self.hollow)
        await self.store.ingest(MODEL, "a", [chain(series("last", 1))], reported_ms=self.now, ttl_ms=TTL)


@pytest.fixture
async def moving(cluster: Cluster) -> AsyncIterator[Connection]:
    """Return a connection to the Cluster."""
    connection = await open_connection(cluster.url)
    yield connection
    await connection.close()


async def built(connection: Connection) -> Scene:
    """Return a new scene under a prefix of its own; all scenes share one slot."""
    scene = Scene(connection, f"t{uuid.uuid4().hex}")
    await scene.build()
    return scene


def content(node: Server, scene: Scene) -> dict[bytes, Any]:
    """Return what the model's node stores of a scene."""
    with node.admin() as admin:
        return {key: value for key, value in dump([admin], scene.keys.prefix).items() if b"{catalog}" not in key}


def at_rest(cluster: Cluster, scene: Scene) -> None:
    """Check the layout of a scene over all nodes."""
    with ExitStack() as stack:
        check_layout([stack.enter_context(node.admin()) for node in cluster.nodes], scene.keys.prefix)


def subsets(names_of_keys: list[bytes]) -> list[list[bytes]]:
    """Return every single key, and some halves."""
    order = random.Random(7)
    return [[key] for key in names_of_keys] + [order.sample(names_of_keys, len(names_of_keys) // 2) for _ in range(4)]


@pytest.mark.parametrize("name", COMMANDS)
async def test_no_command_does_half_of_its_work(cluster: Cluster, moving: Connection, name: str) -> None:
    """Whichever keys have moved, even none, it is refused with nothing written while the slot is on its way."""
    scene = await built(moving)
    totals = scene.keys.totals(MODEL)
    source = cluster.owner(totals)
    before = content(source, scene)
    for moved in [[], *subsets(sorted(before))]:
        migration = cluster.migration(totals)
        try:
            migration.move(moved)
            with pytest.raises(StoreUnavailable):
                await scene.writes()[name]()
        finally:
            migration.abandon()
        assert content(source, scene) == before, moved
    await scene.writes()[name]()
    await scene.tidy()
    at_rest(cluster, scene)


async def test_a_lookup_is_refused_or_right(cluster: Cluster, moving: Connection) -> None:
    """Evidence is never made of the part that is still here."""
    scene = await built(moving)
    cut = scene.now - TTL
    questions: list[Write] = [
        lambda: scene.store.lookup_chain(MODEL, BASE, PROMPT, expired_at_ms=cut),
        lambda: scene.store.lookup_exact(MODEL, BASE, PROMPT[:8], expired_at_ms=cut, want_warm=True),
        lambda: scene.store.state(MODEL),
    ]
    answers = [await ask() for ask in questions]
    refused = 0
    for key in sorted(content(cluster.owner(scene.keys.totals(MODEL)), scene)):
        migration = cluster.migration(scene.keys.totals(MODEL))
        try:
            migration.move([key])
            for ask, answer in zip(questions, answers, strict=True):
                try:
                    assert await ask() == answer, key
                except StoreUnavailable:
                    refused += 1
        finally:
            migration.abandon()
    assert refused


def test_every_writing_command_is_covered() -> None:
    """A new script that writes to a model joins the list above."""
    writing = {
        name for name in names() if not load(name).read_only and not name.startswith(("catalog_", "policy_", "lease"))
    }
    assert writing == {name.split()[0] for name in COMMANDS}
