"""Plain messages: names and values that AMQP cannot say as they are."""

from penstock.codec.properties import BasicProperties
from penstock.queues.amqp_headers import amqp_of
from penstock.queues.headers import Death, PlainHeaders
from penstock.queues.raw_fields import RawProperties

PLAIN = PlainHeaders()


def test_a_long_queue_name_is_cut() -> None:
    made = amqp_of(PLAIN, b"", "ü" * 200)
    assert made[:2] == b"\x00\xff"
    assert made[2 + 255 :] == b"\0\0"


def test_a_long_header_name_is_cut() -> None:
    plain = PLAIN.with_values(b"", {"n" * 300: 1, "m": 2})
    raw = RawProperties(amqp_of(PLAIN, plain, "")[2:])
    assert [len(name) for name, _ in raw.headers()] == [255, 1]


def test_all_deaths_in_their_order() -> None:
    plain = b""
    for queue, reason in (("a", "expired"), ("b", "maxlen"), ("c", "rejected"), ("a", "expired")):
        plain = PLAIN.with_death(plain, Death(queue, reason, 5000))
    headers = BasicProperties.decode(amqp_of(PLAIN, plain, "q")[3:]).headers
    assert headers is not None
    deaths = headers["x-death"]
    assert isinstance(deaths, list)
    assert [(d["queue"], d["count"]) for d in deaths] == [("a", 2), ("c", 1), ("b", 1)]
    assert headers["x-first-death-queue"] == "a"
    assert headers["x-first-death-reason"] == "expired"
