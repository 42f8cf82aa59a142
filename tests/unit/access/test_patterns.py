"""Patterns: linear time, what is refused, and patterns that an older version stored."""

import logging
import random

import pytest

from penstock.access import permissions
from penstock.access.permissions import PATTERN_CHARS_MAX, Pattern, check_pattern
from penstock.access.users import KnownUsers
from penstock.errors import OptionError
from tests.helpers.steps import cost_of

BACKREFERENCE = r"^(a)\1$"


@pytest.fixture(params=["as installed", "without re2"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With what is installed, and as on a machine for which there is no wheel of RE2."""
    if request.param == "without re2":
        monkeypatch.setattr(permissions, "re2", None)
    return str(request.param)


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        (".*", ["", "a", "é", "\udcff"], []),
        ("^.*$", ["a", "\udcff\udc80", "éa"], []),
        ("^jobs[.-][0-9]+$", ["jobs-12"], ["jobs-", "jobs-1x", "xjobs-1"]),
        ("^(a.*|b.*|amq\\.default)$", ["ab", "b", "amq.default"], ["c", "xb"]),
        ("(?i)^JOBS$", ["jobs", "Jobs"], ["job"]),
        ("^é", ["éa"], ["e"]),
    ],
)
@pytest.mark.usefixtures("engine")
def test_what_people_write_for_names(pattern: str, yes: list[str], no: list[str]) -> None:
    compiled = Pattern(pattern)
    assert [name for name in yes if not compiled.is_in(name)] == []
    assert [name for name in no if compiled.is_in(name)] == []


@pytest.mark.parametrize(
    "pattern",
    [
        BACKREFERENCE, "(?=a)b", "(?<=a)b", "(", "a**", "a(?!secret)", "^(?!a)b|c", "^(?!a)+b",
        "^(?!)b", "^(?!a", r"^(?!a)(?!b)", r"^(?!(a)\1)b",
    ],
)  # fmt: skip
@pytest.mark.usefixtures("engine")
def test_what_cannot_be_matched_is_refused(pattern: str) -> None:
    with pytest.raises(OptionError, match="regular expression of RE2"):
        check_pattern("write", pattern)


@pytest.mark.parametrize(
    "pattern", ["^(a+)+$", "^(a|aa)+$", "^(a?)*$", ".*.*.*x", "(a*)*b", "(?:x|(?:a+)+)$"]
)
def test_what_backtracks_is_linear_or_refused(engine: str, pattern: str) -> None:
    """With RE2 there is no way back; with `re` there are two repeats to go back through at most."""
    if engine == "without re2" or not permissions.has_re2():
        with pytest.raises(ValueError, match="google-re2"):
            Pattern(pattern)
        return
    compiled = Pattern(pattern)
    assert not compiled.is_in("a" * 60 + "!") or pattern == "^(a?)*$"


def test_a_long_one_is_refused_before_it_is_compiled() -> None:
    def compile_it() -> None:
        with pytest.raises(ValueError, match="1000000 characters"):
            Pattern("(" * 10**6)

    assert cost_of(compile_it).lines < 20
    Pattern("a" * PATTERN_CHARS_MAX)


def test_a_stored_pattern_that_is_refused_now_matches_nothing_and_is_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    users = KnownUsers(rng=random.Random(1), log2_n=1)
    users.take(
        {
            "users": [["ann", "hash", []]],
            "vhosts": [["/", "ready"]],
            "permissions": [["ann", "/", BACKREFERENCE, "^jobs", ".*"]],
            "topics": [],
        }
    )
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            who = users.identity("ann", "/")
            assert who is not None
            assert not who.may_configure("aa")
            assert who.may_write("jobs")
            assert who.may_read("any")
    (record,) = caplog.records
    text = record.getMessage()
    assert "'ann'" in text
    assert "'/'" in text
    assert "set_permissions" in text


@pytest.mark.parametrize(
    ("pattern", "matched", "others"),
    [
        (r"^(?!amq\.).*", ("orders", "", "amq", "a.amq.gen"), ("amq.gen-1", "amq.")),
        (r"^(?!amq\.|federation:)[a-z]+$", ("orders",), ("amq.x", "federation: q", "Orders")),
        (r"^(?!(a|b)$)", ("ab", "c"), ("a", "b")),
        (r"^(?![)a])x?", ("b", "x"), (")", "a")),
        (r"^(?![])]x)", ("]", "x"), ("]x", ")x")),
        (r"^(?!\))(a|b)", ("a", "b"), (")a", "c")),
    ],
)
@pytest.mark.usefixtures("engine")
def test_names_that_begin_otherwise(
    pattern: str, matched: tuple[str, ...], others: tuple[str, ...]
) -> None:
    """The look-ahead of RabbitMQ's own examples, which RE2 does not have."""
    found = Pattern(pattern)
    assert [name for name in matched if not found.is_in(name)] == []
    assert [name for name in others if found.is_in(name)] == []
