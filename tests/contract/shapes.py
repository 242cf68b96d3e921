"""Random reports, removals and requests over few keys, so that they meet, split and re-home each other often."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from inference_cache.domain.models import KEY_BYTES, MAX_TOKENS, Batch, ModelKey, Partition, Removal, ReplicaStats, Tier
from tests.contract.build import NOW, blocks, each, key, run_length_counts, run_length_tiers

STEP_MS = 1_000
"""Grid of the times in these reports."""
TTL_STEPS = {"short": 3, "long": 6}
MODELS = [ModelKey("short", "m"), ModelKey("long", "m"), ModelKey("short", "{n}/:%")]
PARTITIONS = [Partition("s"), Partition("s", "a"), Partition("z"), Partition("z", "a")]
REPLICAS = ["a", "b", "c{0}"]
A_MODEL = st.sampled_from([*[MODELS[0]] * 5, *MODELS[1:]])
A_PARTITION = st.sampled_from([*[PARTITIONS[0]] * 5, *PARTITIONS[1:]])
A_REPLICA = st.sampled_from(REPLICAS)
LETTERS = [key(letter) for letter in "abcdefghij"]


@dataclass(frozen=True, slots=True)
class Shape:
    """How large things are.

    Attributes:
        depths: lengths of chains, and where they fork or are cut.
        batch: most blocks in a batch.
        probes: exact lookups after a step; the rest is seen by chains and by the layout's own check.
    """

    depths: tuple[int, ...]
    batch: int = 512
    probes: int = 1_000


SMALL = Shape(depths=tuple(range(1, 15)))
LARGE = Shape(depths=(1, 2, 31, 32, 100, 511, 512, 513, 700, 1023, 1024, 1025, 1400, 1500), probes=60)


def prompt(fork: int, branch: int, length: int) -> bytes:
    """Return a chain that leaves the common stem after ``fork`` blocks; branch 0 never leaves it."""
    return b"".join(
        key(("stem", at) if at < fork or branch == 0 else ("branch", branch, fork, at)) for at in range(length)
    )


def prompts(shape: Shape) -> st.SearchStrategy[bytes]:
    """Return chains that share stems, as conversations do."""
    depth = st.sampled_from(shape.depths)
    forked = st.builds(prompt, depth, st.integers(0, 2), depth)
    return forked | st.lists(st.sampled_from(LETTERS), min_size=1, unique=True).map(b"".join)


def requests(shape: Shape) -> st.SearchStrategy[bytes]:
    """Return chains to look up: as reported, cut, joined, repeated, with unknown and single blocks."""
    whole = prompts(shape)
    tails = st.builds(blocks, whole, st.sampled_from(shape.depths))
    single = st.sampled_from(LETTERS) | st.just(key("unknown"))
    return st.lists(whole | tails | single, min_size=1, max_size=3).map(b"".join)


def count_columns(length: int) -> st.SearchStrategy[tuple[tuple[int, int, int], ...]]:
    """Return token counts of ``length`` blocks: even, flat, saturated, or a few odd ones among even ones."""
    even = st.builds(
        lambda first, step: tuple(run_length_counts([min(first + at * step, MAX_TOKENS) for at in range(length)])),
        st.sampled_from([0, 1, 16, 100, 2**31 - 50]),
        st.sampled_from([0, 1, 16, 512]),
    )

    def patched(changes: dict[int, int]) -> tuple[tuple[int, int, int], ...]:
        return run_length_counts([changes.get(at, 16 * (at + 1)) for at in range(length)])

    single_runs = st.lists(
        st.tuples(st.sampled_from([0, 5, 16, MAX_TOKENS]), st.sampled_from([0, 16, -3])),
        min_size=min(length, 20),
        max_size=min(length, 20),
    ).map(lambda pairs: tuple((at, first, step if at + 1 < length else 0) for at, (first, step) in enumerate(pairs)))
    odd = st.dictionaries(st.integers(0, length - 1), st.sampled_from([0, 1, 48, MAX_TOKENS]), max_size=6).map(patched)
    return even | odd if length > 20 else even | odd | single_runs


def tier_columns(length: int) -> st.SearchStrategy[tuple[tuple[int, int], ...]]:
    """Return tiers of ``length`` blocks, mostly the same one."""
    tier = st.sampled_from([int(each_tier) for each_tier in Tier])
    changes = st.dictionaries(st.integers(0, length - 1), tier, max_size=3)

    def column(base: int, changed: dict[int, int]) -> tuple[tuple[int, int], ...]:
        tiers = [base] * length
        for at, other in changed.items():
            tiers[at:] = [other] * (length - at)
        return run_length_tiers(tiers)

    return st.builds(column, tier, st.just({}) | changes)


@st.composite
def reports(draw: st.DrawFn, shape: Shape) -> list[Batch]:
    """Return the batches of one update: a chain or its continuation, cut like a server cuts it."""
    found: list[Batch] = []
    for _ in range(draw(st.integers(1, 2))):
        whole = draw(prompts(shape))
        start = draw(st.just(0) | st.integers(0, min(len(whole) // KEY_BYTES, max(shape.depths)) - 1))
        partition = draw(A_PARTITION)
        guess = draw(st.sampled_from([b"", LETTERS[0], key(("stem", 3))]))
        while start * KEY_BYTES < len(whole):
            cut = draw(st.just(shape.batch) | st.sampled_from(shape.depths))
            joined = blocks(whole, start, start + min(cut, shape.batch))
            length = len(joined) // KEY_BYTES
            breaks = draw(st.just(frozenset[int]()) | st.frozensets(st.integers(1, max(length - 1, 1)), max_size=3))
            known = blocks(whole, start - 1, start) if start else guess
            found.append(
                Batch(
                    partition,
                    joined,
                    draw(tier_columns(length)),
                    draw(count_columns(length)),
                    tuple(sorted(at for at in breaks if at < length)),
                    draw(st.sampled_from([known, known, known, b"", guess])),
                )
            )
            start += length
    return found


def fences(times: Sequence[int]) -> st.SearchStrategy[int | None]:
    """Return fences at the given times, beside them, or none."""
    return st.none() | st.builds(int.__add__, st.sampled_from(times), st.sampled_from([0, 0, 0, -1, 1]))


@st.composite
def removals(draw: st.DrawFn, shape: Shape, known: Sequence[bytes], times: Sequence[int]) -> Removal:
    """Return an eviction: stretches and single blocks in any order, with one fence or several.

    Args:
        draw: given by hypothesis.
        shape: how large things are.
        known: keys that were reported, in order, at least one.
        times: when something was reported, at least one.
    """
    cut = st.integers(0, 8) | st.sampled_from(shape.depths)
    start = draw(st.integers(0, len(known) - 1))
    stretch = list(known[start : start + draw(cut)])
    part = each(blocks(draw(prompts(shape)), *sorted((draw(cut), draw(cut)))))
    doomed = draw(st.sampled_from([stretch, part, stretch + part]))[:: draw(st.sampled_from([1, 1, 2, 3]))]
    if draw(st.booleans()):
        doomed.reverse()
    doomed += draw(st.lists(st.sampled_from([*LETTERS, key("unknown"), key(("stem", 0))]), max_size=4))
    starts = sorted({0, *draw(st.lists(st.integers(0, max(len(doomed) - 1, 0)), max_size=3))})
    runs = tuple((start, draw(fences(times))) for start in starts) if doomed else ()
    return Removal(b"".join(doomed), runs, draw(st.sampled_from(["", "", "", "a", "unseen"])))


def stats_rows(now_step: int) -> st.SearchStrategy[ReplicaStats]:
    """Return statistics rows with times on the grid."""
    time = st.integers(now_step - 8, now_step).map(lambda step: NOW + step * STEP_MS)
    return st.builds(
        ReplicaStats,
        hit_rate=st.sampled_from([0.0, 0.1, -2.5, 1 / 3]),
        pressure=st.sampled_from([0.0, 0.7]),
        cache_memory_bytes=st.sampled_from([0, 2**63 - 1]),
        client_version=st.sampled_from(["", "v\0é"]),
        reported_ms=time,
        alive_ms=time,
    )
