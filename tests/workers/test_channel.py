from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from inference_cache.workers.channel import Channel, Gone, Handlers, Refused

LONG_S = 30.0


async def echo(body: Any) -> Any:
    return body


async def fail(body: Any) -> Any:
    raise ValueError(body)


async def never(_body: Any) -> Any:
    await asyncio.Event().wait()


@asynccontextmanager
async def pair(theirs: Handlers, ours: Handlers | None = None) -> AsyncIterator[tuple[Channel, Channel]]:
    one, other = socket.socketpair()
    near, far = await Channel.over(one, ours or {}), await Channel.over(other, theirs)
    try:
        yield near, far
    finally:
        await near.close()
        await far.close()


async def test_both_ends_ask_at_once() -> None:
    """Questions of both directions share the socket, and each gets its own answer."""
    async with pair({"echo": echo}, {"echo": echo}) as (near, far):
        asked = [
            end.ask("echo", (name, at), timeout_s=LONG_S) for at in range(50) for name, end in (("n", near), ("f", far))
        ]
        assert await asyncio.gather(*asked) == [(name, at) for at in range(50) for name in "nf"]


async def test_a_large_body_arrives_whole() -> None:
    """What thousands of models counted is megabytes."""
    body = {"x": bytes(range(256)) * 40_000}
    async with pair({"echo": echo}) as (near, _):
        assert await near.ask("echo", body, timeout_s=LONG_S) == body


async def test_a_slow_answer_holds_up_no_other() -> None:
    """Whoever waits for one answer does not keep others from theirs; late is an error of that question only."""
    async with pair({"never": never, "echo": echo}) as (near, _):
        waiting = asyncio.create_task(near.ask("never", timeout_s=LONG_S))
        assert await near.ask("echo", 1, timeout_s=LONG_S) == 1
        with pytest.raises(TimeoutError):
            await near.ask("never", timeout_s=0)
        assert await near.ask("echo", 2, timeout_s=LONG_S) == 2
        waiting.cancel()


@pytest.mark.parametrize("what", ["fail", "unknown"])
async def test_what_cannot_be_answered_is_refused_in_words(what: str) -> None:
    """An error at the other end is told, and ends neither the question's asker nor the channel."""
    async with pair({"fail": fail, "echo": echo}) as (near, _):
        with pytest.raises(Refused, match="the reason" if what == "fail" else what):
            await near.ask(what, "the reason", timeout_s=LONG_S)
        assert await near.ask("echo", 1, timeout_s=LONG_S) == 1


async def test_the_end_of_the_other_ends_every_wait() -> None:
    """Nobody waits for a process that is gone: not for an answer under way, nor for a new one."""
    async with pair({"never": never}) as (near, far):
        waiting = asyncio.create_task(near.ask("never", timeout_s=LONG_S))
        closed = asyncio.create_task(near.closed())
        await asyncio.sleep(0)
        await far.close()
        with pytest.raises(Gone):
            await waiting
        await closed
        with pytest.raises(Gone):
            await near.ask("never", timeout_s=LONG_S)


async def test_closing_lets_an_answer_leave() -> None:
    """A worker that refuses to start says why before it goes."""
    begun = asyncio.Event()

    async def late(_body: Any) -> str:
        begun.set()
        await asyncio.sleep(0.01)
        return "said"

    async with pair({"late": late}) as (near, far):
        asked = asyncio.create_task(near.ask("late", timeout_s=LONG_S))
        await begun.wait()
        await far.close()
        assert await asked == "said"
