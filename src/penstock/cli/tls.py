"""`penstock tls self-signed`: an authority and certificates for trying TLS.

They are made with the package cryptography, which nothing else here needs. The keys are ECDSA on
P-256, which every client knows and which costs a server a tenth of what RSA costs for each
handshake.

    DIR/ca.pem, ca.key          the authority: clients trust it (`cacerts`), and so does the broker
    DIR/server.pem, server.key  for the broker
    DIR/client.pem, client.key  for a client that is to show who it is
"""

import ipaddress
import socket
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import click

from penstock.clock import Clock, SystemClock
from penstock.errors import MissingPackageError, OptionError, PathNotFreeError, install_advice
from penstock.storage.files.filesystem import FileSystem, OsFileSystem

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

AUTHORITY: Final = "ca"
SERVER: Final = "server"
CLIENT: Final = "client"
DAYS: Final = 365
LOCAL: Final = ("localhost", "127.0.0.1", "::1")


@click.command("tls_self_signed")
@click.argument("directory", metavar="DIR")
@click.option(
    "--host", "hosts", multiple=True, metavar="NAME",
    help="a name or address of the broker besides localhost and this machine's; more than one may "
    "be given",
)  # fmt: skip
@click.option("--user", default="guest", help="the common name of the client's certificate [guest]")
@click.option("--days", type=click.IntRange(1, 3650), default=DAYS, help="how long they are valid")
def tls_self_signed(directory: str, hosts: tuple[str, ...], user: str, days: int) -> None:
    """Make an authority, and certificates of a broker and a client, to try TLS.

    DIR is made if it is missing; files that are there already are not replaced.
    """
    with closing(OsFileSystem(0)) as fs:
        names = dict.fromkeys((*LOCAL, socket.gethostname(), *hosts))
        authority = Authority(fs, directory, SystemClock(), days)
        authority.issue(SERVER, SERVER, list(names))
        authority.issue(CLIENT, user, [user])
    for name, file in (("cert", "server.pem"), ("key", "server.key"), ("ca", "ca.pem")):
        click.echo(f'{name} = "{directory}/{file}"')


class Authority:
    """A new authority in a directory, which issues certificates into it. days: how long they are
    valid, from a day ago.

    Raises MissingPackageError without cryptography, PathNotFreeError if a file is there already.
    """

    def __init__(self, fs: FileSystem, directory: str, clock: Clock, days: int = DAYS) -> None:
        try:
            from cryptography import x509
            from cryptography.hazmat.primitives.asymmetric import ec
        except ImportError as error:
            raise MissingPackageError(
                f"certificates are made with the package cryptography: {install_advice('tls')}"
            ) from error
        self._fs = fs
        self._directory = directory
        self._since = datetime.fromtimestamp(clock.wall_ms() / 1000, UTC) - timedelta(days=1)
        self._until = self._since + timedelta(days=days + 1)
        self._key: EllipticCurvePrivateKey = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name(
            [x509.NameAttribute(x509.NameOID.COMMON_NAME, "Penstock's authority for trying")]
        )
        names = (AUTHORITY, SERVER, CLIENT)
        paths = [self._path(name, kind) for name in names for kind in ("pem", "key")]
        taken = [path for path in paths if fs.exists(path)]
        if taken:
            raise PathNotFreeError(taken[0], "the file is there already")
        if not fs.exists(directory):
            fs.mkdir(directory)
        usage = x509.KeyUsage(
            digital_signature=True, content_commitment=False, key_encipherment=False,
            data_encipherment=False, key_agreement=False, key_cert_sign=True, crl_sign=True,
            encipher_only=False, decipher_only=False,
        )  # fmt: skip
        builder = (
            self._builder(self._name, self._key, self._since, self._until)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
        )
        self._write(AUTHORITY, self._signed(builder), self._key)

    def issue(
        self,
        file: str,
        common_name: str,
        names: Sequence[str],
        valid: tuple[int, int] | None = None,
    ) -> int:
        """Write FILE.pem and FILE.key: a certificate of this common name for these host names and
        addresses. valid: from and until, in days from now. Returns its serial number."""
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID

        key = ec.generate_private_key(ec.SECP256R1())
        try:
            name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common_name)])
        except ValueError:
            raise OptionError("user", common_name, "a text of 1 to 64 characters") from None
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        since, until = self._since, self._until
        if valid is not None:
            since, until = (since + timedelta(days=1 + days) for days in valid)
        builder = (
            self._builder(name, key, since, until)
            .add_extension(x509.SubjectAlternativeName([_name(n) for n in names]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        )
        certificate = self._signed(builder)
        self._write(file, certificate, key)
        return certificate.serial_number

    def _builder(
        self, name: "x509.Name", key: "EllipticCurvePrivateKey", since: datetime, until: datetime
    ) -> "x509.CertificateBuilder":
        from cryptography import x509

        ours, its = self._key.public_key(), key.public_key()
        return (
            x509.CertificateBuilder(
                self._name, name, its, x509.random_serial_number(), since, until
            )
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(its), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ours), critical=False)
        )

    def _signed(self, builder: "x509.CertificateBuilder") -> "x509.Certificate":
        from cryptography.hazmat.primitives import hashes

        return builder.sign(self._key, hashes.SHA256())

    def _write(
        self, file: str, certificate: "x509.Certificate", key: "EllipticCurvePrivateKey"
    ) -> None:
        from cryptography.hazmat.primitives import serialization

        pem = certificate.public_bytes(serialization.Encoding.PEM)
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )  # fmt: skip
        for kind, data in (("pem", pem), ("key", private)):
            with closing(self._fs.open(self._path(file, kind), create=True)) as written:
                written.pwrite(data, 0)

    def _path(self, file: str, kind: str) -> str:
        return f"{self._directory}/{file}.{kind}"


def _name(host: str) -> "x509.GeneralName":
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
