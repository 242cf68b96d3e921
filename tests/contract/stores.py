"""Stores on real servers, and a look at what they left there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager

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


def check_at_rest(server: Server | Cluster, key_prefix: str) -> None:
    """Check everything stored under a key prefix; no call may be under way."""
    with ExitStack() as stack:
        servers = server.nodes if isinstance(server, Cluster) else [server]
        check_layout([stack.enter_context(each.admin()) for each in servers], key_prefix)
