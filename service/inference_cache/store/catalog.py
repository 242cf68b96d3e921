"""The catalog: which models hold something, and how recently it was reported.

It lives in a slot of its own and is what answers UNKNOWN_TENANT and UNKNOWN_MODEL, finds models to sweep and adds up
gauges. Every entry carries the version that a script on its model returned, and is written by compare-and-set, so
that a late "emptied" never hides a newer "appeared". Words that arrive while a write is under way share the next one.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from inference_cache.domain.models import ModelKey, Presence, Retention
from inference_cache.domain.policy import DEFAULT_TTL_MS
from inference_cache.store import packing, replies
from inference_cache.store.connection.transport import Connection
from inference_cache.store.keys import Keys, key_ttl_ms
from inference_cache.store.packing import Entry
from inference_cache.store.replies import Listed, ModelState, Sums, Victim
from inference_cache.store.scripts import load

_KNOWN_FOR_S = 30.0
_KNOWN_MODELS = 10_000
_PAGE = 256
_FIRST_LOOK = 8
"""Models reported last, of all tenants: one of them is nearly always unexpired."""
_MAX_PUT = 256


@dataclass(frozen=True, slots=True)
class _Word:
    """One statement about a model, on its way to the catalog."""

    model: ModelKey
    kind: str
    state: ModelState | None = None
    due_ms: int = 0
    retention: Retention | None = None

    @property
    def version(self) -> int:
        return self.state.version if self.state else 0


class Catalog:
    """Reads and writes the catalog of one key prefix.

    Args:
        connection: where it lives.
        keys: how its keys are named.
        now_ms: the store's clock.
    """

    def __init__(self, connection: Connection, keys: Keys, now_ms: Callable[[], int]) -> None:
        self._connection = connection
        self._keys = keys
        self._now_ms = now_ms
        self._known: OrderedDict[ModelKey, float] = OrderedDict()
        self._retention: OrderedDict[str, Retention] = OrderedDict()
        self._pending: dict[tuple[ModelKey, str], tuple[_Word, asyncio.Future[Sums]]] = {}
        self._writer: asyncio.Task[None] | None = None
        self._claimant = secrets.token_bytes(8)
        self._tenant_prefixes: OrderedDict[str, int] = OrderedDict()
        self.index_holdings: int | None = None
        """Holdings of the whole index as last told."""
        self.key_ttl_ms = key_ttl_ms(DEFAULT_TTL_MS)
        """Backstop expiry for the longest TTL seen, for what all tenants share."""

    def learn(self, tenant_id: str, retention: Retention) -> None:
        """Note a tenant's retention, to be told with what its models hold."""
        self.key_ttl_ms = max(self.key_ttl_ms, key_ttl_ms(retention.ttl_ms))
        self._retention[tenant_id] = retention
        self._retention.move_to_end(tenant_id)
        while len(self._retention) > _KNOWN_MODELS:
            self._retention.popitem(last=False)

    async def announce(self, model: ModelKey) -> None:
        """Say that a model is about to be written, unless that is known.

        A server that dies before it tells what it wrote so leaves an entry that any sweeper verifies.
        """
        now = asyncio.get_running_loop().time()
        if self._known.get(model, 0.0) > now:
            return
        await self._tell(_Word(model, "pending"))
        self._known[model] = now + _KNOWN_FOR_S
        self._known.move_to_end(model)
        while len(self._known) > _KNOWN_MODELS:
            self._known.popitem(last=False)

    async def unfinished(self, model: ModelKey) -> None:
        """Say that a model is about to be changed in several steps: until :meth:`put` it is due for a sweep."""
        await self._tell(_Word(model, "unfinished"))

    async def put(self, model: ModelKey, state: ModelState, retention: Retention | None = None) -> Sums:
        """Tell what a model holds now; an empty one without statistics is due at once, to be verified and forgotten.

        With ``retention`` the model's keys live at least as long as that wants; otherwise the entry keeps saying what
        was told last. Returns the sums of the index after it.
        """
        kind = "holds" if state.holds else "empty"
        due_ms = state.due_ms if state.holds or state.rows else 0
        return await self._tell(_Word(model, kind, state, due_ms, retention))

    async def forget(self, model: ModelKey, state: ModelState) -> None:
        """Drop the entry of a model that has been empty for long, unless something newer was told."""
        self._known.pop(model, None)
        await self._tell(_Word(model, "gone", state))

    async def presence(self, model: ModelKey, expired_at: Callable[[str], int]) -> Presence:
        """Tell what holds anything unexpired: the model, its tenant, anybody."""
        cut = expired_at(model.tenant_id)
        tag, tenant = self._keys.tag(model), self._keys.tenant(model.tenant_id)
        offset, limit = 0, _FIRST_LOOK
        while True:
            reply = await self._run("catalog_presence", tag, tenant, offset, limit)
            of_model, of_tenant, listed = replies.read_presence(reply)
            of_tenant_alive = of_tenant is not None and of_tenant > cut
            alive = of_tenant_alive or any(newest > expired_at(entry.model.tenant_id) for newest, entry in listed)
            if alive or len(listed) < limit:
                return Presence(alive, of_tenant_alive, of_model is not None and of_model > cut)
            offset, limit = offset + len(listed), _PAGE

    async def listing(self) -> list[Listed]:
        """Return every model, the most urgent first."""
        listed: dict[ModelKey, Listed] = {}
        cursor = b"0"
        while True:
            cursor, page = replies.read_list(await self._run("catalog_list", cursor))
            listed.update((each.entry.model, each) for each in page)
            if cursor == b"0":
                return sorted(listed.values(), key=lambda each: each.due_ms)

    async def victim(self, tenant_id: str | None, skip: int, *, limit: int, most: int) -> Victim:
        """Name the model whose turn it is to give way: to a tenant's quota, or (``None``) to a full index.

        What is too much is claimed for this server until it asks again, so that others leave it alone.

        Args:
            tenant_id: whose quota.
            skip: how many to pass over.
            limit: how much may stay.
            most: how much to claim at most.
        """
        tenant = "*" if tenant_id is None else self._keys.tenant(tenant_id)
        args = (tenant, skip, limit, most, self._claimant, self._now_ms())
        victim = replies.read_victim(await self._run("catalog_victim", *args))
        self.note(tenant_id, victim.sums)
        return victim

    def note(self, tenant_id: str | None, sums: Sums) -> None:
        """Remember the newest sums, of the index and of a tenant."""
        self.index_holdings = sums.holdings
        if tenant_id is not None:
            self._tenant_prefixes[tenant_id] = sums.prefixes
            self._tenant_prefixes.move_to_end(tenant_id)
            while len(self._tenant_prefixes) > _KNOWN_MODELS:
                self._tenant_prefixes.popitem(last=False)

    def tenant_prefixes(self, tenant_id: str) -> int | None:
        """Return the distinct prefixes of a tenant as last told, ``None`` when nothing was."""
        return self._tenant_prefixes.get(tenant_id)

    async def _run(self, name: str, *args: bytes | int | str) -> Any:
        return await self._connection.run(load(name), self._keys.catalog, args)

    async def _tell(self, word: _Word) -> Sums:
        """Queue a word and wait until it is stored; of two states of one model the newer counts."""
        slot = (word.model, "state" if word.state else word.kind)
        waiting = self._pending.get(slot)
        if waiting is not None:
            kept, told = waiting
            if word.version >= kept.version:
                self._pending[slot] = (replace(word, retention=word.retention or kept.retention), told)
        else:
            told = asyncio.get_running_loop().create_future()
            self._pending[slot] = (word, told)
        if self._writer is None:
            self._writer = asyncio.create_task(self._write_pending(), name="catalog")
        return await asyncio.shield(told)

    async def _write_pending(self) -> None:
        """Write what is pending, batch after batch, until there is nothing more."""
        try:
            while self._pending:
                slots = list(self._pending)[:_MAX_PUT]
                await self._write([self._pending.pop(slot) for slot in slots])
        finally:
            self._writer = None

    async def _write(self, batch: list[tuple[_Word, asyncio.Future[Sums]]]) -> None:
        args: list[bytes | int | str] = [self.key_ttl_ms, len(batch)]
        for word, _ in batch:
            args += self._entry(word)
        try:
            sums = replies.read_put(await self._run("catalog_put", *args))
        except BaseException as error:
            for _, told in batch:
                if not told.done():
                    told.set_exception(error)
                    told.exception()
            if not isinstance(error, Exception):
                raise
            return
        for (word, told), found in zip(batch, sums, strict=True):
            self.note(word.model.tenant_id, found)
            if not told.done():
                told.set_result(found)

    def _entry(self, word: _Word) -> list[bytes | int | str]:
        state = word.state or ModelState(0, 0, 0, 0, 0, 0)
        retention = word.retention or self._retention.get(word.model.tenant_id, packing.UNKNOWN)
        entry = Entry(word.model, state.prefixes, state.holdings, state.rows, self._now_ms(), retention)
        return [
            self._keys.tag(word.model),
            self._keys.tenant(word.model.tenant_id),
            word.version,
            word.kind,
            state.newest_ms,
            word.due_ms,
            state.coldest,
            state.stalest,
            max(0, state.prefixes),
            max(0, state.holdings),
            int(word.retention is not None),
            packing.pack_entry(entry),
        ]
