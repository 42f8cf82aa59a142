import pytest

from penstock.broker.connection_facts import (
    CAPABILITIES,
    NO_PROPERTIES,
    ConnectionFacts,
    capabilities,
    shown,
)
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


def test_a_long_table_is_not_decoded_for_a_listing() -> None:
    usual: dict[str, object] = {
        "product": "pika",
        "x": [1, 2],
        "capabilities": {"basic.nack": True},
    }
    assert shown(encode_table(usual)) == usual
    long = encode_table({**usual, "x": [None] * 5000, "platform": "p" * 2000})
    found = shown(long)
    assert found.pop("...") == f"{len(long)} bytes, of which the well-known ones are shown"
    assert found == {"product": "pika", "capabilities": {"basic.nack": True}}


def test_all_that_is_known_of_a_client_comes_out_as_it_went_in() -> None:
    opened = ConnectionFacts(
        name="127.0.0.1:5 -> 127.0.0.1:6", peer_host="127.0.0.1", peer_port=5, host="127.0.0.1",
        port=6, user="änn", vhost="v/\udcff", heartbeat_s=7, frame_max=4096, channel_max=9,
        connected_at_ms=1_700_000_000_000,
        tls={"version": "TLSv1.3"}, auth_mechanism="EXTERNAL",
        client_properties=encode_table({"raw": b"\xff\x00", "capabilities": {"basic.nack": True}}),
    )  # fmt: skip
    found = ConnectionFacts.from_bytes(opened.to_bytes())
    names = ("name", "peer_host", "peer_port", "host", "port", "user", "vhost", "heartbeat_s",
             "frame_max", "channel_max", "connected_at_ms", "client_properties", "auth_mechanism",
             "tls")  # fmt: skip
    for name in names:
        assert getattr(found, name) == getattr(opened, name)


def test_names_that_are_one_character_only_together_stay_two() -> None:
    halves = b"\xc3\xa9".decode("ascii", "surrogateescape")  # of an e with an accent
    opened = ConnectionFacts("n", "1.1.1.1", 1, "1.1.1.2", 2, halves[0], halves[1] + "\0v")
    found = ConnectionFacts.from_bytes(opened.to_bytes())
    assert (found.user, found.vhost) == (opened.user, opened.vhost)
