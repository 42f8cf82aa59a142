"""Certificates for tests: an authority, a broker's and clients', and lists of revoked ones."""

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from penstock.cli.tls import CLIENT, SERVER, Authority
from penstock.clock import SystemClock
from penstock.storage.files.filesystem import OsFileSystem


class TlsFiles:
    """A directory of certificates of an authority of its own. The broker's is for localhost."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = Authority(OsFileSystem(0), str(directory), SystemClock())
        self.serials = {
            SERVER: self.authority.issue(SERVER, "broker", ["localhost", "127.0.0.1"]),
            CLIENT: self.authority.issue(CLIENT, "guest", ["guest"]),
        }

    def issue(self, file: str, name: str, *hosts: str, days: tuple[int, int] | None = None) -> None:
        """Make one more, as FILE.pem and FILE.key. days: from and until, from now on."""
        self.serials[file] = self.authority.issue(file, name, hosts or (name,), days)

    def replace(self, file: str, name: str, *hosts: str) -> None:
        """Make one again, at once for whoever reads its files."""
        self.issue(f"new-{file}", name, *hosts)
        for kind in ("key", "pem"):
            self.path(f"new-{file}.{kind}").replace(self.path(f"{file}.{kind}"))

    def path(self, file: str) -> Path:
        return self.directory / file

    def revoke(self, *files: str) -> None:
        """Put a list of these into ca.pem."""
        key = serialization.load_pem_private_key(self.path("ca.key").read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        ca = x509.load_pem_x509_certificate(self.path("ca.pem").read_bytes())
        now = datetime.now(UTC)
        builder = x509.CertificateRevocationListBuilder(
            ca.subject, now - timedelta(hours=1), now + timedelta(days=1)
        )
        for file in files:
            revoked = x509.RevokedCertificateBuilder(self.serials[file], now).build()
            builder = builder.add_revoked_certificate(revoked)
        text = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        fresh = self.path("ca.new")
        fresh.write_bytes(ca.public_bytes(serialization.Encoding.PEM) + text)
        fresh.replace(self.path("ca.pem"))

    def environment(self, **more: object) -> dict[str, str]:
        """Return the variables of a broker with free ports for TLS. more: options of [tls]."""
        options = {
            "cert": self.path("server.pem"), "key": self.path("server.key"), "port": 0,
            "http_port": 0, **more,
        }  # fmt: skip
        return {f"PENSTOCK_TLS_{name.upper()}": str(value) for name, value in options.items()}

    def client(
        self, file: str = "", *, is_checking: bool = True, version: ssl.TLSVersion | None = None
    ) -> ssl.SSLContext:
        """Return a client's context. file: of its certificate. is_checking: the broker's. version:
        the only one."""
        context = ssl.create_default_context(cafile=str(self.path("ca.pem")))
        context.verify_flags &= ~ssl.VERIFY_CRL_CHECK_LEAF
        if version is not None:
            context.minimum_version = context.maximum_version = version
        if not is_checking:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if file:
            context.load_cert_chain(self.path(f"{file}.pem"), self.path(f"{file}.key"))
        return context
