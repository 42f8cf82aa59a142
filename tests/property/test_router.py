"""Routing against matchers that are slow and plainly right: regular expressions, full searches."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.routing import exchange_types
from penstock.routing.exchange_types import Asked, Rest, TopicMatch, TopicTrie
from penstock.routing.router import Router, Walk, Way
from tests.helpers.routed import route, way_of

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


def is_selected(
    type_name: str, binding: Bound, keys: list[str], headers: dict[str, object]
) -> bool:
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
        return any(is_matched(pattern, key) for key in keys)
    return type_name == "fanout" or pattern in keys


def plainly(
    exchanges: dict[str, tuple[str, str | None]],
    bindings: list[Bound],
    start: str,
    keys: list[str],
    headers: dict[str, object],
) -> set[str]:
    """The queues reached from `start`, by a search over everything."""
    reached, queues = [start], set[str]()
    for name in reached:
        type_name, alternate = exchanges[name]
        to = [b[1] for b in bindings if b[0] == name and is_selected(type_name, b, keys, headers)]
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
                found = route(router, name, key, headers)
                assert set(found) == plainly(exchanges, bindings, name, [key], headers)
                assert len(found) == len(set(found))
                if not way_of(router, name, [key]).per_message:
                    assert route(router, name, key, None) == found
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


# --- in slices, with several keys, and with changes between messages ---

SIX = ["u", "v", "w", "x", "y", "z"]
CHANGE = st.one_of(
    st.tuples(
        st.just("bind"),
        st.sampled_from(SIX),
        st.tuples(st.just("q"), QUEUES) | st.tuples(st.just("e"), st.sampled_from(SIX)),
        PATTERNS,
        HEADERS | HEADERS.map(lambda h: {**h, "x-match": "any"}),
    ),
    st.tuples(st.just("unbind"), st.integers(0, 30)),
    st.tuples(
        st.just("declare"), st.sampled_from(SIX), TYPE_NAMES, st.none() | st.sampled_from(SIX)
    ),
    st.tuples(st.just("delete"), st.sampled_from(SIX)),
    st.tuples(st.just("queue"), QUEUES),
    st.tuples(st.just("no queue"), QUEUES),
)
MESSAGE = st.tuples(
    st.just("route"), st.sampled_from(SIX), st.lists(KEYS, min_size=1, max_size=3), HEADERS
)


class Cache:
    """What publishers do: a Way for each exchange and key, as long as it is current."""

    def __init__(self, router: Router) -> None:
        self.router = router
        self.ways: dict[tuple[str, str], Way] = {}

    def route(self, name: str, keys: list[str], headers: dict[str, object], steps: int) -> set[str]:
        way = self.ways.get((name, keys[0])) if len(keys) == 1 else None
        if way is None or not self.router.is_current(way):
            way = Way(self.router, name)
            if len(keys) == 1:
                self.ways[name, keys[0]] = way
        walk = Walk(self.router, way, keys, headers)
        slices = 0
        while not walk.is_done:
            left = walk.advance(steps)
            assert walk.is_done or left <= 0
            slices += 1
            assert slices < 5000
        return set(walk.queues)


@given(st.lists(CHANGE | MESSAGE, max_size=40), st.sampled_from([1, 2, 5, 4096]))
def test_cached_ways_and_slices_are_a_search_over_everything(
    acts: list[tuple[Any, ...]], steps: int
) -> None:
    queues = {"p", "q"}
    router = Router(queues.__contains__)
    cache = Cache(router)
    exchanges: dict[str, tuple[str, str | None]] = {}
    bindings: list[Bound] = []
    for act in acts:
        match act:
            case ("bind", source, (kind, name), key, arguments):
                there = exchanges if kind == "e" else queues
                is_possible = source in exchanges and name in there
                if is_possible and router.bind(source, kind, name, key, arguments):
                    bindings.append((source, (kind, name), key, arguments))
            case ("unbind", number):
                if number < len(bindings):
                    source, (kind, name), key, arguments = bindings.pop(number)
                    assert router.unbind(source, kind, name, key, arguments)
            case ("declare", name, type_name, alternate):
                if name not in exchanges:
                    given = {"alternate-exchange": alternate} if alternate else {}
                    router.declare(name, type_name, given)
                    exchanges[name] = (type_name, alternate)
            case ("delete", name):
                if name in exchanges:
                    router.delete(name)
                    del exchanges[name]
                    bindings = [b for b in bindings if b[0] != name and b[1] != ("e", name)]
            case ("queue", name):
                queues.add(name)
                router.queue_added(name)
            case ("no queue", name):
                queues.discard(name)
                router.remove_queue(name)
                bindings = [b for b in bindings if b[1] != ("q", name)]
            case ("route", name, keys, headers):
                if name in exchanges:
                    found = cache.route(name, keys, headers, steps)
                    assert found == plainly(exchanges, bindings, name, keys, headers)


@given(
    st.lists(st.tuples(PATTERNS, QUEUES), max_size=12),
    st.lists(KEYS, min_size=1, max_size=4),
    st.lists(KEYS, min_size=1, max_size=4),
    st.integers(0, 3),
)
def test_matches_that_come_between_each_other_find_the_same(
    bound: list[tuple[str, str]], mine: list[str], others: list[str], whole: int
) -> None:
    """Two matches of one trie take turns, a step each; words of more than `whole` active nodes are
    interrupted, too."""
    trie = TopicTrie()
    for pattern, target in bound:
        trie.add(pattern, target)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exchange_types, "WHOLE_NODES", whole)
        found: list[dict[str, int]] = [{}, {}]
        asked = [Asked(mine, None), Asked(others, None)]
        rests: list[Rest | None] = [TopicMatch(trie), TopicMatch(trie)]
        while any(rests):
            for i in range(2):
                rest = rests[i]
                if rest is not None:
                    asked[i].steps = 1
                    rests[i] = rest.go_on(asked[i], found[i])
    for keys, targets in zip((mine, others), found, strict=True):
        assert set(targets) == {t for p, t in bound for key in keys if is_matched(p, key)}
