"""Chats without an end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count

from inference_cache.sim.generate import ChatShape, generate
from inference_cache.sim.trace import Request

_ROUND = ChatShape(requests=2000, duration_ms=600_000.0)
_IDS = 1 << 32
"""Distance between the ids of two rounds: far more than a round has."""
_ROUNDS = 1 << 20
"""Rounds of one seed whose ids are all different; their product with every seed's must fit into 63 bits."""
SEEDS = 1 << 10
"""Seeds are below this."""


def endless(seed: int) -> Iterator[Request]:
    """Yield prompts in the order of their arrival, round after round; two rounds or two seeds share no prefix."""
    for number in count():
        first = (seed * _ROUNDS + number % _ROUNDS) * _IDS
        for request in generate(_ROUND, seed * _ROUNDS + number):
            yield replace(request, hash_ids=tuple(first + one for one in request.hash_ids))
