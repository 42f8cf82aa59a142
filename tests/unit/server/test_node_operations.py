import pytest

from penstock.server.control import ControlError
from penstock.server.node_operations import checked

TYPES: dict[str, type] = {"name": str, "tags?": list, "timeout_s?": float}


@pytest.mark.parametrize(
    "args",
    [
        {"name": "a"},
        {"name": "a", "tags": []},
        {"name": "a", "timeout_s": 1},
        {"name": "a", "timeout_s": 0.5},
    ],
)
def test_args_as_they_should_be(args: dict[str, object]) -> None:
    checked("op", args, TYPES)


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ({}, "op: argument 'name' is missing"),
        ({"name": 1}, "argument 'name': given 1, expected str"),
        ({"name": "a", "tags": "b"}, "argument 'tags': given 'b', expected list"),
        ({"name": "a", "timeout_s": True}, "given True, expected float"),
        ({"name": "a", "x": 1}, "unknown argument 'x', expected name, tags, timeout_s"),
    ],
)
def test_args_that_are_wrong(args: dict[str, object], why: str) -> None:
    with pytest.raises(ControlError) as error:
        checked("op", args, TYPES)
    assert error.value.code == 406
    assert why in error.value.text
