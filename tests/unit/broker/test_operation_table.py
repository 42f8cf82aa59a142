"""The table of operations: each entry is whole, and each wrong argument is a 406 that says what was
expected."""

import pytest

from penstock.access.permissions import Identity
from penstock.broker.operations import FUNCTIONS
from penstock.errors import ChannelError
from penstock.operation_table import (
    CLIENTS,
    OPERATIONS,
    OPERATORS,
    VHOST,
    Argument,
    Arguments,
    bodies,
    field_table,
    flag,
    matching_text,
    number,
    numbers,
    objects,
    pairs,
    short_text,
    short_text_or_null,
    table,
    text,
    texts,
    whole,
    whole_or_null,
)
from penstock.server.node_operations import NodeOperations
from tests.helpers.operation_rig import OperationRig

VERBS = {"configure", "write", "read"}


def refusal(argument: Argument, value: object) -> str:
    with pytest.raises(ChannelError) as caught:
        Arguments("op", (argument,), {argument.name: value})
    assert caught.value.code == 406
    return caught.value.text


def test_values_and_defaults() -> None:
    expected = (
        text("t"), short_text("missing", default="default"), whole("n", 0, 5),
        whole("other", 0, 5, default=3),
        flag("f"), flag("off"), table("d"), table("none"), field_table("fields"),
        field_table("nofields"), bodies("b"), numbers("l"), whole_or_null("o"),
        whole_or_null("p", 1, 9), pairs("pairs"), pairs("nopairs"), objects("objects"),
        short_text_or_null("owner"), short_text_or_null("nobody"),
        texts("names"), texts("nonames", default=[]), number("seconds", 0, "", default=0.5),
    )  # fmt: skip
    given = Arguments("op", expected, {
        "t": "x", "n": 5, "f": True, "d": {"a": 1}, "fields": {"a": 1}, "b": ["x", b"\xff"],
        "l": [1, 2], "o": None, "p": 5, "pairs": [["a", "b"]], "objects": [{}], "owner": "me",
        "names": ["a"],
    })  # fmt: skip
    assert given.text("t") == "x"
    assert given.text("missing") == "default"
    assert (given.whole("n"), given.whole("other")) == (5, 3)
    assert given.flag("f")
    assert not given.flag("off")
    assert given.table("d") == given.table("fields") == {"a": 1}
    assert given.table("none") == given.table("nofields") == {}
    assert given.bodies("b") == [b"x", b"\xff"]
    assert given.numbers("l") == [1, 2]
    assert given.whole_or_none("o") is None
    assert given.whole_or_none("p") == 5
    assert given.pairs("pairs") == [("a", "b")]
    assert given.pairs("nopairs") == []
    assert given.objects("objects") == [{}]
    assert given.packed("objects") == given.packed("pairs") == b""
    packed = Arguments("op", (objects("o"), pairs("p")), {"o": b"many", "p": b"more"})
    assert (packed.packed("o"), packed.packed("p")) == (b"many", b"more")
    assert packed.objects("o") == packed.pairs("p") == []
    assert (given.texts("names"), given.texts("nonames")) == (["a"], [])
    assert given.number("seconds") == 0.5
    assert given.text_or_none("owner") == "me"
    assert given.text_or_none("nobody") is None


@pytest.mark.parametrize(
    ("argument", "value", "expected"),
    [
        (text("x"), 5, "argument 'x': given 5, expected a text"),
        (text("x"), "\ud800", "a text without lone surrogates"),
        (short_text("x"), "ä" * 128, "at most 255 bytes"),
        (short_text_or_null("x"), 5, "expected a text"),
        (matching_text("x", "an a", lambda t: t == "a"), "b", "given 'b', expected an a"),
        (whole("x", 6, 9), 5, "expected a whole number from 6 to 9"),
        (whole("x", 0, 9), True, "given True, expected a whole number"),
        (whole_or_null("x"), "x", "a whole number, or null"),
        (whole_or_null("x", 1, 9), 0, "given 0, expected a whole number from 1 to 9, or null"),
        (flag("x"), 5, "true or false"),
        (table("x"), 5, "an object"),
        (table("x"), {1: 2}, "an object"),
        (field_table("x"), {"x": 1 << 70}, "what AMQP can carry"),
        (field_table("x"), {"x" * 300: 1}, "at most 255 are allowed"),
        (bodies("x"), "x", "a list of texts or bytes"),
        (bodies("x"), [1], "given 1, expected a list of texts or bytes"),
        (numbers("x"), [1, "x"], "a list of whole numbers"),
        (texts("x"), ["a", 1], "a list of texts"),
        (number("x", 0, "", default=1.0), True, "given True, expected a number"),
        (objects("x"), [1], "a list of objects"),
        (pairs("x"), [["a"]], "a list of pairs of texts"),
    ],
)
def test_wrong_values(argument: Argument, value: object, expected: str) -> None:
    found = refusal(argument, value)
    assert "op: argument 'x'" in found
    assert expected in found


def test_a_missing_argument_is_refused() -> None:
    with pytest.raises(ChannelError, match="op: argument 'x' is missing"):
        Arguments("op", (text("x"),), {})


def test_a_long_value_is_shown_in_part() -> None:
    assert len(refusal(flag("x"), "y" * 1000)) < 200


def test_an_unknown_argument_is_refused() -> None:
    with pytest.raises(ChannelError, match="unknown argument 'cuont', did you mean 'count'"):
        Arguments(
            "op", (text("queue"), whole("count", 0, 9, default=1)), {"queue": "q", "cuont": 5}
        )


# ---- the table -----------------------------------------------------------------------------------


def test_no_cell_of_the_table_is_empty() -> None:
    for name, operation in OPERATIONS.items():
        assert operation.name == name
        assert operation.help[0].isupper()
        assert operation.help.endswith(".")
        assert operation.permission
        names = [argument.name for argument in operation.arguments]
        assert len(set(names)) == len(names)
        for argument in operation.arguments:
            assert argument.kind.words
            assert argument.meaning, f"{name}: {argument.name}"
        for verb, kind, argument_name in operation.needs:
            assert verb in VERBS
            assert kind in ("queue", "exchange")
            assert not argument_name or argument_name in names
        assert (operation.audience == CLIENTS) == name.startswith("box.")


def test_each_row_has_its_function() -> None:
    """`loop` is answered by the process of the vhost."""
    of_vhost = {name for name, row in OPERATIONS.items() if row.of == VHOST}
    assert of_vhost - {"loop"} == set(FUNCTIONS)
    for name in OPERATIONS.keys() - of_vhost:
        assert hasattr(NodeOperations, f"_{name}"), name


def test_permissions_in_words() -> None:
    assert OPERATIONS["purge_queue"].permission == "read on the queue `queue`"
    assert OPERATIONS["list_alerts"].permission == "the tag monitoring or administrator"
    assert OPERATIONS["backup"].permission == "for operators only"
    assert OPERATIONS["list_leases"].permission == "anybody"


def test_a_user_without_permissions_may_call_nothing_that_needs_one() -> None:
    """Each entry that names a permission, a tag or operators is refused with 403 to a user without
    any, whatever its function does."""
    rig = OperationRig()
    rig.result("declare_queue", queue="q")
    client = rig.client(identity=Identity("ann", frozenset(), "^$", "^$", "^$")).open()
    channel = client.handler.channels[1]
    values = {"name": "q", "object": {}, "text": "x", "true or false": False}
    for operation in (OPERATIONS[name] for name in FUNCTIONS):
        if not (operation.needs or operation.tags or operation.audience == OPERATORS):
            continue
        args = {}
        for argument in operation.arguments:
            words = argument.kind.words
            is_number = words.startswith("whole number") and "null" not in words
            if argument.is_required or is_number or words in values:
                args[argument.name] = 1 if is_number else values.get(words)
        assert rig.refusal(operation.name, channel, **args).code == 403, operation.name
