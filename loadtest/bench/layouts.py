"""How else such an index is kept in Redis: the plain forms of three layouts that others use, on the same data.

Each answers the question of ``lookup_chain`` and no more (no times, tiers or statistics), which is in its favour.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, cast

import redis

from inference_cache.domain.models import KEY_BYTES

_WRITES_A_TURN = 2_000

_WALK_HASHES = """
local running, depth = nil, {}
for at = 1, #ARGV[2], 8 do
  local held = redis.call('HKEYS', ARGV[1] .. string.sub(ARGV[2], at, at + 7))
  local going, any = {}, false
  for _, replica in ipairs(held) do
    if running == nil or running[replica] then
      going[replica], any, depth[replica] = true, true, (at + 7) / 8
    end
  end
  if not any then break end
  running = going
end
local reply = {}
for replica, blocks in pairs(depth) do
  reply[#reply + 1] = replica
  reply[#reply + 1] = blocks
end
return reply
"""

_WALK_PACKED = """
local keys, total = ARGV[1], #ARGV[1] / 8
local running, depth, at = nil, {}, 0
while at < total do
  local fields, many = {}, math.min(256, total - at)
  for k = 1, many do fields[k] = string.sub(keys, (at + k) * 8 - 7, (at + k) * 8) end
  local found = redis.call('HMGET', KEYS[1], unpack(fields))
  for k = 1, many do
    local going, any = {}, false
    local packed = found[k] or ''
    for p = 1, #packed, 8 do
      local replica = struct.unpack('>I2', packed, p)
      if running == nil or running[replica] then
        going[replica], any, depth[replica] = true, true, at + k
      end
    end
    if not any then at = total break end
    running = going
  end
  at = at + many
end
local reply = {}
for replica, blocks in pairs(depth) do
  reply[#reply + 1] = ARGV[1 + replica]
  reply[#reply + 1] = blocks
end
return reply
"""


class Layout(Protocol):
    """One way to keep who holds which block.

    Attributes:
        name: for tables.
        command: what its lookups cost the server, by name in ``INFO commandstats``.
    """

    name: str
    command: str

    def write(self, keys: bytes, holders: Sequence[str]) -> None:
        """Let holders hold a chain that nobody else holds."""

    def lookup(self, keys: bytes, times: int = 1) -> dict[str, int]:
        """Return how many leading blocks of a chain each replica holds; those with none are left out.

        With ``times`` the question is asked so often, back to back.
        """
        ...


class HashPerBlock:
    """A Redis hash for each block, replica to time of report; a script walks them."""

    name = "a hash per block, read by a script"
    command = "evalsha"

    def __init__(self, client: redis.Redis, prefix: bytes = b"hpb:") -> None:
        self._client = client
        self._prefix = prefix
        self._walk = str(client.script_load(_WALK_HASHES))

    def write(self, keys: bytes, holders: Sequence[str]) -> None:
        """Write one hash a block."""
        with self._client.pipeline(transaction=False) as pipe:
            for block in _split(keys):
                pipe.hset(self._prefix + block, mapping=dict.fromkeys(holders, "1700000000000"))
                if len(pipe) >= _WRITES_A_TURN:
                    pipe.execute()
            pipe.execute()

    def lookup(self, keys: bytes, times: int = 1) -> dict[str, int]:
        """Walk on the server."""
        return _run(self._client, self._walk, [], [self._prefix, keys], times)


class PipelinedReads(HashPerBlock):
    """The same hashes, read by one command a block in one pipeline; the caller intersects."""

    name = "a hash per block, one pipelined read each"
    command = "hkeys"

    def lookup(self, keys: bytes, times: int = 1) -> dict[str, int]:
        """Read every block and walk here."""
        blocks = _split(keys)
        with self._client.pipeline(transaction=False) as pipe:
            for block in blocks * times:
                pipe.hkeys(self._prefix + block)
            found = pipe.execute()
        return walk(found[: len(blocks)])


class PackedHash:
    """One hash for the whole index: block to a packed list of (replica's number, time); a script walks it."""

    name = "one hash, packed holders, read by a script"
    command = "evalsha"

    def __init__(self, client: redis.Redis, key: bytes = b"packed") -> None:
        self._client = client
        self._key = key
        self._numbers: dict[str, int] = {}
        self._walk = str(client.script_load(_WALK_PACKED))

    def write(self, keys: bytes, holders: Sequence[str]) -> None:
        """Write one field a block."""
        numbers = [self._numbers.setdefault(holder, len(self._numbers) + 1) for holder in holders]
        packed = b"".join(struct.pack(">HIH", number, 1_700_000_000, 0) for number in numbers)
        blocks = _split(keys)
        for at in range(0, len(blocks), _WRITES_A_TURN):
            mapping = dict.fromkeys(blocks[at : at + _WRITES_A_TURN], packed)
            self._client.hset(self._key, mapping=cast("dict[Any, Any]", mapping))

    def lookup(self, keys: bytes, times: int = 1) -> dict[str, int]:
        """Walk on the server; the ids go along, since only this side has the table of numbers."""
        return _run(self._client, self._walk, [self._key], [keys, *self._numbers], times)


def walk(holders_by_block: Iterable[Iterable[bytes]]) -> dict[str, int]:
    """Return each replica's leading run from the holders of each block in turn.

    >>> walk([[b"a", b"b"], [b"a"], [], [b"a"]])
    {'a': 2, 'b': 1}
    """
    depth: dict[bytes, int] = {}
    running: set[bytes] | None = None
    for at, held in enumerate(holders_by_block, start=1):
        running = set(held) if running is None else running.intersection(held)
        if not running:
            break
        depth.update(dict.fromkeys(running, at))
    return {replica.decode(): blocks for replica, blocks in sorted(depth.items())}


def _split(keys: bytes) -> list[bytes]:
    return [keys[at : at + KEY_BYTES] for at in range(0, len(keys), KEY_BYTES)]


def _run(client: redis.Redis, sha: str, keys: list[bytes], args: list[bytes | str], times: int) -> dict[str, int]:
    """Call a script so often in one pipeline and return what the first call says."""
    with client.pipeline(transaction=False) as pipe:
        for _ in range(times):
            pipe.evalsha(sha, len(keys), *keys, *args)
        reply = pipe.execute()[0]
    return {replica.decode(): int(blocks) for replica, blocks in zip(reply[::2], reply[1::2], strict=True)}


LAYOUTS: tuple[type[HashPerBlock | PackedHash], ...] = (HashPerBlock, PipelinedReads, PackedHash)
"""All of them."""
