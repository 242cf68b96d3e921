from __future__ import annotations

from itertools import pairwise

from inference_cache.sim.generate import ChatShape, generate
from inference_cache.sim.trace import ID_TOKENS, format_line, parse_line

SHAPE = ChatShape(requests=400)


def test_a_seed_is_a_trace() -> None:
    """The same seed gives the same prompts, another one others."""
    assert generate(SHAPE, 3) == generate(SHAPE, 3)
    assert generate(SHAPE, 3) != generate(SHAPE, 4)


def test_what_is_generated_is_in_the_format_of_the_trace() -> None:
    """Every prompt survives being written and read, has an id for each begun 512 tokens, and arrives in order."""
    requests = generate(SHAPE, 3)
    assert len(requests) == 400
    assert [parse_line(format_line(request)) for request in requests] == requests
    assert all(len(request.hash_ids) == -(-request.input_tokens // ID_TOKENS) for request in requests)
    assert all(one.arrival_ms <= two.arrival_ms for one, two in pairwise(requests))


def test_an_id_names_the_whole_prefix() -> None:
    """No id follows two different ones: hash ids are those of prefixes, not of pieces."""
    before: dict[int, int | None] = {}
    for request in generate(SHAPE, 3):
        previous = None
        for hash_id in request.hash_ids:
            assert before.setdefault(hash_id, previous) == previous
            previous = hash_id


def test_sessions_grow_and_share_system_prompts() -> None:
    """Many prompts continue an earlier one, and many sessions begin with the same ids."""
    requests = generate(SHAPE, 3)
    seen: set[int] = set()
    growing = 0
    for request in requests:
        full = request.hash_ids[: request.input_tokens // ID_TOKENS]
        growing += len(full) > 0 and full[-1] not in seen and len(set(full) & seen) > 0
        seen.update(full)
    assert growing > 100
    heads = [request.hash_ids[0] for request in requests]
    assert len(set(heads)) <= SHAPE.assistants
