"""`penstock store`: what each command prints, and its exit code, on a real disk."""

import json
import random
from pathlib import Path

import pytest

from penstock.cli import output
from penstock.cli import store as cli_store
from penstock.cli.main import main
from penstock.clock import ManualClock
from penstock.storage.engine import StorageEngine
from penstock.storage.files.data_directory import DataDirectory, hash_name
from penstock.storage.files.durability import DISK
from penstock.storage.files.filesystem import OsFileSystem
from penstock.storage.files.user_store import UserStore
from tests.helpers.fake_control import FakeControl
from tests.helpers.tool_stores import OPTIONS, VHOST, fill

pytestmark = pytest.mark.real


@pytest.fixture
def data(tmp_path: Path) -> str:
    """A data directory with a bit of everything, stopped in order."""
    path = str(tmp_path / "data")
    fs = OsFileSystem(workers=0)
    directory = DataDirectory(fs, path)
    engine = StorageEngine(
        fs, directory.vhost_path(VHOST), VHOST, clock=ManualClock(), rng=random.Random(1),
        options=OPTIONS,
    )  # fmt: skip
    fill(engine)
    engine.close()
    directory.close()
    fs.close()
    return path


def damage(data: str) -> Path:
    """Flip a bit in a slot; returns the file."""
    path = next(Path(data).glob("vhosts/*/queues/*.1/1.qi"))
    content = bytearray(path.read_bytes())
    content[64 + 32 + 7] ^= 1
    path.write_bytes(content)
    return path


def forget_log(data: str) -> None:
    """So that salvage cannot mend the slot from the log."""
    for path in Path(data).glob("vhosts/*/wal/*"):
        path.unlink()


def test_verify(data: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "verify", data]) == 0
    out, err = capsys.readouterr()
    assert "0 problems" in out
    assert "/\tbig\t14\t" in out
    assert err == ""
    path = damage(data)
    assert main(["store", "verify", data]) == 65
    assert f"problem: {path}: at byte 96: " in capsys.readouterr().out


def test_verify_as_json_and_with_progress(data: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "verify", "-v", "--format", "json", data]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert found["problems"] == []
    assert [queue["count"] for queue in found["queues"]] == [14, 2, 1]
    assert "messages: 17 of 17" in err
    damage(data)
    assert main(["store", "verify", "--format", "json", data]) == 65
    assert json.loads(capsys.readouterr().out)["problems"][0]["position"] == 96


def test_dump(data: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = next(Path(data).glob("vhosts/*/queues/*.1/1.qi"))
    assert main(["store", "dump", str(path)]) == 0
    assert "slot seq 5 " in capsys.readouterr().out
    assert main(["store", "dump", data]) == 0
    out = capsys.readouterr().out
    assert f"== {path}" in out
    assert "DAMAGED" not in out


def test_salvage(data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, into = damage(data), str(tmp_path / "new")
    forget_log(data)
    before = {p: p.read_bytes() for p in Path(data).rglob("*") if p.is_file() and p.name != "LOCK"}
    assert main(["store", "salvage", data, into]) == 65
    out = capsys.readouterr().out
    assert f"lost: {path}: at byte 96: " in out
    assert f"{into} has 16 messages; 1 could not be read, 1 loss in all" in out
    assert {p: p.read_bytes() for p in before} == before
    assert main(["store", "verify", into]) == 0
    assert main(["store", "salvage", data, into]) == 66
    assert "expected a free path" in capsys.readouterr().err


def test_salvage_gets_the_name_of_a_vhost_from_node_db_or_by_an_option(tmp_path: Path) -> None:
    data, fs = tmp_path / "data", OsFileSystem(workers=0)
    directory = DataDirectory(fs, str(data))
    engine = StorageEngine(
        fs, directory.vhost_path(b"orders"), b"orders", clock=ManualClock(), rng=random.Random(1)
    )
    engine.close()
    directory.close()
    next(data.glob("vhosts/*/.vhost")).unlink()

    def name_after(*options: str) -> bytes:
        into = tmp_path / f"new{len(list(tmp_path.iterdir()))}"
        assert main(["store", "salvage", *options, str(data), str(into)]) == 65
        return next(into.glob("vhosts/*/.vhost")).read_bytes()

    assert name_after().startswith(b"salvaged-")
    assert name_after("--vhost", "other", "--vhost", "orders") == b"orders\n"
    users = UserStore(str(data / "node.db"))
    users.put_vhost("orders", "ready", "{}")
    users.close()
    assert name_after() == b"orders\n"


def test_salvage_of_a_whole_store(
    data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    into = str(tmp_path / "new")
    assert main(["store", "salvage", "--format", "json", data, into]) == 0
    found = json.loads(capsys.readouterr().out)
    assert sum(queue["taken"] for queue in found["queues"]) == 17


def test_stats(data: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "stats", data]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "messages\t17" in lines
    assert "large bodies\t1\t1394" in lines
    assert main(["store", "stats", "--format", "json", data]) == 0
    assert json.loads(capsys.readouterr().out)["files"]["large bodies"] == [1, 1394]


def test_streams_have_tables_of_their_own(
    data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fs = OsFileSystem(workers=0)
    directory = DataDirectory(fs, data)
    engine = StorageEngine(
        fs, directory.vhost_path(VHOST), VHOST, clock=ManualClock(), rng=random.Random(2),
        options=OPTIONS,
    )  # fmt: skip
    (stream,) = engine.streams.declare([(b"events\0p3", b"", 0)], page_bytes=4096)
    for i in range(5):
        engine.streams.append(stream, b"", b"event %d" % i, DISK)
    engine.streams.set_reader(stream, "reader", 2, DISK)
    engine.close()
    directory.close()
    fs.close()
    size = 64 + 5 * (24 + 7)
    assert main(["store", "verify", data]) == 0
    out, _ = capsys.readouterr()
    assert f"/\tevents (part p3)\t5\t{size}\t1\t0" in out
    assert "5 records of streams" in out
    assert main(["store", "stats", data]) == 0
    assert f"/\tevents (part p3)\t0\t5\t{size}\t1" in capsys.readouterr()[0]
    assert main(["store", "salvage", data, str(tmp_path / "new")]) == 0
    assert "/\tevents (part p3)\t5\t35" in capsys.readouterr()[0]


def test_backup(data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    into = str(tmp_path / "copy")
    assert main(["store", "backup", data, into]) == 0
    assert "1 vhost, " in capsys.readouterr().out
    for path in (data, into):
        assert main(["store", "verify", path]) == 0
        assert "17 messages" in capsys.readouterr().out
    assert main(["store", "backup", data, into]) == 66


@pytest.mark.parametrize("command", ["verify", "stats", "dump"])
def test_a_wrong_path(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", command, str(tmp_path / "nowhere")]) == 66
    err = capsys.readouterr().err
    assert err.startswith("penstock: ")
    assert "nowhere" in err
    assert len(err.splitlines()) == 1


def test_a_store_in_use(data: str, capsys: pytest.CaptureFixture[str]) -> None:
    fs = OsFileSystem(workers=0)
    lock = fs.lock(data + "/LOCK")
    for command in ("verify", "stats"):
        assert main(["store", command, data]) == 75
        assert "locked by pid" in capsys.readouterr().err
    lock.release()
    fs.close()


def test_another_version(data: str, capsys: pytest.CaptureFixture[str]) -> None:
    (Path(data) / "VERSION").write_text("penstock 9\n")
    assert main(["store", "verify", data]) == 65
    assert "expected version penstock 1 or 2, found penstock 9" in capsys.readouterr().err


def test_wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["verfy"], ["verify"], ["stats", "--format", "xml", "x"], ["dump", "--all"]):
        assert main(["store", *arguments]) == 64
        assert capsys.readouterr().err


def test_on_a_terminal_tables_are_drawn(
    data: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "is_terminal", lambda: True)
    assert main(["store", "stats", data]) == 0
    out = capsys.readouterr().out
    assert "\t" not in out
    assert "large bodies" in out


def test_on_a_terminal_slow_work_has_a_bar(
    data: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli_store, "_has_terminal", lambda: True)
    monkeypatch.setattr(cli_store, "BAR_AFTER_S", 0.0)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert main(["store", "verify", data]) == 0
    assert "messages" in capsys.readouterr().err


# ---- path --------------------------------------------------------------------------------------


def test_the_path_of_a_vhost_and_of_a_queue(data: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "path", "/", "--data", data]) == 0
    vhost = Path(data) / "vhosts" / hash_name(VHOST)
    assert capsys.readouterr().out == f"{vhost}\n"
    assert main(["store", "path", "/", "big", "--data", data]) == 0
    big = Path(capsys.readouterr().out.removesuffix("\n"))
    assert (big / ".queue_name").read_bytes() == b"VHOST: /\nQUEUE: big\n"
    assert main(["store", "path", "/", "big", "--data", data, "--format", "json"]) == 0
    told = {"vhost": "/", "queue": "big", "paths": [str(big)]}
    assert json.loads(capsys.readouterr().out) == told
    (big / ".queue_name").write_bytes(b"big\n")  # as earlier versions wrote it
    assert main(["store", "path", "/", "big", "--data", data]) == 0
    assert capsys.readouterr().out == f"{big}\n"
    assert main(["store", "verify", data]) == 0


def test_there_is_no_path_of_what_there_is_not(
    data: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def refusal(*words: str) -> str:
        assert main(["store", "path", *words, "--data", data]) == 66
        return capsys.readouterr().err

    assert refusal("nothing") == f"penstock: no vhost 'nothing' in {data}\n"
    assert refusal("/", r"a\\\x1b") == "penstock: no queue 'a\\\\x1b' in vhost '/'\n"
    place = Path(data) / "vhosts" / hash_name(VHOST)
    told = f"has no files of its own: its messages are in those of {place}\n"
    assert refusal("/", "small") == f"penstock: queue 'small' {told}"
    assert main(["store", "path", "/", "small", "--data", data, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["paths"] == []
    assert main(["store", "path", "/", "--data", data + "/vhosts"]) == 66


def test_a_broker_that_runs_says_which_queues_there_are(data: str) -> None:
    broker = FakeControl(list_queues=[{"name": "new"}])
    assert broker.run("store", "path", "/", "new", "--data", data, "--format", "json") == 0
    assert broker.asked == [("list_queues", "/", {})]
    assert broker.run("store", "path", "/", "other", "--data", data, "--format", "json") == 66


def test_move_and_back(data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, spill = tmp_path / "log", tmp_path / "spill"
    assert main(["store", "move", data, "--log-directory", str(log), "--spill-directory",
                 str(spill)]) == 0  # fmt: skip
    out = capsys.readouterr().out
    assert f"{log}: has the log files of {data} now" in out
    assert "files moved (" in out
    assert main(["store", "verify", data]) == 0
    assert main(["store", "stats", data]) == 0
    assert main(["store", "dump", data + "/vhosts"]) == 0
    assert ".wal" in capsys.readouterr().out
    assert main(["store", "move", data]) == 0
    assert "0 files moved (0 bytes)" in capsys.readouterr().out
    assert main(["store", "move", data, "--spill-directory", data, "--log-directory", data]) == 0
    assert list(log.iterdir()) == list(spill.iterdir()) == []
    assert main(["store", "verify", data]) == 0


def test_move_to_where_it_cannot_be(
    data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    for given, why in (
        (tmp_path / "none" / "log", "whose parent exists"),
        (tmp_path / "full", "an empty directory, it has 'x' in it"),
        (Path(data) / "log", "outside the data directory"),
    ):
        assert main(["store", "move", data, "--log-directory", str(given)]) == 64
        told = capsys.readouterr().err
        assert f"option log_directory: given '{given}'" in told
        assert why in told
    assert main(["store", "move", str(tmp_path / "full"), "--log-directory", "/x"]) == 66
