from __future__ import annotations

import ssl
from pathlib import Path

import pytest
import trustme

from inference_cache.errors import ConfigError
from inference_cache.store.connection.address import Address, Kind, parse_address

# ruff: noqa: S106 - passwords of nobody

GOOD = [
    ("embedded:", Address(Kind.EMBEDDED)),
    ("redis://", Address(Kind.TCP, hosts=(("localhost", 6379),))),
    ("redis://h", Address(Kind.TCP, hosts=(("h", 6379),))),
    ("redis://h:1/3", Address(Kind.TCP, hosts=(("h", 1),), database=3)),
    ("redis://h:1?db=4", Address(Kind.TCP, hosts=(("h", 1),), database=4)),
    ("redis://[::1]:7", Address(Kind.TCP, hosts=(("::1", 7),))),
    ("redis://:p%40ss@h", Address(Kind.TCP, hosts=(("h", 6379),), password="p@ss")),
    ("redis://u:a:b@h", Address(Kind.TCP, hosts=(("h", 6379),), username="u", password="a:b")),
    ("unix:///run/r.sock", Address(Kind.UNIX, path="/run/r.sock")),
    ("unix://u:p@/a%20b?db=2", Address(Kind.UNIX, path="/a b", database=2, username="u", password="p")),
    ("redis+cluster://h:1,[::2]:3", Address(Kind.CLUSTER, hosts=(("h", 1), ("::2", 3)))),
    ("redis+cluster://u:p@h", Address(Kind.CLUSTER, hosts=(("h", 6379),), username="u", password="p")),
    ("redis+sentinel://h:1,[::2]/n", Address(Kind.SENTINEL, hosts=(("h", 1), ("::2", 26379)), primary="n")),
    (
        "redis+sentinel://u:p@h:1/a%20b/3",
        Address(Kind.SENTINEL, hosts=(("h", 1),), primary="a b", database=3, username="u", password="p"),
    ),
]

BAD = [
    "",
    "hunter2",
    "http://hunter2@h",
    "redis://u:hun/ter2@h",
    "redis://u:hun#ter2@h",
    "redis://u:hun?ter2@h",
    "redis://u:hunter2@h:port",
    "redis://u:hunter2@h:0",
    "redis://u:hunter2@h:99999",
    "redis://u:hunter2@[::1",
    "redis://u:hunter2@h/one",
    "redis://u:hunter2@h/-1",
    "redis://u:hunter2@h?socket_timeout=1",
    "redis://u:hunter2@h?db",
    "redis://u:hunter2@h?ssl_ca_certs=/hunter2",
    "rediss://u:hunter2@h?ssl_ca_certs=/hunter2/is/missing",
    "rediss://u:hunter2@h?ssl_certfile=/hunter2/is/missing",
    "unix://u:hunter2@",
    "unix://u:hunter2@h/path",
    "redis+cluster://u:hunter2@",
    "redis+cluster://u:hunter2@h/1",
    "redis+sentinel://u:hunter2@h",
    "redis+sentinel://u:hunter2@/name",
    "redis+sentinel://u:hunter2@h/name/one",
    "redis+sentinel://u:hunter2@h/name/1/2",
]


@pytest.mark.parametrize(("url", "expected"), GOOD)
def test_every_form_of_address_is_understood(url: str, expected: Address) -> None:
    """User, password, database, port and several nodes are read from where a Redis URL has them."""
    assert parse_address(url) == expected


@pytest.mark.parametrize("url", BAD)
def test_bad_addresses_name_the_flag_and_keep_the_secret(url: str) -> None:
    """A typo in a URL must not print the password in it, neither in the message nor in the error behind it."""
    with pytest.raises(ConfigError, match="--redis-url") as caught:
        parse_address(url)
    for part in ("hunter2", "hun", "ter2"):
        assert part not in str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_the_password_is_not_in_the_repr() -> None:
    """An address may be logged."""
    assert "hunter2" not in repr(parse_address("redis://u:hunter2@h"))


def context_of(url: str) -> ssl.SSLContext:
    tls = parse_address(url).tls
    assert tls is not None
    return tls.context()


def test_tls_trusts_the_system_unless_told_otherwise(tmp_path: Path) -> None:
    """`rediss` checks certificate and name; a private authority is named, and only `none` checks nothing."""
    strict = context_of("rediss://h")
    assert strict.verify_mode is ssl.CERT_REQUIRED
    assert strict.check_hostname
    authority = tmp_path / "ca.pem"
    trustme.CA().cert_pem.write_to_path(str(authority))
    private = context_of(f"rediss://h?ssl_ca_certs={authority}&ssl_check_hostname=false")
    assert private.verify_mode is ssl.CERT_REQUIRED
    assert not private.check_hostname
    assert len(private.get_ca_certs()) == 1
    open_to_all = context_of("rediss+cluster://h:1?ssl_cert_reqs=none")
    assert open_to_all.verify_mode is ssl.CERT_NONE
