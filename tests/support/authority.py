"""An authority and a server certificate in files that are replaced as operators do."""

from __future__ import annotations

from pathlib import Path

import trustme


class Keys:
    """An authority and the files that it and its certificates are in."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = trustme.CA()
        self.authorities = directory / "ca.pem"
        self.certificate = directory / "server.pem"
        self.publish(self.authority)
        self.issue()

    @property
    def options(self) -> str:
        """The options of a URL."""
        return f"ssl_ca_certs={self.authorities}"

    @property
    def directives(self) -> dict[str, str]:
        """What a server needs, besides a port."""
        both = str(self.certificate)
        return {
            "tls-cert-file": both,
            "tls-key-file": both,
            "tls-ca-cert-file": str(self.authorities),
            "tls-auth-clients": "no",
            "tls-replication": "yes",
        }

    def publish(self, *authorities: trustme.CA) -> None:
        """Replace the file of trusted authorities, at once, as a careful operator does."""
        fresh = self.directory / "fresh.pem"
        fresh.write_bytes(b"".join(each.cert_pem.bytes() for each in authorities))
        fresh.rename(self.authorities)

    def issue(self) -> None:
        """Replace the server's certificate by another one of the present authority."""
        issued = self.authority.issue_cert("localhost", "127.0.0.1")
        issued.private_key_and_cert_chain_pem.write_to_path(str(self.certificate))
