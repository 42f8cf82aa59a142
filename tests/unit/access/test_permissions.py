"""Identity: patterns as RabbitMQ reads them, what is remembered, who may come from where."""

import json

import pytest

from penstock.access.permissions import (
    CACHE_NAMES_MAX,
    GUEST_OFF,
    PATTERN_CHARS_MAX,
    SCOPES_CHARS_MAX,
    Identity,
    PatternCache,
    check_pattern,
    everything,
    why_not_from,
)
from penstock.errors import OptionError


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        (".*", ["a", "", "amq.direct", "a b"], []),
        ("", [], ["a", "", "^$"]),
        ("^$", [], ["a", ""]),
        ("^jobs-", ["jobs-1"], ["my-jobs-1", "jobs"]),
        ("jobs", ["my-jobs-1", "jobs"], ["job"]),
        ("^(amq\\.gen.*|amq\\.default)$", ["amq.gen-x", ""], ["amq.direct", "a"]),
    ],
)
def test_a_pattern_is_searched_in_the_name(pattern: str, yes: list[str], no: list[str]) -> None:
    cache = PatternCache(pattern)
    for _ in range(2):  # found out, then remembered
        assert [name for name in yes if not cache.matches(name)] == []
        assert [name for name in no if cache.matches(name)] == []


def test_each_verb_has_its_pattern() -> None:
    who = Identity("u", frozenset({"monitoring"}), "^c", "^w", "^r")
    names = ("c", "w", "r")
    assert [who.may_configure(n) for n in names] == [True, False, False]
    assert [who.may_write(n) for n in names] == [False, True, False]
    assert [who.may_read(n) for n in names] == [False, False, True]
    assert not who.is_administrator
    assert everything("u").is_administrator
    assert everything("u").may_configure("anything")


def test_only_so_many_names_are_remembered() -> None:
    cache = PatternCache("7$")
    for number in range(3 * CACHE_NAMES_MAX):
        assert cache.matches(str(number)) is (number % 10 == 7)
    assert len(cache._known) <= CACHE_NAMES_MAX


def test_an_identity_goes_to_another_process_as_json() -> None:
    who = Identity("ü", frozenset({"b", "a"}), "^c", "", ".*")
    again = Identity.from_facts(json.loads(json.dumps(who.facts())))
    assert again.facts() == who.facts()
    assert again.tags == who.tags
    assert again.may_read("x")
    assert not again.may_write("x")


@pytest.mark.parametrize("pattern", ["(", "*", "a{2,1}", "[z-a]", "\udc80"])
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    for at, verb in enumerate(("configure", "write", "read")):
        patterns = [".*"] * 3
        patterns[at] = pattern
        with pytest.raises(OptionError, match=f"option {verb}: given"):
            Identity("u", frozenset(), *patterns)


def test_a_pattern_has_an_end() -> None:
    check_pattern("read", "a" * PATTERN_CHARS_MAX)
    with pytest.raises(OptionError, match="at most 1024"):
        check_pattern("read", "a" * (PATTERN_CHARS_MAX + 1))
    with pytest.raises(OptionError, match="at most 65536"):  # that of a token may be longer
        Identity("u", frozenset(), "a" * (SCOPES_CHARS_MAX + 1), "", "")


@pytest.mark.parametrize(
    ("host", "is_ours"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("10.0.0.1", False),
        ("::ffff:10.0.0.1", False),
        ("fe80::1%eth0", False),
        ("::", False),
        ("localhost.example.org", False),
        ("", False),
    ],
)
def test_guest_comes_from_this_machine_only(host: str, is_ours: bool) -> None:
    why = "" if is_ours else "it may connect from this machine only"
    assert why_not_from("guest", host) == why
    assert why_not_from("somebody", host) == ""
    assert why_not_from("guest", host, GUEST_OFF) == "guest is off"
    assert why_not_from("somebody", host, GUEST_OFF) == ""
    assert why_not_from("ann", host, loopback_users=("ann", "guest")) == why
    assert why_not_from("guest", host, loopback_users=()) == ""


def test_connections_of_a_user_share_an_identity_until_its_permissions_change() -> None:
    one = Identity("u", frozenset({"t"}), "^a", "^b", "^c", {"x": ("k", "")}, expires_at_s=9)
    facts = one.facts()
    first, second = Identity.from_facts(facts), Identity.from_facts(one.facts())
    assert first is second
    assert first.facts() == facts
    assert first.may_write("b")
    assert not first.may_write("a")
    for name, value in (("write", "^a"), ("topics", {}), ("tags", []), ("expires_at_s", 10)):
        other = Identity.from_facts({**facts, name: value})
        assert other is not first
        assert other.facts() == {**facts, name: value}
    assert Identity.from_facts({**facts, "write": "^a"}).may_write("a")
