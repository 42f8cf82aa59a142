"""SASL responses: who claims to be who."""

import pytest

from penstock.codec.fields import encode_table
from penstock.errors import AMQPConnectionError
from penstock.server.login import amqplain, plain


def test_plain() -> None:
    assert plain(b"\0guest\0s3cret") == ("guest", "s3cret")
    assert plain(b"ignored\0guest\0") == ("guest", "")
    assert plain("\0ü\0p w".encode()) == ("ü", "p w")


@pytest.mark.parametrize("response", [b"", b"guest", b"guest\0guest", b"\0a\0b\0c"])
def test_plain_of_another_form_is_refused(response: bytes) -> None:
    with pytest.raises(AMQPConnectionError) as caught:
        plain(response)
    assert (caught.value.code, caught.value.class_id, caught.value.method_id) == (403, 10, 11)


def test_amqplain() -> None:
    assert amqplain(encode_table({"LOGIN": "u", "PASSWORD": b"p"})[4:]) == ("u", "p")
    for response in (
        b"",
        encode_table({"LOGIN": "u"})[4:],
        encode_table({"LOGIN": 1})[4:],
        b"\x05",
    ):
        with pytest.raises(AMQPConnectionError) as caught:
            amqplain(response)
        assert caught.value.code == 502
