"""Ids are any text: none can reach another's entries, however it is written."""

from __future__ import annotations

from itertools import product

import pytest

from inference_cache.domain.models import CacheState, ModelKey, Partition, ReplicaStats, Run
from tests.contract.build import NOW, Client, chain, series

RUN = series("run", 3)
ROW = ReplicaStats(hit_rate=0.5, reported_ms=NOW, alive_ms=NOW)
HOSTILE = [
    "",
    " ",
    "{",
    "}",
    "{}",
    "{a}b",
    "a}/{b",
    "a/b",
    "a:b",
    "a%2Fb",
    "%",
    "%%7B",
    "%00",
    "\0",
    "a\0b",
    "a\nb",
    "\r\n$1\r\n",
    "replicas",
    "slot:1",
    "0",
    "-1",
    "1.5",
    "*",
    "[a-z]",
    "\\",
    '"',
    "é",
    "e\u0301",
    "\u202e",
    "\U0001f600",
    "\ud7ff\ue000",
    "A" * 4096,
    "{" * 4096,
]
PAIRS = [
    ("a", "b/c"),
    ("a/b", "c"),
    ("a%2Fb", "c"),
    ("a", "b%2Fc"),
    ("a:b", "c"),
    ("a", "b:c"),
    ("a}", "{c"),
    ("a", "}{c"),
    ("", "a"),
    ("a", ""),
    ("", ""),
    ("a\0", "b"),
    ("a", "\0b"),
    ("A", "b"),
    ("a", "B"),
]


def _name(text: str) -> str:
    return ascii(text)[:20]


@pytest.mark.parametrize("text", HOSTILE, ids=_name)
async def test_any_text_is_an_id(client: Client, text: str) -> None:
    """One hostile text in every place an id can stand works as any other id does."""
    own = Client(client.store, ModelKey(text, text))
    place = Partition(text, text)
    await own.report(text, chain(RUN, place), stats=ROW)
    assert await own.runs(RUN, place) == (Run(text, 3, NOW, 1, ROW),)
    assert await own.serving(text) == (text,)
    assert await own.store.state(own.model) == CacheState(((text, ROW),), 3)
    assert (await own.presence()).model
    assert await own.store.touch(own.model, text, alive_ms=NOW + 1)
    assert await own.evict(text, RUN[:8], adapter=text) == 1
    assert await own.clear(text) == 2
    assert await own.store.state(own.model) == CacheState((), 0)
    assert not (await own.presence(expired=0)).index


async def test_no_two_models_collide(client: Client) -> None:
    """Pairs of tenant and model that look alike once joined are apart."""
    clients = [Client(client.store, ModelKey(*pair)) for pair in PAIRS]
    for number, own in enumerate(clients):
        await own.tell(f"r{number}", RUN)
    for number, own in enumerate(clients):
        assert await own.depths(RUN) == {f"r{number}": 3}
        assert await own.prefixes() == 3
    swept = await client.store.expire(lambda _: 0)
    assert {model: left for model, left in swept.prefixes.items() if left} == {own.model: 3 for own in clients}
    for number, own in enumerate(clients):
        assert await own.clear(f"r{number}") == 3
        assert [(await other.presence()).model for other in clients] == [at > number for at in range(len(clients))]


async def test_no_two_partitions_collide(client: Client) -> None:
    """Pairs of scheme and adapter that look alike once joined are apart, and so are their scopes."""
    for number, pair in enumerate(PAIRS):
        await client.report(f"r{number}", chain(RUN, Partition(*pair)))
    for number, pair in enumerate(PAIRS):
        assert await client.depths(RUN, Partition(*pair)) == {f"r{number}": 3}
        expected = sorted(f"r{at}" for at, (scheme, _) in enumerate(PAIRS) if scheme == pair[0])
        assert list(await client.serving(pair[0])) == expected


async def test_no_two_replicas_collide(client: Client) -> None:
    """Replica ids are compared byte by byte: not trimmed, folded or normalised."""
    ids = [*HOSTILE, "e", "E", "a", "A", " a", "a ", "1", "01"]
    for number, replica_id in enumerate(ids):
        await client.report(replica_id, chain(RUN, tier=1 + number % 4), at=NOW - number, stats=ROW)
    found = await client.runs(RUN)
    expected = [Run(each, 3, NOW - number, 1 + number % 4, ROW) for number, each in enumerate(ids)]
    assert list(found) == sorted(expected, key=lambda run: run.replica_id.encode())
    for number, replica_id in enumerate(ids):
        assert await client.clear(replica_id) == 3
        assert len(await client.runs(RUN)) == len(ids) - number - 1


async def test_keys_of_any_bytes(client: Client) -> None:
    """Block keys are any eight bytes: digits, separators, zeros and high bits."""
    odd_keys = [
        b"\0" * 8,
        b"\xff" * 8,
        b"12345678",
        b"replicas",
        b"{a}:b/c%",
        b"\r\n$-1\r\n\0",
        b"-1.5e+10",
        b"\0" * 7 + b"\x01",
    ]
    joined = b"".join(odd_keys)
    await client.report("r", chain(joined))
    assert await client.depths(joined) == {"r": 8}
    for at, one in enumerate(odd_keys):
        assert [holder.token_count for holder in await client.holders(one)] == [16 * (at + 1)]
    for at, one in enumerate(odd_keys):
        assert await client.evict("r", one) == 1
        assert await client.prefixes() == 7 - at


async def test_tenants_and_models_cross(client: Client) -> None:
    """Every tenant may have every model, and none sees another's."""
    names = ["a", "b", "a/b", ""]
    for tenant, model in product(names, names):
        await Client(client.store, ModelKey(tenant, model)).tell(f"{tenant}|{model}", RUN)
    for tenant, model in product(names, names):
        assert await Client(client.store, ModelKey(tenant, model)).depths(RUN) == {f"{tenant}|{model}": 3}
