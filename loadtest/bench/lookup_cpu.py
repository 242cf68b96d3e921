"""What a lookup costs the server's processor, against a bare call that receives and returns the same bytes."""

from __future__ import annotations

from random import Random

from inference_cache._pb import inferencecache_pb2 as pb
from loadtest.bench import data, profile
from loadtest.bench.client import Client, Sample, chain_update, connected, keep_busy, lookup_request
from loadtest.bench.costs import HOLDERS
from loadtest.bench.redis_process import RedisProcess, started
from loadtest.bench.result import Item, Table
from loadtest.bench.scale import Scale
from loadtest.bench.servers import ServerProcess, bare, serving
from loadtest.bench.stats import ratios, spread

_SEED = 20_243
_IN_FLIGHT = 8
_METHOD = (
    "Processor time of the server process for a LookupRoute that matches the whole prompt with 4 holders, 8 calls "
    "in flight, against a bare `grpc.aio` server on the same event loop, in a process of its own, that parses the "
    "same request with the generated classes and returns the same response. The two take turns, run by run; the "
    "ratio is the median of the runs' ratios. Hashes of 32 bytes have to be reduced to 8 first."
)


async def run(scale: Scale) -> Item:
    """Measure on the package's Valkey; Redis does not show in the server's own time."""
    item = Item("lookup_cpu", "What a lookup costs the server", _METHOD)
    heads = (
        "blocks",
        "bytes a hash",
        "server, µs a call",
        "bare call, µs",
        "ratio",
        "Redis process, µs a call",
        "unmatched",
    )
    table = Table("Processor time of one LookupRoute", heads, [])
    with started("valkey") as redis, serving(redis.url) as server:
        for hash_bytes in scale.hash_bytes:
            for blocks in scale.prompts:
                await _compare(redis, server, scale, table, item, blocks, hash_bytes)
    item.tables.append(table)
    item.tables.append(await profile.table(scale, _IN_FLIGHT))
    return item


async def _compare(
    redis: RedisProcess, server: ServerProcess, scale: Scale, table: Table, item: Item, blocks: int, hash_bytes: int
) -> None:
    async with connected(server.address) as (client,):
        request = await indexed(client, blocks, hash_bytes)
        with bare(await client.lookup(request)) as plain:
            async with connected(plain.address) as (plain_client,):
                ours, theirs, redis_us, unmatched = [], [], [], 0
                calls = max(_IN_FLIGHT, min(scale.lookups, scale.lookups * 512 // blocks))
                await keep_busy([client], [request], _IN_FLIGHT, calls=calls // 4)
                await keep_busy([plain_client], [request], _IN_FLIGHT, calls=calls // 4)
                for _ in range(scale.runs):
                    began = redis.cpu_s()
                    cost, sample = await _cpu_us(server, client, request, calls)
                    ours.append(cost)
                    redis_us.append(1e6 * (redis.cpu_s() - began) / calls)
                    theirs.append((await _cpu_us(plain, plain_client, request, calls))[0])
                    unmatched += sample.unmatched
    ratio = ratios(ours, theirs)
    table.rows.append((blocks, hash_bytes, spread(ours), spread(theirs), ratio, spread(redis_us), unmatched))
    item.figures[f"lookup_{blocks}_cpu_ratio_{hash_bytes}"] = ratio


async def indexed(client: Client, blocks: int, hash_bytes: int = 8, others: int = data.CROWD) -> bytes:
    """Let replicas report a chain through the server and return the request for it.

    Others, which hold something else, serve the model too: a chain that every replica holds is no reason to choose.
    """
    for other in data.replicas(others, "crowd"):
        await client.report([chain_update(other, data.random_keys(16, Random(other)))])
    keys = data.random_keys(blocks, Random(f"{_SEED}/{blocks}/{hash_bytes}"))
    for holder in data.replicas(HOLDERS):
        await client.report([chain_update(holder, keys, hash_bytes=hash_bytes)])
    request = lookup_request(keys, hash_bytes=hash_bytes)
    response = pb.LookupRouteResponse.FromString(await client.lookup(request))
    if [score.matched_tokens for score in response.replica_scores] != [blocks * data.BLOCK_TOKENS] * HOLDERS:
        raise RuntimeError(f"the chain is not found whole: {response.reason_code}")
    return request


async def _cpu_us(server: ServerProcess, client: Client, request: bytes, calls: int) -> tuple[float, Sample]:
    began = server.cpu_s()
    sample = await keep_busy([client], [request], _IN_FLIGHT, calls=calls)
    return 1e6 * (server.cpu_s() - began) / calls, sample
