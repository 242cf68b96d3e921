"""Reads everything a store left in Redis and holds it against the rules of the layout.

The checks decode Redis' content on their own, without the project's code, so that a slip in a script cannot hide in
a shared helper. They hold whenever no call is under way.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import redis

GUARD = b"-" * 65
MAX_SEGMENT_BLOCKS = 1024
MAX_INTERVALS = 128


@dataclass
class Expected:
    """What the segments of one model add up to."""

    holdings: dict[bytes, dict[bytes, int]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(int)))
    """slot -> partition -> holdings."""
    held: dict[tuple[bytes, bytes], dict[bytes, int]] = field(default_factory=lambda: defaultdict(dict))
    """(partition, slot) -> segment -> oldest time."""
    newest: dict[tuple[bytes, bytes], int] = field(default_factory=lambda: defaultdict(int))
    """(scheme, slot) -> newest time."""
    prefixes: dict[bytes, int] = field(default_factory=lambda: defaultdict(int))
    """partition -> blocks held by anybody."""
    order: dict[bytes, float] = field(default_factory=dict)
    """member -> score of every stretch, credited or not."""
    tails: dict[bytes, float] = field(default_factory=lambda: {b"": float("inf")})
    """member -> freshest report of every segment's last block."""
    hot: int = 0
    credited: set[bytes] = field(default_factory=set)
    names: dict[bytes, bytes] = field(default_factory=dict)
    """slot -> replica, retired or not."""


def dump(nodes: Iterable[redis.Redis], prefix: str) -> dict[bytes, Any]:
    """Return every key of a prefix with its content: dict, set or list of (member, score)."""
    content: dict[bytes, Any] = {}
    for node in nodes:
        for key in node.scan_iter(f"{prefix}:*", count=1000):
            kind = node.type(key)
            ttl = node.pttl(key)
            assert ttl > 0, f"{key!r} has no expiry"
            if kind == b"hash":
                content[key] = node.hgetall(key)
            elif kind == b"zset":
                scored: Any = node.zrange(key, 0, -1, withscores=True)
                content[key] = dict(scored)
            elif kind == b"set":
                content[key] = node.smembers(key)
            elif kind == b"string":
                content[key] = node.get(key)
            else:
                raise AssertionError(f"{key!r} is a {kind!r}")
    return content


def check_layout(nodes: Iterable[redis.Redis], prefix: str) -> None:
    """Fail with the first rule of the layout that what is stored under ``prefix`` breaks."""
    content = dump(nodes, prefix)
    roots = {key[: -len(b":totals")] for key in content if key.endswith(b":totals")}
    catalog_root = f"{prefix}:1:{{catalog}}".encode()
    models: dict[bytes, dict[bytes, Any]] = defaultdict(dict)
    for key, value in content.items():
        if key.startswith(catalog_root):
            continue
        root = key[: key.index(b"}") + 1]
        assert root in roots, f"{key!r} is left behind without its totals"
        models[root][key[len(root) + 1 :]] = value
    for root, keys in models.items():
        _check_model(root, keys)
        _check_catalog(root, keys, content, catalog_root)
    _check_catalog_sums(content, catalog_root)


def _check_model(root: bytes, keys: dict[bytes, Any]) -> None:
    expected, used = Expected(), {b"totals"}
    slots, replicas = keys.get(b"slots", {}), keys.get(b"replicas", {})
    retired = set(keys.get(b"retired", {}))
    expected.names = {**slots, **keys.get(b"retired", {})}
    assert {v: k for k, v in slots.items()} == replicas, f"{root!r}: replicas and slots disagree"
    for partition in keys.get(b"partitions", set()):
        _check_partition(root, keys, partition, expected)
    assert set(expected.holdings) <= set(slots) | retired, f"{root!r}: holdings of unknown slots"
    assert set(slots) <= set(expected.holdings), f"{root!r}: a slot without holdings is remembered"
    _check_sums(root, keys, expected, retired)
    _check_order(root, keys, expected)
    for partition in keys.get(b"partitions", set()):
        for name in (b"blocks", b"segments", b"hashes", b"counts", b"hits"):
            used.add(b"P:" + partition + b":" + name)
        used |= {b"P:" + partition + b":held:" + slot for slot in expected.holdings}
        scheme = partition.split(b"/")[0]
        used |= {b"S:" + scheme + b":serving", b"S:" + scheme + b":count"}
    used |= {b"slot:" + slot for slot in expected.holdings} | {b"replicas", b"slots", b"partitions", b"oldest"}
    used |= {b"order", b"credited", b"tails"}
    assert b"rebuild" not in keys, f"{root!r}: segments wait to be rebuilt"
    unknown = set(keys) - used - {b"stats", b"retired"}
    assert not unknown, f"{root!r}: keys left behind: {unknown}"


def _check_partition(root: bytes, keys: dict[bytes, Any], partition: bytes, expected: Expected) -> None:
    def part(name: bytes) -> dict[bytes, bytes]:
        fields = dict(keys.get(b"P:" + partition + b":" + name, {}))
        assert fields.pop(GUARD, None) is not None, f"{root!r} {partition!r}: {name!r} has no guard"
        return fields

    blocks, segments, hashes, counts = part(b"blocks"), part(b"segments"), part(b"hashes"), part(b"counts")
    assert blocks, f"{root!r} {partition!r}: an empty partition is remembered"
    assert set(segments) == set(hashes), f"{root!r} {partition!r}: segments and hashes disagree"
    mapped = {}
    wanted_counts = set()
    for segment, record in segments.items():
        length, held = struct.unpack_from(">HH", record)
        assert 0 < length <= MAX_SEGMENT_BLOCKS
        assert len(hashes[segment]) == length * 8, f"{root!r}: hashes of {segment!r} have another length"
        for offset in range(length):
            key = hashes[segment][offset * 8 : offset * 8 + 8]
            assert key not in mapped, f"{root!r}: a block sits in two places"
            mapped[key] = segment + struct.pack(">H", offset)
        union = _check_record(root, record, length, segment, partition, expected)
        wanted_counts |= {segment + record[at : at + 4] for at in range(4, len(record), 15)}
        _expect_order(record, length, hashes[segment], segment, partition, keys, expected)
        assert len(union) == held, f"{root!r}: {segment!r} says {held} held, {len(union)} are"
        assert max(union) + 1 == length, f"{root!r}: nobody holds the tail of {segment!r}"
        assert length <= 2 * held, f"{root!r}: {segment!r} is mostly held by nobody"
        expected.prefixes[partition] += held
    hits = set(keys.get(b"P:" + partition + b":hits", {})) - {GUARD, b"threshold"}
    assert {name for name in hits if len(name) == 8} <= wanted_counts, f"{root!r} {partition!r}: credits of nothing"
    assert {name for name in hits if len(name) == 4} <= set(segments), f"{root!r} {partition!r}: hot blocks of nothing"
    assert blocks == mapped, f"{root!r} {partition!r}: blocks and segments disagree"
    assert set(counts) == wanted_counts, f"{root!r} {partition!r}: counts of nothing, or none of something"


def _check_record(
    root: bytes, record: bytes, length: int, segment: bytes, partition: bytes, expected: Expected
) -> set[int]:
    union: set[int] = set()
    intervals = [struct.unpack(">IHH6sB", record[at : at + 15]) for at in range(4, len(record), 15)]
    assert intervals == sorted(intervals, key=lambda i: i[:2]), f"{root!r}: intervals out of order"
    slot_count = len({slot for slot, *_ in intervals})
    crowded = len(intervals) > MAX_INTERVALS and len(intervals) > 2 * slot_count and length > 1
    assert not crowded, f"{root!r}: {segment!r} is cut up into {len(intervals)} intervals"
    previous: tuple[Any, ...] = (None, 0, 0, b"", 0)
    for slot, start, stop, time, tier in intervals:
        assert start < stop <= length, f"{root!r}: interval outside its segment"
        if slot == previous[0]:
            assert start >= previous[2], f"{root!r}: intervals overlap"
            assert start > previous[2] or (time, tier) != previous[3:], f"{root!r}: intervals not merged"
        previous = (slot, start, stop, time, tier)
        name, ms = str(slot).encode(), int.from_bytes(time, "big")
        expected.holdings[name][partition] += stop - start
        oldest = expected.held[partition, name]
        oldest[segment] = min(oldest.get(segment, ms), ms)
        scope = (partition.split(b"/")[0], name)
        expected.newest[scope] = max(expected.newest[scope], ms)
        union |= set(range(start, stop))
    return union


def _check_sums(root: bytes, keys: dict[bytes, Any], expected: Expected, retired: set[bytes]) -> None:
    slots, totals = keys.get(b"slots", {}), keys[b"totals"]
    oldest: dict[bytes, float] = {}
    scopes: dict[bytes, dict[bytes, int]] = defaultdict(lambda: defaultdict(int))
    for slot, by_partition in expected.holdings.items():
        stored = {name: int(count) for name, count in keys.get(b"slot:" + slot, {}).items()}
        assert stored == dict(by_partition), f"{root!r}: slot {slot!r} counts {stored}, holds {dict(by_partition)}"
        for partition, count in by_partition.items():
            held = keys.get(b"P:" + partition + b":held:" + slot, {})
            assert held == expected.held[partition, slot], f"{root!r}: held of {slot!r} in {partition!r} disagrees"
            if slot not in retired:
                oldest[struct.pack(">I", int(slot)) + partition] = min(held.values())
                scopes[partition.split(b"/")[0]][slot] += count
    assert keys.get(b"oldest", {}) == oldest, f"{root!r}: oldest disagrees"
    for scheme, by_slot in scopes.items():
        counts = dict(keys.get(b"S:" + scheme + b":count", {}))
        assert int(counts.pop(b"v")) <= int(totals[b"version"]), f"{root!r}: membership of {scheme!r} has no version"
        stored = {slot: int(count) for slot, count in counts.items()}
        assert stored == dict(by_slot), f"{root!r}: counts of scope {scheme!r} disagree"
        serving = keys.get(b"S:" + scheme + b":serving", {})
        assert set(serving) == {slots[slot] for slot in by_slot}, f"{root!r}: serving of {scheme!r} disagrees"
        for slot in by_slot:
            assert serving[slots[slot]] >= expected.newest[scheme, slot], f"{root!r}: serving time too old"
    holdings = sum(sum(parts.values()) for parts in expected.holdings.values())
    assert int(totals.get(b"holdings", 0)) == holdings, f"{root!r}: total holdings disagree"
    assert int(totals.get(b"prefixes", 0)) == sum(expected.prefixes.values()), f"{root!r}: total prefixes disagree"
    for partition, count in expected.prefixes.items():
        assert int(totals[b"prefixes:" + partition]) == count, f"{root!r}: prefixes of {partition!r} disagree"
    parts = {name for name in totals if name.startswith((b"prefixes:", b"holdings:"))}
    assert {name.split(b":", 1)[1] for name in parts} == set(expected.prefixes), f"{root!r}: totals of no partition"


def _check_catalog(root: bytes, keys: dict[bytes, Any], content: dict[bytes, Any], catalog: bytes) -> None:
    tag = root[root.index(b"{") + 1 : -1]
    totals = keys[b"totals"]
    holdings = int(totals.get(b"holdings", 0))
    entry = content.get(catalog + b":models", {}).get(tag)
    listed = tag in content.get(catalog + b":newest", {})
    assert listed == (holdings > 0), f"{root!r}: the catalog says {listed}, holdings are {holdings}"
    if entry is None:
        assert holdings == 0, f"{root!r} is not in the catalog"
        return
    version, prefixes, stored = struct.unpack_from(">QQQ", entry)
    assert (prefixes, stored) == (int(totals.get(b"prefixes", 0)), holdings), f"{root!r}: catalog totals disagree"
    assert version == int(totals[b"version"]), f"{root!r}: the catalog has an older version"


def _expect_order(
    record: bytes,
    length: int,
    hashes: bytes,
    segment: bytes,
    partition: bytes,
    keys: dict[bytes, Any],
    expected: Expected,
) -> None:
    """Note what the order of giving way must say of one segment."""
    intervals = [struct.unpack(">IHH6sB", record[at : at + 15]) for at in range(4, len(record), 15)]
    hits = keys.get(b"P:" + partition + b":hits", {})
    threshold = int(hits.get(b"threshold", 2))
    hot: set[int] = set()
    for slot in {slot for slot, *_ in intervals}:
        own = [(start, stop, int.from_bytes(time, "big")) for it, start, stop, time, _ in intervals if it == slot]
        tail, time = own[-1][1], own[-1][2]
        name = expected.names[str(slot).encode()]
        member = partition + b"\0" + hashes[tail * 8 - 8 : tail * 8] + name + struct.pack(">I", slot)
        _, hit_count, depth = struct.unpack(">QIH", hits.get(segment + struct.pack(">I", slot), bytes(14)))
        expected.order[member] = time
        if hit_count and depth >= tail:
            expected.credited.add(member)
            expected.order[member] = min(hit_count, 2047) * 2**41 + time
        if hit_count >= threshold:
            hot |= {at for start, stop, _ in own for at in range(start, min(stop, depth))}
    freshest = max(int.from_bytes(time, "big") for _, _, stop, time, _ in intervals if stop == length)
    expected.tails[partition + b"\0" + hashes[-8:]] = freshest
    assert int(hits.get(segment, 0)) == len(hot), f"{segment!r}: hot blocks disagree"
    expected.hot += len(hot)


def _check_order(root: bytes, keys: dict[bytes, Any], expected: Expected) -> None:
    order, credited = keys.get(b"order", {}), keys.get(b"credited", {})
    assert set(credited) == expected.credited, f"{root!r}: credited stretches disagree"
    assert not set(order) & set(credited), f"{root!r}: a stretch stands in both orders"
    assert {**order, **credited} == expected.order, f"{root!r}: the order of giving way disagrees"
    if keys[b"totals"].get(b"tails") == b"done":
        assert keys.get(b"tails") == expected.tails, f"{root!r}: the segments' tails disagree"
    assert int(keys[b"totals"].get(b"hot", 0)) == expected.hot, f"{root!r}: hot prefixes disagree"


def _check_catalog_sums(content: dict[bytes, Any], catalog: bytes) -> None:
    prefixes: dict[bytes, int] = defaultdict(int)
    holdings = 0
    for tag, entry in content.get(catalog + b":models", {}).items():
        _, its_prefixes, its_holdings = struct.unpack_from(">QQQ", entry)
        prefixes[tag.split(b"/")[0]] += its_prefixes
        holdings += its_holdings
    assert int(content.get(catalog + b":holdings", 0)) == holdings, "the sum of holdings disagrees"
    stored = {tenant: int(count) for tenant, count in content.get(catalog + b":prefixes", {}).items()}
    assert stored == {tenant: count for tenant, count in prefixes.items() if count}, "sums of prefixes disagree"
