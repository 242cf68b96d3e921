from __future__ import annotations

from random import Random

import pytest

from inference_cache.sim.cache import BlockCache, ideal_hit_blocks
from inference_cache.sim.trace import Request


def test_the_tail_of_the_oldest_prompt_goes_first() -> None:
    """Eviction takes blocks one by one from the tail of what is least recently used, heads last."""
    cache = BlockCache(100)
    cache.store([(1, 32), (2, 32)])
    change = cache.store([(3, 32), (4, 10)])
    assert change.evicted == [(2, 26, 32)]
    assert cache.match([(1, 32), (2, 32)]) == 58
    assert cache.used == 100


def test_using_a_prompt_protects_it() -> None:
    """What is stored again is the last to go."""
    cache = BlockCache(64)
    cache.store([(1, 32)])
    cache.store([(2, 32)])
    cache.store([(1, 32)])
    assert cache.store([(3, 32)]).evicted == [(2, 0, 32)]
    assert cache.match([(1, 32)]) == 32


def test_a_shared_head_outlives_the_tails_that_hang_on_it() -> None:
    """A block is never held without the one before it, whichever prompts came."""
    cache = BlockCache(96)
    cache.store([(1, 32), (2, 32)])
    cache.store([(1, 32), (3, 32)])
    assert cache.store([(1, 32), (4, 32)]).evicted == [(2, 0, 32)]
    assert cache.match([(1, 32), (3, 32)]) == 64


def test_a_change_tells_what_is_new() -> None:
    """A report needs to know where the new blocks of a prompt begin and end."""
    cache = BlockCache(64)
    cache.store([(1, 32), (2, 5)])
    change = cache.store([(1, 32), (3, 20)])
    assert (change.first_new, change.held, change.evicted) == (32, 52, [])


def test_of_a_prompt_that_does_not_fit_the_head_is_kept() -> None:
    """A prompt longer than the cache leaves its leading blocks, never more than fit."""
    cache = BlockCache(40)
    cache.store([(9, 32)])
    change = cache.store([(1, 32), (2, 32), (3, 32)])
    assert (change.held, cache.used) == (40, 40)
    assert change.evicted == [(9, 0, 32)]
    assert cache.match([(1, 32), (2, 32), (3, 32)]) == 40


def test_a_cache_of_nothing_is_refused() -> None:
    """A cache holds at least one block."""
    with pytest.raises(ValueError, match="at least one"):
        BlockCache(0)


class _OneByOne:
    """The same cache with a record for each block: slow and obvious."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.order: list[tuple[int, int]] = []

    def store(self, spans: list[tuple[int, int]]) -> set[tuple[int, int]]:
        blocks = [(hash_id, index) for hash_id, count in spans for index in range(count)][: self.capacity]
        for block in reversed(blocks):
            if block in self.order:
                self.order.remove(block)
            self.order.append(block)
        evicted = self.order[: max(0, len(self.order) - self.capacity)]
        del self.order[: len(evicted)]
        return set(evicted)


@pytest.mark.parametrize("seed", range(5))
def test_counting_by_ids_is_the_same_as_counting_block_by_block(seed: int) -> None:
    """The cache behaves exactly like a least-recently-used list of single blocks."""
    random = Random(seed)
    cache, plain = BlockCache(150), _OneByOne(150)
    for _ in range(300):
        spans = _path(random)
        held = set(plain.order)
        wanted = [(hash_id, index) for hash_id, count in spans for index in range(count)]
        run = next((n for n, block in enumerate(wanted) if block not in held), len(wanted))
        assert cache.match(spans) == run
        change = cache.store(spans)
        gone = {(hash_id, index) for hash_id, begin, end in change.evicted for index in range(begin, end)}
        assert gone == plain.store(spans)
        assert cache.used == len(plain.order)


def _path(random: Random) -> list[tuple[int, int]]:
    """Return a walk from the root of a small tree of ids; the last id may be begun only."""
    node, spans = 1, []
    for _ in range(random.randint(1, 6)):
        spans.append((node, 32))
        node = node * 3 + random.randint(0, 2)
    if random.random() < 0.5:
        spans.append((-node, 1 + node % 31))
    return spans


def test_the_ideal_is_one_cache_that_sees_prompts_as_they_arrive() -> None:
    """With room for all, everything said before is a hit; without it, only what is still there."""
    requests = [Request(0, 1024, 0, (1, 2)), Request(1, 1024, 0, (1, 3)), Request(2, 1024, 0, (1, 2))]
    assert ideal_hit_blocks(requests, 1000) == 32 + 64
    assert ideal_hit_blocks(requests, 64) == 32 + 32
