"""LakeRig: a pipeline of a test that ends in tables; a stand-in is its source, no broker runs."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.spark.pipeline import Pipeline, PipelineError
from penstock.spark.pipeline_file import PipelineSpec, parse_pipeline
from penstock.spark.pipeline_state import RunFacts
from tests.spark.stand_in import event, put, stream_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HEAD = '[pipeline]\nname = "job"\nstate = "{dir}/state"\n[source]\nqueue = "events"\n'
TRANSFORM = """
[transform]
schema = "row INT, month INT, carrier STRING, delay INT"
sql = "SELECT row, month, carrier, delay FROM source"
"""


class DeathError(Exception):
    """The driver dies here."""


class LakeRig:
    """See the head of this module."""

    def __init__(self, spark: "SparkSession", directory: Path) -> None:
        self.spark = spark
        self.directory = directory
        self.rows = 0

    def put(self, rows: int) -> None:
        """A batch of so many events."""
        values = [event(row) for row in range(self.rows, self.rows + rows)]
        put(self.spark, self.directory / "in", self.rows, values)
        self.rows += rows

    def spec(self, text: str) -> PipelineSpec:
        """ "{dir}" is the test's directory."""
        return parse_pipeline("p.toml", (HEAD + text).replace("{dir}", str(self.directory)), "job")

    def run(self, text: str) -> RunFacts:
        """All that is there."""
        source = stream_of(self.spark, self.directory / "in")
        return Pipeline(self.spec(text), self.spark, source=source).run()


def dying(
    patched: pytest.MonkeyPatch, owner: type[Any], name: str, *, before: bool, call: int
) -> None:
    """Of an object's method: the given call (from 1) dies before or after its work."""
    real: Callable[..., Any] = getattr(owner, name)
    calls: list[int] = []

    def method(self: Any, *given: Any, **named: Any) -> Any:
        calls.append(1)
        if before and len(calls) == call:
            raise DeathError
        found = real(self, *given, **named)
        if len(calls) == call:
            raise DeathError
        return found

    patched.setattr(owner, name, method)


def check_a_death(
    rig: LakeRig, monkeypatch: pytest.MonkeyPatch, sink: str,
    rows: Callable[[LakeRig], list[Any]], owner: type[Any], name: str, *, before: bool,
) -> None:  # fmt: skip
    """The driver dies in the second of two batches, and starts again: each row is there once.
    rows: those of the table, in order."""
    rig.put(50)
    rig.put(50)
    with monkeypatch.context() as patched:
        dying(patched, owner, name, before=before, call=2)
        with pytest.raises(PipelineError):
            rig.run(TRANSFORM + sink)
    assert len(rows(rig)) == (50 if before else 100)
    assert rig.run(TRANSFORM + sink).outcome == "done"
    assert [row["row"] for row in rows(rig)] == list(range(100))
