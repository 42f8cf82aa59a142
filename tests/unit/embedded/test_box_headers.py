"""BoxHeaders: a broker's messages in a box, and the box's own as ever."""

from penstock.codec.properties import BasicProperties
from penstock.embedded.box_headers import BoxHeaders
from penstock.queues.amqp_headers import AmqpHeaders
from penstock.queues.headers import Death, PlainHeaders

BOX = BoxHeaders()
PLAIN = PlainHeaders()
AMQP = AmqpHeaders()


def of_a_broker(**headers: object) -> bytes:
    properties = BasicProperties(headers=headers, priority=3, message_id="m")
    return AMQP.make(b"\x02ex\x03key\0", properties.encode())


def test_a_brokers_header_is_read_and_keeps_its_form() -> None:
    header = of_a_broker(text="ü", n=5, raw=b"\xff", **{"list": [1], "x-delay": 9})
    assert BOX.values(header) == {"text": "ü", "n": 5, "raw": b"\xff", "list": "[1]"}
    assert (BOX.attempts(header), BOX.priority(header), BOX.expiry_ms(header)) == (0, 3, 0)
    assert (BOX.deaths(header), BOX.first_death(header)) == ([], None)
    header = BOX.with_(header, attempts=2, expiry_ms=7)
    assert (BOX.attempts(header), BOX.expiry_ms(header)) == (2, 7)
    header = BOX.with_death(header, Death("q", "rejected", 5000, 2))
    assert BOX.deaths(header) == [Death("q", "rejected", 5000, 2)]
    assert BOX.first_death(header) == ("q", "rejected")
    assert set(BOX.values(header)) == {"text", "n", "raw", "list"}
    assert AMQP.parts(header)[0] == b"\x02ex\x03key"


def test_its_own_headers_are_as_ever() -> None:
    values: dict[str, str | bytes | int | float | bool] = {"a": "b", "yes": True}
    header = BOX.with_values(b"", values)
    assert header == PLAIN.with_values(b"", values)
    assert BOX.values(header) == values
    header = BOX.with_(header, attempts=2, priority=4, expiry_ms=7)
    header = BOX.with_death(header, Death("q", "expired", 5000, 1))
    assert (BOX.attempts(header), BOX.priority(header), BOX.expiry_ms(header)) == (2, 4, 7)
    assert BOX.deaths(header) == PLAIN.deaths(header) == [Death("q", "expired", 5000, 1)]
    assert BOX.first_death(header) == ("q", "expired")
    assert BOX.attempts(b"") == BOX.priority(b"") == BOX.expiry_ms(b"") == 0
    assert BOX.values(b"") == {}


def test_damaged_properties_have_no_values() -> None:
    assert BOX.values(AMQP.make(b"\x00\x00\x00", b"\x20\x00\xff\xff")) == {}
