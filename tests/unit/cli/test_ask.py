"""Which broker a command asks: by option, environment, configuration, default."""

import socket
import threading
from pathlib import Path

import pytest

from penstock.cli.main import CommandRefusedError, main
from penstock.server.control import NAME, ControlClient, NoServerError
from tests.helpers.builds import pure_only
from tests.helpers.fake_control import FakeControl


def asked(*words: str) -> str:
    broker = FakeControl(list_queues=[])
    assert broker.run("list_queues", *words) == 0
    return broker.data[0]


def test_which_directory_is_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PENSTOCK_DATA", raising=False)
    assert asked() == "./penstock-data"
    (tmp_path / "penstock.toml").write_text("port = 1")
    assert asked() == "./penstock-data"
    (tmp_path / "penstock.toml").write_text("data = 'there'")
    assert asked() == "there"
    (tmp_path / "other.toml").write_text("data = 'elsewhere'")
    monkeypatch.setenv("PENSTOCK_CONFIG", "other.toml")
    assert asked() == "elsewhere"
    monkeypatch.setenv("PENSTOCK_DATA", "env")
    assert asked() == "env"
    assert asked("--data", "here") == "here"


def test_a_configuration_that_is_wrong_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PENSTOCK_DATA", raising=False)
    broker = FakeControl()
    (tmp_path / "penstock.toml").write_text("data = 5")
    assert broker.run("status") == 78
    assert "penstock.toml: data" in capsys.readouterr().err
    monkeypatch.setenv("PENSTOCK_CONFIG", "none.toml")
    assert broker.run("status") == 66
    assert not broker.asked


@pure_only
def test_a_socket_of_another_user_is_a_matter_of_permission(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def call(*_: object, **__: object) -> None:
        raise NoServerError("sock", "Permission denied", 13)

    monkeypatch.setattr(ControlClient, "call", call)
    assert main(["status", "--data", str(tmp_path)]) == 77
    assert (
        "only the user that runs the broker may use its control socket" in capsys.readouterr().err
    )


def test_a_broker_of_an_older_release_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)  # the path of a socket is short
    with socket.socket(socket.AF_UNIX) as older:
        older.bind(NAME)
        older.listen()
        assert main(["status", "--data", "."]) == 69
    said = capsys.readouterr().err
    assert "the broker in . is of an older release" in said
    assert "stop it with SIGTERM" in said


def test_a_port_of_tls_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            with server.accept()[0] as client:
                client.recv(65536)
                client.sendall(b"\x15\x03\x01\x00\x02\x02F")

        thread = threading.Thread(target=answer)
        thread.start()
        port = server.getsockname()[1]
        assert main(["--url", f"http://127.0.0.1:{port}", "status"]) == 69
        thread.join()
    assert f"127.0.0.1:{port} speaks TLS: give --url https://" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code", "text", "hint"),
    [
        ("list_queues", 541, "INTERNAL_ERROR - vhost '/' is down: corrupt", "penstock why"),
        (
            "list_queues", 541, "INTERNAL_ERROR - vhost 'my shop' is down: an operator did it",
            "penstock why -p 'my shop'",
        ),
        ("publish q x", 506, "RESOURCE_ERROR - publishing is blocked, short of disk",
         "penstock why"),
    ],
)  # fmt: skip
def test_what_says_why_a_vhost_does_not_serve_is_named(
    words: str, code: int, text: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = CommandRefusedError(code, text)
    assert FakeControl(list_queues=refused, publish=refused).run(*words.split()) in (69, 75)
    assert capsys.readouterr().err == f"penstock: {text}; see: {hint}\n"
