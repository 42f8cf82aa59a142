"""The errors that programs catch: all importable from `penstock`, and on a page, which is right."""

import builtins
import re
from pathlib import Path

import pytest

import penstock
import penstock.errors

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
ROW = re.compile(r"^\| `(\w+)` \|([^|]*)\|[^|]*\|([^|]*)\|$", re.MULTILINE)
PAGE = (ROOT / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")


def defined() -> set[str]:
    """The names of all errors in the module of errors."""
    return {
        name
        for name, value in vars(penstock.errors).items()
        if isinstance(value, type) and issubclass(value, penstock.PenstockError)
    }


def test_all_errors_are_in_penstock_and_on_the_page() -> None:
    assert {name for name in penstock.__all__ if name.endswith("Error")} == defined()
    assert {name for name, _, _ in ROW.findall(PAGE)} == defined() - {"PenstockError"}
    for name in defined():
        assert issubclass(getattr(penstock, name), penstock.PenstockError)
        assert name in dir(penstock)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_errors_that_the_docs_name_can_be_imported(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for name in re.findall(r"`(?:penstock\.)?([A-Z]\w*Error)`", text):
        assert hasattr(penstock, name) or hasattr(builtins, name), name


@pytest.mark.parametrize(("name", "bases", "attributes"), ROW.findall(PAGE))
def test_the_page_tells_bases_and_attributes(name: str, bases: str, attributes: str) -> None:
    kind = getattr(penstock, name)
    for base in re.findall(r"`([\w.]+)`", bases):
        module, _, inner = base.rpartition(".")
        known = getattr(penstock, base, None) or getattr(builtins, base, None)
        assert issubclass(kind, known or getattr(__import__(module), inner))
    source = Path(penstock.errors.__file__).read_text(encoding="utf-8")
    for attribute in re.findall(r"`(\w+)`", attributes):
        assert f"self.{attribute} = " in source
