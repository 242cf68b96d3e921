"""Where Redis is and who we are there: ``--redis-url`` taken apart and checked.

A URL carries a password, so no message here repeats any part of one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from inference_cache.errors import ConfigError
from inference_cache.store.connection.tls import Tls, TlsSettings

_PORT = 6379
_SENTINEL_PORT = 26379
_FORM = "redis+sentinel://a:26379,b:26379,c:26379/name"
_FLAG = "--redis-url (INFERENCE_CACHE_REDIS_URL, REDIS_URL)"
_FORMS = (
    "embedded:, redis://[user:password@]host[:port][/database], rediss://..., "
    "unix://[user:password@]/path[?db=number], redis+cluster://host:port[,host:port], "
    "redis+sentinel://[user:password@]host:port[,host:port]/name[/database]"
)
_TLS_OPTIONS = {"ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname"}


class Kind(Enum):
    """How Redis is reached."""

    EMBEDDED = "embedded"
    TCP = "tcp"
    UNIX = "unix"
    CLUSTER = "cluster"
    SENTINEL = "sentinel"


@dataclass(frozen=True, slots=True)
class Address:
    """One Redis, one Cluster, or one primary that Sentinels watch.

    Attributes:
        kind: how it is reached.
        hosts: (host, port) of the server, of some nodes of the Cluster, or of the Sentinels.
        path: of the Unix socket.
        primary: the Sentinels' name for what they watch.
        database: number of the logical database.
        username: of the ACL user, ``None`` for the default one.
        password: of that user.
        tls: how to trust the server and be trusted, ``None`` for plain sockets.
    """

    kind: Kind
    hosts: tuple[tuple[str, int], ...] = ()
    path: str = ""
    primary: str = ""
    database: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: Tls | None = field(default=None, repr=False, compare=False)


def parse_address(url: str) -> Address:
    """Return what a URL says.

    With TLS (``rediss``, ``rediss+cluster``, ``rediss+sentinel``) there are the options ``ssl_ca_certs``,
    ``ssl_certfile``, ``ssl_keyfile`` (paths), ``ssl_cert_reqs`` (``required`` or ``none``) and ``ssl_check_hostname``
    (``true`` or ``false``).

    Raises:
        ConfigError: the URL is of no known form. The message does not repeat it.
    """
    if url in {"embedded:", "embedded"}:
        return Address(Kind.EMBEDDED)
    try:
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query, strict_parsing=True)) if parts.query else {}
    except ValueError:
        raise ConfigError(f"{_FLAG} is not a URL; use one of: {_FORMS}") from None
    if parts.fragment:
        raise ConfigError(f"{_FLAG} has a fragment; write # in a password as %23")
    if parts.scheme == "unix":
        return _unix(parts, options)
    if parts.scheme in {"redis", "rediss"}:
        return _tcp(parts, options)
    if parts.scheme in {"redis+cluster", "rediss+cluster"}:
        return _cluster(parts, options)
    if parts.scheme in {"redis+sentinel", "rediss+sentinel"}:
        return _sentinel(parts, options)
    raise ConfigError(f"{_FLAG} has an unknown scheme; use one of: {_FORMS}")


def _unix(parts: SplitResult, options: dict[str, str]) -> Address:
    username, password, rest = _credentials(parts.netloc)
    if rest or len(parts.path) <= 1:
        raise ConfigError(f"{_FLAG}: unix:// needs an absolute path and no host, as in unix:///run/redis.sock")
    database = _database(options.pop("db", ""))
    _no_more(options)
    return Address(Kind.UNIX, path=unquote(parts.path), database=database, username=username, password=password)


def _tcp(parts: SplitResult, options: dict[str, str]) -> Address:
    username, password, rest = _credentials(parts.netloc)
    database = _database(options.pop("db", "") or parts.path.strip("/"))
    tls = _tls(options) if parts.scheme == "rediss" else None
    _no_more(options)
    return Address(
        Kind.TCP,
        hosts=(_host(rest or "localhost"),),
        database=database,
        username=username,
        password=password,
        tls=tls,
    )


def _cluster(parts: SplitResult, options: dict[str, str]) -> Address:
    username, password, rest = _credentials(parts.netloc)
    if _database(options.pop("db", "") or parts.path.strip("/")) != 0:
        raise ConfigError(f"{_FLAG}: a Cluster has only database 0")
    tls = _tls(options) if parts.scheme == "rediss+cluster" else None
    _no_more(options)
    hosts = tuple(_host(piece) for piece in rest.split(",") if piece)
    if not hosts:
        raise ConfigError(f"{_FLAG}: redis+cluster:// needs at least one host:port")
    return Address(Kind.CLUSTER, hosts=hosts, username=username, password=password, tls=tls)


def _sentinel(parts: SplitResult, options: dict[str, str]) -> Address:
    username, password, rest = _credentials(parts.netloc)
    primary, _, number = parts.path.strip("/").partition("/")
    database = _database(options.pop("db", "") or number)
    tls = _tls(options) if parts.scheme == "rediss+sentinel" else None
    _no_more(options)
    hosts = tuple(_host(piece, _SENTINEL_PORT) for piece in rest.split(",") if piece)
    if not hosts or not primary:
        raise ConfigError(f"{_FLAG}: redis+sentinel:// needs Sentinels and the name of what they watch, as in {_FORM}")
    return Address(
        Kind.SENTINEL,
        hosts=hosts,
        primary=unquote(primary),
        database=database,
        username=username,
        password=password,
        tls=tls,
    )


def _credentials(netloc: str) -> tuple[str | None, str | None, str]:
    """Split ``user:password@rest``."""
    account, _, rest = netloc.rpartition("@")
    username, _, password = account.partition(":")
    return unquote(username) or None, unquote(password) or None, rest


def _host(text: str, default_port: int = _PORT) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or port == 0:
        raise ConfigError(f"{_FLAG}: a host is not host:port; write / ? # @ in a password as %2F %3F %23 %40")
    return host, port or default_port


def _database(text: str) -> int:
    if not text:
        return 0
    if not (text.isascii() and text.isdecimal()):
        raise ConfigError(f"{_FLAG}: the database is not a number")
    return int(text)


def _tls(options: dict[str, str]) -> Tls:
    given = {name: options.pop(name) for name in _TLS_OPTIONS & options.keys()}
    try:
        return Tls(
            TlsSettings(
                authorities=given.get("ssl_ca_certs"),
                certificate=given.get("ssl_certfile"),
                key=given.get("ssl_keyfile"),
                verify=given.get("ssl_cert_reqs", "required") != "none",
                check_name=given.get("ssl_check_hostname", "true").lower() not in {"false", "no", "0"},
            )
        )
    except (OSError, ValueError):
        raise ConfigError(f"{_FLAG}: a certificate or key file cannot be used") from None


def _no_more(options: dict[str, str]) -> None:
    if options:
        known = ", ".join(sorted(_TLS_OPTIONS))
        raise ConfigError(f"{_FLAG} has an unknown option; known are db and, for TLS, {known}")
