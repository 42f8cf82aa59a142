"""`make audit`: what was not looked up is never called clean."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def audit() -> Any:
    spec = importlib.util.spec_from_file_location("audit", ROOT / "tools" / "audit.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GOOD = {"name": "A_b", "version": "1", "vulns": []}
BAD = {"name": "c", "version": "2", "vulns": [{"id": "CVE-1", "fix_versions": ["2.1"]}]}
SKIPPED = {"name": "d", "skip_reason": "Dependency not found on PyPI"}


def test_all_were_looked_up(audit: Any) -> None:
    assert audit.told({"a-b"}, [GOOD], "") == (
        0, ["make audit: nothing is known against any of 1 versions"],
    )  # fmt: skip


def test_a_vulnerability_fails_and_says_what_mends_it(audit: Any) -> None:
    status, lines = audit.told({"a-b", "c"}, [GOOD, BAD, SKIPPED], "")
    assert status == 1
    assert lines[0] == "c 2: CVE-1, mended in 2.1"


@pytest.mark.parametrize(
    ("found", "why", "told"),
    [
        ([GOOD, SKIPPED], "", "1 of 2 versions could not be looked up (d): Dependency not found"),
        ([], "no route to host", "2 of 2 versions could not be looked up (a-b, d): no route"),
        ([GOOD], "", "(d): pip-audit does not mention them"),
    ],
)
def test_what_was_not_looked_up_is_no_success(
    audit: Any, found: list[Any], why: str, told: str
) -> None:
    status, (line,) = audit.told({"a-b", "d"}, found, why)
    assert status == 69
    assert line.startswith("make audit: NOT KNOWN: ")
    assert told in line


def test_the_names_in_constraints(audit: Any) -> None:
    names = audit.pinned(str(ROOT / "constraints.txt"))
    assert {"starlette", "h11", "pyspark", "import-linter"} <= names
