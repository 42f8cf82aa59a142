import pytest

from penstock.broker.connection_facts import CAPABILITIES, NO_PROPERTIES, capabilities
from penstock.codec.fields import encode_table


@pytest.mark.parametrize(
    ("table", "found"),
    [
        ({}, set()),
        ({"capabilities": True}, set()),
        ({"capabilities": {}}, set()),
        ({"capabilities": {"connection.blocked": True, "unknown": True}}, {"connection.blocked"}),
        ({"capabilities": {"connection.blocked": False, "basic.nack": True}}, set()),
        ({"capabilities": {"connection.blocked": 1}}, set()),
        ({"capabilities": dict.fromkeys(CAPABILITIES, True)}, set(CAPABILITIES)),
    ],
)
def test_what_a_client_says_it_can_do(table: dict[str, object], found: set[str]) -> None:
    assert capabilities(encode_table(table)) == found


def test_a_client_that_says_nothing() -> None:
    assert capabilities(NO_PROPERTIES) == frozenset()
