"""The one place that names keys in Redis.

All keys of one (tenant, model) share a hash tag, hence a slot of a Cluster: one atomic script, one round
trip. That makes a model the unit of sharding and the most that can become a hot spot. Ids are arbitrary
text, so they are escaped: nothing an id contains can end the tag, look like a separator or meet another id.
Scripts get the ``totals`` key of a model and derive the others by ``lua/lib/keys.lua``, which mirrors this
module; a test compares the two.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from urllib.parse import quote

from inference_cache.domain.models import ModelKey, Partition

LAYOUT = 1
"""Version of the layout, part of every key: servers of different layouts never touch each other's keys."""

MIN_KEY_TTL_MS = 60_000


def key_ttl_ms(ttl_ms: int) -> int:
    """Return the backstop expiry of keys for a tenant's TTL: 2.5 times, renewed before it falls below twice."""
    return max(MIN_KEY_TTL_MS, ttl_ms * 5 // 2)


_MAX_ESCAPED = 160
_PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.")


def escape(text: str) -> str:
    """Return an id as key text that contains only letters, digits and ``-_.%=``.

    Long ids become a digest, marked by ``=``, which no short id can start with.

    >>> escape("team/a:{b}"), escape("")
    ('team%2Fa%3A%7Bb%7D', '')
    """
    if len(text) <= _MAX_ESCAPED and _PLAIN.issuperset(text):
        return text
    escaped = quote(text.encode(), safe="").replace("~", "%7E")
    if len(escaped) <= _MAX_ESCAPED:
        return escaped
    return "=" + blake2b(text.encode(), digest_size=20).hexdigest()


@dataclass(frozen=True, slots=True)
class Keys:
    """Names of the keys under one ``--redis-key-prefix``."""

    prefix: str = "ic"

    def __post_init__(self) -> None:
        """Refuse a prefix that would change the hash tag."""
        if not self.prefix or not (_PLAIN | {":"}).issuperset(self.prefix):
            msg = "a key prefix is letters, digits and -_.: only"
            raise ValueError(msg)

    def tag(self, model: ModelKey) -> str:
        """Return what stands between the braces of a model's keys; also its name in the catalog."""
        return _tag(model)

    def totals(self, model: ModelKey) -> bytes:
        """Return the key from which scripts derive all others of the model."""
        return _totals(self.prefix, model)

    def partition(self, partition: Partition) -> str:
        """Return the name of a partition inside its model's keys."""
        return _partition(partition)

    def adapter(self, adapter_id: str) -> str:
        """Return the adapter's part of a partition's name; ``*``, which no adapter has, is every adapter."""
        return escape(adapter_id) if adapter_id else "*"

    def tenant(self, tenant_id: str) -> str:
        """Return a tenant's name in the catalog."""
        return escape(tenant_id)

    @property
    def catalog(self) -> bytes:
        """Return the key from which catalog scripts derive all others of the catalog."""
        return f"{self.prefix}:{LAYOUT}:{{catalog}}:models".encode()

    @property
    def policy(self) -> bytes:
        """Return the key of the policy snapshot."""
        return f"{self.prefix}:{LAYOUT}:{{policy}}:snapshot".encode()

    @property
    def policy_channel(self) -> bytes:
        """Return the channel on which a change of the policy snapshot is told; ``policy_put`` derives it likewise."""
        return f"{self.prefix}:{LAYOUT}:{{policy}}:changed".encode()

    @property
    def lease(self) -> bytes:
        """Return the key of the sweeper's lease."""
        return f"{self.prefix}:{LAYOUT}:{{catalog}}:lease".encode()

    @property
    def pattern(self) -> str:
        """Return a SCAN pattern of all keys of this prefix, of any layout."""
        return f"{self.prefix}:*"


@lru_cache(maxsize=4096)
def _tag(model: ModelKey) -> str:
    return f"{escape(model.tenant_id)}/{escape(model.model_id)}"


@lru_cache(maxsize=4096)
def _totals(prefix: str, model: ModelKey) -> bytes:
    return f"{prefix}:{LAYOUT}:{{{_tag(model)}}}:totals".encode()


@lru_cache(maxsize=4096)
def _partition(partition: Partition) -> str:
    return f"{escape(partition.hash_scheme)}/{escape(partition.adapter_id)}"
