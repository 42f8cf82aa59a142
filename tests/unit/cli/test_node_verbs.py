"""The broker as a whole: status, waiting for it, its end."""

import json
import socket
from pathlib import Path

import pytest

from penstock.cli.main import CommandRefusedError, UnavailableError
from penstock.storage.files.filesystem import OsFileSystem
from tests.helpers.fake_control import FakeControl

VHOST = {
    "name": "/", "state": "running", "connections": 1, "counted_bytes": 3 << 20,
    "memory_bytes": 64 << 20, "rss_bytes": 40 << 20, "why": "",
}  # fmt: skip
STATUS = {
    "version": "0.1.0", "build": "pure", "uptime_s": 93_784.2, "data": "/d", "host": "127.0.0.1",
    "port": 5672, "durability": "disk", "memory_bytes": 64 << 20, "counted_bytes": 3 << 20,
    "log_directory": "/d", "spill_directory": "/e", "disk_free_bytes": 5 << 30,
    "disk_free_limit_bytes": 50 << 20, "is_ready": True, "is_healthy": True, "problems": [],
    "kinds": [], "about": [], "advice": [],
    "connections": 1, "half_open": 0, "accepted": 1234, "vhosts": [VHOST],
    "http": {"port": 15672}, "tls": None, "listeners": {"amqp": 5672, "http": 15672},
}  # fmt: skip
WRONG = STATUS | {
    "is_healthy": False,
    "problems": [
        "vhost '/' is low on disk: publishers wait", "vhost 'shop' is down: corrupt\x1b[2J"
    ],
    "kinds": ["alarm", "vhost"],
    "about": ["/", "shop"],
    "advice": ["make room on its disk", "read the broker's log, then penstock restart_vhost shop"],
    "vhosts": [VHOST, VHOST | {"name": "shop", "state": "down", "why": "corrupt"}],
}  # fmt: skip


def test_status_says_first_what_is_wrong_and_what_to_do(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert FakeControl(status=STATUS).run("status") == 0
    assert capsys.readouterr().out.splitlines() == [
        "healthy: 1 vhost of 1 opened, 1 connection",
        "vhosts       /: running, 1 connection, 3 MiB of 64 MiB, process 40 MiB",
        "memory       3 MiB of 64 MiB hold messages",
        "disk         5 GiB free, publishers wait below 50 MiB: /d, /e",
        "clients      1 connection, 0 logging in, 1,234 since the start",
        "listens      amqp 127.0.0.1:5672, http 127.0.0.1:15672",
        "version      0.1.0 (pure), up 1 d 2 h",
        "durability   disk",
    ]
    text = "the certificate a.pem expires at 2026-12-01T00:00:00+00:00"
    certificate = {"file": "a.pem", "names": ["a"], "expires_ms": 1_796_083_200_000}
    tls = {"port": 5671, "http_port": None, "certificates": [certificate], "warnings": [text]}
    listeners = {"amqp": 5672, "http": 15672, "amqps": 5671}
    assert FakeControl(status=STATUS | {"tls": tls, "listeners": listeners}).run("status") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"warning: {text}"
    assert lines[1].startswith("healthy: ")
    assert "listens      amqp 127.0.0.1:5672, http 127.0.0.1:15672, amqps 127.0.0.1:5671" in lines
    assert "certificate  a.pem: until 2026-12-01T00:00:00" in "\n".join(lines)
    broker = FakeControl(status=WRONG)
    assert broker.run("status") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        "not healthy: vhost '/' is low on disk: publishers wait - make room on its disk"
    )
    assert lines[1].startswith("not healthy: vhost 'shop' is down: corrupt\\x1b[2J - read the ")
    assert lines[3] == "vhost        shop: down, corrupt"
    assert broker.run("status", "--format", "json") == 0
    assert json.loads(capsys.readouterr().out) == WRONG


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("health_check", 69), ("health_check alarms", 69), ("health_check vhosts", 69),
        ("health_check running", 0), ("ping", 0), ("check_running", 0), ("check_local_alarms", 69),
        ("check_virtual_hosts", 69), ("check_port_listener 5672", 0),
        ("health_check port 1", 69), ("health_check port", 64), ("health_check alarms 5", 64),
        ("health_check local_alarms", 69),
    ],
)  # fmt: skip
def test_each_part_of_health(words: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    broker = FakeControl(status=WRONG)
    assert broker.run(*words.split()) == code
    if code == 64:
        return
    captured = capsys.readouterr()
    assert (captured.out == "ok\n") == (code == 0)
    assert ("shop" in captured.err) == (words.split()[-1] in ("health_check", "vhosts",
                                                              "check_virtual_hosts"))  # fmt: skip
    assert broker.run(*words.split(), "--format", "json") == code
    found = json.loads(capsys.readouterr().out)
    assert found["status"] == ("ok" if code == 0 else "failed")
    assert FakeControl(status=STATUS).run("health_check") == 0


@pytest.mark.real
def test_a_port_that_nobody_answers_at(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        here = STATUS | {"listeners": {"amqp": listening.getsockname()[1]}}
        assert FakeControl(status=here).run("check_port_connectivity") == 0
    capsys.readouterr()
    assert FakeControl(status=here).run("check_port_connectivity") == 69
    assert "amqp at 127.0.0.1:" in capsys.readouterr().err


def test_connections_are_closed_by_what_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"name": "1 -> 2", "vhost": "/", "user": "ann"},
        {"name": "3 -> 2", "vhost": "/", "user": "bob"},
        {"name": "4 -> 2", "vhost": "x", "user": "ann"},
    ]
    broker = FakeControl(list_connections=rows, close_connections={"closed": 1})
    assert broker.run("close_connection", "3 -> 2", "bye") == 0
    assert broker.run("close_connection", "1 -> 2", "bye", "--channel", "7") == 0
    assert broker.run("close_all_connections", "--user", "ann") == 0
    assert broker.run("close_all_user_connections", "bob", "no", "-p", "/") == 0
    assert broker.run("close_all_connections", "-p", "x") == 0
    closed = [(vhost, args) for op, vhost, args in broker.asked if op == "close_connections"]
    told = {"reason": "closed by an operator"}
    assert closed == [
        ("/", {"name": "3 -> 2", "reason": "bye"}),
        ("/", {"name": "1 -> 2", "reason": "bye", "channel": 7}),
        ("/", {"user": "ann"} | told), ("x", {"user": "ann"} | told),
        ("/", {"user": "bob", "reason": "no"}),
        ("x", told),
    ]  # fmt: skip
    assert capsys.readouterr().out.splitlines() == [
        "2 connections closed", "1 connection closed", "1 connection closed"
    ]  # fmt: skip
    assert broker.run("close_connection", "none") == 66


def test_connections_of_nobody_and_nowhere_are_an_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    names = {"list_vhosts": [{"name": "/"}], "list_users": [{"name": "ann"}]}
    broker = FakeControl(list_connections=[], **names)
    assert broker.run("close_all_connections", "-p", "/", "--user", "ann") == 0
    assert broker.run("close_all_connections", "-p", "shop") == 66
    assert broker.run("close_all_connections", "--user", "bob") == 67
    said = capsys.readouterr().err
    assert "no vhost 'shop': see penstock list_vhosts" in said
    assert "no user 'bob': see penstock list_users" in said


def test_connections_that_are_old_are_closed(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"name": "1 -> 2", "vhost": "/", "user": "ann", "connected_at": 10_000},
        {"name": "3 -> 2", "vhost": "/", "user": "bob", "connected_at": 10_000},
        {"name": "4 -> 2", "vhost": "/", "user": "ann", "connected_at": 90_000},
    ]
    broker = FakeControl(
        list_connections=rows, close_connections={"closed": 1}, status={"now_ms": 100_000}
    )
    assert broker.run("close", "connections", "--older-than", "1min", "--user", "ann") == 0
    assert capsys.readouterr().out == "1 connection closed\n"
    args = {"name": "1 -> 2", "reason": "closed by an operator"}
    assert broker.asked[-1] == ("close_connections", "/", args)
    assert broker.run("close_all_connections", "--older-than", "long") == 64
    assert "--older-than: given 'long', expected a time" in capsys.readouterr().err


USERS = [{"name": "ann", "tags": []}]


def test_a_report_has_every_list(capsys: pytest.CaptureFixture[str]) -> None:
    vhosts = [{"name": "/", "state": "running"}, {"name": "x", "state": "stopped"}]
    broker = FakeControl(
        list_vhosts=vhosts, list_queues=[{"name": "q"}], status=STATUS, list_users=USERS
    )
    assert broker.run("report") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["status"] == STATUS
    assert found["users"] == [{"name": "ann", "tags": []}]
    assert found["by_vhost"].keys() == {"/"}
    assert found["by_vhost"]["/"]["queues"] == [{"name": "q"}]
    asked = {op for op, _, _ in broker.asked}
    assert {"show_config", "list_connections", "list_bindings"} <= asked
    assert not asked & {"peek", "get", "export_definitions"}
    assert ("list_users", None, {}) in broker.asked  # without hashes of passwords


def test_there_are_no_logs_to_rotate(capsys: pytest.CaptureFixture[str]) -> None:
    assert FakeControl().run("rotate_logs") == 0
    assert "stderr" in capsys.readouterr().out


def test_status_of_one_vhost() -> None:
    broker = FakeControl(vhost_status={})
    assert broker.run("status", "-p", "/x") == 0
    assert broker.asked == [("vhost_status", "/x", {})]


def test_vhosts_checkpoint_backup(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = {"linked": 1, "copied": 2, "copied_bytes": 3}
    states = [False, True, False, True]
    broker = FakeControl(
        backup={"job": 8},
        checkpoint={"job": 7},
        job=lambda **_: {"is_done": states.pop(0), "result": done},
    )
    assert broker.run("add_vhost", "/x") == 0
    assert broker.run("checkpoint", "-p", "/x") == 0
    assert broker.run("backup", "copy", "-p", "/x") == 0
    assert broker.run("delete_vhost", "/x", "--yes") == 0
    assert broker.asked == [
        ("add_vhost", None, {"name": "/x"}),
        ("checkpoint", "/x", {}),
        ("job", "/x", {"job": 7, "wait_ms": 20_000}),
        ("job", "/x", {"job": 7, "wait_ms": 20_000}),
        ("backup", "/x", {"path": str(tmp_path / "copy")}),
        ("job", "/x", {"job": 8, "wait_ms": 20_000}),
        ("job", "/x", {"job": 8, "wait_ms": 20_000}),
        ("delete_vhost", None, {"name": "/x"}),
    ]
    assert capsys.readouterr().out == "copy: 1 file linked, 2 copied (3 bytes)\n"


def test_stop_and_start_of_one_vhost() -> None:
    broker = FakeControl(stop_vhost={}, start_vhost={})
    assert broker.run("stop_vhost", "/x") == 0
    assert broker.run("start_vhost", r"\xff") == 0
    assert broker.asked == [
        ("stop_vhost", None, {"name": "/x"}),
        ("start_vhost", None, {"name": "\udcff"}),
    ]
    stopped = CommandRefusedError(406, "vhost '/x' is stopped already")
    assert FakeControl(stop_vhost=stopped).run("stop_vhost", "/x") == 64


def test_await_startup_asks_until_somebody_is_there() -> None:
    missing, early = UnavailableError("nobody"), CommandRefusedError(541, "starting")
    answers = [missing, early, None]

    def answer(**_: object) -> None:
        if (error := answers.pop(0)) is not None:
            raise error

    broker = FakeControl(await_startup=answer)
    assert broker.run("await_startup") == 0
    assert not answers


@pytest.mark.parametrize(
    "error", [UnavailableError("nobody"), CommandRefusedError(541, "starting")]
)
def test_await_startup_gives_up_with_69(
    error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    assert FakeControl(await_startup=error).run("await_startup", "--timeout", "0") == 69
    assert str(error) in capsys.readouterr().err


@pytest.mark.real
def test_stop_returns_when_the_directory_is_free(tmp_path: Path) -> None:
    fs = OsFileSystem(0)
    lock = fs.lock(str(tmp_path / "LOCK"))
    broker = FakeControl(stop=lambda: lock.release())
    assert broker.run("stop", "--data", str(tmp_path)) == 0
    fs.close()


@pytest.mark.real
def test_stop_that_takes_too_long_is_75(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fs = OsFileSystem(0)
    lock = fs.lock(str(tmp_path / "LOCK"))
    assert FakeControl().run("stop", "--data", str(tmp_path), "--timeout", "0") == 75
    assert "locked by" in capsys.readouterr().err
    lock.release()
    fs.close()


@pytest.mark.real
def test_nobody_there_is_69(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from penstock.cli.main import main

    assert main(["status", "--data", str(tmp_path)]) == 69
    err = capsys.readouterr().err
    assert f"penstock serve --data {tmp_path}" in err
    assert err.count("\n") == 1
