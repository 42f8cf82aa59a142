"""What bindings take in RAM is what they are counted for, whatever their keys and arguments are."""

import tracemalloc
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

import pytest

from penstock.codec.fields import decode_table, encode_table
from penstock.routing.exchange_types import header_value, word_bytes
from penstock.routing.router import Router

WORDS = 126
HALF_KEY = ".".join(f"{n:x}" for n in range(60))


class Counted:
    """A router and what it reports for each user."""

    def __init__(self) -> None:
        self.users: dict[str, int] = {}
        self.router = Router(lambda _name: True, self.count)
        for kind in ("headers", "topic", "direct", "fanout"):
            self.router.declare(kind, kind, {})

    def count(self, user: str, change: int) -> None:
        self.users[user] = self.users.get(user, 0) + change

    def bind(
        self, exchange: str, queue: str, key: str, user: str = "u", **arguments: object
    ) -> None:
        assert self.router.bind(exchange, "q", queue, key, arguments, user)

    def unbind(self, exchange: str, queue: str, key: str, **arguments: object) -> None:
        assert self.router.unbind(exchange, "q", queue, key, arguments)


@pytest.mark.large
@pytest.mark.parametrize(
    ("exchange", "key", "arguments"),
    [
        ("headers", "", {"a": [None] * 8000, "n": 0}),
        ("headers", "", {"a": [[None] * 10] * 300, "n": 0}),
        ("headers", "", {"a": [{str(n): n} for n in range(900)], "n": 0}),
        ("headers", "", {"a": {f"{n:x}": None for n in range(1200)}, "n": 0}),
        ("headers", "", {f"{n:x}": None for n in range(1300)}),
        ("headers", "", {f"{n:x}": n for n in range(900)}),
        ("headers", "", {"a": "x" * 8000, "n": 0}),
        ("topic", "{}." + ".".join("*" * (WORDS - 1)), {}),
        ("topic", "{}." + ".".join("w" * (WORDS - 1)), {}),
        ("topic", "{}." + ".".join("#" * (WORDS - 1)), {}),
        ("topic", HALF_KEY + ".{}", {}),
        ("topic", "orders.eu.{}", {}),
        ("topic", "{}." + "w" * 240, {}),
        ("direct", "{}", {}),
    ],
)  # fmt: skip
def test_bindings_are_counted_as_what_they_take(
    exchange: str, key: str, arguments: dict[str, object]
) -> None:
    counted = Counted()
    router = counted.router

    def bind(first: int, count: int) -> None:
        for number in range(first, first + count):
            given = {**arguments, "n": number} if arguments else {}
            given = decode_table(encode_table(given))[0]  # objects of its own, as from a client
            router.bind(exchange, "q", "queue", key.format(f"{number:x}"), given)

    bind(0, 3)
    before = router.held_bytes
    tracemalloc.start()
    try:
        bind(3, 40)
        real = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    # A broker has the arguments once more, in the engine's table of bindings.
    held = router.held_bytes - before
    assert real <= held
    assert held - 40 * 1400 <= 3 * real


def test_words_that_patterns_share_count_once() -> None:
    counted = Counted()
    counted.bind("topic", "q", "a.b.c")
    one = counted.router.held_bytes
    counted.bind("topic", "r", "a.b.c")
    binding_bytes = counted.router.held_bytes - one
    assert one == binding_bytes + 3 * word_bytes("a")
    counted.bind("topic", "q", "a.b.*")
    assert counted.router.held_bytes == one + 2 * binding_bytes + word_bytes("*")


def test_words_count_for_the_user_whose_binding_added_them() -> None:
    counted = Counted()
    counted.bind("topic", "q", "a.b.c", "ann")
    counted.bind("topic", "r", "a.b.c", "bob")
    ann, bob = counted.users["ann"], counted.users["bob"]
    assert ann - bob == 3 * word_bytes("a")
    counted.unbind("topic", "q", "a.b.c")
    assert counted.users["ann"] == 3 * word_bytes("a")  # somebody needs them
    counted.unbind("topic", "r", "a.b.c")
    assert counted.users == {"ann": 0, "bob": 0}
    assert counted.router.held_bytes == 0


@pytest.mark.parametrize("how", ["unbind", "delete", "queue"])
def test_nothing_is_counted_for_what_is_gone(how: str) -> None:
    counted = Counted()
    for number in range(5):
        counted.bind("topic", "q", f"a.*.{number}.#", f"u{number % 2}")
        counted.bind("topic", "q", f"a.*.{number}.#", "v", x=number)
        counted.bind("headers", "q", "", a=[None] * 100, n=number)
    if how == "unbind":
        for number in range(5):
            counted.unbind("topic", "q", f"a.*.{number}.#")
            counted.unbind("topic", "q", f"a.*.{number}.#", x=number)
            counted.unbind("headers", "q", "", a=[None] * 100, n=number)
    elif how == "delete":
        counted.router.delete("topic")
        counted.router.delete("headers")
    else:
        counted.router.remove_queue("q")
    assert counted.router.held_bytes == 0
    assert set(counted.users.values()) == {0}


SAME: tuple[tuple[object, object], ...] = (
    ([1, "a", None, True, b"x"], [1, "a", None, True, bytearray(b"x")]),
    ([0.0], [-0.0]),
    ([Decimal("1.0")], [Decimal("1.00")]),
    (
        [datetime(2020, 1, 1, tzinfo=UTC)],
        [datetime(2020, 1, 1, 1, tzinfo=timezone(timedelta(hours=1)))],
    ),
    ({"a": [1], "b": 2}, {"b": 2, "a": [1]}),
    ([[1] * 100], [[1] * 100]),
)
DIFFERENT: tuple[tuple[object, object], ...] = (
    ([1], [1.0]), ([1], [True]), (["a"], [b"a"]), (["1"], [1]), ([None], ["None"]), ([], {}),
    ([[1], [2]], [[1, 2]]), (["a", "b"], ["a', 'b"]), ({"a": 1}, {"a": 2}), ([1] * 99, [1] * 100),
    (["\udcff"], ["\\udcff"]),
)  # fmt: skip


@pytest.mark.parametrize(("one", "other"), SAME)
def test_equal_arrays_and_tables_have_one_form(one: object, other: object) -> None:
    assert header_value(one) == header_value(other)


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_different_arrays_and_tables_have_different_forms(one: object, other: object) -> None:
    assert header_value(one) != header_value(other)
