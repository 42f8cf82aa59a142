"""Rows that a sink takes for a DataFrame: a Spark schema, and Arrow batches as its tasks get them.

`without_spark` makes a sink's module run its tasks here, in this process and without a JVM.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest


@dataclass
class Rows:
    """tasks: for each task a table of Arrow."""

    schema: Any
    tasks: list[Any]


def rows_of(*tasks: Any) -> Rows:
    """Of tables of Arrow, all of the same columns."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return Rows(from_arrow_schema(tasks[0].schema), list(tasks))


def without_spark(patched: "pytest.MonkeyPatch", module: ModuleType) -> None:
    """See the head of this module."""

    def by_tasks(rows: Rows, write: Callable[[Iterable[Any]], Iterator[bytes]]) -> list[bytes]:
        return [fact for task in rows.tasks for fact in write(task.to_batches())]

    patched.setattr(module, "by_tasks", by_tasks)
