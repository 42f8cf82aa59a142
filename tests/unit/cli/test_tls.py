import ssl
from pathlib import Path

import pytest

from penstock.cli.main import main

FILES = ("ca.pem", "ca.key", "server.pem", "server.key", "client.pem", "client.key")


def test_a_set_for_trying(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = tmp_path / "made"
    words = ["tls", "self-signed", str(made), "--host", "b.example", "--host", "192.0.2.7"]
    assert main(words) == 0
    assert f'cert = "{made}/server.pem"\n' in capsys.readouterr().out
    assert sorted(path.name for path in made.iterdir()) == sorted(FILES)
    assert all(path.stat().st_mode & 0o077 == 0 for path in made.iterdir())
    for host in ("localhost", "b.example", "192.0.2.7"):
        shake_hands(made, host)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(made, "c.example")


def shake_hands(made: Path, host: str) -> None:
    """A handshake in memory, in which each side checks the other's certificate."""
    contexts = [
        ssl.create_default_context(purpose, cafile=str(made / "ca.pem"))
        for purpose in (ssl.Purpose.SERVER_AUTH, ssl.Purpose.CLIENT_AUTH)
    ]
    contexts[1].verify_mode = ssl.CERT_REQUIRED
    for context, name in zip(contexts, ("client", "server"), strict=True):
        context.load_cert_chain(made / f"{name}.pem", made / f"{name}.key")
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = contexts[0].wrap_bio(back, there, server_hostname=host)
    server = contexts[1].wrap_bio(there, back, server_side=True)
    for one in (client, server, client, server):
        try:
            one.do_handshake()
        except ssl.SSLWantReadError:
            pass
    assert server.getpeercert()["subject"] == ((("commonName", "guest"),),)  # type: ignore[index]


def test_files_that_are_there_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "server.key").write_text("mine")
    assert main(["tls_self_signed", str(tmp_path)]) == 66
    assert "server.key: the file is there already" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["server.key"]


def test_a_name_that_is_too_long(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tls", "self-signed", str(tmp_path / "made"), "--user", "x" * 65]) == 64
    assert "expected a text of 1 to 64 characters" in capsys.readouterr().err
