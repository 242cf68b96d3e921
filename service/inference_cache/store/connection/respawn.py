"""An embedded server that ends by itself is started again, soon at first, then ever more slowly while it ends young.

Whoever is connected finds it at the same socket. With a directory it has its data back, without one the index is cold
and fills as engines report.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Protocol

from inference_cache.errors import StoreError

_LOOK_S = 0.1
_STEADY_S = 60.0
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 30.0

logger = logging.getLogger(__name__)


class Mortal(Protocol):
    """A server that may end."""

    @property
    def ended(self) -> str | None:
        """How it ended, in a few words; ``None`` while it runs."""
        ...

    async def start(self) -> None:
        """Start it again and return when it answers.

        Raises:
            StoreUnavailable: it did not start.
            OSError: the system has no process to spare.
        """
        ...


def pause_s(young: int) -> float:
    """Return how long to wait before the next start, when so many in a row ended young."""
    return float(min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** min(young, 16)))


async def keep_running(server: Mortal) -> None:
    """Start a server again whenever it has ended; for ever, since giving up would help nobody."""
    clock = asyncio.get_running_loop().time
    young = 0
    while True:
        began = clock()
        while server.ended is None:  # noqa: ASYNC110 - a process that ends has no event that every platform knows
            await asyncio.sleep(_LOOK_S)
        young = 0 if clock() - began > _STEADY_S else young + 1
        pause = pause_s(max(0, young - 1)) * random.uniform(0.5, 1)  # noqa: S311 - spreads load, guards nothing
        logger.error("embedded Valkey %s; it is started again in %d ms", server.ended, int(pause * 1000))
        await asyncio.sleep(pause)
        try:
            await server.start()
        except (StoreError, OSError) as error:
            logger.error("embedded Valkey cannot be started again: %s", error)  # noqa: TRY400 - its words say it all
