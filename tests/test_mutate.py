"""tools/mutate.py: what it changes is still Python, and none of it is a text."""

import ast
from pathlib import Path

import pytest

from tools.mutate import SOURCE, Finder, stages

MODULE = '''"""Adds 1 and 2, or not."""
import logging

def add(a: int, b: "list[int] | None" = None) -> int:
    """Return a + 1."""
    log = logging.getLogger()
    log.info("a + 1")
    if a < 1 and b is not None:
        b.append(a)
    return a + 2
'''


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr("tools.mutate.SOURCE", tmp_path)
    path = tmp_path / "module.py"
    path.write_text(MODULE)
    return path


def test_operators_numbers_conditions_and_calls_are_changed(module: Path) -> None:
    found = [(one.line, one.old, one.new) for one in Finder(module).all()]
    assert sorted(found) == [
        (8, "1", "2"),
        (8, "<", "<="),
        (8, "a < 1 and b is not None", "(not (a < 1 and b is not None))"),
        (8, "and", "or"),
        (8, "is not", "is"),
        (9, "b.append(a)", "pass"),
        (10, "+", "-"),
        (10, "2", "3"),
    ]


def test_each_is_still_python(module: Path) -> None:
    for one in Finder(module).all():
        data = module.read_bytes()
        ast.parse(data[: one.start] + one.new.encode() + data[one.end :])


def test_the_tests_of_a_module_come_before_wider_ones() -> None:
    path = (SOURCE / "storage" / "tools" / "salvage.py").relative_to(SOURCE)
    first, second, last = stages(path)
    assert [Path(name).name for name in first] == ["test_salvage.py"]
    assert second[0].endswith("tests/unit/storage")
    assert any(name.endswith("tests/crash") for name in last)
