"""Routing against matchers that are slow and plainly right: regular expressions, full searches."""

import re

from hypothesis import given
from hypothesis import strategies as st

from penstock.routing.exchange_types import TopicTrie
from penstock.routing.router import Router

WORDS = st.sampled_from(["a", "b", "cc", ""])
KEYS = st.lists(WORDS, max_size=5).map(".".join)
PATTERNS = st.lists(st.sampled_from(["a", "b", "cc", "", "*", "#"]), max_size=5).map(".".join)
NAMES = st.sampled_from(["x", "y", "z"])
QUEUES = st.sampled_from(["p", "q", "r"])


def is_matched(pattern: str, key: str) -> bool:
    """The pattern as a regular expression over words, each with a dot behind it."""
    parts = {"*": r"[^.]*\.", "#": r"(?:[^.]*\.)*"}
    words = pattern.split(".") if pattern else []
    expression = "".join(parts.get(word, re.escape(word) + r"\.") for word in words)
    return re.fullmatch(expression, key + "." if key else "") is not None


@given(st.lists(st.tuples(PATTERNS, QUEUES), max_size=12), st.lists(KEYS, max_size=6), st.data())
def test_the_trie_is_the_regular_expressions(
    bound: list[tuple[str, str]], keys: list[str], data: st.DataObject
) -> None:
    trie = TopicTrie()
    for pattern, target in bound:
        trie.add(pattern, target)
    kept = list(bound)
    for gone in data.draw(st.lists(st.sampled_from(bound), max_size=6) if bound else st.just([])):
        assert trie.remove(*gone) is (gone in kept)
        if gone in kept:
            kept.remove(gone)
    for key in keys:
        expected = {target for pattern, target in kept if is_matched(pattern, key)}
        found = trie.match(key)
        assert set(found) == expected
        assert len(found) == len(expected)
    for pattern, target in kept:
        assert trie.remove(pattern, target)
    assert trie.is_empty()


TYPE_NAMES = st.sampled_from(["direct", "fanout", "topic", "headers"])
EXCHANGES = st.dictionaries(NAMES, st.tuples(TYPE_NAMES, st.none() | NAMES), min_size=1)
HEADERS = st.dictionaries(st.sampled_from("mn"), st.sampled_from([1, True, "1", None]))
BINDINGS = st.lists(
    st.tuples(
        NAMES,
        st.tuples(st.just("q"), QUEUES) | st.tuples(st.just("e"), NAMES),
        PATTERNS,
        HEADERS | HEADERS.map(lambda h: {**h, "x-match": "any"}),
    ),
    max_size=10,
)
Bound = tuple[str, tuple[str, str], str, dict[str, object]]


def is_selected(type_name: str, binding: Bound, key: str, headers: dict[str, object]) -> bool:
    _, _, pattern, arguments = binding
    if type_name == "headers":
        wanted = {name: value for name, value in arguments.items() if name != "x-match"}
        holds = [
            name in headers
            and (value is None or (type(value), value) == (type(headers[name]), headers[name]))
            for name, value in wanted.items()
        ]
        return any(holds) if arguments.get("x-match") == "any" else all(holds)
    if type_name == "topic":
        return is_matched(pattern, key)
    return type_name == "fanout" or pattern == key


def plainly(
    exchanges: dict[str, tuple[str, str | None]],
    bindings: list[Bound],
    start: str,
    key: str,
    headers: dict[str, object],
) -> set[str]:
    """The queues reached from `start`, by a search over everything."""
    reached, queues = [start], set[str]()
    for name in reached:
        type_name, alternate = exchanges[name]
        to = [b[1] for b in bindings if b[0] == name and is_selected(type_name, b, key, headers)]
        if not to and alternate is not None:
            to = [("e", alternate)]
        queues |= {destination for kind, destination in to if kind == "q"}
        reached += [d for k, d in to if k == "e" and d in exchanges and d not in reached]
    return queues


@given(EXCHANGES, BINDINGS, st.lists(st.tuples(KEYS, HEADERS), max_size=4), st.data())
def test_the_router_is_a_search_over_everything(
    exchanges: dict[str, tuple[str, str | None]],
    wished: list[Bound],
    messages: list[tuple[str, dict[str, object]]],
    data: st.DataObject,
) -> None:
    router = Router(lambda name: True)
    for name, (type_name, alternate) in exchanges.items():
        router.declare(name, type_name, {"alternate-exchange": alternate} if alternate else {})
    bindings: list[Bound] = []
    for binding in wished:
        source, (kind, destination), key, arguments = binding
        if source in exchanges and (kind == "q" or destination in exchanges):
            router.bind(source, kind, destination, key, arguments)
            bindings.append(binding)

    def check() -> None:
        for key, headers in messages:
            for name in exchanges:
                found = router.route(name, key, headers)
                assert set(found) == plainly(exchanges, bindings, name, key, headers)
                assert len(found) == len(set(found))
                if not router.depends_on_headers(name):
                    assert router.route(name, key, None) == found
        assert {id(b) for b in router.bindings()} == {
            id(b) for q in "pqr" for b in router.bindings_to("q", q)
        } | {id(b) for x in "xyz" for b in router.bindings_to("e", x)}

    check()
    gone = data.draw(QUEUES)
    before = {b[0] for b in bindings}
    bindings = [b for b in bindings if b[1] != ("q", gone)]
    assert set(router.remove_queue(gone)) == before - {b[0] for b in bindings}
    check()
    lost = data.draw(st.sampled_from(sorted(exchanges)))
    before = {b[0] for b in bindings} - {lost}
    bindings = [b for b in bindings if b[0] != lost and b[1] != ("e", lost)]
    assert set(router.delete(lost)) == before - {b[0] for b in bindings}
    del exchanges[lost]
    check()
