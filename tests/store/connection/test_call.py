from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_cache.store.connection.call import Backlog, Call

LIMIT = 5


def call(number: int) -> Call:
    return Call(asyncio.get_running_loop().create_future(), (number,), float(number))


async def _like_a_list(steps: list[tuple[str, int]]) -> None:
    backlog, model = Backlog(LIMIT), list[Call]()
    for number, (step, place) in enumerate(steps):
        if step == "put":
            new = call(number)
            had_room = len(model) < LIMIT
            assert backlog.put(new) is had_room
            model += [new] * had_room
        elif step == "give up" and model:
            gone = model.pop(place % len(model))
            gone.reply.cancel()
            backlog.give_up(gone)
            assert gone.command is None
        elif step == "take":
            assert backlog.take() is (model.pop(0) if model else None)
        elif step == "take older":
            expected = [each for each in model if each.since < number - place]
            assert backlog.take_older(number - place) == expected
            del model[: len(expected)]
        assert len(backlog) == len(model)
        oldest = backlog.oldest()
        assert not model or (oldest is not None and oldest <= model[0].since)


@given(st.lists(st.tuples(st.sampled_from(["put", "put", "give up", "take", "take older"]), st.integers(0, 9))))
def test_a_backlog_is_a_bounded_list(steps: list[tuple[str, int]]) -> None:
    """Whatever is put, given up and taken: first come first served, never more than the limit, nobody lost."""
    asyncio.run(_like_a_list(steps))


async def test_who_has_gone_leaves_no_trace() -> None:
    """Callers that come and give up, without anybody being served, do not make the queue grow."""
    backlog = Backlog(LIMIT)
    patient = call(0)
    backlog.put(patient)
    for number in range(10_000):
        passing = call(number)
        assert backlog.put(passing)
        passing.reply.cancel()
        backlog.give_up(passing)
    assert len(backlog) == 1
    assert len(backlog._calls) < 200
    assert backlog.take() is patient


@pytest.mark.parametrize("given_up", [False, True])
async def test_a_cancelled_call_is_not_taken(given_up: bool) -> None:
    """Between the cancellation and the caller's farewell, and after it, the call is not sent any more."""
    backlog = Backlog(LIMIT)
    gone, next_one = call(0), call(1)
    backlog.put(gone)
    backlog.put(next_one)
    gone.reply.cancel()
    if given_up:
        backlog.give_up(gone)
    assert backlog.take() is next_one
    backlog.give_up(gone)
    assert len(backlog) == 0
    assert backlog.put(call(2))
    assert len(backlog) == 1
