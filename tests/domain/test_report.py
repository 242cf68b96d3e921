from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_cache.domain import reasons
from inference_cache.domain.blocks import MAX_BATCH_BLOCKS, block_key, split_keys
from inference_cache.domain.models import MAX_TOKENS, Batch, Partition
from inference_cache.domain.packing import expand_counts, expand_tiers
from inference_cache.domain.report import batches_of
from inference_cache.domain.requests import UpdateEntry

BASE = Partition("vllm")
Held = dict[Partition, dict[bytes, tuple[int, int]]]
"""What a report says: of each partition's blocks, in the order of their first mention, tokens and tier."""


def name(at: int) -> bytes:
    """Return a hash of eight bytes."""
    return b"%08d" % at


def names(*numbers: int) -> list[bytes]:
    """Return hashes of eight bytes."""
    return [name(at) for at in numbers]


def joined(*numbers: int) -> bytes:
    """Return the keys of such hashes."""
    return b"".join(names(*numbers))


def chain(
    *numbers: int, counts: Sequence[int] | None = None, prefix: int | None = None, tokens: int = 0
) -> UpdateEntry:
    """Return a chain of such blocks, of 16 tokens unless said."""
    return UpdateEntry(
        prefix_hash=b"" if prefix is None else name(prefix),
        token_count=tokens,
        block_hashes=names(*numbers),
        block_token_counts=[16] * len(numbers) if counts is None else counts,
    )


def single(number: int, tokens: int, tier: int = 0) -> UpdateEntry:
    """Return a single-hash entry."""
    return UpdateEntry(prefix_hash=name(number), token_count=tokens, tier=tier)


def taken(*entries: UpdateEntry, max_blocks: int = MAX_BATCH_BLOCKS) -> list[Batch]:
    """Return the batches of sound entries."""
    batches, dropped = batches_of(entries, hash_scheme="vllm", max_blocks=max_blocks)
    assert dropped == {}
    return batches


def dropped(*entries: UpdateEntry, hash_scheme: str = "vllm") -> Counter[str]:
    """Return the drops of entries of which nothing is left."""
    batches, drops = batches_of(entries, hash_scheme=hash_scheme)
    assert batches == []
    return drops


def applied(batches: Sequence[Batch]) -> Held:
    """Apply batches in order, as a store does."""
    held: Held = {}
    for batch in batches:
        keys = split_keys(batch.keys)
        columns = zip(expand_counts(batch.counts, len(keys)), expand_tiers(batch.tiers, len(keys)), strict=True)
        held.setdefault(batch.partition, {}).update(zip(keys, columns, strict=True))
    return held


def one_by_one(entries: Sequence[UpdateEntry], hash_scheme: str, adapter_id: str) -> tuple[Held, Counter[str]]:
    """Apply entries block by block, by the letter of the rules."""
    held: Held = {}
    drops: Counter[str] = Counter()
    for entry in entries:
        numbers = [entry.token_count, *entry.block_token_counts]
        if not hash_scheme:
            drops["empty_scheme"] += 1
        elif len(entry.block_hashes) != len(entry.block_token_counts):
            drops["mismatched_arrays"] += 1
        elif min(numbers) < 0:
            drops["negative_count"] += 1
        elif not entry.block_hashes and not entry.prefix_hash:
            drops["empty_hash"] += 1
        else:
            partition = held.setdefault(Partition(hash_scheme, entry.adapter_id or adapter_id), {})
            tier = {0: 1, 1: 1, 2: 2, 3: 3}.get(entry.tier, 4)
            total = 0
            for block_hash, count in zip(entry.block_hashes, entry.block_token_counts, strict=True):
                total = min(total + count, MAX_TOKENS)
                if block_hash:
                    partition[block_key(block_hash)] = (total, tier)
                else:
                    drops["empty_hash"] += 1
            if entry.prefix_hash:
                partition[block_key(entry.prefix_hash)] = (entry.token_count, tier)
    return {partition: blocks for partition, blocks in held.items() if blocks}, drops


HASH = st.sampled_from([b"", b"narrow", b"wider than eight", *names(*range(9))])
COUNT = st.sampled_from([16, 16, 16, 16, 16, 0, 7, MAX_TOKENS, -1])
TIER = st.sampled_from([0, 1, 2, 3, 99, -1])
ADAPTER = st.sampled_from(["", "", "sql"])


@st.composite
def chains(draw: st.DrawFn) -> UpdateEntry:
    """Draw a chain, now and then malformed or with a hash beside it."""
    hashes = draw(st.lists(HASH, max_size=9))
    counts = [16] * len(hashes) if draw(st.booleans()) else draw(st.lists(COUNT, max_size=9))
    return UpdateEntry(draw(HASH), draw(COUNT), hashes, counts, draw(TIER), draw(ADAPTER))


SINGLES = st.builds(
    UpdateEntry, prefix_hash=HASH, token_count=st.sampled_from([16, 32, 48, 64, -1]), tier=TIER, adapter_id=ADAPTER
)
ENTRIES = st.lists(chains() | SINGLES, max_size=8)


@given(ENTRIES, st.sampled_from(["vllm", "vllm", ""]), ADAPTER, st.integers(1, 12))
def test_batches_say_what_the_entries_say(
    entries: list[UpdateEntry], hash_scheme: str, adapter_id: str, max_blocks: int
) -> None:
    """Applied in order, batches leave every block with the tokens and tier of its last mention, and count each drop."""
    batches, drops = batches_of(entries, hash_scheme=hash_scheme, adapter_id=adapter_id, max_blocks=max_blocks)
    expected, expected_drops = one_by_one(entries, hash_scheme, adapter_id)
    assert applied(batches) == expected
    assert drops == expected_drops


@given(ENTRIES, st.integers(1, 12))
def test_batches_keep_the_shape_of_the_store(entries: list[UpdateEntry], max_blocks: int) -> None:
    """No batch is empty or too large or lists a block twice, and its columns are well-formed runs."""
    batches, _ = batches_of(entries, hash_scheme="vllm", max_blocks=max_blocks)
    for batch in batches:
        keys = split_keys(batch.keys)
        assert 1 <= len(keys) == len(set(keys)) <= max_blocks
        for column in (batch.tiers, batch.counts):
            starts = [run[0] for run in column]
            assert starts[0] == 0
            assert starts == sorted(set(starts))
            assert starts[-1] < len(keys)
        assert all(before[1] != after[1] for before, after in pairwise(batch.tiers))
        assert list(batch.breaks) == sorted(set(batch.breaks))
        assert all(0 < at < len(keys) for at in batch.breaks)


@given(ENTRIES, st.integers(1, 12))
def test_blocks_are_placed_in_the_order_of_their_first_mention(entries: list[UpdateEntry], max_blocks: int) -> None:
    """Over all batches of a partition, blocks appear for the first time in the report's order."""
    batches, _ = batches_of(entries, hash_scheme="vllm", max_blocks=max_blocks)
    expected, _ = one_by_one(entries, "vllm", "")
    placed = applied(batches)
    assert {partition: list(blocks) for partition, blocks in placed.items()} == {
        partition: list(blocks) for partition, blocks in expected.items()
    }


@given(
    st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=8, unique=True), min_size=1, max_size=5),
    st.integers(1, 6),
)
def test_neighbours_in_a_batch_are_neighbours_in_a_chain(paths: list[list[int]], max_blocks: int) -> None:
    """Without a break, a block comes after its left neighbour in some chain; `after` is a block's very predecessor."""
    batches = taken(*(chain(*path) for path in paths), max_blocks=max_blocks)
    runs = [names(*path) for path in paths]
    heads = {run[0] for run in runs}
    for batch in batches:
        keys = split_keys(batch.keys)
        if batch.after:
            assert any((batch.after, keys[0]) in pairwise(run) for run in runs)
        else:
            assert keys[0] in heads
        for at in range(1, len(keys)):
            if at not in batch.breaks:
                before, here = keys[at - 1], keys[at]
                assert any(before in run[: run.index(here)] for run in runs if here in run)


def test_a_chain_is_one_run_of_running_sums() -> None:
    """Blocks of a chain carry the tokens up to and including them."""
    assert taken(chain(1, 2, 3)) == [Batch(BASE, joined(1, 2, 3), ((0, 1),), ((0, 16, 16),))]


def test_uneven_counts_are_kept_exactly() -> None:
    """Odd counts cost a run each, equal ones share one."""
    assert taken(chain(1, 2, 3, 4, counts=[16, 16, 5, 0]))[0].counts == ((0, 16, 16), (2, 37, 0))
    assert taken(chain(1, 2, 3, counts=[0, 0, 0]))[0].counts == ((0, 0, 0),)


def test_sums_saturate() -> None:
    """Token sums stop at the wire's largest number."""
    batch = taken(chain(1, 2, 3, 4, counts=[MAX_TOKENS - 1, 1, 5, 0]))[0]
    assert expand_counts(batch.counts, 4) == [MAX_TOKENS - 1, MAX_TOKENS, MAX_TOKENS, MAX_TOKENS]
    batch = taken(chain(1, 2, 3, counts=[2**30] * 3))[0]
    assert expand_counts(batch.counts, 3) == [2**30, MAX_TOKENS, MAX_TOKENS]


def test_a_hash_beside_a_chain_is_one_more_block() -> None:
    """It has its own token count, and is no continuation of the chain."""
    batches = taken(chain(1, 2, 3, prefix=9, tokens=128))
    assert batches == [Batch(BASE, joined(1, 2, 3, 9), ((0, 1),), ((0, 16, 16), (3, 128, 0)), breaks=(3,))]


def test_a_hash_beside_a_chain_that_is_its_last_block() -> None:
    """The block keeps its place and takes the hash' own count."""
    assert taken(chain(1, 2, prefix=2, tokens=32)) == [Batch(BASE, joined(1, 2), ((0, 1),), ((0, 16, 16),))]
    assert expand_counts(taken(chain(1, 2, prefix=2, tokens=99))[0].counts, 2) == [16, 99]


def test_a_block_repeated_in_a_chain_has_its_last_sum() -> None:
    """One holding, with the larger sum, in the place of the first."""
    batch = taken(chain(1, 2, 1, 3))[0]
    assert batch.keys == joined(1, 2, 3)
    assert expand_counts(batch.counts, 3) == [48, 32, 64]


def test_small_entries_share_a_batch() -> None:
    """Unrelated chains are told apart by breaks, whose order is the report's."""
    batch = taken(chain(1, 2), chain(5), chain(3, 4))[0]
    assert (batch.keys, batch.breaks, batch.after) == (joined(1, 2, 5, 3, 4), (2, 3), b"")


def test_a_chain_that_extends_the_one_before_continues_it() -> None:
    """No break where a chain's first new block follows its own predecessor; one where it forks."""
    assert taken(chain(1, 2), chain(1, 2, 3))[0].breaks == ()
    assert taken(chain(1, 2, 3), chain(1, 2, 4, 5))[0].breaks == (3,)


def test_partitions_have_their_own_batches() -> None:
    """An entry's adapter wins over the update's, and neither leaks into the other's entries."""
    entries = [single(1, 16), UpdateEntry(prefix_hash=name(2), token_count=16, adapter_id="other"), single(3, 32)]
    batches, _ = batches_of(entries, hash_scheme="vllm", adapter_id="default")
    assert [(batch.partition, batch.keys) for batch in batches] == [
        (Partition("vllm", "default"), joined(1, 3)),
        (Partition("vllm", "other"), joined(2)),
    ]


def test_a_long_chain_continues_in_the_next_batch() -> None:
    """The next batch goes on with the running sum and names the block before its first."""
    first, second, third = taken(chain(*range(1100)))
    assert [len(split_keys(batch.keys)) for batch in (first, second, third)] == [512, 512, 76]
    assert (first.after, second.after, third.after) == (b"", name(511), name(1023))
    assert second.counts == ((0, 16 * 513, 16),)
    assert third.keys == joined(*range(1024, 1100))


def test_a_batch_that_begins_with_an_entry_continues_nothing() -> None:
    """Only a chain that was cut names a block before."""
    batches = taken(chain(1, 2), chain(3, 4), max_blocks=2)
    assert [batch.after for batch in batches] == [b"", b""]


def test_the_block_before_is_never_a_skipped_one() -> None:
    """An empty hash at the cut is passed over."""
    entry = UpdateEntry(block_hashes=[name(1), b"", name(2), b"", name(3)], block_token_counts=[16] * 5)
    batches, drops = batches_of([entry], hash_scheme="vllm", max_blocks=2)
    assert [(batch.keys, batch.after) for batch in batches] == [(joined(1, 2), b""), (joined(3), name(2))]
    assert [batch.counts for batch in batches] == [((0, 16, 32),), ((0, 80, 0),)]
    assert drops == {reasons.EMPTY_HASH: 2}


def test_a_block_of_an_earlier_batch_is_listed_again() -> None:
    """Across batches the order of application lets the last mention win."""
    batches = taken(chain(1, 2), single(1, 99), max_blocks=2)
    assert [batch.keys for batch in batches] == [joined(1, 2), joined(1)]
    assert applied(batches) == {BASE: {name(1): (99, 1), name(2): (32, 1)}}


def test_single_hashes_of_a_growing_prefix_are_one_run() -> None:
    """A producer that reports block by block gets the placement of a chain, also across batches."""
    entries = [single(at, 16 * (at + 1)) for at in range(6)]
    assert taken(*entries) == [Batch(BASE, joined(*range(6)), ((0, 1),), ((0, 16, 16),))]
    assert [(batch.after, batch.breaks) for batch in taken(*entries, max_blocks=4)] == [(b"", ()), (name(3), ())]


def test_interleaved_sequences_are_broken_apart() -> None:
    """Where the count is not the one before plus the same step, another sequence begins."""
    tokens = [16, 32, 48, 16, 32, 80, 96]
    batch = taken(*(single(at, count) for at, count in enumerate(tokens)))[0]
    assert batch.breaks == (3, 5)
    assert expand_counts(batch.counts, 7) == tokens


def test_equal_or_falling_counts_are_no_chain() -> None:
    """Prefixes of one length have nothing to do with each other, so none of them is another one's end."""
    batch = taken(*(single(at, count) for at, count in enumerate([64, 64, 64, 32, 0, 16])))[0]
    assert batch.breaks == (1, 2, 3, 4)
    assert expand_counts(batch.counts, 6) == [64, 64, 64, 32, 0, 16]


def test_a_change_of_tier_does_not_break_a_run() -> None:
    """Tiers may be mixed within one run."""
    batch = taken(single(1, 16, 1), single(2, 32, 2), single(3, 48, 2))[0]
    assert (batch.tiers, batch.breaks) == (((0, 1), (1, 2)), ())


def test_a_chain_ends_a_run_of_single_hashes() -> None:
    """Singles before and after a chain are not one sequence."""
    batch = taken(single(1, 16), single(2, 32), chain(5, 6), single(3, 48))[0]
    assert (batch.keys, batch.breaks) == (joined(1, 2, 5, 6, 3), (2, 4))


def test_the_last_tier_wins() -> None:
    """A block offloaded after it was stored is reported once, in its last tier."""
    batch = taken(single(1, 16, 1), single(2, 32, 1), single(1, 16, 2))[0]
    assert (batch.keys, batch.tiers) == (joined(1, 2), ((0, 2), (1, 1)))


@pytest.mark.parametrize(
    "entry",
    [
        UpdateEntry(block_hashes=names(1, 2, 3), block_token_counts=[16]),
        UpdateEntry(block_hashes=names(1, 2)),
        UpdateEntry(prefix_hash=name(9), token_count=64, block_token_counts=[16]),
        UpdateEntry(prefix_hash=name(9), token_count=64, block_hashes=names(1)),
    ],
)
def test_arrays_that_differ_in_length_drop_the_entry(entry: UpdateEntry) -> None:
    """The hash beside a malformed chain is dropped with it."""
    assert dropped(entry) == {reasons.MISMATCHED_ARRAYS: 1}


@pytest.mark.parametrize(
    "entry",
    [
        chain(1, 2, counts=[16, -1]),
        chain(1, 2, counts=[-16, -16]),
        chain(1, 2, tokens=-1),
        chain(1, 2, prefix=3, tokens=-1),
        single(1, -1),
        UpdateEntry(token_count=-1),
    ],
)
def test_one_negative_number_drops_the_entry(entry: UpdateEntry) -> None:
    """No part of such an entry is to be trusted."""
    assert dropped(entry) == {reasons.NEGATIVE_COUNT: 1}


def test_an_entry_without_hashes_is_dropped() -> None:
    """An empty hash is not stored, alone or as a chain of nothing else."""
    assert dropped(UpdateEntry(token_count=16)) == {reasons.EMPTY_HASH: 1}
    assert dropped(UpdateEntry(block_hashes=[b"", b""], block_token_counts=[16, 16])) == {reasons.EMPTY_HASH: 2}


def test_without_a_scheme_every_entry_is_dropped() -> None:
    """Hashes of an unknown making match nothing, so nothing is stored."""
    assert dropped(chain(1, 2), single(3, 16), hash_scheme="") == {reasons.EMPTY_SCHEME: 2}


def test_bad_entries_are_dropped_alone() -> None:
    """What is sound in the same update is taken."""
    batches, drops = batches_of([single(1, 16), chain(2, counts=[]), single(3, 32)], hash_scheme="vllm")
    assert [batch.keys for batch in batches] == [joined(1, 3)]
    assert drops == {reasons.MISMATCHED_ARRAYS: 1}


def test_zero_and_the_largest_count_are_stored() -> None:
    """Counts are not judged beyond their sign."""
    assert taken(single(1, 0))[0].counts == ((0, 0, 0),)
    assert taken(single(1, MAX_TOKENS))[0].counts == ((0, MAX_TOKENS, 0),)


def test_an_empty_update_brings_nothing() -> None:
    """Statistics alone ingest no block."""
    assert taken() == []


def test_every_drop_reason_is_listed() -> None:
    """Counters are labelled from the list, so a reason that is missing there would never be seen."""
    used = {
        getattr(reasons, word) for word in dir(reasons) if word.isupper() and isinstance(getattr(reasons, word), str)
    }
    assert used == set(reasons.REASON_CODES) | set(reasons.DROP_REASONS)
