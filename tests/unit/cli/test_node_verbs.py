"""The broker as a whole: status, waiting for it, its end."""

import json
from pathlib import Path

import pytest

from penstock.cli.main import CommandRefusedError, UnavailableError
from penstock.storage.files.filesystem import OsFileSystem
from tests.helpers.fake_control import FakeControl

STATUS = {
    "version": "0.1.0", "memory": {"budget_bytes": 5, "is_alarmed": False}, "tags": ["a"],
    "vhosts": [{"name": "/", "state": "running"}, {"n": 1}],
}  # fmt: skip


def test_status_is_names_and_values(capsys: pytest.CaptureFixture[str]) -> None:
    broker = FakeControl(status=STATUS)
    assert broker.run("status") == 0
    assert capsys.readouterr().out.splitlines() == [
        "name\tvalue", "version\t0.1.0", "memory.budget_bytes\t5", "memory.is_alarmed\tfalse",
        'tags\t["a"]', "vhosts[/].name\t/", "vhosts[/].state\trunning", "vhosts[1].n\t1",
    ]  # fmt: skip
    assert broker.run("status", "--format", "json") == 0
    assert json.loads(capsys.readouterr().out) == STATUS


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
    assert capsys.readouterr().out == "copy: 1 files linked, 2 copied (3 bytes)\n"


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
