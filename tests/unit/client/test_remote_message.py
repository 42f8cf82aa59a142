"""RemoteDelivery: what the library tells of a message of AMQP."""

from datetime import UTC, datetime
from typing import Any

import pytest

from penstock.client.message import RemoteDelivery, death_of, id_of, properties_of
from penstock.codec.properties import BasicProperties
from penstock.embedded.messages import Message
from penstock.embedded.option_parsing import NewBody
from penstock.queues.headers import Death
from penstock.storage.files.durability import DISK, NONE


def message(properties: BasicProperties) -> Message:
    return Message(RemoteDelivery(properties.encode(), b"body", is_redelivered=False))


def test_what_a_put_says_is_what_a_get_tells() -> None:
    headers: dict[str, Any] = {"a": 1, "b": "x", "c": b"\0", "d": 0.5, "e": True}
    new = NewBody(b"", 3, "1m", 2, headers)
    properties = BasicProperties.decode(properties_of(new, DISK, f"{77:016x}", 1_700_000_000))
    assert properties.headers == {**headers, "x-delay": 2000}
    assert (properties.delivery_mode, properties.expiration) == (2, "60000")
    told = message(properties)
    assert (told.id, told.priority, told.time) == (77, 3, 1_700_000_000)
    assert (told.headers, told.attempts, told.deaths) == (headers, 0, [])


def test_durability_is_the_delivery_mode() -> None:
    for new in (b"body", NewBody(b"body")):
        for mode, delivery_mode in ((DISK, 2), (NONE, 1)):
            properties = BasicProperties.decode(properties_of(new, mode, "id", 5))
            assert properties == BasicProperties(
                delivery_mode=delivery_mode, message_id="id", timestamp=5
            )


def test_what_the_broker_adds_is_told_apart() -> None:
    died = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    told = message(
        BasicProperties(
            headers={
                "mine": "yes", "x-delivery-count": 4, "x-first-death-queue": "q",
                "x-last-death-reason": "expired",
                "x-death": [
                    {"queue": "q", "reason": "expired", "count": 2, "time": died, "attempts": 3},
                    {"queue": "r"},
                    "damaged",
                ],
            }
        )
    )  # fmt: skip
    assert told.headers == {"mine": "yes"}
    assert told.attempts == 4
    ms = round(died.timestamp() * 1000)
    assert told.deaths == [Death("q", "expired", ms, 3, 2), Death("r", "", 0, 0, 0)]
    assert death_of({"reason": "rejected"}).attempts == 1


def test_a_message_of_somebody_else() -> None:
    told = message(BasicProperties())
    assert (told.id, told.time, told.priority, told.headers) == (0, 0, 0, {})
    assert repr(told) == "<Message 0x0 of 4 bytes, attempts 0>"


@pytest.mark.parametrize("text", ["a", "no number 123456", "ü" * 16])
def test_any_text_is_an_id(text: str) -> None:
    assert 0 < id_of(text) < 1 << 63
    assert id_of(text) == id_of(text)
    assert id_of(text) != id_of(text + "x")


def test_no_id() -> None:
    assert id_of(None) == id_of("") == 0
