"""What each failure of Redis means to us: one table from its errors to :mod:`inference_cache.errors`.

Redis starts an error reply with a fixed word (``OOM``, ``READONLY`` ...), a broken socket is an exception of the
operating system. Both become a :class:`~inference_cache.errors.StoreError` with a short fixed
reason, which is what metrics count and logs name; the server's own words stay out of the message, unless a script
of ours failed, because they may repeat what a caller sent.
"""

from __future__ import annotations

import os
import re
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from inference_cache.errors import StoreCorrupt, StoreError, StoreFull, StoreUnavailable

_QUOTED_CHARACTERS = 200
_ERRNO = re.compile(r"\[Errno (\d+)\]")


class ErrorReply(Exception):
    """An error as Redis replied it: the call was refused or failed, the connection is well."""

    @property
    def word(self) -> str:
        """The fixed word at the start, such as ``NOSCRIPT``."""
        return str(self).partition(" ")[0]


class Garbage(Exception):
    """What came is no reply at all."""


FAILURES = (ErrorReply, Garbage, OSError, TimeoutError)
"""What a call to Redis may raise; everything else is a mistake of this program and passes untouched."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What a kind of failure becomes."""

    error: type[StoreError]
    reason: str
    detail: str
    quote: bool = False

    def as_error(self) -> StoreError:
        """Return a new error to raise; each caller needs its own, as tracebacks grow with every raise."""
        return self.error(self.detail, self.reason)


WORDS = {
    "ASK": Fault(StoreUnavailable, "slot_moving", "the Cluster slot of these keys is moving"),
    "BUSY": Fault(StoreUnavailable, "busy", "Redis is busy with a long script"),
    "CLUSTERDOWN": Fault(StoreUnavailable, "clusterdown", "the Redis Cluster is down"),
    "CORRUPT": Fault(StoreCorrupt, "corrupt", "a script found keys that it did not write", quote=True),
    "CROSSSLOT": Fault(StoreCorrupt, "crossslot", "one call named keys of several Cluster slots"),
    "LOADING": Fault(StoreUnavailable, "loading", "Redis is loading its data"),
    "MASTERDOWN": Fault(StoreUnavailable, "masterdown", "the Redis replica has lost its primary"),
    "MISCONF": Fault(StoreUnavailable, "misconf", "Redis refuses writes because it cannot persist"),
    "MOVED": Fault(StoreUnavailable, "moved", "the Cluster slot of these keys keeps moving"),
    "NOAUTH": Fault(StoreUnavailable, "auth", "Redis wants a user or a password"),
    "NOPERM": Fault(StoreUnavailable, "noperm", "the Redis user may not do this"),
    "NOREPLICAS": Fault(StoreUnavailable, "noreplicas", "Redis has too few replicas to accept writes"),
    "NOSCRIPT": Fault(StoreUnavailable, "noscript", "Redis lost a script right after it was loaded"),
    "OOM": Fault(StoreFull, "full", "Redis has reached maxmemory"),
    "READONLY": Fault(StoreUnavailable, "readonly", "this Redis is a read-only replica"),
    "TRYAGAIN": Fault(StoreUnavailable, "slot_moving", "the Cluster slot of these keys is moving"),
    "UNSTABLE": Fault(StoreUnavailable, "slot_moving", "the Cluster slot of these keys is moving"),
    "WRONGPASS": Fault(StoreUnavailable, "auth", "Redis refused the user or the password"),
    "WRONGTYPE": Fault(StoreCorrupt, "wrongtype", "a key of the index has another type", quote=True),
}
"""By the first word of an error reply."""

PHRASES = {
    "attempted to access a non local key": WORDS["ASK"],
    "do not hash to the same slot": WORDS["CROSSSLOT"],
    "max number of clients reached": Fault(StoreUnavailable, "clients", "Redis has no room for another client"),
    "DB index is out of range": Fault(StoreUnavailable, "database", "Redis has no database of this number"),
    "SELECT is not allowed in cluster mode": Fault(StoreUnavailable, "database", "a Cluster has only database 0"),
    "AUTH <password> called without any password": WORDS["WRONGPASS"],
    "ACL failure in script": WORDS["NOPERM"],
    "The user executing the script can't": WORDS["NOPERM"],
    "user_script": Fault(StoreCorrupt, "script", "a script failed", quote=True),
    "Error compiling script": Fault(StoreCorrupt, "script", "Redis cannot compile a script", quote=True),
}
"""By a part, in upper or lower case, of an error reply without a word of its own; the first match counts."""

DOWN = Fault(StoreUnavailable, "down", "no connection to Redis")
TIMEOUT = Fault(StoreUnavailable, "timeout", "Redis did not answer in time")
TLS = Fault(StoreUnavailable, "tls", "no trusted TLS connection to Redis")
PROTOCOL = Fault(StoreUnavailable, "protocol", "what answers does not speak the Redis protocol")
CIRCUIT_OPEN = Fault(StoreUnavailable, "circuit_open", "Redis has not answered lately and is left alone for a moment")
CROWDED = Fault(StoreUnavailable, "crowded", "too many calls wait for Redis")
REFUSED = Fault(StoreUnavailable, "refused", "Redis refused the call")
NO_SENTINEL = Fault(StoreUnavailable, "sentinel", "no Sentinel answers")
SENTINEL_AUTH = Fault(
    StoreUnavailable,
    "sentinel_auth",
    "a Sentinel refused the user or the password of --redis-sentinel-username and --redis-sentinel-password",
)
NO_PRIMARY = Fault(StoreUnavailable, "no_primary", "the Sentinels know nothing by the name that --redis-url has")
DEMOTED = Fault(StoreUnavailable, "demoted", "what the Sentinels call the primary is a replica; a failover goes on")


def translate(failure: BaseException) -> StoreError:
    """Return the error of ours that stands for a failed call to Redis."""
    fault = fault_of(failure)
    detail = f"{fault.detail}: {str(failure)[:_QUOTED_CHARACTERS]}" if fault.quote else fault.detail
    return fault.error(detail, fault.reason)


@contextmanager
def store_errors() -> Iterator[None]:
    """Let nothing but a :class:`~inference_cache.errors.StoreError` out of a block that talks to Redis."""
    try:
        yield
    except FAILURES as failure:
        raise translate(failure) from failure


def fault_of(failure: BaseException) -> Fault:
    """Return what a failure means."""
    if isinstance(failure, ErrorReply):
        return _fault_of_reply(failure)
    if isinstance(failure, StoreError):
        return Fault(type(failure), failure.reason, str(failure))
    if isinstance(failure, ssl.SSLError):
        return TLS
    if isinstance(failure, TimeoutError):
        return TIMEOUT
    return PROTOCOL if isinstance(failure, Garbage) else DOWN


def located(failure: BaseException, place: str) -> Fault:
    """Return what a failure to connect means, with the place and the system's own words for it.

    Args:
        failure: what connecting raised.
        place: where the server is, in words for people and without a password.
    """
    fault, why = fault_of(failure), _system_words(failure)
    if isinstance(failure, StoreError):
        return fault  # it says itself where it comes from
    detail = f"no connection to {place}" if fault is DOWN else f"{fault.detail} ({place})"
    return replace(fault, detail=f"{detail}: {why}" if why else detail)


def _system_words(failure: BaseException) -> str:
    """Return why the system could not connect, nothing when it does not say or when that is the fault's own detail."""
    if isinstance(failure, ssl.SSLCertVerificationError):
        return getattr(failure, "verify_message", "")  # only those that the library made have it
    if isinstance(failure, ssl.SSLError):
        return getattr(failure, "reason", None) or ""
    if isinstance(failure, TimeoutError) or not isinstance(failure, OSError):
        return ""
    if isinstance(failure, socket.gaierror):
        return failure.strerror or ""
    # A name with several addresses fails with a list of all errors.
    numbers = [failure.errno] if failure.errno else [int(number) for number in _ERRNO.findall(str(failure))]
    return ", ".join(dict.fromkeys(os.strerror(number) for number in numbers))


def _fault_of_reply(reply: ErrorReply) -> Fault:
    if reply.word in WORDS:
        return WORDS[reply.word]
    text = str(reply).lower()
    return next((fault for phrase, fault in PHRASES.items() if phrase.lower() in text), REFUSED)
