"""What comes back from the scripts: the one table that decodes replies.

Replies begin with a status word, then fields in the order that the script's contract block gives.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from inference_cache.domain.models import ChainEvidence, ExactEvidence, Holder, ReplicaStats, Run
from inference_cache.store.packing import Entry, corrupt, unpack_entry, unpack_stats

STATUS_WORDS = frozenset({b"OK", b"MORE", b"HIT", b"MISS", b"RETIRED", b"ABSENT", b"SAME", b"REFUSED"})
"""Every status word; a test looks for others in the scripts."""


@dataclass(frozen=True, slots=True)
class ModelState:
    """A model as a whole after a call, with the version that orders such statements.

    ``newest_ms`` is its newest report, ``due_ms`` the earliest time at which anything of it may expire (0: there is
    unfinished work), ``rows`` its statistics rows.
    """

    version: int
    prefixes: int
    holdings: int
    rows: int
    newest_ms: int
    due_ms: int

    @property
    def holds(self) -> bool:
        """Whether anything is held."""
        return self.holdings > 0


def _state(reply: Sequence[Any]) -> ModelState:
    return ModelState(*reply[-6:])


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

    ``more`` asks for another call; ``cursor`` is where it goes on; ``retired`` is the slot that ``free`` must empty.
    """

    holdings: int
    rebuild: tuple[tuple[bytes, bytes], ...]
    state: ModelState
    more: bool = False
    cursor: bytes = b""
    rows: int = 0
    retired: int | None = None


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
        return Removed(0, (), _state(reply), retired=reply[1])
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


def read_state(reply: Any) -> tuple[int, list[tuple[str, ReplicaStats]]]:
    """Decode the reply of ``state``: distinct prefixes and rows, ordered by replica id."""
    _expect(reply, b"OK")
    rows = sorted(zip(reply[2::2], reply[3::2], strict=True))
    return reply[1], [(replica.decode(), stats) for replica, row in rows if (stats := unpack_stats(row))]


@dataclass(frozen=True, slots=True)
class Walk:
    """Reply of ``lookup_chain``: how far it looked, what it found, and whether it must go on."""

    walked: int
    runs: tuple[Run, ...]
    serving: tuple[str, ...]
    complete: bool


def read_walk(reply: Any) -> Walk:
    """Decode the reply of ``lookup_chain``."""
    complete = _expect(reply, b"OK", b"MORE") == b"OK"
    end = 3 + 5 * reply[2]
    runs = [
        Run(reply[at].decode(), reply[at + 1], reply[at + 2], reply[at + 3], unpack_stats(reply[at + 4]))
        for at in range(3, end, 5)
    ]
    return Walk(reply[1], tuple(runs), _ids(reply[end:]), complete)


def chain_evidence(runs: Iterable[Run], serving: tuple[str, ...]) -> ChainEvidence:
    """Return evidence with its runs in the order that the store promises."""
    return ChainEvidence(tuple(sorted(runs, key=lambda run: run.replica_id.encode())), serving)


def read_exact(reply: Any) -> ExactEvidence:
    """Decode the reply of ``lookup_exact``."""
    if _expect(reply, b"HIT", b"MISS") == b"HIT":
        end = 2 + 5 * reply[1]
        holders = sorted(tuple(reply[at : at + 5]) for at in range(2, end, 5))
        return ExactEvidence(
            tuple(Holder(r.decode(), tokens, ms, tier, unpack_stats(row)) for r, tokens, ms, tier, row in holders),
            _ids(reply[end:]),
        )
    if not reply[1]:
        return ExactEvidence(serving=_ids(reply[2:]))
    rows = sorted(zip(reply[2::2], reply[3::2], strict=True))
    warm = tuple((replica.decode(), stats) for replica, row in rows if (stats := unpack_stats(row)))
    return ExactEvidence(serving=tuple(replica.decode() for replica, _ in rows), warm=warm)


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


def read_put(reply: Any) -> int:
    """Decode the reply of ``catalog_put``: entries that changed something."""
    _expect(reply, b"OK")
    return int(reply[1])


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
