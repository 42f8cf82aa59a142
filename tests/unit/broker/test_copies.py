"""Copies: keys in CC and BCC are found, BCC is taken away, and what is no array is refused."""

import pytest

from penstock.broker.publish import copies, has_copies
from penstock.codec.properties import BasicProperties
from penstock.errors import ChannelError


def props_of(**headers: object) -> bytes:
    return BasicProperties(headers=headers, message_id="m").encode()


def test_most_messages_have_none() -> None:
    assert not has_copies(b"\0\0")
    assert not has_copies(props_of(a=1))
    assert not has_copies(BasicProperties(message_id="\x02CC").encode())
    assert has_copies(props_of(CC=["a"]))
    assert has_copies(props_of(BCC=["a"]))


def test_keys_are_found_and_bcc_is_taken_away() -> None:
    found = copies(props_of(CC=["c1", 5, "c2"], a=1, BCC=["b"]))
    assert (found.cc, found.bcc) == ([b"c1", b"c2"], [b"b"])
    stored = BasicProperties.decode(found.props)
    assert stored.headers == {"CC": ["c1", 5, "c2"], "a": 1}
    assert stored.message_id == "m"


def test_properties_without_bcc_are_left_alone() -> None:
    props = props_of(CC=["c"])
    assert copies(props).props is props
    assert copies(props_of(a="\x02CC")).cc == []


@pytest.mark.parametrize(
    ("headers", "text"),
    [
        ({"CC": "a"}, 'unacceptable_type_in_header,"CC",longstr'),
        ({"BCC": 5}, 'unacceptable_type_in_header,"BCC",signedint'),
        ({"BCC": None}, 'unacceptable_type_in_header,"BCC",void'),
    ],
)
def test_what_is_no_array_closes_the_channel(headers: dict[str, object], text: str) -> None:
    with pytest.raises(ChannelError) as caught:
        copies(props_of(**headers))
    assert caught.value.code == 406
    assert caught.value.text == f"PRECONDITION_FAILED - invalid message: {{{text}}}"


def test_properties_that_are_none_have_none() -> None:
    assert copies(b"\x80\x00").cc == []
