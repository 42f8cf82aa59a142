"""x-death: in a message's headers, where, why and how often it died; RabbitMQ's form of it.

    x-death                an array of tables, the last death first
        count l, reason S, queue S, time T (seconds), exchange S, routing-keys A of S,
        original-expiration S (if there was one)
    x-first-death-queue, x-first-death-reason, x-first-death-exchange    S

A death in the same queue for the same reason is counted in the table that is there, which comes
first again and stays as it is otherwise: exchange, keys and time are those of the first such death.
The routing keys are that of the publish and those in CC; what was in BCC is not told. An x-death
that is no array, because a client made a string of it, is replaced.

How often the message had been delivered when it last died there (its attempts) is not RabbitMQ's,
so it is not in the stored array: the header keeps these numbers beside the properties
(amqp_headers.py), in the order of the array. `with_attempts` writes them into the tables as a field
`attempts`, for clients that ask for it. Stores of earlier versions have that field in the array; it
is read. Only a number that the reason leaves open is told: a rejected message had been delivered
once, one that expired or did not fit never.

Values stay raw (raw_tables.py), so the deaths that a client gave back in types of its own are read,
and are not rewritten.
"""

from typing import Final

from penstock.queues import raw_tables
from penstock.queues.headers import REJECTED, Death
from penstock.queues.raw_tables import RawEntry, TableError

X_DEATH: Final = b"x-death"
ATTEMPTS: Final = b"attempts"
FIRST_QUEUE: Final = b"x-first-death-queue"
FIRST_REASON: Final = b"x-first-death-reason"
FIRST_EXCHANGE: Final = b"x-first-death-exchange"
CC: Final = b"CC"
COUNT_MAX: Final = (1 << 63) - 1
NO_ATTEMPTS: Final[list[int]] = []


def add_death(
    headers: list[RawEntry], death: Death, exchange: bytes, key: bytes, expiration: bytes | None,
    attempts: list[int],
) -> list[int]:  # fmt: skip
    """Write one more death into the headers. exchange, key: as the message was published;
    expiration: the property, which its owner takes away. attempts: of the deaths that are there,
    as an earlier call returned them. Returns those of all, [] if the reasons imply them."""
    long_string = raw_tables.long_string
    queue = death.queue.encode("utf-8", "surrogateescape")
    reason = death.reason.encode()
    known = raw_tables.get(headers, X_DEATH)
    if known is None:
        raw_tables.put(headers, FIRST_REASON, long_string(reason))
        raw_tables.put(headers, FIRST_QUEUE, long_string(queue))
        raw_tables.put(headers, FIRST_EXCHANGE, long_string(exchange))
    keys = [long_string(each) for each in [key, *routing_keys_in(headers)]]
    entry: list[RawEntry] = [
        (b"count", raw_tables.signed(death.count)),
        (b"reason", long_string(reason)),
        (b"queue", long_string(queue)),
        (b"time", raw_tables.timestamp(death.time_ms // 1000)),
        (b"exchange", long_string(exchange)),
        (b"routing-keys", raw_tables.array(keys)),
    ]
    if expiration is not None:
        entry.append((b"original-expiration", long_string(expiration)))
    others: list[bytes] = []
    numbers = [death.attempts]
    is_implied = death.attempts == implied_attempts(death.reason)
    is_counted = False
    values = _values(known)
    for i in range(len(values)):
        value = values[i]
        old = _table(value)
        if old is None or not _is_of(old, queue, reason):
            others.append(value)
            told = 0 if old is None else _attempts(old)
            numbers.append(attempts[i] if i < len(attempts) else told)
            is_implied = is_implied and numbers[-1] == told
        elif not is_counted:
            is_counted = True
            n = _number(old, b"count", 1)
            raw_tables.put(old, b"count", raw_tables.signed(min(n + death.count, COUNT_MAX)))
            entry = [field for field in old if field[0] != ATTEMPTS]
    raw_tables.put(headers, X_DEATH, raw_tables.array([raw_tables.nested(entry), *others]))
    return [] if is_implied else numbers


def with_attempts(headers: list[RawEntry], attempts: list[int]) -> None:
    """Write these numbers, which `add_death` returned, into the tables of x-death."""
    values = _values(raw_tables.get(headers, X_DEATH))
    for i in range(min(len(values), len(attempts))):
        entry = _table(values[i])
        if entry is not None and attempts[i] != implied_attempts(_text(entry, b"reason")):
            raw_tables.put(entry, ATTEMPTS, raw_tables.signed(attempts[i]))
            values[i] = raw_tables.nested(entry)
    raw_tables.put(headers, X_DEATH, raw_tables.array(values))


def deaths_in(headers: list[RawEntry], attempts: list[int]) -> list[Death]:
    """The last first. attempts: what `add_death` returned. What is no table in x-death was put
    there by a client: it is a death of reason rejected in no queue, because somebody decided
    (RabbitMQ reads cycles so)."""
    found: list[Death] = []
    values = _values(raw_tables.get(headers, X_DEATH))
    for i in range(len(values)):
        entry = _table(values[i])
        if entry is None:
            found.append(Death("", REJECTED, 0))
            continue
        reason = _text(entry, b"reason")
        number = attempts[i] if i < len(attempts) else _attempts(entry)
        time_ms = _number(entry, b"time", 0) * 1000
        count = _number(entry, b"count", 1)
        found.append(Death(_text(entry, b"queue"), reason, time_ms, number, count))
    return found


def first_death_in(headers: list[RawEntry]) -> tuple[str, str] | None:
    """Queue and reason of the very first death; None if it never died."""
    if raw_tables.get(headers, FIRST_QUEUE) is None:
        return None
    return _text(headers, FIRST_QUEUE), _text(headers, FIRST_REASON)


def routing_keys_in(headers: list[RawEntry], name: bytes = CC) -> list[bytes]:
    """The routing keys in the CC header, or that of another name: the long strings of its array."""
    found: list[bytes] = []
    for value in _values(raw_tables.get(headers, name)):
        key = raw_tables.content(value, b"S")
        if key is not None and len(key) < 256:
            found.append(key)
    return found


def implied_attempts(reason: str) -> int:
    """How often a message that died for this reason had been delivered, if nothing else is said."""
    return 1 if reason == REJECTED else 0


# ---- within a death ------------------------------------------------------------------------------


def _values(value: bytes | None) -> list[bytes]:
    """The values of an array; none if it is missing, another thing, or damaged."""
    if value is None:
        return []
    try:
        return raw_tables.split_array(value)
    except TableError:
        return []


def _table(value: bytes) -> list[RawEntry] | None:
    """The entries of a table; None if it is another thing, or damaged."""
    data = raw_tables.content(value, b"F")
    if data is None:
        return None
    try:
        return raw_tables.split(data)
    except TableError:
        return None


def _is_of(entry: list[RawEntry], queue: bytes, reason: bytes) -> bool:
    found = raw_tables.get(entry, b"queue")
    if found is None or raw_tables.content(found, b"Sx") != queue:
        return False
    found = raw_tables.get(entry, b"reason")
    return found is not None and raw_tables.content(found, b"Sx") == reason


def _attempts(entry: list[RawEntry]) -> int:
    """What the table itself says of its attempts."""
    return _number(entry, ATTEMPTS, implied_attempts(_text(entry, b"reason")))


def _text(entries: list[RawEntry], name: bytes) -> str:
    value = raw_tables.get(entries, name)
    data = None if value is None else raw_tables.content(value, b"Sx")
    return "" if data is None else data.decode("utf-8", "surrogateescape")


def _number(entries: list[RawEntry], name: bytes, default: int) -> int:
    value = raw_tables.get(entries, name)
    number = None if value is None else raw_tables.integer(value)
    return default if number is None or number < 0 else number
