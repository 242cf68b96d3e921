"""A simulated inference engine: one queue, one prefill at a time, one block cache.

Time is simulated milliseconds. Only prompts enter the cache: a trace does not say what the blocks of an answer are.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from inference_cache.sim.cache import BlockCache, Change, Span
from inference_cache.sim.trace import BLOCK_TOKENS, Request


@dataclass(frozen=True, slots=True)
class Prefill:
    """How long a prefill takes: a fixed part and a part for each token that is not cached, in milliseconds."""

    fixed_ms: float = 20.0
    token_ms: float = 0.1

    def duration_ms(self, uncached_tokens: int) -> float:
        """Return how long an engine works until the first token."""
        return self.fixed_ms + self.token_ms * uncached_tokens


@dataclass(frozen=True, slots=True)
class Outcome:
    """A finished prefill: how long its request waited for the first token, and what it changed in the cache."""

    request: Request
    spans: list[Span]
    hit_tokens: int
    ttft_ms: float
    change: Change


@dataclass(slots=True)
class _Job:
    request: Request
    spans: list[Span]
    work_ms: float
    """Estimated from the cache at arrival; known once the prefill starts."""
    hit_blocks: int = 0


class Engine:
    """One replica. Call :meth:`finish` at :attr:`done_ms`, never later than the next :meth:`submit`."""

    def __init__(self, replica_id: str, cache_blocks: int, prefill: Prefill) -> None:
        self.replica_id = replica_id
        self.cache = BlockCache(cache_blocks)
        self.prefill = prefill
        self.done_ms: float | None = None
        """When the running prefill ends, ``None`` while the engine is idle."""
        self.taken = 0
        """Requests so far."""
        self._queue: deque[_Job] = deque()
        """The running prefill first."""
        self._waiting_ms = 0.0

    def backlog_ms(self, now_ms: float) -> float:
        """Return how long a request that arrives now would wait: the length of the queue, in prefill work."""
        return self._waiting_ms + (0.0 if self.done_ms is None else self.done_ms - now_ms)

    def load(self, now_ms: float) -> tuple[float, int]:
        """Return what engines are compared by: the queue, and among equal ones the requests taken so far.

        Without the second part, the first of several idle engines would get everything and soon cache little of it.
        """
        return self.backlog_ms(now_ms), self.taken

    def submit(self, request: Request, now_ms: float) -> None:
        """Queue a request."""
        spans = request.spans()
        job = _Job(request, spans, self._work_ms(request, self.cache.match(spans)))
        self._queue.append(job)
        self.taken += 1
        if self.done_ms is None:
            self._start(job, now_ms)
        else:
            self._waiting_ms += job.work_ms

    def finish(self) -> Outcome:
        """End the running prefill: its blocks enter the cache and the next request starts.

        Raises:
            RuntimeError: the engine is idle.
        """
        if self.done_ms is None:
            raise RuntimeError("an idle engine has nothing to finish")
        job, now_ms = self._queue.popleft(), self.done_ms
        self.done_ms = None
        change = self.cache.store(job.spans)
        if self._queue:
            self._waiting_ms = max(0.0, self._waiting_ms - self._queue[0].work_ms)
            self._start(self._queue[0], now_ms)
        ttft_ms = now_ms - job.request.arrival_ms
        return Outcome(job.request, job.spans, job.hit_blocks * BLOCK_TOKENS, ttft_ms, change)

    def _start(self, job: _Job, now_ms: float) -> None:
        job.hit_blocks = self.cache.match(job.spans)
        self.done_ms = now_ms + self._work_ms(job.request, job.hit_blocks)

    def _work_ms(self, request: Request, hit_blocks: int) -> float:
        return self.prefill.duration_ms(request.input_tokens - hit_blocks * BLOCK_TOKENS)
