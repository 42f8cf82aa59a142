"""`penstock pipeline`: what is told without Spark: states, options, and what is missing."""

import importlib.util
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from penstock.cli import pipelines
from penstock.cli.main import main
from penstock.cli.pipelines import options_of, stderr_into, stopping
from penstock.errors import install_advice
from penstock.spark.pipeline_file import parse_pipeline
from penstock.spark.pipeline_state import RunFacts, StateLock, write_facts

FILE = """
[source]
queue = "events"
url = "amqp://127.0.0.1:1"
http_url = "http://127.0.0.1:1"
[[sink]]
parquet = "lake"
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "flights.toml").write_text(FILE)
    return tmp_path


def make_state(facts: RunFacts, offset: int = 17) -> None:
    """As a run of flights.toml leaves it."""
    write_facts(parse_pipeline("flights.toml", FILE, "flights"), facts)
    checkpoint = Path("state/flights/checkpoint")
    for name in ("offsets", "commits"):
        (checkpoint / name).mkdir(parents=True, exist_ok=True)
        text = "v1\n{}\n" + json.dumps({"events": {"0": offset, "id": "x"}})
        (checkpoint / name / "4").write_text(text)
    (checkpoint / "metadata").write_text('{"id": "q"}')


def test_a_list_in_a_pipe(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_state(RunFacts(1_700_000_000.0, 1_700_000_060.0, "done", rows=99, failed=2))
    assert main(["pipeline", "list"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "name\tstate\toutcome\tbatch\trows\tended",
        "flights\tstate/flights\tdone\t4\t99\t2023-11-14T22:14:20+00:00",
    ]


def test_what_was_killed_and_what_runs(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_state(RunFacts(1.0))
    main(["pipeline", "list", "--format", "json"])
    lock = StateLock("state/flights")
    main(["pipeline", "list", "--format", "json"])
    lock.release()
    first, second = capsys.readouterr().out.split("]\n[")
    assert '"outcome": "killed"' in first
    assert '"outcome": "running"' in second


@pytest.mark.parametrize("what", ["flights.toml", "state/flights"])
def test_a_status_without_a_broker(
    here: Path, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    make_state(RunFacts(1.0, 2.0, "done", batches=2, rows=99, sinks={"parquet lake": 97}))
    url = ["--url", "amqp://127.0.0.1:1"]
    assert main(["pipeline", "status", what, "--format", "json", *url]) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert told["offsets"] == {"events[0]": 17}
    assert (told["name"], told["batch"], told["rows"]) == ("flights", 4, 99)
    assert told["sinks"] == {"parquet lake": 97}
    assert "no connection to amqp://" in told["lag_unknown"]
    assert "lag" not in told


def test_a_status_of_all(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_state(RunFacts(1.0, 2.0, "done", rows=99))
    url = ["--url", "amqp://127.0.0.1:1"]
    assert main(["pipeline", "status", *url]) == 0
    assert capsys.readouterr().out.splitlines()[1] == (
        "flights\tdone\t4\t99\t0\t\t1970-01-01T00:00:02+00:00"
    )
    assert main(["pipeline", "status", "--format", "json", *url]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["name"], row["lag"]) == ("flights", None)


def test_a_status_of_what_has_not_run(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", "status", "flights.toml"]) == 66
    assert "state/flights: no pipeline's state is there: it has not run" in (
        capsys.readouterr().err
    )
    assert main(["pipeline", "list"]) == 0
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == "no pipeline has its state in state or below it\n"


def test_without_pyspark_one_line_says_what_to_install(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        pipelines.importlib.util, "find_spec",
        lambda name, *more: None if name == "pyspark" else real(name, *more),
    )  # fmt: skip
    assert main(["pipeline", "run", "flights.toml"]) == 69
    assert capsys.readouterr().err == (
        "penstock: pipelines run on Spark, and pyspark is not installed: "
        f"{install_advice('spark')}\n"
    )
    assert main(["pipeline", "check", "flights.toml"]) == 69
    told = capsys.readouterr()
    lines = told.out.splitlines()
    assert lines[0] == "ok    file: flights.toml"
    advice = install_advice("spark")
    assert lines[1].startswith(f"wrong the package pyspark is not installed: {advice}")
    assert any(line.startswith("wrong flights.toml: [source]: the broker does") for line in lines)
    assert any(line.startswith("wrong flights.toml: http_url: the broker does n") for line in lines)
    assert lines[-1] == "note  columns: not checked, because Spark cannot be started"
    count = sum(line.startswith("wrong ") for line in lines)
    assert told.err == f"penstock: flights: {count} problems: it would not run\n"


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["run", "none.toml"], 66, "none.toml: No such file"),
        (["run", "archiv"], 66, "and not a built-in pipeline (archive, audit, "),
        (["run", "flights.toml", "-o", "url"], 64, "option 'url': expected NAME=VALUE"),
        (["run", "flights.toml", "-o", "source.ulr=x"], 64, "unknown key 'ulr', did you mean"),
        (["check", "archive", "-o", "stram=x"], 64, "unknown option 'stram', did you"),
        (["run", "audit"], 64, "a value: -o data=..."),
        (["run", "binary.toml"], 64, "binary.toml: not a text file, UTF-8"),
        (["rnu"], 64, "No such command"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_before_spark_starts(
    here: Path, capsys: pytest.CaptureFixture[str], words: list[str], code: int, told: str
) -> None:
    pytest.importorskip("pyspark")
    (here / "binary.toml").write_bytes(b"\xff\xfe")
    assert main(["pipeline", *words]) == code
    assert told in capsys.readouterr().err


def test_options_are_names_and_values() -> None:
    assert options_of(("a=b", "c=d=e", "f=")) == {"a": "b", "c": "d=e", "f": ""}


class Job:
    """What is asked to stop."""

    asked = 0

    def ask_stop(self) -> None:
        self.asked += 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_asks_and_a_second_one_ends(number: signal.Signals) -> None:
    job = Job()
    before = signal.getsignal(number)
    with stopping(job):  # type: ignore[arg-type]
        os.kill(os.getpid(), number)
        assert job.asked == 1
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert signal.getsignal(number) == before
    assert job.asked == 1


def test_stderr_goes_into_a_file_and_comes_back(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "spark.log"
    with stderr_into(log):
        os.write(2, b"chatter")
    os.write(2, b"plain")
    assert log.read_text() == "chatter"
    assert capfd.readouterr().err == "plain"

    def fail() -> None:
        with stderr_into(log):
            os.write(2, b"why it failed")
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fail()
    assert capfd.readouterr().err == "why it failed\n"
