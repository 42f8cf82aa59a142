"""The audit log: its lines, its size, floods of failed logins, and a disk that fails."""

import asyncio
import json
import logging
from pathlib import Path

import pytest

from penstock.clock import ManualClock
from penstock.errors import StoppedError
from penstock.operation_table import AUDITED, OPERATIONS
from penstock.server import audit
from penstock.server.audit import LOGINS_BURST, WAITING_MAX, AuditLog, VhostEntries
from penstock.storage.files.filesystem import OsFileSystem

ENTRY = {"event": "delete_queue", "user": "ada", "from": "10.0.0.7:5", "vhost": "/"}


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def log(path: Path, bytes_max: int = 1 << 20, clock: ManualClock | None = None) -> AuditLog:
    return AuditLog(OsFileSystem(0), str(path), bytes_max, clock or ManualClock())


def test_entries_are_lines_after_those_that_are_there(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    for _ in range(2):
        one = log(path)
        one.note(ENTRY)
        one.note({**ENTRY, "args": {"x": b"\xff"}})
        one.close()
    found = lines(path)
    assert len(found) == 4
    assert {**found[0], "time": ""} == {"time": "", **ENTRY}
    assert path.stat().st_mode & 0o077 == 0


def test_the_file_and_the_one_before_have_a_size(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    one = log(path, bytes_max=1000)
    for number in range(100):
        one.note({**ENTRY, "number": number})
        one._executor.submit(int).result()  # each is written alone
    one.close()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["audit", "audit.1"]
    assert path.stat().st_size <= 1000
    assert (tmp_path / "audit.1").stat().st_size <= 1000
    assert lines(path)[-1]["number"] == 99


def test_a_flood_of_failed_logins_is_counted(tmp_path: Path) -> None:
    path, clock = tmp_path / "audit", ManualClock()
    one = log(path, clock=clock)
    for _ in range(10 * LOGINS_BURST):
        one.note({"event": "login_failed", "user": "x", "from": "10.0.0.7", "why": "no"})
    one.note(ENTRY)
    one.close()
    found = lines(path)
    assert len(found) == LOGINS_BURST + 1
    assert found[-1]["left_out"] == 9 * LOGINS_BURST


class Held(AuditLog):
    """Writes nothing until `close`: a slow disk."""

    def _begin(self) -> None:
        pass

    def close(self) -> None:
        super()._begin()
        super().close()


def held(path: Path) -> Held:
    return Held(OsFileSystem(0), str(path), 1 << 30, ManualClock())


def test_what_waits_is_bounded(tmp_path: Path) -> None:
    one = held(tmp_path / "audit")
    for user in range(WAITING_MAX + 10):
        one.note({**ENTRY, "user": str(user)})
    assert one.left_out_total == 10
    one.close()
    assert len(lines(tmp_path / "audit")) == WAITING_MAX


def test_one_user_leaves_room_for_entries_of_others(tmp_path: Path) -> None:
    one = held(tmp_path / "audit")
    for _ in range(WAITING_MAX):
        one.note({**ENTRY, "user": "eve"})
    one.note({**ENTRY, "event": "delete_user"})
    one.close()
    found = lines(tmp_path / "audit")
    assert found[-1]["event"] == "delete_user"
    assert found[-1]["left_out"] == one.left_out_total == WAITING_MAX // 2


def test_what_one_user_declares_with_large_arguments_takes_little(tmp_path: Path) -> None:
    one = held(tmp_path / "audit")
    args = {"queue": "q" * 255, "arguments": {"x": "\1" * 8000}}  # 48 KB as JSON
    for _ in range(1000):
        one.note({**ENTRY, "event": "declare_queue", "args": args})
    one.close()
    found = lines(tmp_path / "audit")
    assert found[0]["args"] == {"queue": "q" * 255, "arguments": "left out: 48009 characters"}
    assert (tmp_path / "audit").stat().st_size < 1 << 20


def test_a_disk_that_fails_is_in_the_log_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "audit"
    one = log(path)

    def fails(_data: bytes) -> None:
        raise OSError("no space")

    with monkeypatch.context() as patch, caplog.at_level(logging.ERROR):
        patch.setattr(one, "_write", fails)
        for _ in range(3):
            one.note(ENTRY)
            one._executor.submit(int).result()
    assert caplog.messages == [f"the audit log {path} cannot be written: no space"]
    one.note(ENTRY)
    one.close()
    (found,) = lines(path)
    assert found["left_out"] == 3


def test_entries_for_a_vhost_are_appended_in_order_and_counted_if_it_refuses() -> None:
    appended: list[list[str]] = []
    errors: list[Exception] = []

    async def append(lines: list[str]) -> None:
        if errors:
            raise errors.pop()
        appended.append([json.loads(line)["event"] for line in lines])

    async def test() -> None:
        one = VhostEntries("audit stream", append, ManualClock())
        for event in "ab":
            one.note({"event": event})
        await one.close()
        assert appended == [["a", "b"]]
        one.note({"event": "late"})
        assert one.left_out_total == 1
        two = VhostEntries("audit stream", append, ManualClock())
        errors.append(StoppedError("it is down"))
        two.note({"event": "lost"})
        await two.close()
        assert (appended, two.left_out_total) == ([["a", "b"]], 1)

    asyncio.run(test())


def test_a_vhost_that_starts_does_not_keep_the_broker_from_its_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def never(_lines: list[str]) -> None:
        await asyncio.get_running_loop().create_future()

    async def test() -> None:
        one = VhostEntries("audit stream", never, ManualClock())
        one.note(ENTRY)
        await one.close()

    monkeypatch.setattr(audit, "CLOSE_S", 0.0)
    asyncio.run(test())
    assert caplog.messages == ["the audit stream does not have the last entries"]


def test_operations_that_are_audited_exist_and_do_not_only_read() -> None:
    assert set(OPERATIONS) >= AUDITED
    assert not [name for name in AUDITED if name.startswith(("list_", "describe_", "get", "peek"))]
    changing = ("add_", "delete_", "set_", "clear_", "declare_", "bind_", "unbind_", "purge_")
    assert {name for name in OPERATIONS if name.startswith(changing)} <= AUDITED | {
        "set_stream_reader",  # a reader says how far it is
    }
