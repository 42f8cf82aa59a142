"""Penstock answers scripted sessions as RabbitMQ did when they were recorded.

The sessions and how they are recorded: tests/conformance/compared. What differs is listed there,
with the heading of docs/reference/compatibility.md that has the reason; its answers are recorded,
too.
"""

from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from penstock.http.endpoint_table import ENDPOINTS
from tests.conformance.compared.compare import difference
from tests.conformance.compared.corpus import FAMILIES, scripts
from tests.conformance.compared.differences import DIFFERENCES, reason
from tests.conformance.compared.http_api import CALLS
from tests.conformance.compared.http_differences import DIFFERENCES as HTTP_DIFFERENCES
from tests.conformance.compared.recorded import OURS, THEIRS, read_transcripts
from tests.conformance.compared.runner import Runner
from tests.conformance.compared.script import Script
from tests.helpers.live_broker import Broker

pytestmark = pytest.mark.penstock_only
RABBITMQ = read_transcripts(THEIRS)
PENSTOCK = read_transcripts(OURS)
PAGE = Path(__file__).parent.parent.parent / "docs" / "reference" / "compatibility.md"


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_answers_are_rabbitmqs_or_listed(
    broker: Broker, family: Callable[[], list[Script]]
) -> None:
    runner = Runner(broker)
    wrong: list[str] = []
    for script in family():
        expected = (PENSTOCK if reason(script.id) else RABBITMQ)[script.id]
        found = runner.run(script, expected)
        if found != expected:
            wrong.append(f"{script.id}\n{difference(expected, found)}")
    runner.close()
    assert not wrong, "\n".join([*wrong, f"{len(wrong)} sessions"])


def test_every_session_is_recorded_and_every_difference_is_one() -> None:
    ids = [script.id for script in scripts()]
    assert sorted(ids) == sorted(RABBITMQ)
    assert sorted(one for one in ids if reason(one)) == sorted(PENSTOCK)
    assert [one for one in PENSTOCK if PENSTOCK[one] == RABBITMQ[one]] == []


def test_every_difference_has_its_reason_in_the_page() -> None:
    headings = [line[3:] for line in PAGE.read_text().splitlines() if line.startswith("## ")]
    assert set(DIFFERENCES) <= set(headings)
    for patterns in DIFFERENCES.values():
        for pattern in patterns:
            assert any(fnmatchcase(one, pattern) for one in PENSTOCK), pattern


def test_every_endpoint_of_rabbitmq_is_asked_of_both() -> None:
    asked = {(call.method, call.path) for call in CALLS}
    assert asked == {(row.method, row.path) for row in ENDPOINTS if not row.is_ours}


def test_every_difference_of_the_http_api_has_its_reason_in_the_page() -> None:
    section = " ".join(PAGE.read_text().partition("\n## The HTTP API\n")[2].split())
    assert [words for words in HTTP_DIFFERENCES if words not in section] == []
