from __future__ import annotations

import errno
import socket
import ssl

import hiredis
import pytest

from inference_cache.errors import StoreCorrupt, StoreError, StoreFull, StoreUnavailable
from inference_cache.store.connection.faults import (
    DOWN,
    PHRASES,
    WORDS,
    ErrorReply,
    Garbage,
    located,
    store_errors,
    translate,
)

REPLIES = [
    ("ASK 3999 127.0.0.1:6381", StoreUnavailable, "slot_moving"),
    ("BUSY Redis is busy running a script. You can only call SCRIPT KILL", StoreUnavailable, "busy"),
    ("CLUSTERDOWN The cluster is down", StoreUnavailable, "clusterdown"),
    ("CORRUPT segment without hashes script: 1f, on @user_script:3.", StoreCorrupt, "corrupt"),
    ("CROSSSLOT Keys in request don't hash to the same slot", StoreCorrupt, "crossslot"),
    ("LOADING Redis is loading the dataset in memory", StoreUnavailable, "loading"),
    ("MASTERDOWN Link with MASTER is down", StoreUnavailable, "masterdown"),
    ("MISCONF Redis is configured to save RDB snapshots", StoreUnavailable, "misconf"),
    ("MOVED 3999 127.0.0.1:6381", StoreUnavailable, "moved"),
    ("NOAUTH Authentication required.", StoreUnavailable, "auth"),
    ("NOPERM this user has no permissions to run the 'evalsha' command", StoreUnavailable, "noperm"),
    ("NOREPLICAS Not enough good replicas to write.", StoreUnavailable, "noreplicas"),
    ("NOSCRIPT No matching script.", StoreUnavailable, "noscript"),
    ("OOM command not allowed when used memory > 'maxmemory'.", StoreFull, "full"),
    ("READONLY You can't write against a read only replica.", StoreUnavailable, "readonly"),
    ("TRYAGAIN Multiple keys request during rehashing of slot", StoreUnavailable, "slot_moving"),
    ("UNSTABLE the slot is moving", StoreUnavailable, "slot_moving"),
    ("WRONGPASS invalid username-password pair", StoreUnavailable, "auth"),
    ("WRONGTYPE Operation against a key holding the wrong kind of value", StoreCorrupt, "wrongtype"),
    (
        "ERR Script attempted to access a non local key in a cluster node script: 1f, on @user_script:3.",
        StoreUnavailable,
        "slot_moving",
    ),
    (
        "ERR Attempted to access a non local key in a cluster node script: on @user_script:2.",
        StoreUnavailable,
        "slot_moving",
    ),
    (
        "ERR Script attempted to access keys that do not hash to the same slot script: on @user_script:2.",
        StoreCorrupt,
        "crossslot",
    ),
    (
        "ERR ACL failure in script: User u has no permissions to run the 'hget' command script: ab, on @user_script:1.",
        StoreUnavailable,
        "noperm",
    ),
    (
        "ERR The user executing the script can't run this command or subcommand script: ab, on @user_script:1.",
        StoreUnavailable,
        "noperm",
    ),
    ("ERR max number of clients reached", StoreUnavailable, "clients"),
    ("ERR DB index is out of range", StoreUnavailable, "database"),
    ("ERR SELECT is not allowed in cluster mode", StoreUnavailable, "database"),
    (
        "ERR AUTH <password> called without any password configured for the default user.",
        StoreUnavailable,
        "auth",
    ),
    ("ERR user_script:12: attempt to index a nil value script: 1f", StoreCorrupt, "script"),
    ("ERR Error compiling script (new function): user_script:1", StoreCorrupt, "script"),
    ("ERR unknown command 'EVALSHA', with args beginning with: 'secret'", StoreUnavailable, "refused"),
]

EXCEPTIONS = [
    (ConnectionResetError("reset by peer"), "down"),
    (FileNotFoundError("no socket"), "down"),
    (TimeoutError(), "timeout"),
    (ssl.SSLCertVerificationError("unable to get local issuer certificate"), "tls"),
    (Garbage("Protocol error"), "protocol"),
    (StoreUnavailable("told already", "loading"), "loading"),
]


def parsed(reply: str) -> Exception:
    """Return what the parser makes of an error reply."""
    reader = hiredis.Reader(replyError=ErrorReply)
    reader.feed(f"-{reply}\r\n")
    failure = reader.gets()
    assert isinstance(failure, ErrorReply)
    return failure


@pytest.mark.parametrize(("reply", "error", "reason"), REPLIES, ids=[reply[:24] for reply, *_ in REPLIES])
def test_each_error_reply_has_its_meaning(reply: str, error: type[StoreError], reason: str) -> None:
    """Every error reply that Redis is known to give becomes one error of ours with a fixed reason."""
    fault = translate(parsed(reply))
    assert type(fault) is error
    assert fault.reason == reason


def test_the_table_has_no_untested_row() -> None:
    """A row that no reply above exercises is a guess."""
    seen = {reply.partition(" ")[0] for reply, *_ in REPLIES}
    assert WORDS.keys() - seen == set()
    assert [phrase for phrase in PHRASES if not any(phrase in reply for reply, *_ in REPLIES)] == []


@pytest.mark.parametrize(("failure", "reason"), EXCEPTIONS, ids=[type(one).__name__ for one, _ in EXCEPTIONS])
def test_each_broken_connection_has_its_meaning(failure: Exception, reason: str) -> None:
    """Failures without a reply mean that Redis is not available, and say why in one word."""
    fault = translate(failure)
    assert type(fault) is StoreUnavailable
    assert fault.reason == reason


def test_messages_repeat_the_server_only_when_a_script_failed() -> None:
    """An error reply may quote arguments of the call, so its text stays out, unless it is about our own script."""
    unknown = translate(parsed("ERR unknown command, with args beginning with: 'secret'"))
    assert "secret" not in str(unknown)
    broken = translate(parsed("ERR user_script:12: attempt to index a nil value" + "x" * 1000))
    assert "user_script:12" in str(broken)
    assert len(str(broken)) < 300


def test_mistakes_of_the_program_pass_untouched() -> None:
    """Only failures of Redis are translated: a bug must not look like an outage."""
    with pytest.raises(ZeroDivisionError), store_errors():
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("failure", "reason", "detail"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed ('h', 1)"), "down", ": Connection refused"),
        (FileNotFoundError(errno.ENOENT, "x"), "down", ": No such file or directory"),
        (OSError("Multiple exceptions: [Errno 111] a, [Errno 113] b, [Errno 111] c"), "down", None),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "down", ": Name or service not known"),
        (ConnectionResetError(), "down", ""),
    ],
)
def test_a_failure_to_connect_says_where_and_why(failure: OSError, reason: str, detail: str | None) -> None:
    """An operator reads in one line what to look at."""
    fault = located(failure, "Redis at h:1")
    wanted = ": Connection refused, No route to host" if detail is None else detail
    assert (fault.reason, fault.detail) == (reason, f"no connection to Redis at h:1{wanted}")


def test_other_faults_say_where() -> None:
    """What the server said stays out of the message; what it means and where is in it."""
    refusal = located(ErrorReply("WRONGPASS hunter2"), "Redis at h:1")
    assert (refusal.reason, refusal.detail) == ("auth", "Redis refused the user or the password (Redis at h:1)")
    assert located(TimeoutError(), "Redis at h:1").detail == "Redis did not answer in time (Redis at h:1)"
    assert located(ssl.SSLError(), "Redis at h:1").detail.startswith(
        "no trusted TLS connection to Redis (Redis at h:1)"
    )
    known = DOWN.as_error()
    assert located(known, "Redis at h:1").detail == str(known)
