"""Costly routes: each is done in small slices, once where it can be, and a change spoils little.

Steps are counted, and lines of code that run, so nothing depends on the machine.
"""

import pytest

from penstock.routing import exchange_types
from penstock.routing.exchange_types import WHOLE_NODES
from penstock.routing.router import Router, Walk, Way
from tests.helpers.builds import pure_only
from tests.helpers.routed import route, route_on, way_of
from tests.helpers.steps import cost_of

SLICE = 1000
# Beyond what it was given a slice takes one word of few nodes, the targets of a node, an exchange.
MORE = 2 * WHOLE_NODES


def anything(_name: str) -> bool:
    return True


def slices(walk: Walk) -> int:
    """How many slices the walk takes; none of them is long."""
    n = 0
    while not walk.is_done:
        assert walk.advance(SLICE) > -MORE
        n += 1
    return n


def alive(bits: int) -> Router:
    """A topic exchange whose patterns of `*` and `#` are all alive at each word of a key."""
    router = Router(anything)
    router.declare("t", "topic", {})
    for i in range(1 << bits):
        pattern = ".".join("#" if bit == "1" else "*" for bit in format(i, f"0{bits}b"))
        router.bind("t", "q", f"q{i}", pattern, {})
    return router


def test_many_keys_and_patterns_are_done_in_slices() -> None:
    router = alive(8)
    keys = [".".join([*"abcdefghij"[:n], "k"]) for n in range(1, 9)]
    walk = Walk(router, Way(router, "t"), keys, None)
    assert slices(walk) > 10
    assert set(walk.queues) == {q for key in keys for q in route(router, "t", key)}


def test_a_word_for_which_many_nodes_are_active_is_interrupted() -> None:
    router = alive(11)
    key = ".".join("abcdefghijklm")
    walk = Walk(router, Way(router, "t"), [key], None)
    assert slices(walk) > 30
    assert set(walk.queues) == {f"q{i}" for i in range(1 << 11) if i}, "all but eleven `*`"


def chain_of_headers(n: int) -> Router:
    router = Router(anything)
    for i in range(n):
        router.declare(f"h{i}", "headers", {})
        router.bind(f"h{i}", "q", f"q{i}", "", {"h5": 5})
        if i:
            router.bind(f"h{i - 1}", "e", f"h{i}", "", {"h3": 3, "x-match": "any"})
    return router


@pure_only
def test_headers_are_brought_into_form_once_for_all_exchanges(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    router = chain_of_headers(50)
    headers: dict[str, object] = {f"h{i}": i for i in range(1000)}
    calls = 0
    form = exchange_types.header_value

    def counted(value: object) -> object:
        nonlocal calls
        calls += 1
        return form(value)

    monkeypatch.setattr(exchange_types, "header_value", counted)
    assert set(route(router, "h0", "", headers)) == {f"q{i}" for i in range(50)}
    assert calls == 1000


def test_a_chain_of_exchanges_is_passed_in_slices() -> None:
    router = chain_of_headers(2000)
    walk = Walk(router, Way(router, "h0"), [""], {"h3": 3, "h5": 5})
    assert slices(walk) > 5
    assert len(walk.queues) == 2000


def test_many_conditions_are_compared_in_slices() -> None:
    router = Router(anything)
    router.declare("h", "headers", {})
    for i in range(3000):
        router.bind("h", "q", f"q{i}", "", {"a": 1, "n": i})
    walk = Walk(router, Way(router, "h"), [""], {"a": 1, "n": 7})
    assert slices(walk) >= 6
    assert list(walk.queues) == ["q7"]


def test_what_changes_on_the_way_does_no_harm() -> None:
    router = Router(anything)
    for name, kind in (("h", "headers"), ("t", "topic"), ("f", "fanout")):
        router.declare(name, kind, {})
    router.bind("t", "e", "h", "#", {})
    router.bind("t", "e", "f", "#", {})
    for i in range(50):
        router.bind("h", "q", f"h{i}", "", {"n": i})
        router.bind("t", "q", f"t{i}", f"#.{i}.#", {})
        router.bind("f", "q", f"f{i}", "", {})
    walk = Walk(router, Way(router, "t"), ["1.2.3", "4.5"], {"n": 9})
    for i in range(40):
        walk.advance(1)
        router.remove_queue(f"h{i}")
        router.unbind("t", "q", f"t{49 - i}", f"#.{49 - i}.#", {})
    router.delete("h")
    router.delete("t")
    while not walk.is_done:
        walk.advance(1)
    assert {f"f{i}" for i in range(50)} <= set(walk.queues)


def test_what_headers_do_not_decide_is_resolved_once() -> None:
    """A user binds many exchanges, one of them a headers exchange, to one that all use."""
    lines = []
    for n in (30, 300):
        router = Router(anything)
        router.declare("events", "topic", {})
        router.bind("events", "q", "a", "#", {})
        router.declare("h", "headers", {})
        router.bind("events", "e", "h", "#", {})
        router.declare("before", "fanout", {})
        router.bind("h", "e", "before", "", {"n": 1})
        for i in range(n):
            router.declare(f"x{i}", "topic", {})
            router.declare(f"y{i}", "fanout", {})
            router.bind("events", "e", f"x{i}", "#", {})
            router.bind("before", "e", f"y{i}", "", {})
        way = way_of(router, "events", ["k"])
        assert [one.name for one in way.per_message] == ["h"]
        route_on(router, way, ["k"], {"n": 1})
        cost = cost_of(lambda r=router, w=way: route_on(r, w, ["k"], {"n": 1}))  # type: ignore[misc]
        lines.append(cost.lines)
        assert route_on(router, way, ["k"], {"n": 1}) == ["a"]
    assert lines[0] == lines[1]


def test_the_first_message_after_a_change_does_not_look_at_other_bindings() -> None:
    lines = []
    for n in (300, 3000):
        router = Router(anything)
        router.declare("d", "direct", {})
        router.declare("y", "fanout", {})
        for i in range(n):
            router.bind("d", "q", f"q{i}", f"k{i}", {})
        router.bind("d", "e", "y", "k7", {})
        lines.append(cost_of(lambda r=router: route(r, "d", "k7")).lines)  # type: ignore[misc]
        assert set(route(router, "d", "k7")) == {"q7"}
    assert lines[0] == lines[1]


def test_a_way_is_current_until_one_of_its_exchanges_changes() -> None:
    queues = {"a", "b", "k"}
    router = Router(queues.__contains__)
    router.declare("x", "direct", {"alternate-exchange": "late"})
    router.declare("y", "fanout", {})
    router.declare("z", "fanout", {})
    router.declare("h", "headers", {})
    router.bind("x", "e", "y", "k", {})
    router.bind("y", "e", "h", "", {})
    router.bind("y", "q", "a", "", {})

    def stays(change: object) -> bool:
        way = way_of(router, "x", ["k"])
        assert callable(change)
        change()
        return router.is_current(way)

    assert stays(lambda: None)
    assert stays(lambda: router.bind("z", "q", "b", "", {}))
    assert stays(lambda: router.bind("h", "q", "b", "", {"n": 1}))
    assert stays(lambda: router.queue_added("other"))
    assert stays(lambda: router.remove_queue("b"))
    assert stays(lambda: router.declare("v", "fanout", {}))
    assert not stays(lambda: router.bind("y", "q", "b", "", {}))
    assert not stays(lambda: router.queue_added("b"))  # another one of this name
    assert not stays(lambda: router.remove_queue("b"))
    assert not stays(lambda: router.unbind("x", "e", "y", "k", {}))
    assert not stays(lambda: router.declare("late", "fanout", {}))
    assert not stays(lambda: router.delete("late"))
    assert not stays(lambda: router.delete("x"))


def test_a_way_by_the_default_exchange_is_current_until_a_queue_comes_or_goes() -> None:
    queues = {"a"}
    router = Router(queues.__contains__)
    router.declare("x", "direct", {"alternate-exchange": ""})
    for exchange in ("", "x"):
        way = way_of(router, exchange, ["b"])
        router.declare(f"y{exchange}", "direct", {})
        assert router.is_current(way)
        queues.add("b")
        router.queue_added("b")
        assert not router.is_current(way)
        assert list(way_of(router, exchange, ["b"]).queues) == ["b"]
        queues.discard("b")


def test_ways_behind_headers_exchanges_are_forgotten_when_they_change() -> None:
    router = Router(anything)
    router.declare("h", "headers", {})
    router.declare("f", "fanout", {})
    router.bind("h", "e", "f", "", {"n": 1})
    router.bind("f", "q", "a", "", {})
    way = way_of(router, "h", ["k"])
    assert route_on(router, way, ["k"], {"n": 1}) == ["a"]
    router.bind("f", "q", "b", "", {})
    assert router.is_current(way)
    assert set(route_on(router, way, ["k"], {"n": 1})) == {"a", "b"}
