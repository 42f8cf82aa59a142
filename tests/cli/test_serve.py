"""`penstock serve` and the operators' commands against it, as a user types them: one real broker.

And the obvious mistakes: a port that is taken, a directory that another broker has, one of another
version, one that is no store, a full disk, an option that is none: each is one line on stderr and
its own exit code, soon.
"""

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from penstock.cli.main import main
from tests.helpers.columns import COLUMNS
from tests.helpers.live_broker import LiveBroker

pytestmark = pytest.mark.real

LIMIT_S = 60.0


def penstock(
    *words: str, cwd: Path | None = None, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """A command, run to its end."""
    return subprocess.run(
        [sys.executable, "-m", "penstock", *words], stdin=subprocess.DEVNULL, check=False,
        capture_output=True, timeout=LIMIT_S, cwd=cwd,
        env={"PENSTOCK_HTTP_PORT": "off", **os.environ, **(environment or {})},
    )  # fmt: skip


def quick(*words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """The same in this process, which is a second sooner."""
    out, err = io.BytesIO(), io.BytesIO()
    text_out = io.TextIOWrapper(out, write_through=True)
    text_err = io.TextIOWrapper(err, write_through=True)
    before = sys.stdin
    sys.stdin = io.TextIOWrapper(io.BytesIO(stdin))
    try:
        with contextlib.redirect_stdout(text_out), contextlib.redirect_stderr(text_err):
            code = main(words)
        text_out.flush()
        text_err.flush()
        return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())
    finally:
        sys.stdin = before


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    with LiveBroker(tmp_path_factory.mktemp("serve") / "data", "--memory", "64MiB") as running:
        yield running


def of(broker: LiveBroker, *words: str, stdin: bytes = b"") -> str:
    """What a command that succeeds prints."""
    done = quick(*words, "--data", str(broker.data), stdin=stdin)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


# ---- a broker and its operators ------------------------------------------------------------------


def test_the_ready_line(broker: LiveBroker) -> None:
    assert re.fullmatch(
        r"penstock \S+ \((compiled|pure)\) is ready: amqp://guest:guest@localhost:\d+/  "
        r"data \S.*  memory 64 MiB  durability disk\n",
        broker.ready_line,
    )
    of(broker, "await_startup")


def test_messages_in_and_out(broker: LiveBroker) -> None:
    of(broker, "declare_queue", "jobs")
    assert of(broker, "publish", "jobs", "hello", "-H", "n=1") == "1 published\n"
    assert of(broker, "publish", "jobs", "--lines", stdin=b"1\n2\n3\n") == "3 published\n"
    assert of(broker, "list", "queues") == "name\tmessages\njobs\t4\n"
    assert of(broker, "peek", "jobs", "-n", "2") == "hello\n1\n"
    (line,) = of(broker, "get", "jobs", "--format", "json", "--requeue").splitlines()
    assert json.loads(line)["body"] == "hello"
    assert of(broker, "get", "jobs") == "hello\n"
    assert of(broker, "consume", "jobs", "-n", "3") == "1\n2\n3\n"
    assert quick("get", "jobs", "--data", str(broker.data)).returncode == 75
    assert "0 messages purged" in of(broker, "purge_queue", "jobs")
    of(broker, "delete_queue", "jobs")
    assert quick("get", "jobs", "--data", str(broker.data)).returncode == 66


def test_what_a_killed_consumer_had_comes_back(broker: LiveBroker) -> None:
    of(broker, "declare_queue", "killed")
    words = ["-m", "penstock", "consume", "killed", "--data", str(broker.data)]
    consumer = subprocess.Popen(
        [sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert consumer.stdout is not None
    of(broker, "publish", "killed", "first")
    assert consumer.stdout.readline() == b"first\n"
    consumer.send_signal(signal.SIGSTOP)  # it waits for the next, and takes it without printing it
    of(broker, "publish", "killed", "second")
    consumer.kill()
    consumer.communicate()
    assert of(broker, "get", "killed", "--wait", "120") in ("second\n", "first\n")


def test_consume_ends_with_ctrl_c(broker: LiveBroker) -> None:
    of(broker, "declare_queue", "quiet")
    words = ["-m", "penstock", "consume", "quiet", "--data", str(broker.data)]
    consumer = subprocess.Popen(
        [sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert consumer.stdout is not None
    of(broker, "publish", "quiet", "x")
    assert consumer.stdout.readline() == b"x\n"
    consumer.send_signal(signal.SIGINT)
    _, err = consumer.communicate(timeout=LIMIT_S)
    assert consumer.returncode == 130
    assert err.strip() == b"penstock: interrupted"


def test_vhosts_and_users(broker: LiveBroker) -> None:
    of(broker, "add_vhost", "/shop")
    of(broker, "declare_queue", "orders", "-p", "/shop")
    of(broker, "add_user", "ann", "--stdin", "--tag", "monitoring", stdin=b"secret\n")
    of(broker, "change_password", "ann", "--stdin", stdin=b"better\n")
    of(broker, "set_permissions", "ann", "^a", "", ".*", "-p", "/shop")
    assert "ann\t/shop\t^a\t\t.*\n" in of(broker, "list_permissions")
    assert 'ann\t["monitoring"]\n' in of(broker, "list_users")
    assert "/shop\trunning\n" in of(broker, "list_vhosts", "name", "state")
    assert re.search(r"^/shop\trunning\t2\S+\t$", of(broker, "list_vhosts"), re.MULTILINE)
    of(broker, "stop_vhost", "/shop")
    assert "/shop\tstopped\tstopped by an operator\n" in (
        of(broker, "list_vhosts", "name", "state", "why")
    )
    of(broker, "start_vhost", "/shop")
    first, others = COLUMNS["list_vhosts"]
    (row, _) = json.loads(of(broker, "list_vhosts", "--format", "json"))
    assert sorted(row) == sorted((*first, *others))
    path = of(broker, "store", "path", "/shop").removesuffix("\n")
    assert (Path(path) / ".vhost").read_text() == "/shop\n"
    assert of(broker, "list_queues", "name", "-p", "/shop") == "name\norders\n"
    of(broker, "clear_permissions", "ann", "-p", "/shop")
    of(broker, "delete_user", "ann")
    of(broker, "delete_vhost", "/shop", "--yes")
    data = ["--data", str(broker.data)]
    assert quick("list_queues", "-p", "/shop", *data).returncode == 66
    assert quick("delete_user", "ann", *data).returncode == 67


def test_status_checkpoint_backup(broker: LiveBroker, tmp_path: Path) -> None:
    found = json.loads(of(broker, "status", "--format", "json"))
    assert found["memory_bytes"] == 64 << 20
    assert "durability\tdisk\n" in of(broker, "status", "-p", "/")
    of(broker, "checkpoint")
    of(broker, "declare_queue", "kept")
    of(broker, "publish", "kept", "x")
    of(broker, "backup", str(tmp_path / "copy"))
    done = quick("store", "verify", str(tmp_path / "copy"))
    assert done.returncode == 0, done.stdout
    assert "/\tkept\t1\t" in done.stdout.decode()


def test_what_is_wrong_is_told_in_a_line(broker: LiveBroker) -> None:
    for words, code in [
        (["publish", "no such queue", "x"], 66),
        (["peek", "no such queue"], 66),
        (["declare_queue", "q", "-a", "x-max-length=-1"], 64),
        (["declare_exchange", "x", "--type", "zigzag"], 64),
        (["delete_vhost", "/none", "--yes"], 66),
        (["set_permissions", "guest", "(", "", ""], 64),
    ]:
        done = quick(*words, "--data", str(broker.data))
        assert done.returncode == code, (words, done.stderr)
        assert re.fullmatch(rb"penstock: [^\n]+\n", done.stderr), done.stderr


# ---- obvious mistakes ----------------------------------------------------------------------------


def refused(code: int, *words: str, **environment: str) -> str:
    """The line on stderr of a `serve` that ends with this code."""
    done = penstock("serve", *words, environment=environment)
    assert done.returncode == code, (done.returncode, done.stderr)
    assert done.stdout == b""
    last = done.stderr.decode().splitlines()[-1]
    assert last.startswith("penstock: "), done.stderr
    assert "Traceback" not in done.stderr.decode()
    return last


def test_the_port_is_taken(broker: LiveBroker, tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    line = refused(69, "--port", str(broker.port), "--data", data)
    assert f"127.0.0.1:{broker.port} is taken" in line
    assert "--port 0" in line


def test_the_directory_is_another_brokers(broker: LiveBroker) -> None:
    line = refused(75, "--port", "0", "--data", str(broker.data))
    assert "locked by" in line


def test_the_directory_is_of_another_version(tmp_path: Path) -> None:
    (tmp_path / "VERSION").write_text("penstock 999\n")
    assert "expected version" in refused(65, "--port", "0", "--data", str(tmp_path))


def test_the_directory_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    assert "thesis.txt" in refused(66, "--port", "0", "--data", str(tmp_path))
    assert (tmp_path / "thesis.txt").read_text() == "mine"
    assert "it is a file" in refused(66, "--port", "0", "--data", str(tmp_path / "thesis.txt"))


def test_there_is_no_space() -> None:
    with FullDisk() as full:
        line = refused(74, "--port", "0", "--data", full)
        assert "o space left" in line or "bytes free" in line


class FullDisk:
    """A directory on a tiny file system that is full; skipped where none can be mounted."""

    def __init__(self) -> None:
        self.place = Path(f"/tmp/penstock-full-{os.getpid()}")

    def __enter__(self) -> str:
        self.place.mkdir()
        words = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(self.place)]
        done = subprocess.run(words, capture_output=True, check=False)
        if done.returncode:
            self.place.rmdir()
            pytest.skip("no file system can be mounted here")
        (self.place / "data").mkdir()
        return str(self.place / "data")

    def __exit__(self, *_: object) -> None:
        subprocess.run(["umount", "-l", str(self.place)], capture_output=True, check=False)
        self.place.rmdir()


def test_no_address_of_this_machine(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    refused(69, "--host", "192.0.2.1", "--port", "0", "--data", data)
    refused(69, "--host", "no.such.host.invalid", "--port", "0", "--data", data)


def test_a_bad_option_from_anywhere(tmp_path: Path) -> None:
    assert "PENSTOCK_PORT: given 'x'" in refused(78, PENSTOCK_PORT="x")
    (tmp_path / "penstock.toml").write_text("prot = 1")
    done = penstock("serve", cwd=tmp_path)
    assert done.returncode == 78
    assert b"did you mean 'port'?" in done.stderr


def test_stop_is_orderly_and_returns_when_the_directory_is_free(tmp_path: Path) -> None:
    with LiveBroker(tmp_path / "data") as running:
        of(running, "declare_queue", "kept")
        of(running, "publish", "kept", "x")
        of(running, "stop")
        done = quick("store", "verify", str(running.data))
        assert done.returncode == 0, done.stdout
        assert running.process is not None
        assert running.process.wait(LIMIT_S) == 0
        done = quick("status", "--data", str(running.data))
        assert done.returncode == 69
        assert b"penstock serve --data" in done.stderr


# ---- what it costs to ask ------------------------------------------------------------------------

HEAVY = {
    "rich", "asyncio", "sqlite3", "ssl", "multiprocessing", "tomllib", "starlette", "uvicorn",
}  # fmt: skip
OURS = {"penstock.broker", "penstock.queues", "penstock.codec", "penstock.embedded.core"}


def test_a_listing_loads_little(broker: LiveBroker) -> None:
    program = (
        "import sys; from penstock.cli.main import main\n"
        f"assert main(['list_queues', '--data', {str(broker.data)!r}]) == 0\n"
        "print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    modules = set(done.stdout.splitlines()[-1].split())
    assert not modules & (HEAVY | OURS)
    assert len([name for name in modules if name.startswith("penstock")]) < 30
    assert len(modules) < 250
