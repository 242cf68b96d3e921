from __future__ import annotations

import asyncio

import pytest

from inference_cache.rpc.deadlines import Deadlines


def later(seconds: float) -> float:
    """Return a time of the loop's clock."""
    return asyncio.get_running_loop().time() + seconds


async def forever(deadlines: Deadlines, when: float | None) -> None:
    """Wait for what never comes."""
    with deadlines.until(when):
        await asyncio.Event().wait()


async def test_waits_end_at_their_own_deadline() -> None:
    """One timer serves many deadlines, also one that comes sooner than those before it, and one that has passed."""
    deadlines, ended = Deadlines(), []

    async def wait(seconds: float) -> None:
        with pytest.raises(TimeoutError):
            await forever(deadlines, later(seconds))
        ended.append(seconds)

    unending = asyncio.ensure_future(forever(deadlines, later(600)))
    await asyncio.gather(*map(wait, (0.06, 0.02, 0.04, 0.0, -1.0)))
    assert sorted(ended) == [-1.0, 0.0, 0.02, 0.04, 0.06]
    assert not unending.done()
    unending.cancel()


async def test_no_deadline_never_comes() -> None:
    """A wait without a deadline is ended by what it waits for."""
    deadlines = Deadlines()
    with deadlines.until(None) as wait:
        await asyncio.sleep(0.01)
    assert not wait.expired


async def test_a_wait_that_ended_is_left_alone() -> None:
    """Leaving in time, the task is not cancelled later, and the next wait works as the first did."""
    deadlines = Deadlines()
    with deadlines.until(later(0.01)):
        pass
    await asyncio.sleep(0.03)
    with pytest.raises(TimeoutError):
        await forever(deadlines, later(0.01))
    assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]


async def test_a_cancellation_from_elsewhere_stays_one() -> None:
    """A caller that goes away is no timeout, neither before the deadline nor together with it."""
    deadlines = Deadlines()
    for seconds in (600.0, 0.0):
        task = asyncio.ensure_future(forever(deadlines, later(seconds)))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_errors_pass() -> None:
    """What goes wrong within is told as it is, a TimeoutError of its own included."""
    deadlines = Deadlines()
    for error in (ValueError, TimeoutError):
        with pytest.raises(error), deadlines.until(later(600)) as wait:
            raise error
        assert not wait.expired


def test_a_wait_belongs_to_a_task() -> None:
    """Outside of a task there is nothing to cancel."""

    async def begin() -> None:
        failed = asyncio.get_running_loop().create_future()

        def outside() -> None:
            try:
                with Deadlines().until(None):
                    failed.set_result(None)
            except RuntimeError as error:
                failed.set_result(error)

        asyncio.get_running_loop().call_soon(outside)
        assert isinstance(await failed, RuntimeError)

    asyncio.run(begin())
