"""Chat traffic made up from a seed, in the format of a recorded trace.

Its shape: a few assistants, each with its own system prompt and very unequally popular; people start sessions with
one of them; each turn's prompt is everything said so far plus a new message, so it repeats the previous prompt and
grows; between turns people read and type.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import count
from random import Random

from inference_cache.sim.trace import ID_TOKENS, Request


@dataclass(frozen=True, slots=True)
class ChatShape:
    """How chat traffic looks. Lengths are tokens.

    Attributes:
        requests: how many prompts there are.
        duration_ms: the time over which sessions begin.
        assistants: how many system prompts there are; the n-th is 1/n as popular as the first.
        system_tokens: bounds of a system prompt's length.
        message_tokens: median length of a person's message; lengths are lognormal.
        answer_tokens: median length of an answer; lengths are lognormal.
        spread: sigma of both lognormal lengths.
        attachment_share: share of sessions that begin with a long document.
        attachment_tokens: median length of such a document.
        another_turn: chance that a session goes on after a turn.
        pause_ms: mean time between two turns.
        context_tokens: a session ends when its prompt would be longer.
    """

    requests: int = 6000
    duration_ms: float = 1_800_000.0
    assistants: int = 12
    system_tokens: tuple[int, int] = (600, 3500)
    message_tokens: int = 120
    answer_tokens: int = 350
    spread: float = 0.9
    attachment_share: float = 0.3
    attachment_tokens: int = 4000
    another_turn: float = 0.75
    pause_ms: float = 40_000.0
    context_tokens: int = 32_000


@dataclass(slots=True)
class _Session:
    """One conversation: the ids of its full 512-token steps, and its length so far."""

    tokens: int
    full_ids: list[int] = field(default_factory=list)


def generate(shape: ChatShape, seed: int) -> list[Request]:
    """Return the prompts of one seed, in the order of their arrival; the same seed gives the same prompts."""
    random = Random(seed)
    ids = count()
    systems = [_system(random, shape, ids) for _ in range(shape.assistants)]
    popularity = [1 / rank for rank in range(1, shape.assistants + 1)]
    requests: list[Request] = []
    while len(requests) < shape.requests:
        system = random.choices(systems, popularity)[0]
        session = _Session(system.tokens, list(system.full_ids))
        requests += _play(random, shape, session, random.uniform(0, shape.duration_ms), ids)
    # Whole sessions were drawn; the latest prompts are cut, so every session keeps its beginning.
    requests.sort(key=lambda request: request.arrival_ms)
    return requests[: shape.requests]


def _system(random: Random, shape: ChatShape, ids: count[int]) -> _Session:
    tokens = random.randint(*shape.system_tokens)
    return _Session(tokens, [next(ids) for _ in range(tokens // ID_TOKENS)])


def _play(random: Random, shape: ChatShape, session: _Session, begin_ms: float, ids: count[int]) -> list[Request]:
    """Return the prompts of one session."""
    turns: list[Request] = []
    now_ms = begin_ms
    if random.random() < shape.attachment_share:
        session.tokens += _length(random, shape.attachment_tokens, shape.spread)
    while True:
        session.tokens += _length(random, shape.message_tokens, shape.spread)
        if session.tokens > shape.context_tokens:
            return turns
        answer = _length(random, shape.answer_tokens, shape.spread)
        turns.append(_prompt(session, round(now_ms), answer, ids))
        if random.random() >= shape.another_turn:
            return turns
        session.tokens += answer
        now_ms += random.expovariate(1 / shape.pause_ms)


def _prompt(session: _Session, arrival_ms: int, answer: int, ids: count[int]) -> Request:
    """Name the prompt's steps: full ones keep their ids for good, the begun last one has a new id in each prompt."""
    while len(session.full_ids) < session.tokens // ID_TOKENS:
        session.full_ids.append(next(ids))
    begun = [next(ids)] if session.tokens % ID_TOKENS else []
    return Request(arrival_ms, session.tokens, answer, (*session.full_ids, *begun))


def _length(random: Random, median: int, spread: float) -> int:
    return max(1, round(random.lognormvariate(math.log(median), spread)))
