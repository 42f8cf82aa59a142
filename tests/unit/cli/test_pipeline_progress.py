"""What a run shows: how far it is, by which numbers, as a bar or as lines."""

import io
import json
from typing import Any

import pytest

from penstock.cli.pipelines import PipelineProgress, count_of, lag_of
from penstock.cli.pipelines import progress_line as line_of
from penstock.spark.pipeline_state import RunFacts


class Tick:
    """As the pipeline's, without pyspark."""

    def __init__(self, facts: RunFacts, progress: Any, progress_rows: int) -> None:
        self.facts = facts
        self.progress = progress
        self.progress_rows = progress_rows


def progress(end: object, latest: object) -> dict[str, Any]:
    return {"batchId": 1, "sources": [{"endOffset": end, "latestOffset": latest}]}


def test_offsets_of_all_partitions_count() -> None:
    assert count_of({"a": {"0": 17, "1": 4, "id": "ff"}, "b": {"0": 1}}) == 22


@pytest.mark.parametrize("is_text", [False, True])
def test_the_lag_is_how_far_the_latest_offset_is_ahead(is_text: bool) -> None:
    end, latest = {"a": {"0": 10, "id": "x"}}, {"a": {"0": 25, "id": "x"}}
    texts = (json.dumps(end), json.dumps(latest))
    assert lag_of(progress(*texts) if is_text else progress(end, latest)) == 15


def test_a_source_that_does_not_say_has_no_lag() -> None:
    assert lag_of(None) is None
    assert lag_of(progress({"logOffset": 1}, None)) is None
    assert lag_of(progress("a", "b")) is None


def test_a_line_has_what_is_known() -> None:
    facts = RunFacts(0.0, batches=2, rows=1500, bytes=3 << 20, failed=4)
    line = line_of(facts, 20, 3.0, 500.4)
    assert line == "   3.0 s  batch 2: 1,500 rows, 3 MiB, lag 20, 4 failed, 500/s"
    assert line_of(RunFacts(0.0), None, 0.0, None) == "   0.0 s  batch 0: 0 rows"


def test_a_pipe_gets_a_line_for_a_batch_and_not_too_many() -> None:
    now = [0.0]
    lines: list[str] = []
    facts = RunFacts(0.0)
    with PipelineProgress(
        "p", is_drawn=False, monotonic=lambda: now[0], echo=lines.append
    ) as shows:
        shows(Tick(facts, None, 0))  # type: ignore[arg-type]
        assert lines == []
        for batch in range(1, 9):
            facts.batches, facts.rows = batch, batch * 10
            now[0] = batch * 0.5
            told = progress({"a": {"0": 10 * batch}}, {"a": {"0": 100}})
            shows(Tick(facts, told, facts.rows))  # type: ignore[arg-type]
            shows(Tick(facts, told, facts.rows))  # type: ignore[arg-type]
    assert [line.split("batch ")[1][:2] for line in lines] == ["1:", "5:"]
    assert "lag 90" in lines[0]
    assert "/s" not in lines[0]
    assert lines[1].endswith("20/s")


def test_the_lag_is_of_now_though_spark_tells_later() -> None:
    lines: list[str] = []
    facts = RunFacts(0.0, batches=2, rows=60)
    shows = PipelineProgress("p", is_drawn=False, echo=lines.append)
    told = progress({"a": {"0": 30}}, {"a": {"0": 100}})
    shows(Tick(facts, told, 30))  # type: ignore[arg-type]
    assert "lag 40" in lines[0]


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    from rich import console

    real = console.Console
    monkeypatch.setattr(
        console, "Console",
        lambda: real(file=out, force_terminal=True, width=120, color_system=None),
    )  # fmt: skip
    facts = RunFacts(0.0, batches=1, rows=60, bytes=2048)
    with PipelineProgress("flights", is_drawn=True) as shows:
        told = progress({"a": {"0": 60}}, {"a": {"0": 100}})
        shows(Tick(facts, told, 60))  # type: ignore[arg-type]
    text = out.getvalue()
    for part in ("flights", "60/100 rows", "2 KiB", "lag 40", "━"):
        assert part in text


def test_quiet_is_quiet() -> None:
    lines: list[str] = []
    with PipelineProgress("p", is_drawn=True, is_quiet=True, echo=lines.append) as shows:
        shows(Tick(RunFacts(0.0, batches=1), None, 0))  # type: ignore[arg-type]
    assert lines == []
