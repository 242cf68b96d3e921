"""What comes back from the scripts: the one table that decodes replies.

Replies begin with a status word, then fields in the order that the script's contract block gives.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from inference_cache.domain.models import (
    CacheState,
    ExactEvidence,
    Holder,
    ModelKey,
    Partition,
    Path,
    Run,
)
from inference_cache.store.packing import Entry, corrupt, unpack_entry, unpack_stats

STATUS_WORDS = frozenset(
    {b"OK", b"MORE", b"HIT", b"MISS", b"RETIRED", b"ABSENT", b"SAME", b"REFUSED", b"BUSY", b"UNLISTED"}
)
"""Every status word; a test looks for others in the scripts."""


@dataclass(frozen=True, slots=True)
class ModelState:
    """A model as a whole after a call, with the version that orders such statements.

    ``newest_ms`` is its newest report, ``due_ms`` the earliest time at which anything of it may expire (0: there is
    unfinished work), ``rows`` its statistics rows. ``coldest`` and ``stalest`` are the scores of what gives way first
    to a full index and to a quota (``lua/lib/order.lua``); -1 where there is nothing, or no such index.
    """

    version: int
    prefixes: int
    holdings: int
    rows: int
    newest_ms: int
    due_ms: int
    coldest: int = -1
    stalest: int = -1

    @property
    def holds(self) -> bool:
        """Whether anything is held."""
        return self.holdings > 0


def _state(reply: Sequence[Any]) -> ModelState:
    return ModelState(*reply[-8:])


@dataclass(frozen=True, slots=True)
class Stored:
    """Reply of ``ingest``; ``taken`` blocks of the batch are stored."""

    taken: int
    holdings: int
    prefixes: int
    rebuild: tuple[bytes, ...]
    state: ModelState


@dataclass(frozen=True, slots=True)
class Removed:
    """Reply of the scripts that remove, one step of them.

    ``more`` asks for another call; ``cursor`` is where it goes on.
    """

    holdings: int
    rebuild: tuple[tuple[bytes, bytes], ...]
    state: ModelState
    more: bool = False
    cursor: bytes = b""
    rows: int = 0


def read_ingest(reply: Any) -> Stored:
    """Decode the reply of ``ingest``."""
    _expect(reply, b"OK")
    return Stored(reply[1], reply[2], reply[3], tuple(reply[5 : 5 + reply[4]]), _state(reply))


def _pairs(reply: Sequence[Any], at: int) -> tuple[tuple[bytes, bytes], ...]:
    flat = reply[at + 1 : at + 1 + 2 * reply[at]]
    return tuple(zip(flat[::2], flat[1::2], strict=True))


def read_evict(reply: Any) -> Removed:
    """Decode the reply of ``evict``."""
    _expect(reply, b"OK")
    return Removed(reply[2], _pairs(reply, 3), _state(reply), more=reply[1] != b"", cursor=reply[1])


def read_clear(reply: Any) -> Removed:
    """Decode the reply of ``clear``."""
    status = _expect(reply, b"OK", b"MORE", b"RETIRED")
    if status == b"RETIRED":
        return Removed(reply[1], (), _state(reply))
    return Removed(reply[1], _pairs(reply, 2), _state(reply), more=status == b"MORE")


def read_free(reply: Any) -> Removed:
    """Decode the reply of ``free``."""
    status = _expect(reply, b"OK", b"MORE")
    return Removed(reply[1], _pairs(reply, 2), _state(reply), more=status == b"MORE")


def read_expire(reply: Any) -> Removed:
    """Decode the reply of ``expire``."""
    status = _expect(reply, b"OK", b"MORE")
    return Removed(reply[2], _pairs(reply, 4), _state(reply), more=status == b"MORE", cursor=reply[1], rows=reply[3])


def read_rebuild(reply: Any) -> tuple[int, tuple[bytes, ...]]:
    """Decode the reply of ``rebuild``: segments looked at, segments to look at again."""
    _expect(reply, b"OK")
    return reply[1], tuple(reply[3:])


def read_stats(reply: Any) -> tuple[bool, ModelState]:
    """Decode the reply of ``stats``: whether a row was written, and the model's state."""
    return _expect(reply, b"OK", b"ABSENT") == b"OK", _state(reply)


def read_state(reply: Any) -> CacheState:
    """Decode the reply of ``state``."""
    _expect(reply, b"OK")
    rows = sorted(zip(reply[3::2], reply[4::2], strict=True))
    found = tuple((replica.decode(), stats) for replica, row in rows if (stats := unpack_stats(row)))
    return CacheState(found, reply[1], reply[2])


class Scope(NamedTuple):
    """Who serves a scope, and the version by which the store knows that membership."""

    version: bytes = b""
    serving: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()


NOBODY = Scope()
"""No membership that is known."""


@dataclass(frozen=True, slots=True)
class Walk:
    """Reply of ``lookup_chain``: how far it looked, what it found where, and whether it must go on."""

    walked: int
    runs: tuple[Run, ...]
    places: tuple[tuple[bytes, int, int], ...]
    version: int
    complete: bool
    scope: Scope = NOBODY


def read_walk(reply: Any, known: Scope) -> Walk:
    """Decode the reply of ``lookup_chain``; ``known`` is the membership that it was told of."""
    complete = _expect(reply, b"OK", b"MORE") == b"OK"
    end = 3 + 5 * reply[2]
    runs = [
        Run(reply[at].decode(), reply[at + 1], reply[at + 2], reply[at + 3], unpack_stats(reply[at + 4]))
        for at in range(3, end, 5)
    ]
    places, version, end = _path(reply, end)
    if not complete:
        return Walk(reply[1], tuple(runs), places, version, complete)
    return Walk(reply[1], tuple(runs), places, version, complete, _scope(reply, end, known))


def in_order(runs: Iterable[Run]) -> tuple[Run, ...]:
    """Return runs in the order that the store promises."""
    return tuple(sorted(runs, key=lambda run: run.replica_id.encode()))


def _path(reply: Sequence[Any], at: int) -> tuple[tuple[tuple[bytes, int, int], ...], int, int]:
    """Return the places of a path, the version of the model, and where the reply goes on."""
    end = at + 2 + 3 * reply[at]
    flat = reply[at + 2 : end]
    return tuple(zip(flat[::3], flat[1::3], flat[2::3], strict=True)), reply[at + 1], end


def _scope(reply: Sequence[Any], at: int, known: Scope) -> Scope:
    """Return who serves the scope: as the reply says, or as it was known."""
    version, silent = reply[at], reply[at + 1]
    if silent < 0:
        return known
    split = at + 2 + silent
    return Scope(version, _ids(reply[split:]), _ids(reply[at + 2 : split]))


def read_exact(
    reply: Any, model: ModelKey, partition: Partition, known: Scope, *, want_path: bool
) -> tuple[ExactEvidence, Scope]:
    """Decode the reply of ``lookup_exact``; ``known`` is the membership that it was told of."""
    if _expect(reply, b"HIT", b"MISS") == b"HIT":
        end = 2 + 5 * reply[1]
        holders = sorted(tuple(reply[at : at + 5]) for at in range(2, end, 5))
        found = tuple(Holder(r.decode(), tokens, ms, tier, unpack_stats(row)) for r, tokens, ms, tier, row in holders)
        places, version, end = _path(reply, end)
        scope = _scope(reply, end, known)
        path = Path(model, partition, places, version) if want_path else None
        return ExactEvidence(found, scope.serving, silent=scope.silent, path=path), scope
    end = 2 + reply[1]
    scope = _scope(reply, end, known)
    if not reply[1]:
        return ExactEvidence(serving=scope.serving, silent=scope.silent), scope
    ids = reply[end + 2 + reply[end + 1] :]
    warm = sorted(zip(ids, reply[2:end], strict=True))
    rows = tuple((replica.decode(), stats) for replica, row in warm if (stats := unpack_stats(row)))
    return ExactEvidence(serving=scope.serving, warm=rows, silent=scope.silent), scope


@dataclass(frozen=True, slots=True)
class Listed:
    """A model that the catalog lists: when it is due, and the version of what it says."""

    entry: Entry
    due_ms: int
    version: int


def read_list(reply: Any) -> tuple[bytes, list[Listed]]:
    """Decode the reply of ``catalog_list``: the next cursor and a page of models."""
    _expect(reply, b"OK")
    return reply[1], [
        Listed(entry, int(float(reply[at + 1])), int(reply[at + 2]))
        for at in range(2, len(reply), 4)
        if (entry := unpack_entry(reply[at + 3]))
    ]


def read_presence(reply: Any) -> tuple[int | None, int | None, list[tuple[int, Entry]]]:
    """Decode the reply of ``catalog_presence``: newest report of the model, of the tenant, of the listed models."""
    _expect(reply, b"OK")
    listed = [
        (int(float(reply[at])), entry) for at in range(3, len(reply), 2) if (entry := unpack_entry(reply[at + 1]))
    ]
    return _time(reply[1]), _time(reply[2]), listed


@dataclass(frozen=True, slots=True)
class Sums:
    """Holdings of the whole index and distinct prefixes of one tenant, as the catalog adds them up."""

    holdings: int = 0
    prefixes: int = 0


def read_put(reply: Any) -> list[Sums]:
    """Decode the reply of ``catalog_put``: the sums after it, for each entry in turn."""
    _expect(reply, b"OK")
    return [Sums(reply[1], prefixes) for prefixes in reply[2:]]


@dataclass(frozen=True, slots=True)
class Victim:
    """Whose turn it is to give way.

    ``model`` is ``None`` when nobody is left; ``bar`` is the score at which the next model's turn comes; ``unlisted``
    says that the model has not listed its segments yet, which comes before any choice. ``claimed`` is what the asker is
    to remove: nobody else will.
    """

    sums: Sums
    model: ModelKey | None
    bar: bytes
    unlisted: bool
    claimed: int


def read_victim(reply: Any) -> Victim:
    """Decode the reply of ``catalog_victim``."""
    status = _expect(reply, b"OK", b"UNLISTED")
    entry = unpack_entry(reply[3])
    model = entry.model if entry else None
    return Victim(Sums(reply[1], reply[2]), model, reply[4], status == b"UNLISTED", reply[5])


@dataclass(frozen=True, slots=True)
class Room:
    """Reply of ``trim``, one step of it: holdings that had expired, others, distinct prefixes."""

    expired: int
    holdings: int
    prefixes: int
    step: Removed


def read_trim(reply: Any) -> Room:
    """Decode the reply of ``trim``."""
    more = _expect(reply, b"OK", b"MORE") == b"MORE"
    return Room(reply[1], reply[2], reply[3], Removed(reply[1] + reply[2], _pairs(reply, 4), _state(reply), more=more))


def read_number(reply: Any) -> int:
    """Decode a reply that is ``OK`` and one number."""
    _expect(reply, b"OK")
    return int(reply[1])


def read_cursor(reply: Any) -> bytes:
    """Decode a reply that is ``OK`` and a cursor."""
    _expect(reply, b"OK")
    return bytes(reply[1])


def read_lease(reply: Any) -> int | None:
    """Decode the reply of ``lease``: the token, ``None`` when somebody else has it."""
    return int(reply[1]) if _expect(reply, b"OK", b"BUSY") == b"OK" else None


@dataclass(frozen=True, slots=True)
class PolicySnapshot:
    """All policies as Redis has them, with who wrote them.

    Attributes:
        generation: raised by every write that changes something; 0 = nothing was ever written.
        digest: of the body.
        source: kind of the writer: api, cli or directory.
        host: the server that wrote it.
        written_ms: when it was accepted, by Redis' clock.
        directory: digest of the policy directory that was written last, empty for none or an empty one.
        body: canonical form of the policies.
    """

    generation: int
    digest: str
    source: str
    host: str
    written_ms: int
    directory: str
    body: bytes = field(repr=False)


def read_policy_get(reply: Any) -> PolicySnapshot | Literal["SAME", "ABSENT"]:
    """Decode the reply of ``policy_get``."""
    status = _expect(reply, b"OK", b"SAME", b"ABSENT")
    if status == b"OK":
        return _snapshot(reply, reply[7])
    return "SAME" if status == b"SAME" else "ABSENT"


def read_policy_put(reply: Any, body: bytes) -> tuple[PolicySnapshot | None, bool]:
    """Decode the reply of ``policy_put``: what is stored, ``None`` if it refused, and whether that is new."""
    status = _expect(reply, b"OK", b"SAME", b"REFUSED")
    return (None if status == b"REFUSED" else _snapshot(reply, body)), status == b"OK"


def _snapshot(reply: Any, body: bytes) -> PolicySnapshot:
    _, generation, digest, source, host, written_ms, directory = reply[:7]
    return PolicySnapshot(
        generation, digest.decode(), source.decode(), host.decode(), written_ms, directory.decode(), body
    )


def _time(score: bytes) -> int | None:
    return int(float(score)) if score else None


def _ids(raw: Sequence[bytes]) -> tuple[str, ...]:
    return tuple(replica.decode() for replica in sorted(raw))


def _expect(reply: Any, *words: bytes) -> bytes:
    if isinstance(reply, list) and reply and reply[0] in words:
        status: bytes = reply[0]
        return status
    raise corrupt("script reply")
