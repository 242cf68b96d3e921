"""What the oracle knows of one model: blocks, who holds them, statistics, and the newest reports."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from inference_cache.domain.models import Partition, ReplicaStats


@dataclass(frozen=True, slots=True)
class Held:
    """One holding: what the last report said of it, and its hits."""

    token_count: int
    time_ms: int
    tier: int
    began: int = 0
    """The store's count of changes when it came to be held."""
    hits: int = 0


@dataclass(slots=True)
class Index:
    """What is known of one model.

    ``blocks`` has no empty entries. ``newest`` has one time for each (scheme, replica) that holds something: the
    largest reported there since it last held nothing; ``newest_ms`` is the same for the whole model.
    """

    blocks: dict[tuple[Partition, bytes], dict[str, Held]] = field(default_factory=dict)
    stats: dict[str, ReplicaStats] = field(default_factory=dict)
    newest: dict[tuple[str, str], int] = field(default_factory=dict)
    newest_ms: int | None = None
    hot_threshold: int = 0

    def put(self, partition: Partition, key: bytes, replica_id: str, holding: Held) -> tuple[bool, bool]:
        """Store one holding; return whether the holding and whether its prefix is new."""
        holders = self.blocks.setdefault((partition, key), {})
        new = (replica_id not in holders, not holders)
        if replica_id in holders:
            holding = replace(holding, began=holders[replica_id].began, hits=holders[replica_id].hits)
        holders[replica_id] = holding
        scope = (partition.hash_scheme, replica_id)
        self.newest[scope] = max(self.newest.get(scope, holding.time_ms), holding.time_ms)
        self.newest_ms = holding.time_ms if self.newest_ms is None else max(self.newest_ms, holding.time_ms)
        return new

    def remove(self, doomed: Callable[[Partition, bytes, str, Held], bool]) -> int:
        """Remove every holding that ``doomed`` names; return how many went."""
        before = sum(len(holders) for holders in self.blocks.values())
        kept = {
            (partition, key): {who: held for who, held in holders.items() if not doomed(partition, key, who, held)}
            for (partition, key), holders in self.blocks.items()
        }
        self.blocks = {place: holders for place, holders in kept.items() if holders}
        scopes = {(partition.hash_scheme, who) for (partition, _), holders in self.blocks.items() for who in holders}
        self.newest = {scope: time_ms for scope, time_ms in self.newest.items() if scope in scopes}
        self.newest_ms = self.newest_ms if self.blocks else None
        return before - sum(len(holders) for holders in self.blocks.values())

    def fresh(self, partition: Partition, key: bytes, expired_at_ms: int) -> dict[str, Held]:
        """Return who holds a block unexpired."""
        holders = self.blocks.get((partition, key), {})
        return {who: held for who, held in holders.items() if held.time_ms > expired_at_ms}

    def serving(self, scheme: str, expired_at_ms: int) -> tuple[str, ...]:
        """Return the ids of the replicas that serve a scope, in order."""
        return ordered(who for (its, who), time_ms in self.newest.items() if its == scheme and time_ms > expired_at_ms)

    def silent(self, scheme: str, serving: Iterable[str], silent_at_ms: int | None) -> tuple[str, ...]:
        """Return which of the serving replicas have statistics but gave no sign of life."""
        if silent_at_ms is None:
            return ()
        alive = {who: max(row.alive_ms, self.newest.get((scheme, who), 0)) for who, row in self.stats.items()}
        return tuple(who for who in serving if who in alive and alive[who] <= silent_at_ms)

    def hot(self) -> int:
        """Return how many blocks have a holder with enough hits."""
        return sum(
            any(0 < self.hot_threshold <= held.hits for held in holders.values()) for holders in self.blocks.values()
        )

    def is_present(self, expired_at_ms: int) -> bool:
        """Return whether the model counts as holding anything unexpired."""
        return self.newest_ms is not None and self.newest_ms > expired_at_ms


def ordered(ids: Iterable[str]) -> tuple[str, ...]:
    """Return ids in the order of their UTF-8 bytes."""
    return tuple(sorted(ids, key=lambda each: each.encode()))
