"""RemoteMessage: a message of a box on a broker: from its properties, what the library tells of it.

    id            the message id, which a put of the library makes: 16 hexadecimal digits; of a
                  message that somebody else published, a number made from their text; 0 without one
    time          the timestamp, 0 without one
    priority      as published
    headers       as published, without those that the broker keeps its own account in
    attempts      x-delivery-count: how often it came back
    deaths        x-death: where, why and how often it was dead-lettered, the last first

Not here: settling (remote_job.py).
"""

import hashlib
from datetime import datetime
from typing import Final

from penstock.codec.properties import BasicProperties
from penstock.embedded.new_body import NewBody
from penstock.queues.headers import Death, HeaderValue, PlainHeaders
from penstock.queues.x_death import implied_attempts
from penstock.storage.durability import NONE

ATTEMPTS: Final = "x-delivery-count"
DEATHS: Final = "x-death"
DELAY: Final = "x-delay"
# What the broker writes for itself; whoever put the message did not.
OWN: Final = (ATTEMPTS, DEATHS, DELAY)
OWN_PREFIXES: Final = ("x-first-death-", "x-last-death-")
PERSISTENT: Final = 2
TRANSIENT: Final = 1
HEADERS: Final = PlainHeaders()


class RemoteMessage:
    """See the head of this module. body: bytes. is_redelivered: it may have been delivered
    before."""

    __slots__ = ("_header", "_properties", "body", "is_redelivered")

    def __init__(self, header: bytes, body: bytes, *, is_redelivered: bool) -> None:
        self._header = header
        self._properties: BasicProperties | None = None
        self.body: bytes = body
        self.is_redelivered: bool = is_redelivered

    @property
    def properties(self) -> BasicProperties:
        """All that AMQP has to say of it."""
        if self._properties is None:
            self._properties = BasicProperties.decode(self._header)
        return self._properties

    @property
    def _table(self) -> dict[str, object]:
        return self.properties.headers or {}

    @property
    def id(self) -> int:
        """Never given twice by a box; it stays when the message moves to another queue."""
        return id_of(self.properties.message_id)

    @property
    def attempts(self) -> int:
        """How often it was delivered before and came back; 0 the first time."""
        found = self._table.get(ATTEMPTS)
        return found if isinstance(found, int) else 0

    @property
    def headers(self) -> dict[str, object]:
        """What was attached to it when it was put."""
        return {
            name: value
            for name, value in self._table.items()
            if name not in OWN and not name.startswith(OWN_PREFIXES)
        }

    @property
    def priority(self) -> int:
        """As it was put."""
        return self.properties.priority or 0

    @property
    def time(self) -> int:
        """When it was put: seconds since 1970."""
        return self.properties.timestamp or 0

    @property
    def deaths(self) -> list[Death]:
        """Where, why and how often it was dead-lettered, the last first."""
        found = self._table.get(DEATHS)
        entries = found if isinstance(found, list) else []
        return [death_of(entry) for entry in entries if isinstance(entry, dict)]

    def __repr__(self) -> str:
        kind = type(self).__name__
        return f"<{kind} {self.id:#x} of {len(self.body)} bytes, attempts {self.attempts}>"


def id_of(text: str | None) -> int:
    """The number that stands for a message id."""
    if not text:
        return 0
    if len(text) == 16:
        try:
            return int(text, 16)
        except ValueError:
            pass
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")


def death_of(entry: dict[str, object]) -> Death:
    """One entry of x-death. What is missing or of another type is at its least."""
    when = entry.get("time")
    reason = str(entry.get("reason", ""))
    return Death(
        str(entry.get("queue", "")),
        reason,
        round(when.timestamp() * 1000) if isinstance(when, datetime) else 0,
        _number(entry.get("attempts", implied_attempts(reason))),
        _number(entry.get("count")),
    )


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def properties_of(new: NewBody | bytes, mode: int, message_id: str, now_s: int) -> bytes:
    """The properties that carry what a put says of its message. mode: of storage.durability."""
    persistence = TRANSIENT if mode == NONE else PERSISTENT
    if isinstance(new, bytes):
        return BasicProperties(
            delivery_mode=persistence, message_id=message_id, timestamp=now_s
        ).encode()
    values: dict[str, HeaderValue] = HEADERS.values(new.header)
    table: dict[str, object] = {**values}
    if new.delay_ms is not None:
        table[DELAY] = new.delay_ms
    return BasicProperties(
        headers=table or None,
        delivery_mode=persistence,
        priority=new.priority or None,
        expiration=None if new.ttl_ms is None else str(new.ttl_ms),
        message_id=message_id,
        timestamp=now_s,
    ).encode()
