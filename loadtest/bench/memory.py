"""How many bytes of Redis a placement takes: of long chains, and of traffic that decodes block by block."""

from __future__ import annotations

from random import Random

from inference_cache._pb import inferencecache_pb2 as pb
from inference_cache.domain.blocks import split_keys
from loadtest.bench import data
from loadtest.bench.client import connected, update
from loadtest.bench.costs import PROMPT, opened
from loadtest.bench.redis_process import RedisProcess, started
from loadtest.bench.result import Item, Table
from loadtest.bench.scale import Scale
from loadtest.bench.servers import ServerProcess, serving
from loadtest.bench.stats import spread

HOLDERS = (1, 2, 8)
REPLICAS = 64
SEQUENCES = 16
_PROMPT_BLOCKS = 32
_SEED = 20_245
_METHOD = (
    "Growth of Redis' `used_memory`, divided by what was added, for chains of 512 blocks. Decoding: 64 replicas "
    "with 16 sequences each, which begin as prompts of 32 blocks and grow by one block at a time; every update of a "
    "replica carries one new block of each sequence, as `[parent, new]` chains or as entries of one hash. It goes "
    "through a server, round by round over all replicas; bytes and costs are of the blocks added while decoding."
)


async def run(scale: Scale) -> Item:
    """Measure on every server of this machine."""
    item = Item("memory", "Memory, and decoding block by block", _METHOD)
    heads = ("server", "holders", "bytes a placement", "bytes a block", "a further holder, bytes a block")
    chains = Table("Chains of 512 blocks", heads, [])
    decode = Table(
        "Decode-like traffic",
        (
            "server",
            "reported as",
            "blocks",
            "bytes a block",
            "segments a lookup walks",
            "worst",
            "server, µs a block",
            "Redis, µs a block",
        ),
        [],
    )
    for kind in scale.kinds:
        with started(kind) as redis:
            await _chains(redis, scale, chains, item)
            redis.flush()
            with serving(redis.url) as server:
                for name in ("[parent, new]", "lone entries"):
                    await _decode(redis, server, scale, decode, item, name)
    item.tables += [chains, decode]
    return item


async def _chains(redis: RedisProcess, scale: Scale, table: Table, item: Item) -> None:
    random = Random(_SEED)
    keys = [data.random_keys(PROMPT, random) for _ in range(scale.memory_blocks // PROMPT)]
    blocks = len(keys) * PROMPT
    names = data.replicas(max(HOLDERS), "holder")
    async with opened(redis) as store:
        empty = before = redis.used_memory()
        for holder, name in enumerate(names, 1):
            for one in keys:
                await data.report(store, one, [name])
            now = redis.used_memory()
            if holder in HOLDERS:
                size = (now - empty) / blocks
                further = (now - before) / blocks if holder > 1 else ""
                table.rows.append(
                    (
                        redis.label,
                        holder,
                        round(size / holder, 1),
                        round(size, 1),
                        round(further, 2) if isinstance(further, float) else further,
                    )
                )
            if holder <= 2:  # noqa: PLR2004 - the first two
                item.figures[f"bytes_holder_{holder}_{redis.kind}"] = spread([(now - before) / blocks])
            before = now


async def _decode(
    redis: RedisProcess, server: ServerProcess, scale: Scale, table: Table, item: Item, name: str
) -> None:
    """Let sequences grow and see what is left behind."""
    random = Random(f"{_SEED}/{name}")
    names = data.replicas(REPLICAS, "chains" if name.startswith("[") else "lone")
    length = _PROMPT_BLOCKS + scale.decode_blocks
    chains = {one: [split_keys(data.random_keys(length, random)) for _ in range(SEQUENCES)] for one in names}
    async with connected(server.address) as (client,):
        for one, sequences in chains.items():
            await client.report([update(one, [_chain(keys[:_PROMPT_BLOCKS], 0) for keys in sequences])])
        began = redis.used_memory(), server.cpu_s(), redis.cpu_s()
        for at in range(_PROMPT_BLOCKS, length):
            for one, sequences in chains.items():
                await client.report([update(one, [grown(name, keys, at) for keys in sequences])])
        spent = redis.used_memory() - began[0], server.cpu_s() - began[1], redis.cpu_s() - began[2]
    blocks = REPLICAS * SEQUENCES * scale.decode_blocks
    walked = data.segments_walked(redis, [b"".join(keys) for one in names[:8] for keys in chains[one]])
    size, server_us, redis_us = spent[0] / blocks, 1e6 * spent[1] / blocks, 1e6 * spent[2] / blocks
    segments = spread(map(float, walked))
    table.rows.append(
        (
            redis.label,
            name,
            f"{blocks:,}",
            round(size, 1),
            segments.median,
            segments.high,
            round(server_us, 1),
            round(redis_us, 1),
        )
    )
    word = "chains" if name.startswith("[") else "lone"
    item.figures[f"decode_{word}_bytes_{redis.kind}"] = spread([size])
    item.figures[f"decode_{word}_segments_{redis.kind}"] = segments


def grown(name: str, keys: list[bytes], at: int) -> pb.PrefixEntry:
    """Return how an engine reports the block at an index, as a chain with its parent or alone."""
    if name.startswith("["):
        return _chain(keys[at - 1 : at + 1], at - 1)
    return pb.PrefixEntry(prefix_hash=keys[at], token_count=data.BLOCK_TOKENS * (at + 1))


def _chain(keys: list[bytes], before: int) -> pb.PrefixEntry:
    """Return a chain entry; the first count includes the blocks before it, so that sums stay those of the prompt."""
    counts = [data.BLOCK_TOKENS] * len(keys)
    counts[0] *= before + 1
    return pb.PrefixEntry(block_hashes=keys, block_token_counts=counts)
