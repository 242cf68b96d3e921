"""The demo: which prompts on which engines, and everything that came out as one document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from inference_cache.sim.compare import CACHE_AWARE, ROUND_ROBIN, YARDSTICK, Fleet
from inference_cache.sim.figures import Figures, share
from inference_cache.sim.generate import ChatShape, generate
from inference_cache.sim.trace import Request, read_trace

SLICE = 3000
"""Prompts that are played unless all are asked for."""
GENERATED_CACHE_BLOCKS = 8_192
"""An engine's cache for generated chats: 131,072 tokens, eight of them well below what the chats are made of."""
RECORDED_CACHE_BLOCKS = 65_536
"""An engine's cache for a recorded trace, whose prompts are longer: 1,048,576 tokens."""


@dataclass(frozen=True, slots=True)
class Prompts:
    """What is played, and in words where it comes from and which part of it."""

    requests: Sequence[Request]
    source: str
    part: str

    def as_dict(self) -> dict[str, object]:
        """Return what describes the prompts, for JSON."""
        distinct = {hash_id: count for request in self.requests for hash_id, count in request.spans()}
        return {
            "source": self.source,
            "slice": self.part,
            "requests": len(self.requests),
            "simulated_s": self.requests[-1].arrival_ms / 1000,
            "input_tokens": sum(request.input_tokens for request in self.requests),
            "distinct_blocks": sum(distinct.values()),
        }


def prompts_for(trace: Path | None, *, full: bool, seed: int) -> Prompts:
    """Bring the prompts: a recorded trace, or chats made up from a seed; the head of them unless ``full``.

    Raises:
        ConfigError: the trace cannot be used.
    """
    if trace is not None:
        requests = read_trace(trace, None if full else SLICE)
        source = trace.name
    else:
        requests = generate(ChatShape(), seed)
        requests = requests if full else requests[:SLICE]
        source = f"generated chats, seed {seed}"
    part = f"all {len(requests):,} requests" if full else f"the first {len(requests):,} requests (--full plays all)"
    return Prompts(requests, source, part)


def fleet_for(trace: Path | None, engine_blocks: int | None) -> Fleet:
    """Return the engines: caches of a size that the prompts overflow, unless the user names one."""
    default = GENERATED_CACHE_BLOCKS if trace is None else RECORDED_CACHE_BLOCKS
    return Fleet(cache_blocks=engine_blocks or default)


@dataclass(frozen=True, slots=True)
class Result:
    """A finished demo."""

    prompts: Prompts
    fleet: Fleet
    figures: Sequence[Figures]

    def of(self, routing: str) -> Figures:
        """Return the figures of one routing."""
        return next(one for one in self.figures if one.routing == routing)

    @property
    def share_of_yardstick(self) -> float:
        """Token hit rate through the service over that of a router that sees every cache."""
        return share(self.of(CACHE_AWARE).token_hit_rate, self.of(YARDSTICK).token_hit_rate)

    @property
    def gain_over_round_robin(self) -> float:
        """Token hit rate through the service over that of round robin; infinite when that has none."""
        plain = self.of(ROUND_ROBIN).token_hit_rate
        return self.of(CACHE_AWARE).token_hit_rate / plain if plain else float("inf")

    def as_dict(self) -> dict[str, object]:
        """Return everything for JSON."""
        return {
            "trace": self.prompts.as_dict(),
            "fleet": self.fleet.as_dict(),
            "routings": [one.as_dict() for one in self.figures],
            "share_of_yardstick": self.share_of_yardstick,
            "gain_over_round_robin": self.gain_over_round_robin,
        }
