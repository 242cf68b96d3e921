"""Small scripts for tests of what carries them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Script:
    """A script as a connection wants it."""

    text: str
    read_only: bool = False
    name: str = "test"
    may_lag: bool = False

    @property
    def sha(self) -> str:
        """Digest by which Redis knows the text."""
        return hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()


ECHO = Script("#!lua flags=no-writes\nreturn {KEYS[1], ARGV[1]}", read_only=True)
LOOK = Script("#!lua flags=no-writes\nreturn redis.call('GET', KEYS[1])", read_only=True, may_lag=True)
COUNT = Script("#!lua\nreturn redis.call('INCR', KEYS[1])")
FAIL = Script("#!lua\nreturn nothing.at_all")
CORRUPT = Script("#!lua\nreturn redis.error_reply('CORRUPT a segment is missing')")
PUSH = Script("#!lua\nreturn redis.call('LPUSH', KEYS[1], '1')")
REACH = Script("#!lua\nreturn redis.call('INCR', ARGV[1])")
EXISTS_THEN_COUNT = Script("#!lua\nredis.call('EXISTS', ARGV[1])\nreturn redis.call('INCR', KEYS[1])")
