"""What a delivery from a stream says of its place: headers put in, the rest as it came."""

import pytest

from penstock.codec.properties import BasicProperties
from penstock.queues.amqp_headers import AmqpHeaders
from penstock.queues.stream_cursor import Placer

ROUTE = b"\x02ex\x03key\x00"


def placed(
    props: BasicProperties, *, gap: int = 0, placer: Placer | None = None
) -> BasicProperties:
    meta = AmqpHeaders().make(ROUTE, props.encode())
    header = (placer or Placer("q")).header(meta, 7, 3, 1_700_000_000_000_001, gap)
    address, found = AmqpHeaders().parts(header)
    assert address == ROUTE[:-1]
    return BasicProperties.decode(found)


PLACE = {
    "x-stream-offset": 7, "x-stream-partition": 3, "x-stream-timestamp": 1_700_000_000_000_001,
}  # fmt: skip


@pytest.mark.parametrize(
    "props",
    [
        BasicProperties(),
        BasicProperties(delivery_mode=1, priority=3, expiration="0"),
        BasicProperties(content_type="text/plain", content_encoding="utf-8", message_id="m"),
        BasicProperties(headers={"a": 1, "b": {"c": [1, b"x"]}}, content_type="t", app_id="p"),
    ],
)
def test_all_else_stays_as_it_was(props: BasicProperties) -> None:
    found = placed(props)
    assert found.headers == {**(props.headers or {}), **PLACE}
    found.headers = props.headers
    assert found.encode() == props.encode()


def test_headers_of_these_names_are_replaced() -> None:
    given = {"x-stream-offset": "mine", "a": 1, "x-stream-gap": 5, "x-stream-filter-value": "v"}
    found = placed(BasicProperties(headers=given))
    assert found.headers == {"a": 1, "x-stream-filter-value": "v", **PLACE}


def test_a_gap_is_told_once_and_the_next_has_none() -> None:
    placer = Placer("q")
    props = BasicProperties(headers={"a": 1})
    assert placed(props, placer=placer).headers == {"a": 1, **PLACE}
    assert placed(props, gap=9, placer=placer).headers == {"a": 1, **PLACE, "x-stream-gap": 9}
    assert placed(props, placer=placer).headers == {"a": 1, **PLACE}


def test_other_headers_after_the_same_ones() -> None:
    placer = Placer("q")
    several: tuple[dict[str, object] | None, ...] = ({"a": 1}, {"a": 1}, {"b": 2}, None, {"a": 1})
    for headers in several:
        assert placed(BasicProperties(headers=headers), placer=placer).headers == {
            **(headers or {}), **PLACE,
        }  # fmt: skip


def test_a_record_of_the_embedded_library() -> None:
    header = Placer("orders").header(b"", 0, 0, 5, 0)
    address, props = AmqpHeaders().parts(header)
    assert address == b"\x00\x06orders"
    assert (BasicProperties.decode(props).headers or {})["x-stream-offset"] == 0


def test_hidden_routing_keys_stay_hidden() -> None:
    meta = AmqpHeaders().with_hidden(AmqpHeaders().make(ROUTE, b"\0\0"), [b"secret"])
    header = Placer("q").header(meta, 1, 0, 5, 0)
    assert b"secret" not in header
    assert AmqpHeaders().parts(header)[0] == ROUTE[:-1]
