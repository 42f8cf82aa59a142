"""Exchange types: what each selects, RabbitMQ's rules for headers, and the contract of all."""

from datetime import UTC, datetime
from decimal import Decimal

import pytest

from penstock.codec.fields import encode_table
from penstock.errors import AMQPConnectionError, ChannelError
from penstock.routing.exchange_types import (
    BINDING_BYTES,
    DIGEST_BYTES,
    ENTRY_BYTES,
    TYPES,
    Asked,
    Binding,
    comparable,
    make_exchange_type,
)

DELAYED_AS: dict[str, object] = {"x-delayed-type": "topic"}


def selected(
    type_name: str,
    bindings: list[Binding],
    *keys: str,
    headers: dict[str, object] | None = None,
    arguments: dict[str, object] | None = None,
) -> set[str]:
    exchange = make_exchange_type(type_name, arguments or {})
    for binding in bindings:
        exchange.bind(binding)
    found: dict[str, int] = {}
    assert exchange.select(Asked(list(keys), headers), found) is None
    return set(found)


def to(destination: str, key: str = "", arguments: dict[str, object] | None = None) -> Binding:
    return Binding("x", "q", destination, key, arguments or {})


def holds(arguments: dict[str, object], headers: dict[str, object] | None) -> bool:
    return bool(selected("headers", [to("q", "", arguments)], "any", headers=headers))


# --- the contract of every type ---


@pytest.mark.parametrize("type_name", TYPES)
def test_what_was_unbound_selects_nothing_and_the_rest_still_does(type_name: str) -> None:
    exchange = make_exchange_type(type_name, DELAYED_AS)
    kept, gone, twin = to("kept", "k"), to("gone", "k"), to("kept", "k", {"n": None})
    for binding in (kept, gone, twin):
        exchange.bind(binding)
    exchange.unbind(gone)
    exchange.unbind(twin)
    found: dict[str, int] = {}
    exchange.select(Asked(["k"], {"n": 1}), found)
    assert list(found) == ["qkept"]
    exchange.unbind(kept)
    found = {}
    exchange.select(Asked(["k"], {"n": 1}), found)
    assert found == {}


@pytest.mark.parametrize("type_name", TYPES)
def test_a_queue_and_an_exchange_of_one_name_are_two_and_each_comes_once(type_name: str) -> None:
    bindings = [
        to("n", "k"), to("n", "k", {"a": None}), Binding("x", "e", "n", "k", {}), to("n", "l")
    ]  # fmt: skip
    got = selected(type_name, bindings, "k", "l", headers={"a": 1}, arguments=DELAYED_AS)
    assert got == {"qn", "en"}


# --- keys ---


def test_direct_goes_by_the_very_key() -> None:
    bindings = [to("a", "k"), to("b", "k"), to("c", "K"), to("d", "k.*"), to("e", "")]
    assert selected("direct", bindings, "k") == {"qa", "qb"}
    assert selected("direct", bindings, "") == {"qe"}
    assert selected("direct", bindings, "k.l") == set()


def test_several_keys_select_what_any_of_them_does() -> None:
    bindings = [to("a", "k"), to("b", "l"), to("c", "m")]
    assert selected("direct", bindings, "k", "l") == {"qa", "qb"}
    patterns = [to("a", "k.*"), to("b", "#.l"), to("c", "m")]
    assert selected("topic", patterns, "k.1", "x.l") == {"qa", "qb"}


def test_fanout_goes_to_all() -> None:
    assert selected("fanout", [to("a", "k"), to("b", "")], "whatever") == {"qa", "qb"}


def test_topic_goes_by_pattern() -> None:
    bindings = [to("a", "*.orange.*"), to("b", "lazy.#"), to("c", "quick")]
    assert selected("topic", bindings, "lazy.orange.fox") == {"qa", "qb"}


def test_delayed_routes_as_its_type() -> None:
    bindings = [to("a", "k.*")]
    assert selected("x-delayed-message", bindings, "k.l", arguments=DELAYED_AS) == {"qa"}
    as_direct: dict[str, object] = {"x-delayed-type": "direct"}
    assert selected("x-delayed-message", bindings, "k.l", arguments=as_direct) == set()


# --- headers ---


@pytest.mark.parametrize(
    ("arguments", "headers", "expected"),
    [
        ({"a": "1", "b": 2}, {"a": "1", "b": 2, "c": 3}, True),
        ({"a": "1", "b": 2}, {"a": "1"}, False),
        ({"x-match": "all", "a": "1"}, {"a": "2"}, False),
        ({"x-match": "any", "a": "1", "b": 2}, {"b": 2}, True),
        ({"x-match": "any", "a": "1", "b": 2}, {"a": 1, "b": "2"}, False),
        ({}, None, True),
        ({"x-match": "all"}, {"a": 1}, True),
        ({"x-match": "any"}, {"a": 1}, False),
        ({"a": None}, {"a": "anything"}, True),
        ({"a": None}, {"a": None}, True),
        ({"a": None}, {"b": 1}, False),
        ({"a": None}, None, False),
        ({"a": "v"}, {"a": None}, False),
        # "x-" names are no conditions ...
        ({"x-a": 1}, {}, True),
        ({"x-match": "any", "x-a": 1, "b": 1}, {"x-a": 1}, False),
        # ... unless asked for
        ({"x-match": "all-with-x", "x-a": 1}, {}, False),
        ({"x-match": "all-with-x", "x-a": 1}, {"x-a": 1}, True),
        ({"x-match": "any-with-x", "x-a": 1, "b": 1}, {"x-a": 1}, True),
        ({"x-match": "all-with-x", "a": 1}, {"a": 1, "x-match": "none"}, True),
    ],
)
def test_headers_conditions(
    arguments: dict[str, object], headers: dict[str, object] | None, expected: bool
) -> None:
    assert holds(arguments, headers) is expected


@pytest.mark.parametrize(
    "value",
    [
        0, 1, -5, 1 << 40, 1.0, True, False, "", "1", b"1", Decimal("1"), [1, "a"], [True, "a"],
        {"a": 1}, {"a": True}, {"a": [1.0]}, {}, [], datetime(2026, 1, 1, tzinfo=UTC),
    ],
    ids=repr,
)  # fmt: skip
def test_bindings_of_one_value_are_one_and_those_of_other_kinds_are_others(value: object) -> None:
    others: list[object] = [
        0, 1, -5, 1 << 40, 1.0, True, False, "", "1", b"1", Decimal("1"), [1, "a"], [True, "a"],
        {"a": 1}, {"a": True}, {"a": [1.0]}, {}, [], datetime(2026, 1, 1, tzinfo=UTC), None,
    ]  # fmt: skip
    hash(comparable(value))
    twins = [other for other in others if to("q", "", {"h": value}).identity
             == to("q", "", {"h": other}).identity]  # fmt: skip
    assert [repr(other) for other in twins] == [repr(value)]


KINDS: dict[str, list[object]] = {
    "number": [1, 1.0, datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)],
    "other number": [1.5],
    "truth": [True],
    "text": ["1", b"1", bytearray(b"1")],
    "no UTF-8": ["\udcff", b"\xff"],
    "decimal": [Decimal("1")],
    "list": [[1, "a"]],
    "list of doubles": [[1.0, "a"]],
    "table": [{"a": 1}],
    "table of truths": [{"a": True}],
}


@pytest.mark.parametrize("kind", KINDS)
def test_headers_match_across_types_of_numbers_and_of_text(kind: str) -> None:
    for value in KINDS[kind]:
        for other_kind, others in KINDS.items():
            for other in others:
                assert holds({"h": value}, {"h": other}) is (kind == other_kind), (value, other)


def test_a_binding_keeps_its_arguments_as_bytes() -> None:
    """A table of Python objects would take forty times as much."""
    arguments: dict[str, object] = {f"{n:x}": None for n in range(1200)}
    binding = to("q", "k", arguments)
    assert binding.arguments == arguments
    assert binding.encoded == encode_table(arguments)
    assert isinstance(binding.identity, tuple)
    assert len(binding.identity[3]) <= DIGEST_BYTES
    assert to("q", "k", dict(reversed(arguments.items()))).identity == binding.identity
    assert to("q", "k", arguments | {"0": 1}).identity != binding.identity
    assert BINDING_BYTES + 1200 * ENTRY_BYTES < binding.held_bytes < 250_000


@pytest.mark.parametrize("match", ["some", "", "ALL", 1, None, True])
def test_a_wrong_x_match_is_refused(match: object) -> None:
    with pytest.raises(ChannelError, match="Invalid x-match field") as caught:
        selected("headers", [to("q", "", {"x-match": match})], "k")
    assert caught.value.code == 406


def test_other_types_do_not_care_for_x_match() -> None:
    assert selected("direct", [to("q", "k", {"x-match": "some"})], "k") == {"qq"}


# --- which types there are ---


@pytest.mark.parametrize("name", ["", "Direct", "x-unheard-of"])
def test_an_unknown_type_is_refused(name: str) -> None:
    with pytest.raises(AMQPConnectionError, match=f"unknown exchange type '{name}'") as caught:
        make_exchange_type(name, {})
    assert caught.value.code == 503


@pytest.mark.parametrize("inner", [None, 1, "", "x-delayed-message", "nothing"])
def test_a_delayed_exchange_names_the_type_it_routes_as(inner: object) -> None:
    arguments = {} if inner is None else {"x-delayed-type": inner}
    with pytest.raises(ChannelError, match="'x-delayed-type' must be an existing exchange type"):
        make_exchange_type("x-delayed-message", arguments)
