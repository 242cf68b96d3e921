"""Which node of a Redis Cluster owns which slot, as ``CLUSTER SLOTS`` tells it."""

from __future__ import annotations

from binascii import crc_hqx
from typing import TypeAlias

from inference_cache.store.connection.transport import Reply

SLOTS = 16_384

Host: TypeAlias = tuple[str, int]


class Topology:
    """The owner of every slot, patched by what single nodes say later.

    Attributes:
        primaries: all owners, in the order of their addresses.
    """

    def __init__(self, owners: list[Host | None]) -> None:
        self._owners = owners
        self.primaries: tuple[Host, ...] = tuple(sorted({owner for owner in owners if owner is not None}))

    @classmethod
    def parse(cls, reply: Reply, asked: Host) -> Topology:
        """Read the reply of ``CLUSTER SLOTS``.

        Args:
            reply: ranges of (first slot, last slot, primary, replica ...).
            asked: the node that replied; it may not know its own address and says nothing instead.
        """
        owners: list[Host | None] = [None] * SLOTS
        for first, last, primary, *_ in reply:
            host = resolve(bytes(primary[0] or b"").decode(), int(primary[1]), asked)
            owners[first : last + 1] = [host] * (last + 1 - first)
        return cls(owners)

    def owner(self, slot: int) -> Host | None:
        """Return the primary of a slot, ``None`` where the Cluster has none."""
        return self._owners[slot]

    def with_owner(self, slot: int, owner: Host) -> Topology:
        """Return the same topology with one slot elsewhere."""
        owners = self._owners.copy()
        owners[slot] = owner
        return Topology(owners)


def resolve(host: str, port: int, asked: Host) -> Host:
    """Return the address a node meant; an empty or unknown host is the one we reached it by."""
    return (asked[0] if host in {"", "?"} else host, port)


def moved_to(reply: str, asked: Host) -> tuple[int, Host]:
    """Return the slot and the owner that a reply ``MOVED slot host:port`` of ``asked`` names.

    Raises:
        ValueError: the reply is of another form.
    """
    _, slot, place = reply.split(" ")
    host, _, port = place.rpartition(":")
    return int(slot), resolve(host, int(port), asked)


def slot_of(key: bytes) -> int:
    """Return the slot of a key: by its hash tag where it has one."""
    _, brace, rest = key.partition(b"{")
    tag, end, _ = rest.partition(b"}")
    # CRC-16/XMODEM, as the Cluster specification has it
    return crc_hqx(tag if brace and end and tag else key, 0) % SLOTS
