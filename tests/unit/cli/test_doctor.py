"""`penstock doctor`: each check on a machine that is made up, and the command on this one."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.access.tls_options import TlsOptions
from penstock.cli import doctor
from penstock.cli.doctor import ADVICE, OK, WRONG, Machine
from penstock.cli.main import main
from penstock.clock import ManualClock, SystemClock
from penstock.config import Config, config_of, effective, settings
from penstock.storage.files.durability import OS
from penstock.storage.files.filesystem import OsFileSystem
from penstock.storage.files.options import StorageOptions
from tests.helpers.fake_control import FakeControl
from tests.helpers.tls_files import TlsFiles

GIB = 1 << 30


class MadeUpFiles(OsFileSystem):
    """This machine's files, with some of the kernel's made up."""

    def __init__(self) -> None:
        super().__init__(0)
        self.texts: dict[str, str] = {}
        self.disk = "ext4"
        self.free = 100 * GIB

    def read(self, path: str) -> bytes:
        return self.texts[path].encode() if path in self.texts else super().read(path)

    def kind(self, path: str) -> str:
        return self.disk

    def free_bytes(self, path: str) -> int:
        return self.free


class SteppingClock(ManualClock):
    """One on which each look takes a while."""

    step_s = 0.0005

    def monotonic(self) -> float:
        self.advance(self.step_s)
        return super().monotonic()


@pytest.fixture
def files() -> Iterator[MadeUpFiles]:
    fs = MadeUpFiles()
    yield fs
    fs.close()


@pytest.fixture
def machine(files: MadeUpFiles, tmp_path: Path) -> Machine:
    config = Config(data=str(tmp_path / "not" / "there"))
    clock = SteppingClock(wall_ms=1_800_000_000_000)
    return Machine(files, clock, config, 1 << 20)


def test_the_file_system(machine: Machine, files: MadeUpFiles, tmp_path: Path) -> None:
    found = doctor.file_system(machine)
    assert found == (OK, f"ext4, at {tmp_path}", "")
    for kind, state in (("nfs4", WRONG), ("tmpfs", ADVICE), ("overlay", ADVICE)):
        files.disk = kind
        assert doctor.file_system(machine).state == state


def test_free_space(machine: Machine, files: MadeUpFiles) -> None:
    for free, state in ((GIB, OK), (90 << 20, ADVICE), (50 << 20, WRONG)):
        files.free = free
        assert doctor.free_space(machine).state == state


def test_the_disk(machine: Machine, tmp_path: Path) -> None:
    assert doctor.disk(machine)[:2] == (OK, "a sync takes 0.50 ms, 0.50 ms at most of 20")
    clock = machine.clock
    assert isinstance(clock, SteppingClock)
    for step_s, advice in ((0.02, "each confirm waits"), (0.000_01, "power cut")):
        clock.step_s = step_s
        found = doctor.disk(machine)
        assert (found.state, advice in found.advice) == (ADVICE, True)
    clock.step_s = 0.02
    assert doctor.disk(machine._replace(config=replace(machine.config, mode=OS))).state == OK
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_written(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> object:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(machine.fs, "open", refuse)
    found = doctor.disk(machine)
    assert (found.state, "Permission denied" in found.found) == (WRONG, True)


def test_open_files(machine: Machine) -> None:
    for nofile, state in ((1 << 20, OK), (4096, ADVICE), (256, WRONG)):
        assert doctor.open_files(machine._replace(nofile=nofile)).state == state


def in_a_group(files: MadeUpFiles, **limits: str) -> None:
    files.texts["/proc/self/cgroup"] = "0::/a/b\n"
    files.texts["/proc/self/mountinfo"] = "1 2 0:3 / /g rw - cgroup2 none rw\n"
    for name, text in limits.items():
        for place in ("/g/a/b", "/g/a", "/g"):
            files.texts[f"{place}/{name.replace('_', '.')}"] = "max 100000\n"
        files.texts[f"/g/a/{name.replace('_', '.')}"] = text


def test_memory(machine: Machine, files: MadeUpFiles) -> None:
    files.texts["/proc/meminfo"] = f"MemTotal: {16 << 20} kB\n"
    in_a_group(files, memory_max=f"{4 * GIB}\n")
    for own, state in ((2 * GIB, OK), (3 * GIB, ADVICE), (5 * GIB, WRONG)):
        config = replace(machine.config, memory_bytes=own)
        found = doctor.memory(machine._replace(config=config))
        assert (found.state, "/g/a/memory.max" in found.found) == (state, True)


def test_processors(machine: Machine, files: MadeUpFiles) -> None:
    for text, state in (("max 100000", OK), ("250000 100000", OK), ("50000 100000", ADVICE)):
        in_a_group(files, cpu_max=text)
        assert doctor.processors(machine).state == state
    assert "may use 0.5" in doctor.processors(machine).found


def test_the_clock(machine: Machine, files: MadeUpFiles) -> None:
    source = "/sys/devices/system/clocksource/clocksource0/current_clocksource"
    for text, state in (("tsc", OK), ("hpet", ADVICE)):
        files.texts[source] = text
        assert doctor.clock(machine).state == state
    assert doctor.clock(machine._replace(clock=ManualClock(wall_ms=0))).state == WRONG


def test_the_backlog(machine: Machine, files: MadeUpFiles) -> None:
    for text, state in (("4096", OK), ("128", ADVICE)):
        files.texts["/proc/sys/net/core/somaxconn"] = text
        assert doctor.backlog(machine).state == state


def test_certificates(machine: Machine, tls_files: TlsFiles) -> None:
    def of(name: str) -> Machine:
        cert, key = (str(tls_files.path(f"{name}.{kind}")) for kind in ("pem", "key"))
        config = replace(machine.config, tls=TlsOptions(cert=cert, key=key))
        return machine._replace(config=config, clock=SystemClock())

    assert doctor.certificates(machine) == (OK, "TLS is off", "")
    assert doctor.certificates(of("server")).state == OK
    tls_files.issue("soon", "broker", days=(-1, 7))
    assert doctor.certificates(of("soon")).state == ADVICE
    assert doctor.certificates(of("missing")).state == WRONG


@pytest.mark.parametrize(("kind", "state"), [("compiled", OK), ("pure", ADVICE)])
def test_the_build(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, kind: str, state: str
) -> None:
    monkeypatch.setattr(doctor, "build_kind", lambda: kind)
    assert doctor.build(machine).state == state


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["doctor", "--data", str(tmp_path / "data"), "--format", "json"]) == 0
    rows = {row["check"]: row for row in json.loads(capsys.readouterr().out)}
    assert list(rows) == ["configuration", *doctor.CHECKS]
    assert rows["disk"]["found"].startswith("a sync takes ")
    Path("penstock.toml").write_text("pirt = 5\n")
    assert main(["doctor"]) == 1
    text = capsys.readouterr().out
    assert "configuration\twrong\t" in text
    assert "did you mean 'port'" in text


def test_a_broker_that_runs_is_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    running = Config(
        data=str(tmp_path), storage=StorageOptions(disk_free_limit=1 << 60),
        loopback_users=("guest", "ann"), origins={"data": "other.toml"},
    )  # fmt: skip
    status = {"data": str(tmp_path), "problems": ["the disk is low"], "advice": ["make room"]}
    broker = FakeControl(show_config=effective(running), status=status)
    assert broker.run("doctor", "--data", str(tmp_path), "--format", "json") == 1
    rows = {row["check"]: row for row in json.loads(capsys.readouterr().out)}
    found = rows["broker"]
    assert (found["state"], found["found"], found["advice"]) == (
        WRONG, "the disk is low", "make room"
    )  # fmt: skip
    assert rows["free space"]["state"] == WRONG
    assert broker.run("doctor", "--data", str(tmp_path), "--config", "/dev/null") == 0
    assert "broker\t" not in capsys.readouterr().out


def test_each_option_is_read_as_it_is_shown() -> None:
    """doctor reads what a running broker shows."""
    for row in effective(Config()):
        if row["value"]:
            variable = {one.key: one.variable for one in settings()}[str(row["option"])]
            config_of(whole_bytes=GIB, flags={}, environment={variable: str(row["value"])}, file={})
