"""OperationArgs: each wrong argument is a 406 that says what was expected."""

from collections.abc import Callable

import pytest

from penstock.broker.operation_args import OperationArgs
from penstock.errors import ChannelError


def args(**given: object) -> OperationArgs:
    return OperationArgs("op", given)


def test_what_is_there_and_what_is_not() -> None:
    given = args(t="x", n=5, f=True, d={"a": 1}, b=["x", b"\xff"], l=[1, 2], o=None)
    assert given.text("t") == "x"
    assert given.name("missing", "default") == "default"
    assert given.whole("n", None, 0, 5) == 5
    assert given.whole("missing", 3, 0, 5) == 3
    assert given.flag("f")
    assert not given.flag("missing")
    assert given.table("d") == {"a": 1}
    assert given.table("missing") == given.field_table("missing") == {}
    assert given.field_table("d") == {"a": 1}
    assert given.bodies("b") == [b"x", b"\xff"]
    assert given.numbers("l") == [1, 2]
    assert given.whole_or_none("o") is None
    assert given.whole_or_none("n") == 5
    given.done()


@pytest.mark.parametrize(
    ("ask", "told"),
    [
        (lambda a: a.text("n"), "argument 'n': given 5, expected a text"),
        (lambda a: a.text("missing"), "argument 'missing' is missing"),
        (lambda a: a.name("long"), "at most 255 bytes"),
        (lambda a: a.whole("n", None, 6, 9), "expected a whole number from 6 to 9"),
        (lambda a: a.whole("f", None, 0, 9), "given True, expected a whole number"),
        (lambda a: a.whole("missing", None, 0, 9), "is missing"),
        (lambda a: a.whole_or_none("t"), "a whole number, or null"),
        (lambda a: a.flag("n"), "true or false"),
        (lambda a: a.table("n"), "an object"),
        (lambda a: a.table("keys"), "an object"),
        (lambda a: a.field_table("huge"), "what AMQP can carry"),
        (lambda a: a.field_table("named"), "at most 255 are allowed"),
        (lambda a: a.bodies("t"), "a list of texts or bytes"),
        (lambda a: a.bodies("l"), "given 1, expected a list of texts or bytes"),
        (lambda a: a.numbers("mixed"), "a list of whole numbers"),
    ],
)
def test_what_is_wrong(ask: Callable[[OperationArgs], object], told: str) -> None:
    given = args(
        t="x", n=5, f=True, l=[1], mixed=[1, "x"], keys={1: 2}, long="ä" * 128,
        huge={"x": 1 << 70}, named={"x" * 300: 1},
    )  # fmt: skip
    with pytest.raises(ChannelError) as caught:
        ask(given)
    assert caught.value.code == 406
    assert "op: argument" in caught.value.text
    assert told in caught.value.text


def test_a_long_value_is_shown_in_part() -> None:
    with pytest.raises(ChannelError) as caught:
        args(x="y" * 1000).flag("x")
    assert len(caught.value.text) < 200


def test_what_nobody_asks_for_is_refused() -> None:
    given = args(queue="q", cuont=5)
    given.text("queue")
    given.whole("count", 1, 0, 9)
    with pytest.raises(ChannelError, match="unknown argument 'cuont', did you mean 'count'"):
        given.done()
