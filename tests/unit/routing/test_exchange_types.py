"""Exchange types: what each selects, RabbitMQ's rules for headers, and the contract of all."""

from datetime import UTC, datetime
from decimal import Decimal
from random import Random

import pytest

from penstock.codec.fields import encode_table
from penstock.codec.properties import BasicProperties
from penstock.errors import AMQPConnectionError, ChannelError
from penstock.routing.exchange_types import (
    BINDING_BYTES,
    DIGEST_BYTES,
    ENTRY_BYTES,
    HISTORY_BYTES_MAX,
    TYPES,
    Asked,
    Binding,
    ExchangeType,
    Kept,
    RecentHistoryExchange,
    comparable,
    make_exchange_type,
)

ONE_OF_ALL = ("x-consistent-hash", "x-modulus-hash", "x-random", "x-local-random")
DELAYED_AS: dict[str, object] = {"x-delayed-type": "topic", "x-cache-size": 9}


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
    kept, gone, twin = to("kept", "1"), to("gone", "1"), to("kept", "1", {"n": None})
    for binding in (kept, gone, twin):
        exchange.bind(binding)
    exchange.unbind(gone)
    exchange.unbind(twin)
    found: dict[str, int] = {}
    exchange.select(Asked(["1"], {"n": 1}), found)
    assert list(found) == ["qkept"]
    exchange.unbind(kept)
    found = {}
    exchange.select(Asked(["1"], {"n": 1}), found)
    assert found == {}


@pytest.mark.parametrize("type_name", TYPES)
def test_a_queue_and_an_exchange_of_one_name_are_two_and_each_comes_once(type_name: str) -> None:
    bindings = [
        to("n", "1"), to("n", "1", {"a": None}), Binding("x", "e", "n", "1", {}), to("n", "2")
    ]  # fmt: skip
    got = selected(type_name, bindings, "1", "2", headers={"a": 1}, arguments=DELAYED_AS)
    if type_name in ONE_OF_ALL:
        assert len(got) == 1
        assert got < {"qn", "en"}
    else:
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


# --- one of all ---


def hashed(weights: dict[str, str], keys: list[str], **arguments: object) -> dict[str, str]:
    """Where a consistent hash sends each key: the name of the queue."""
    named = {name.replace("_", "-"): value for name, value in arguments.items()}
    bindings = [to(name, weight) for name, weight in weights.items()]
    found: dict[str, str] = {}
    for key in keys:
        (target,) = selected("x-consistent-hash", bindings, key, arguments=named)
        found[key] = target[1:]
    return found


KEYS = [f"user.{i}" for i in range(2000)]


def test_a_consistent_hash_gives_each_queue_its_weight_of_the_keys() -> None:
    got = hashed({"a": "1", "b": "2", "c": "1"}, KEYS)
    counts = {name: list(got.values()).count(name) for name in "abc"}
    assert 400 < counts["a"] < 600
    assert 900 < counts["b"] < 1100
    assert 400 < counts["c"] < 600


def test_a_consistent_hash_does_not_depend_on_the_order_of_the_bindings() -> None:
    assert hashed({"a": "1", "b": "2"}, KEYS) == hashed({"b": "2", "a": "1"}, KEYS)


def test_only_the_keys_of_a_queue_that_goes_move_to_others() -> None:
    before = hashed({"a": "1", "b": "2", "c": "1"}, KEYS)
    after = hashed({"a": "1", "c": "1"}, KEYS)
    assert all(after[key] == name for key, name in before.items() if name != "b")
    more = hashed({"a": "1", "b": "2", "c": "1", "d": "4"}, KEYS)
    assert all(more[key] in (name, "d") for key, name in before.items())


def test_several_bindings_of_one_queue_add_up_to_its_weight() -> None:
    exchange = make_exchange_type("x-consistent-hash", {})
    for binding in (to("a", "1"), to("a", "2"), to("b", "3")):
        exchange.bind(binding)
    exchange.unbind(to("a", "2"))
    found: dict[str, int] = {}
    counts = {"qa": 0, "qb": 0}
    for key in KEYS:
        found.clear()
        exchange.select(Asked([key], None), found)
        counts[next(iter(found))] += 1
    assert 400 < counts["qa"] < 600


@pytest.mark.parametrize("key", ["", "k", "1.5", "0", "-1", " 1", "\u0661"])
def test_the_key_of_a_binding_to_a_consistent_hash_is_a_weight(key: str) -> None:
    with pytest.raises(ChannelError, match="The binding key must be"):
        make_exchange_type("x-consistent-hash", {}).bind(to("q", key))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"hash-header": "h", "hash-property": "message_id"}, "mutually exclusive"),
        ({"hash-property": "app_id"}, "Unsupported property: app_id; expected one of correlation"),
        ({"hash-header": 1}, "hash-header and hash-property are texts"),
    ],
)
def test_wrong_arguments_of_a_consistent_hash(arguments: dict[str, object], text: str) -> None:
    with pytest.raises(ChannelError, match=text):
        make_exchange_type("x-consistent-hash", arguments)


def by_properties(exchange: ExchangeType, properties: BasicProperties) -> str:
    asked = Asked(["same"], properties.headers)
    asked.properties = properties
    found: dict[str, int] = {}
    exchange.select(asked, found)
    return next(iter(found))


@pytest.mark.parametrize("name", ["correlation_id", "message_id", "timestamp", "header"])
def test_a_consistent_hash_by_a_header_or_a_property(name: str) -> None:
    arguments: dict[str, object] = {"hash-property": name}
    if name == "header":
        arguments = {"hash-header": "h"}
    exchange = make_exchange_type("x-consistent-hash", arguments)
    assert exchange.is_per_message
    for queue in "abcd":
        exchange.bind(to(queue, "1"))

    def sent(i: int) -> str:
        if name == "header":
            return by_properties(exchange, BasicProperties(headers={"h": i}))
        value = i if name == "timestamp" else str(i)
        return by_properties(exchange, BasicProperties(**{name: value}))

    assert {sent(i) for i in range(100)} == {"qa", "qb", "qc", "qd"}
    assert [sent(i) for i in range(9)] == [sent(i) for i in range(9)]
    without = {by_properties(exchange, BasicProperties(app_id=str(i))) for i in range(9)}
    assert len(without) == 1  # the empty key


def test_a_modulus_hash_spreads_keys_and_keeps_each_on_one_queue() -> None:
    bindings = [to("a"), to("b"), to("c")]
    got = {key: selected("x-modulus-hash", bindings, key) for key in KEYS[:300]}
    assert set().union(*got.values()) == {"qa", "qb", "qc"}
    again = {key: selected("x-modulus-hash", bindings[::-1], key) for key in KEYS[:300]}
    assert got == again


@pytest.mark.parametrize("type_name", ["x-random", "x-local-random"])
def test_random_sends_each_message_to_one_queue_by_chance(type_name: str) -> None:
    exchange = make_exchange_type(type_name, {}, Random(7))
    assert exchange.is_per_message
    for queue in "abc":
        exchange.bind(to(queue, "k"))
    counts = {"qa": 0, "qb": 0, "qc": 0}
    for _ in range(300):
        asked = Asked(["k"], None)
        found: dict[str, int] = {}
        exchange.select(asked, found)
        assert asked.is_by_chance
        (target,) = found
        counts[target] += 1
    assert min(counts.values()) > 60


# --- recent history ---


def test_a_history_keeps_the_last_messages() -> None:
    exchange = make_exchange_type("x-recent-history", {"x-recent-history-length": 2})
    assert isinstance(exchange, RecentHistoryExchange)
    counted: dict[str, int] = {}
    exchange.count_with(lambda user, n: counted.update({user: counted.get(user, 0) + n}))
    for i in range(4):
        exchange.keep(Kept(b"h%d" % i, b"body", False, 0, None))
    assert [kept.header for kept in exchange.kept] == [b"h2", b"h3"]
    assert counted == exchange.held() == {"": sum(kept.held_bytes for kept in exchange.kept)}


def test_a_history_is_bounded_in_bytes() -> None:
    exchange = make_exchange_type("x-recent-history", {})
    assert isinstance(exchange, RecentHistoryExchange)
    for _ in range(3):
        exchange.keep(Kept(b"", bytes(400_000), False, 0, None))
    assert len(exchange.kept) == 2
    exchange.keep(Kept(b"", bytes(HISTORY_BYTES_MAX), False, 0, None))
    assert len(exchange.kept) == 2


@pytest.mark.parametrize("length", [0, -1, "2", True, None])
def test_the_length_of_a_history_is_a_number(length: object) -> None:
    with pytest.raises(ChannelError, match="'x-recent-history-length' must be a positive integer"):
        make_exchange_type("x-recent-history", {"x-recent-history-length": length})
