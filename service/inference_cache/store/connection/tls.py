"""How to trust a Redis and be trusted by it, from files that may be replaced while we run.

Certificates are short-lived and authorities change, so the files are looked at before every connection and read again
when they are not the same. What cannot be used, such as a file that is half written, is told in the log, and the last
good content stays in force.
"""

from __future__ import annotations

import logging
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

_Seen: TypeAlias = tuple[tuple[int, int, int], ...]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """What the options of a URL say.

    Attributes:
        authorities: file of the authorities to trust, ``None`` for the system's.
        certificate: file of our own certificate, ``None`` for none.
        key: file of its key, ``None`` where the certificate's file has it.
        verify: whether the server needs a certificate of these authorities.
        check_name: whether that must be for the name by which we reach the server.
    """

    authorities: str | None = None
    certificate: str | None = None
    key: str | None = None
    verify: bool = True
    check_name: bool = True


class Tls:
    """Makes the context of every connection.

    Args:
        settings: where the files are.

    Raises:
        OSError, ValueError: a file cannot be used.
    """

    def __init__(self, settings: TlsSettings) -> None:
        self._settings = settings
        self._seen = self._look()
        self._context = self._build()

    def context(self) -> ssl.SSLContext:
        """Return the context for a connection that is made now."""
        try:
            seen = self._look()
            if seen != self._seen:
                self._context = self._build()
                self._seen = seen
                logger.info("the certificates for Redis were replaced")
        except (OSError, ValueError) as failure:
            logger.warning("new certificates for Redis cannot be used: %s", type(failure).__name__)
        return self._context

    def _look(self) -> _Seen:
        files = (self._settings.authorities, self._settings.certificate, self._settings.key)
        found = (Path(file).stat() for file in files if file is not None)
        return tuple((each.st_ino, each.st_size, each.st_mtime_ns) for each in found)

    def _build(self) -> ssl.SSLContext:
        settings = self._settings
        context = ssl.create_default_context(cafile=settings.authorities)
        if settings.certificate is not None:
            context.load_cert_chain(settings.certificate, settings.key)
        context.check_hostname = settings.check_name and settings.verify
        if not settings.verify:
            context.verify_mode = ssl.CERT_NONE
        return context
