"""The workers of a server: started, asked, replaced when they end, and told to stop.

A worker that cannot start when the server does is a failed start. Later every end is answered by a new worker, soon
at first and then ever more slowly while workers keep ending young.
"""

from __future__ import annotations

import asyncio
import logging
import random
from contextlib import suppress
from typing import Any

from inference_cache.log import event
from inference_cache.metrics import Metrics
from inference_cache.workers.channel import Gone, Refused
from inference_cache.workers.life import ANSWER_S, Life
from inference_cache.workers.merge import Snapshot
from inference_cache.workers.tally import Tally

logger = logging.getLogger(__name__)

_HUNG_S = 30.0
_STEADY_S = 60.0
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 30.0
_JITTER = 0.2
_STOP_S = 5.0
_BEATS_PER_COUNT = 10


def pause_s(young: int) -> float:
    """Return how long to wait before the next start, when so many workers in a row lived only briefly."""
    return float(min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** min(young, 16)))


class _Place:
    """One of the crew's places, held by one worker after the other."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.tally = Tally()
        self.life: Life | None = None
        self.serves = False
        self.first: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def not_ready(self) -> str | None:
        return self.life.not_ready if self.life is not None and self.serves else "not running"


class Crew:
    """A fixed number of workers. Made and used within one event loop.

    Args:
        size: how many.
        orders: what each worker is given when it starts.
        metrics: the parent's, where ends and readiness are counted.
        hung_s: a worker that has been silent for longer is killed and replaced.
    """

    def __init__(self, size: int, orders: Any, metrics: Metrics, *, hung_s: float = _HUNG_S) -> None:
        self._orders = orders
        self._metrics = metrics
        self._hung_s = hung_s
        self._places = [_Place(number) for number in range(size)]
        self._stopping = asyncio.Event()
        self._keeping: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Start every worker, and return when all of them serve.

        Raises:
            ChildProcessError: one could not; the message is the worker's own.
        """
        self._keeping = [asyncio.create_task(self._keep(place)) for place in self._places]
        await asyncio.gather(*(place.first for place in self._places))

    @property
    def size(self) -> int:
        """How many workers there should be."""
        return len(self._places)

    @property
    def ready(self) -> int:
        """How many workers were ready when they were last asked, about a second ago at most."""
        return sum(place.not_ready is None for place in self._places)

    @property
    def not_ready(self) -> str:
        """Why the first of the workers that are not ready is not; empty when all are."""
        return next((place.not_ready for place in self._places if place.not_ready is not None), "")

    async def ask(self, what: str, body: Any = None, *, timeout_s: float = ANSWER_S) -> list[Any]:
        """Ask all workers that serve and return their answers, an exception for each that gave none."""
        lives = [place.life for place in self._places if place.life is not None and place.serves]
        asked = (life.ask(what, body, timeout_s=timeout_s) for life in lives)
        return await asyncio.gather(*asked, return_exceptions=True)

    async def count(self) -> None:
        """Fetch what the workers counted; of one that does not say so in time the last word stands."""
        await asyncio.gather(*(self._count(place) for place in self._places))

    def snapshots(self) -> list[Snapshot]:
        """Return what was fetched last, and what those that have ended counted; safe in any thread."""
        return [each for place in self._places for each in place.tally.snapshots]

    async def drain(self, grace_s: float | None) -> None:
        """Tell the workers to stop and wait until they have; told again, they cut what is in flight.

        Args:
            grace_s: how long they let calls finish, ``None`` for not at all; one that takes much longer is killed.
        """
        self._stopping.set()
        for place in self._places:
            if place.life is not None:
                place.life.terminate()
        if self._keeping:
            await asyncio.wait(self._keeping, timeout=(grace_s or 0) + _STOP_S)
        await self.close()

    async def close(self) -> None:
        """Kill what still runs."""
        self._stopping.set()
        for place in self._places:
            if place.life is not None:
                place.life.kill()
        if self._keeping:
            await asyncio.wait(self._keeping)

    async def _keep(self, place: _Place) -> None:
        """Have a worker in this place until the crew stops, or the very first one fails."""
        young = 0
        clock = asyncio.get_running_loop().time
        while not self._stopping.is_set():
            began = clock()
            life = place.life = Life(place.number, {"farewell": lambda counts: self._note(place, counts)})
            reason, detail = await self._live(place, life)
            if not place.first.done():
                place.first.set_exception(ChildProcessError(f"a worker did not start: {detail}"))
                return
            if self._stopping.is_set():
                return
            young = 0 if clock() - began > _STEADY_S else young + 1
            pause = pause_s(max(0, young - 1)) * random.uniform(1 - _JITTER, 1 + _JITTER)  # noqa: S311 - no secret
            self._metrics.worker_restarted(reason)
            fields = {"worker": place.number, "pid": life.pid, "reason": reason, "detail": detail}
            event(logger, logging.WARNING, "worker_ended", **fields, pause_ms=int(pause * 1000))
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)

    async def _live(self, place: _Place, life: Life) -> tuple[str, str]:
        """See one worker from start to end; return why it ended, as a word for the counter and in words for people."""
        try:
            await life.start(self._orders)
            event(logger, logging.INFO, "worker_started", worker=place.number, pid=life.pid)
            place.serves = True
            if not place.first.done():
                place.first.set_result(None)
            return await self._watch(place, life)
        except (Gone, Refused, TimeoutError, OSError) as error:
            await life.end()
            return "start", str(error) or life.how_it_ended
        except Exception:  # a place must never stay empty
            logger.exception("worker_watch_failed")
            return "exited", "could not be watched"
        finally:
            place.serves = False
            await life.end()
            place.life = None
            place.tally.close()
            self._metrics.workers_ready(self.ready)

    async def _watch(self, place: _Place, life: Life) -> tuple[str, str]:
        beats = 0
        self._metrics.workers_ready(self.ready)
        while await life.beat():
            self._metrics.workers_ready(self.ready)
            if life.silent_s > self._hung_s:
                return "hung", f"was silent for {life.silent_s:.0f} s"
            beats += 1
            if beats % _BEATS_PER_COUNT == 0:
                await self._count(place)
        return "killed" if life.was_killed else "exited", life.how_it_ended

    async def _count(self, place: _Place) -> None:
        life = place.life
        if life is None or not place.serves:
            return
        with suppress(Gone, Refused, TimeoutError):
            added = await place.tally.fetch(lambda: life.ask("counts"))
            self._metrics.worker_lookups(str(place.number), added)

    async def _note(self, place: _Place, counts: Snapshot) -> None:
        self._metrics.worker_lookups(str(place.number), place.tally.note(counts))
