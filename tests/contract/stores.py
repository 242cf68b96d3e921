"""Stores on real servers, and a look at what they left there."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager

import redis

from inference_cache.store.connection import open_connection
from inference_cache.store.redis import RedisStore
from tests.support.layout import check_layout
from tests.support.servers import Cluster, Server


@asynccontextmanager
async def opened(url: str, key_prefix: str) -> AsyncIterator[RedisStore]:
    """Yield a store of its own connection."""
    store = RedisStore(await open_connection(url), key_prefix=key_prefix)
    try:
        yield store
    finally:
        await store.close()


@contextmanager
def _admins(server: Server | Cluster) -> Iterator[list[redis.Redis]]:
    with ExitStack() as stack:
        servers = server.nodes if isinstance(server, Cluster) else [server]
        yield [stack.enter_context(each.admin()) for each in servers]


def check_at_rest(server: Server | Cluster, key_prefix: str) -> None:
    """Check everything stored under a key prefix; no call may be under way."""
    with _admins(server) as admins:
        check_layout(admins, key_prefix)


def forget(server: Server | Cluster, key_prefix: str) -> None:
    """Remove everything stored under a key prefix, so that a shared server stays quick to look through."""
    with _admins(server) as admins:
        for admin in admins:
            for key in admin.scan_iter(f"{key_prefix}:*", count=1000):
                admin.unlink(key)
