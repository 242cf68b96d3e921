"""A chat service's prompts at full speed: each is looked up, then reported by the replica that serves it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from inference_cache._pb import inferencecache_pb2 as pb
from inference_cache.sim.blocks import prompt_hashes
from inference_cache.sim.generate import ChatShape, generate
from inference_cache.sim.trace import read_trace
from loadtest.bench import data
from loadtest.bench.client import Client, chain_update, connected, lookup_request
from loadtest.bench.redis_process import RedisProcess, started
from loadtest.bench.result import Item, Table
from loadtest.bench.scale import Scale
from loadtest.bench.servers import ServerProcess, serving
from loadtest.bench.stats import percentile, spread

REPLICAS = 16
IN_FLIGHT = 16
_MOST_RUNS = 3
_SEED = 20_247
_METHOD = (
    "Every prompt of the trace, in order, 16 at a time and without pauses: a LookupRoute of its whole chain, then a "
    "report of that chain by the replica that was hinted first, or the next in turn. 16-token blocks, 16 replicas, "
    "nothing is evicted. Each run begins with an empty index."
)


@dataclass(slots=True)
class Replay:
    """What one replay saw.

    Attributes:
        lookups_ms: latency of each lookup.
        matched: tokens that the first hint matched, over all prompts.
        asked: tokens of all full blocks.
        hits: prompts with a match.
        seconds: wall time.
        server_us: of processor time a prompt, lookup and report.
        redis_us: likewise.
    """

    lookups_ms: list[float] = field(default_factory=list)
    matched: int = 0
    asked: int = 0
    hits: int = 0
    seconds: float = 0.0
    server_us: float = 0.0
    redis_us: float = 0.0


async def run(scale: Scale) -> Item:
    """Replay the recorded trace if one was named, a generated one otherwise."""
    item = Item("trace", "A trace of a chat service", _METHOD)
    limit = scale.trace_requests or None
    if scale.trace is not None:
        requests = read_trace(scale.trace, limit)
        item.notes.append(f"Recorded: `{scale.trace.name}`, {len(requests):,} prompts.")
    else:
        requests = generate(ChatShape(), _SEED)[:limit]
        item.notes.append(f"Generated, seed {_SEED}, {len(requests):,} prompts.")
    chains = [b"".join(prompt_hashes(request)) for request in requests if request.blocks]
    with started("valkey") as redis, serving(redis.url) as server:
        replays, walked = [], [0]
        for _ in range(min(scale.runs, _MOST_RUNS)):
            redis.flush()
            replays.append(await _replay(redis, server, chains))
            walked = data.segments_walked(redis, chains)
    item.tables += [_table(replays), _segments(walked)]
    return item


async def _replay(redis: RedisProcess, server: ServerProcess, chains: Sequence[bytes]) -> Replay:
    replay = Replay(asked=sum(map(len, chains)) // 8 * data.BLOCK_TOKENS)
    names, messages = data.replicas(REPLICAS), [lookup_request(keys) for keys in chains]
    async with connected(server.address) as (client,):
        began = time.perf_counter(), server.cpu_s(), redis.cpu_s()
        left = iter(range(len(chains)))
        await asyncio.gather(*(_gateway(client, left, messages, chains, names, replay) for _ in range(IN_FLIGHT)))
        replay.seconds = time.perf_counter() - began[0]
        replay.server_us = 1e6 * (server.cpu_s() - began[1]) / len(chains)
        replay.redis_us = 1e6 * (redis.cpu_s() - began[2]) / len(chains)
    return replay


async def _gateway(
    client: Client,
    left: Iterator[int],
    messages: Sequence[bytes],
    chains: Sequence[bytes],
    names: list[str],
    replay: Replay,
) -> None:
    for at in left:
        began = time.perf_counter()
        response = pb.LookupRouteResponse.FromString(await client.lookup(messages[at]))
        replay.lookups_ms.append((time.perf_counter() - began) * 1000)
        scores = response.replica_scores
        if scores and scores[0].matched_tokens:
            replay.hits += 1
            replay.matched += scores[0].matched_tokens
        holder = scores[0].replica_id if scores else names[at % len(names)]
        await client.report([chain_update(holder, chains[at])])


def _table(replays: Sequence[Replay]) -> Table:
    rows = [
        ("prompts/s, each a lookup and a report", [len(one.lookups_ms) / one.seconds for one in replays]),
        ("lookup p50, ms", [percentile(one.lookups_ms, 0.5) for one in replays]),
        ("lookup p99, ms", [percentile(one.lookups_ms, 0.99) for one in replays]),
        ("server, µs a prompt", [one.server_us for one in replays]),
        ("Redis, µs a prompt", [one.redis_us for one in replays]),
        ("prompts with a match, %", [100 * one.hits / len(one.lookups_ms) for one in replays]),
        ("tokens matched, %", [100 * one.matched / one.asked for one in replays]),
    ]
    return Table("Replay", ("figure", "value"), [(name, spread(values)) for name, values in rows])


def _segments(walked: Sequence[int]) -> Table:
    return Table(
        "Segments that a lookup of a whole prompt walks, at the end",
        ("mean", "median", "p99", "most"),
        [(round(sum(walked) / len(walked), 2), percentile(walked, 0.5), percentile(walked, 0.99), max(walked))],
    )
