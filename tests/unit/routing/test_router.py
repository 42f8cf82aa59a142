"""Router: the way through exchanges, what is remembered of bindings, and when answers change."""

import pytest

from penstock.errors import AMQPConnectionError, ChannelError
from penstock.routing.router import Router
from tests.helpers.routed import route, way_of
from tests.helpers.steps import cost_of


class World:
    """A router and the queues that there are."""

    def __init__(self, *exchanges: str, queues: str = "a b c") -> None:
        self.queues = set(queues.split())
        self.router = Router(self.queues.__contains__)
        for text in exchanges:
            name, type_name, *alternate = text.split()
            self.router.declare(
                name, type_name, {"alternate-exchange": alternate[0]} if alternate else {}
            )

    def bind(self, source: str, destination: str, key: str = "", kind: str = "q") -> bool:
        return self.router.bind(source, kind, destination, key, {})

    def route(self, exchange: str, key: str = "k", *cc: str) -> list[str]:
        return route(self.router, exchange, key, None, list(cc))


# --- the way ---


def test_the_default_exchange_goes_to_the_queue_of_that_name() -> None:
    world = World()
    assert world.route("", "a") == ["a"]
    assert world.route("", "z") == []
    assert world.route("", "a", "b", "z", "a") == ["a", "b"]


def test_there_is_no_unknown_exchange() -> None:
    world = World()
    assert world.router.has("")
    assert not world.router.has("x")
    with pytest.raises(KeyError):
        world.route("x")


def test_a_queue_gets_a_message_once_over_however_many_ways() -> None:
    world = World("x topic", "y fanout", "z direct")
    world.bind("x", "a", "#")
    world.bind("x", "a", "k")
    world.bind("x", "y", "*", "e")
    world.bind("x", "z", "#", "e")
    world.bind("y", "a")
    world.bind("y", "b")
    world.bind("z", "b", "k")
    world.bind("z", "c", "other")
    assert sorted(world.route("x", "k")) == ["a", "b"]


def test_exchanges_in_a_circle_end() -> None:
    world = World("x fanout", "y fanout", "z fanout x")
    world.bind("x", "y", "", "e")
    world.bind("y", "x", "", "e")
    world.bind("y", "y", "", "e")
    world.bind("y", "a")
    assert world.route("x") == ["a"]
    assert world.route("y") == ["a"]
    assert world.route("z") == ["a"]


def test_the_key_goes_along_from_exchange_to_exchange() -> None:
    world = World("x fanout", "y direct")
    world.bind("x", "y", "not this", "e")
    world.bind("y", "a", "k")
    assert world.route("x", "k") == ["a"]
    assert world.route("x", "not this") == []


def test_what_selects_nothing_goes_to_the_alternate_exchange() -> None:
    world = World("x direct y", "y direct z", "z fanout")
    world.bind("x", "a", "k")
    world.bind("y", "b", "l")
    world.bind("z", "c")
    assert world.route("x", "k") == ["a"]
    assert world.route("x", "l") == ["b"]
    assert world.route("x", "m") == ["c"]


def test_an_exchange_passed_through_has_its_own_alternate() -> None:
    world = World("x fanout", "y direct z", "z fanout")
    world.bind("x", "y", "", "e")
    world.bind("x", "a")
    world.bind("z", "c")
    assert sorted(world.route("x", "k")) == ["a", "c"]


def test_a_binding_to_an_exchange_counts_as_selected_though_it_leads_nowhere() -> None:
    world = World("x fanout z", "y direct", "z fanout")
    world.bind("x", "y", "", "e")
    world.bind("z", "c")
    assert world.route("x", "k") == []


def test_an_alternate_exchange_may_be_missing_come_later_or_be_the_default_one() -> None:
    world = World("x direct y")
    assert world.route("x") == []
    world.router.declare("y", "fanout", {})
    world.bind("y", "b")
    assert world.route("x") == ["b"]
    world.router.declare("d", "direct", {"alternate-exchange": ""})
    assert world.route("d", "a") == ["a"]


def test_several_keys_go_one_way_together() -> None:
    world = World("x direct y", "y direct")
    world.bind("x", "a", "k")
    world.bind("x", "b", "l")
    world.bind("y", "c", "m")
    assert sorted(world.route("x", "k", "l", "m")) == ["a", "b"]
    assert world.route("x", "m", "n") == ["c"]


def test_headers_matter_to_a_headers_exchange() -> None:
    world = World("x headers")
    world.router.bind("x", "q", "a", "", {"n": 1})
    assert route(world.router, "x", "", {"n": 1}) == ["a"]
    assert route(world.router, "x", "", {"n": True}) == []
    assert route(world.router, "x", "") == []


# --- bindings ---


def test_bindings_are_told_apart_by_key_destination_and_arguments() -> None:
    world = World("x direct", "a direct")
    assert world.bind("x", "a", "k")
    assert not world.bind("x", "a", "k")
    assert world.bind("x", "a", "l")
    assert world.bind("x", "a", "k", "e")
    assert world.router.bind("x", "q", "a", "k", {"n": 1})
    assert world.router.bind("x", "q", "a", "k", {"n": True})
    assert not world.router.bind("x", "q", "a", "k", {"n": True})
    assert world.router.unbind("x", "q", "a", "k", {"n": 1})
    assert not world.router.unbind("x", "q", "a", "k", {"n": 1})
    assert world.route("x") == ["a"]
    assert world.router.unbind("x", "q", "a", "k", {"n": True})
    assert world.router.unbind("x", "q", "a", "k", {})
    assert world.route("x") == []
    told = [(b.kind, b.destination, b.key) for b in world.router.bindings_of("x")]
    assert told == [("q", "a", "l"), ("e", "a", "k")]


def test_unbinding_where_there_is_nothing() -> None:
    world = World("x direct")
    assert not world.router.unbind("x", "q", "a", "k", {})
    assert not world.router.unbind("no such", "q", "a", "k", {})


def test_a_binding_that_makes_no_sense_leaves_no_trace() -> None:
    world = World("x headers")
    before = world.router.version
    with pytest.raises(ChannelError):
        world.router.bind("x", "q", "a", "", {"x-match": "some"})
    assert world.router.bindings_of("x") == world.router.bindings_to("q", "a") == []
    assert world.router.version == before


def test_a_queue_that_goes_takes_its_bindings_and_tells_who_lost_the_last() -> None:
    world = World("x direct", "y fanout", "z topic")
    for source, queue, key in (("x", "a", "k"), ("x", "a", "l"), ("y", "a", ""), ("y", "b", "")):
        world.bind(source, queue, key)
    world.bind("z", "a", "#", "e")  # an exchange that is called like the queue: not declared, so
    world.queues.remove("a")  # nothing passes through it
    assert world.router.remove_queue("a") == ["x"]
    assert world.route("x", "k") == []
    assert world.route("y") == ["b"]
    assert not world.router.has_bindings("x")
    assert world.router.has_bindings("y")
    assert [b.source for b in world.router.bindings_to("e", "a")] == ["z"]
    assert world.router.remove_queue("a") == []


def test_an_exchange_that_goes_takes_bindings_from_and_to_it() -> None:
    world = World("x fanout", "y fanout", "z fanout")
    world.bind("x", "y", "", "e")
    world.bind("y", "y", "", "e")
    world.bind("y", "z", "", "e")
    world.bind("y", "a")
    world.bind("z", "y", "", "e")
    world.bind("z", "b")
    assert world.router.delete("y") == ["x"]
    assert not world.router.has("y")
    assert [(b.source, b.destination) for b in world.router.bindings()] == [("z", "b")]
    assert world.router.bindings_to("q", "a") == world.router.bindings_to("e", "y") == []
    world.router.declare("y", "direct", {})
    assert world.router.bindings_of("y") == []
    assert world.route("x") == []


def test_refused_exchanges_are_not_there() -> None:
    world = World()
    with pytest.raises(AMQPConnectionError):
        world.router.declare("x", "no such type", {})
    with pytest.raises(ChannelError):
        world.router.declare("x", "x-delayed-message", {})
    assert not world.router.has("x")


# --- what a cache of answers must know ---


def test_the_version_moves_with_every_change_and_not_without() -> None:
    world = World("x direct")
    router = world.router
    seen = [router.version]
    for change in (
        lambda: router.declare("y", "fanout", {}),
        lambda: router.bind("x", "q", "a", "k", {}),
        lambda: router.unbind("x", "q", "a", "k", {}),
        lambda: router.remove_queue("a"),
        lambda: router.queue_added("a"),
        lambda: router.delete("y"),
    ):
        change()
        seen.append(router.version)
    assert seen == sorted(set(seen))
    router.unbind("x", "q", "a", "k", {})
    route(router, "x", "k", None)
    way_of(router, "x", ["k"])
    assert router.version == seen[-1]
    router.bind("x", "q", "a", "k", {})
    version = router.version
    router.bind("x", "q", "a", "k", {})
    assert router.version == version


def test_a_way_ends_at_headers_exchanges() -> None:
    world = World("h headers", "x direct", "y direct x", "z fanout z")
    router = world.router

    def ends(exchange: str, key: str = "k") -> list[str]:
        return [one.name for one in way_of(router, exchange, [key]).per_message]

    assert ends("h") == ["h"]
    assert not any(ends(name) for name in ("", "x", "y", "z", "no such"))
    world.bind("x", "h", "k", "e")
    assert ends("x") == ends("y") == ["h"]
    assert ends("x", "other") == ends("z") == []
    router.delete("h")
    assert ends("y") == []


def test_delayed_exchanges_are_known() -> None:
    world = World("x direct")
    world.router.declare("d", "x-delayed-message", {"x-delayed-type": "headers"})
    assert world.router.delayed("d")
    assert way_of(world.router, "d", ["k"]).per_message
    assert not world.router.delayed("x")
    assert not world.router.delayed("")
    assert not world.router.delayed("no such")


def test_long_chains_and_cycles_of_exchanges() -> None:
    """Exchange-to-exchange bindings and alternate exchanges are followed without a stack, and each
    exchange is passed once."""
    router = Router(lambda name: name == "end")
    n = 3000
    for i in range(n):
        router.declare(f"e{i}", "fanout", {})
        router.declare(f"a{i}", "direct", {"alternate-exchange": f"a{i + 1}"})
    router.declare(f"a{n}", "fanout", {})
    for i in range(n - 1):
        router.bind(f"e{i}", "e", f"e{i + 1}", "", {})
    router.bind(f"e{n - 1}", "e", "e0", "", {})
    router.bind(f"e{n - 1}", "q", "end", "", {})
    router.bind(f"a{n}", "q", "end", "", {})
    assert route(router, "e0", "k") == ["end"]
    assert route(router, "a0", "k") == ["end"]


def test_a_queue_with_many_bindings_goes_in_as_many_steps() -> None:
    lines = []
    for n in (300, 1200):
        router = Router(lambda name: True)
        router.declare("t", "topic", {})
        for i in range(n):
            router.bind("t", "q", "q", f"a.{i}.#", {})
        lines.append(cost_of(lambda r=router: r.remove_queue("q")).lines / n)  # type: ignore[misc]
    assert lines[1] <= lines[0] * 1.2, lines
