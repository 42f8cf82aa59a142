"""Every word that a user knows leads to a function and to a test, and every citation is right.

tools/words.py collects the words from the tables in the code, checks the rows of tools/words.toml,
and writes docs/reference/words.md. A message says which cell is wrong and where that name is now;
`python tools/words.py --repair` follows what has moved.
"""

from pathlib import Path

import pytest

import penstock

if penstock.build_kind() != "pure":
    pytest.skip("compiled functions do not say where they stand", allow_module_level=True)

from tools import words

ROOT = Path(__file__).parent.parent


def test_each_word_has_a_function_and_a_test() -> None:
    wrong = words.mistakes()
    assert not wrong, "\n" + "\n".join(wrong)


def test_the_page_of_words_is_what_the_tables_say() -> None:
    text = words.PAGE.read_text(encoding="utf-8")
    assert text == words.page(), "run: PYTHONPATH=src .venv-pure/bin/python tools/words.py"


def test_pages_cite_code_and_tests_that_exist() -> None:
    pages = words.citing_pages()
    assert {page.name for page in pages} >= {"ARCHITECTURE.md", "CONTRIBUTING.md"}
    wrong = [line for page in pages for line in words.page_mistakes(page)]
    assert not wrong, "\n" + "\n".join(wrong)


def test_architecture_fits_one_sitting_and_links_the_words() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 250
    assert "(docs/reference/words.md)" in text


def test_what_moved_is_found_where_it_is() -> None:
    """The messages name the new place: first the same name, then the same last part of it."""
    assert "now: broker/publish.py:Publisher.run" in words.code_mistake("broker/x.py:Publisher.run")
    wrong = words.code_mistake("broker/publish.py:OldPublisher.facts_of")
    assert "broker/publish.py has no OldPublisher.facts_of" in wrong
    assert "now: broker/publish.py:Publisher.facts_of" in wrong
    assert "nothing has this name" in words.code_mistake("broker/publish.py:qqqqqqqqqq")
    here = f"{Path(__file__).name}::test_what_moved_is_found_where_it_is"
    assert words.test_mistake(f"tests/{here}") == ""
    assert f"now: tests/{here}" in words.test_mistake(f"tests/unit/{here}")


def test_a_word_without_a_row_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = {"Broker option": lambda: words.plain(["port", "no_such_option"])}
    monkeypatch.setattr(words, "KINDS", kinds)
    rows = {"Broker option": words.kept()["Broker option"] | {"gone": "tests/test_words.py::x"}}
    monkeypatch.setattr(words, "kept", lambda: rows)
    wrong = words.mistakes()
    assert any("Broker option, no_such_option: no row" in line for line in wrong)
    assert any("Broker option, gone: the code has no such word" in line for line in wrong)
    assert not any("Broker option, port:" in line for line in wrong)


def test_a_test_that_does_not_contain_the_word_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "KINDS", {"Exchange type": lambda: words.plain(["zzz" + "zzz"])})
    cells = ["routing/router.py:Walk.advance", "tests/test_words.py::test_each_word_has_a_function_and_a_test"]  # fmt: skip  # noqa: E501
    monkeypatch.setattr(words, "kept", lambda: {"Exchange type": {"zzz" + "zzz": cells}})
    (wrong,) = words.mistakes()
    assert wrong.endswith("tests/test_words.py does not contain '" + "zzz" * 2 + "'")
