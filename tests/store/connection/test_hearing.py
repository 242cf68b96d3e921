"""Listening to a channel: a hint for whoever also looks."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from inference_cache.errors import StoreUnavailable
from inference_cache.store.connection import Connection, open_connection
from tests.support.scripts import Script
from tests.support.servers import Server

PUBLISH = Script("#!lua\nreturn redis.call('PUBLISH', KEYS[1], 'x')")


class Ear:
    """Counts what it hears."""

    def __init__(self) -> None:
        self.times = 0
        self._news = asyncio.Event()

    def heard(self) -> None:
        """Take note of a hint."""
        self.times += 1
        self._news.set()

    async def until(self, times: int) -> None:
        """Wait until so many hints have come."""
        while self.times < times:
            self._news.clear()
            await self._news.wait()


async def test_every_message_is_heard_wherever_it_is_published(connection: Connection, key_prefix: str) -> None:
    """Once when listening begins, then at each message, in a Cluster from whichever node it comes."""
    ear, channels = Ear(), [f"{key_prefix}{number}".encode() for number in range(6)]
    listening = [asyncio.create_task(connection.hear(channel, ear.heard)) for channel in channels]
    try:
        await ear.until(len(channels))
        for channel in channels:
            await connection.run(PUBLISH, channel, ())
        await ear.until(2 * len(channels))
        assert ear.times == 2 * len(channels)
    finally:
        for task in listening:
            task.cancel()
        await asyncio.gather(*listening, return_exceptions=True)


async def test_a_lost_link_is_told(own_valkey: Server) -> None:
    """Whoever listens learns that it does no longer, instead of waiting for ever."""
    connection, ear = await open_connection(own_valkey.url), Ear()
    try:
        listening = asyncio.create_task(connection.hear(b"channel", ear.heard))
        await ear.until(1)
        own_valkey.kill()
        with pytest.raises(StoreUnavailable):
            await listening
        with pytest.raises(StoreUnavailable):
            await connection.hear(b"channel", ear.heard)
        assert ear.times == 1
    finally:
        await connection.close()


async def test_who_may_not_listen_is_told(own_valkey: Server) -> None:
    """A user without rights on the channel gets an error with its reason."""
    own_valkey.ask("ACL", "SETUSER", "deaf", "on", ">secret", "~*", "+@all", "resetchannels")
    url = own_valkey.url.replace("unix://", "unix://deaf:secret@")
    connection = await open_connection(url)
    try:
        with pytest.raises(StoreUnavailable) as refusal:
            await connection.hear(b"channel", lambda: None)
        assert refusal.value.reason == "noperm"
    finally:
        await connection.close()


async def test_a_listener_that_is_cancelled_leaves_no_connection(own_valkey: Server) -> None:
    """The socket goes with the task."""
    connection, ear = await open_connection(own_valkey.url), Ear()
    try:
        listening = asyncio.create_task(connection.hear(b"channel", ear.heard))
        await ear.until(1)
        assert own_valkey.ask("PUBSUB", "NUMSUB", "channel") == [b"channel", 1]
        listening.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await listening
        while own_valkey.ask("PUBSUB", "NUMSUB", "channel") != [b"channel", 0]:  # noqa: ASYNC110 - Redis tells nobody
            await asyncio.sleep(0.01)
    finally:
        await connection.close()
