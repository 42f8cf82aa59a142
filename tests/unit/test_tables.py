"""What a new row of one table needs elsewhere: CONTRIBUTING.md walks through each.

A queue argument stands in QueueOptions, in the broker's table and among the library's options; each
argument, exchange type, option and command has its place in the documentation, and each operation
its row in a page.
"""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from penstock.broker.arguments import ARGUMENTS
from penstock.config import QUEUES, Config, settings
from penstock.embedded.option_parsing import (
    QUEUE_KEYWORDS,
    STREAM_KEYWORDS,
    QueueGiven,
    StreamGiven,
)
from penstock.options import value_of
from penstock.queues.queue_options import QUEUE_ARGUMENTS, QueueOptions
from penstock.routing.exchange_types import TYPES
from tools.configuration import (
    METRICS_PAGE,
    OPERATIONS_PAGE,
    PAGE,
    TABLES,
    metrics_page,
    operations_page,
    page,
    with_tables,
)

ROOT = Path(__file__).parent.parent.parent
COMPOSED = {
    "alert_": "alerts",
    "retry_delay_": "retry_delay",
}  # several options, one of the library


def library_name(option: str) -> str:
    """The name that the library has for an option of QueueOptions."""
    for start, name in COMPOSED.items():
        if option.startswith(start):
            return name
    given = QueueGiven.__annotations__
    return option if option in given else option.removesuffix("_bytes").removesuffix("_ms")


def test_each_option_of_a_queue_is_one_of_the_library() -> None:
    options = {field.name for field in fields(QueueOptions)} - {"extra"}
    missing = {name for name in options if library_name(name) not in QueueGiven.__annotations__}
    assert not missing, "add them to QueueGiven in embedded/option_parsing.py"


def test_each_option_of_the_library_is_a_row() -> None:
    assert {option.name for option in QUEUE_KEYWORDS} == set(QueueGiven.__annotations__)
    assert {option.name for option in STREAM_KEYWORDS} == set(StreamGiven.__annotations__)


def test_each_argument_of_a_queue_is_in_the_table_of_the_broker() -> None:
    missing = {option.name for option in QUEUE_ARGUMENTS} - set(ARGUMENTS)
    assert not missing, "add them to ARGUMENTS in broker/arguments.py"


def test_each_option_of_a_queue_is_a_row_with_a_field() -> None:
    names = {field.name for field in fields(QueueOptions)} - {"extra", "dead_letter_to"}
    assert {option.target for option in QUEUE_ARGUMENTS} == names


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.name)
def test_the_tables_of_a_page_are_those_of_the_code(path: Path) -> None:
    told = "python tools/configuration.py --repair"
    assert path.read_text(encoding="utf-8") == with_tables(path), told


def test_the_page_of_the_configuration_is_that_of_the_tables() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "python tools/configuration.py --repair"


def test_each_option_is_a_field_with_a_good_default() -> None:
    for one in settings():
        table = getattr(Config(), one.table) if one.table else Config()
        assert hasattr(table, one.option.target), one.key
        if one.default and one.table != QUEUES:
            value_of(one.option.kind, one.key, one.default)


def test_the_documentation_has_each_word() -> None:
    pages = [path for path in (ROOT / "docs").rglob("*.md") if path.name != "words.md"]
    text = "\n".join(path.read_text(encoding="utf-8") for path in pages)
    names = {
        *ARGUMENTS, *TYPES, *(one.option.name for one in settings()),
        *QueueGiven.__annotations__, *StreamGiven.__annotations__,
    }  # fmt: skip
    words = set(re.findall(r"[\w.-]+", text))
    assert not names - words


def test_the_page_of_operations_is_that_of_the_table() -> None:
    text = OPERATIONS_PAGE.read_text(encoding="utf-8")
    assert text == operations_page(), "python tools/configuration.py --repair"


def test_the_page_of_metrics_is_that_of_the_table() -> None:
    text = METRICS_PAGE.read_text(encoding="utf-8")
    assert text == metrics_page(), "python tools/configuration.py --repair"
