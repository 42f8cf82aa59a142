import ssl
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from penstock.access.tls_options import TlsOptions, distinguished_name, user_of
from penstock.errors import OptionError
from penstock.server.certificates import Certificates
from penstock.storage.files.filesystem import OsFileSystem
from tests.helpers.tls_files import TlsFiles

PEER = {
    "subject": (
        (("countryName", "DE"),),
        (("organizationName", "a, b"),),
        (("commonName", "ann"),),
    ),
    "subjectAltName": (("DNS", "ann.example"), ("email", "ann@example"), ("URI", "urn:ann")),
}


def options(files: TlsFiles, **more: object) -> TlsOptions:
    names = {"cert": "server.pem", "key": "server.key", **more}
    paths = ("cert", "key", "ca")
    given = {k: str(files.path(str(v))) if k in paths else v for k, v in names.items()}
    return TlsOptions(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"cert": "missing.pem"}, "tls.cert: given .*missing.pem.*No such file"),
        ({"cert": "server.key"}, "tls.cert: .*expected a PEM file with a certificate"),
        ({"key": "client.key"}, "tls.key: .*expected the private key that belongs to .*server.pem"),
        ({"key": "server.pem"}, "tls.key: .*expected a PEM file with a private key"),
        ({"ca": "server.key", "verify_peer": True}, "tls.ca: .*certificates of authorities"),
        ({"ciphers": "none such"}, "tls.ciphers: given 'none such'"),
    ],
)
def test_a_wrong_file_is_named(tls_files: TlsFiles, more: dict[str, object], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        Certificates(options(tls_files, **more), OsFileSystem(0))


def test_a_key_of_another_kind_is_named(tls_files: TlsFiles, tmp_path: Path) -> None:
    key = rsa.generate_private_key(65537, 2048)
    path = tmp_path / "rsa.key"
    form = (Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path.write_bytes(key.private_bytes(*form))
    with pytest.raises(OptionError, match="expected the private key that belongs to"):
        Certificates(options(tls_files, key=path), OsFileSystem(0))


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"cert": "a"}, "its private key, too"),
        ({"key": "a"}, "a certificate, too"),
        ({"cert": "a", "key": "b", "verify_peer": True}, "tls.ca, the authorities"),
        ({"cert": "a", "key": "b", "fail_if_no_peer_cert": True}, "tls.verify_peer = true, too"),
    ],
)
def test_options_that_contradict_each_other(given: dict[str, object], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        TlsOptions(**given)  # type: ignore[arg-type]


def test_a_broken_file_changes_nothing_until_it_is_right_again(tmp_path: Path) -> None:
    files = TlsFiles(tmp_path / "certificates")
    certificates = Certificates(options(files), OsFileSystem(0))
    before = certificates.context
    key = files.path("server.key").read_bytes()
    assert not certificates.has_changed()
    files.path("server.key").write_bytes(b"")
    assert certificates.has_changed()
    with pytest.raises(OptionError):
        certificates.reload()
    assert certificates.context is before
    assert not certificates.has_changed()  # reported once
    files.path("server.key").write_bytes(key)
    assert certificates.has_changed()
    certificates.reload()
    assert certificates.context is not before


def test_the_oldest_version_and_the_ciphers(tls_files: TlsFiles) -> None:
    context = Certificates(options(tls_files), OsFileSystem(0)).context
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    old = {one["name"] for one in context.get_ciphers() if one["protocol"] != "TLSv1.3"}
    assert all(name.startswith("ECDHE-") for name in old)
    assert len(old) == 6


def test_an_expired_certificate_is_a_warning(tmp_path: Path) -> None:
    files = TlsFiles(tmp_path / "certificates")
    files.issue("old", "broker", days=(-9, -2))
    found = Certificates(options(files, cert="old.pem", key="old.key"), OsFileSystem(0)).facts[0]
    day_ms = 86_400_000
    assert "has expired at" in found.warning(found.expires_ms)
    assert "expires in 29 days, at" in found.warning(found.expires_ms - 29 * day_ms)
    assert "expires in 47 hours, at" in found.warning(found.expires_ms - 2 * day_ms + 1)
    assert found.warning(found.expires_ms - 31 * day_ms) == ""


def test_whose_certificate_it_is() -> None:
    def user(**more: str) -> str:
        return user_of(PEER, TlsOptions(**more))  # type: ignore[arg-type]

    assert user() == "CN=ann,O=a\\, b,C=DE"
    assert user(login_from="common_name") == "ann"
    san = "subject_alternative_name"
    assert user(login_from=san) == "ann.example"
    assert user(login_from=san, login_san_type="email") == "ann@example"
    assert user(login_from=san, login_san_type="uri") == "urn:ann"
    assert user(login_from=san, login_san_type="ip") == ""


def test_names_are_written_as_rfc_4514_says() -> None:
    name = ((("commonName", " #a "),), (("1.2.3", 'b"+;<>\\'),))
    assert distinguished_name(name) == '1.2.3=b\\"\\+\\;\\<\\>\\\\,CN=\\ #a\\ '
