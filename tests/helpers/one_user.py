"""What one user without a tag may ask for, drawn by hypothesis: methods, calls and requests.

`steps` draws one step, a tuple whose first item is its kind. Most are as clients send them, some
are any method with any fields, and some are **heaps**: the ingredients of attacks that were found,
in numbers that did harm (`usual_steps` have them in small numbers). Heaps of different kinds meet
in one sequence, so that what one of them builds is what the next one has to go through.

`packet` gives the bytes of a step that goes over AMQP, on channels 1 to 4, which are open. The
others (`elsewhere`) need connections of their own, or HTTP. Her permissions are PATTERNS; what is
hers begins with "eve.". FIRST is what she declares on each connection, so that what is published
goes somewhere.
"""

import json
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

from hypothesis import strategies as st

from penstock.broker.operations import FUNCTIONS
from penstock.codec.frames import content_frames, method_frame
from penstock.codec.method import Method
from penstock.codec.properties import BasicProperties
from penstock.codec.spec import (
    METHODS,
    BasicAck,
    BasicCancel,
    BasicConsume,
    BasicGet,
    BasicNack,
    BasicPublish,
    BasicQos,
    BasicRecover,
    ChannelOpen,
    ConfirmSelect,
    ExchangeBind,
    ExchangeDeclare,
    ExchangeDelete,
    PenstockCall,
    QueueBind,
    QueueDeclare,
    QueueDelete,
    QueuePurge,
    QueueUnbind,
    TxCommit,
    TxRollback,
    TxSelect,
)
from penstock.operation_table import EVENTS

Step = tuple[Any, ...]

FRAME_MAX: Final = 131_072
NAMES = ("eve.a", "eve.b", "eve.s", "eve.x", "other.q", "other.x", "amq.direct", "amq.topic",
         "amq.headers", "amq.fanout", "", "eve." + "n" * 250, "eve.\udcff\n")  # fmt: skip
PATTERNS = {"configure": r"^eve\.", "write": r"^eve\.", "read": r"^(eve\.|amq\.)"}
PERSISTENT, TRANSIENT = b"\x10\x00\x02", b"\0\0"
PUBLISHED_BYTES_MAX = 8 << 20  # of one step

# ---- any method with any fields ------------------------------------------------------------------

names = st.sampled_from(NAMES)
keys = st.sampled_from(("", "eve.a", "other.q", "a.b.c", "#", "*.b.#", "#.#.#.#.#.#.a", "k" * 255))
numbers = st.sampled_from((0, 1, 2, 7, 255, 256, 65_535, 100_000, (1 << 31) - 1, -1, 1 << 40))


def nested(depth: int) -> dict[str, object]:
    table: dict[str, object] = {}
    for _ in range(depth):
        table = {"t": table}
    return table


TABLES: tuple[dict[str, object], ...] = (
    {}, {}, {}, {}, {"x-max-priority": 255}, {"x-max-length": 1}, {"x-message-ttl": 0},
    {"x-expires": 50}, {"x-dead-letter-exchange": "eve.x"}, {"x-dead-letter-exchange": "other.x"},
    {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "eve.a"},
    {"x-queue-type": "stream"}, {"x-queue-type": "stream", "x-partitions": 8},
    {"x-queue-type": "quorum", "x-delivery-limit": 1}, {"x-single-active-consumer": True},
    {"alternate-exchange": "other.x"}, {"alternate-exchange": "eve.x"}, {"x-delayed-type": "topic"},
    {"x-match": "any", "a": 1}, {"x-match": "all", "a": None}, {"x-stream-offset": "first"},
    {"x-priority": 5}, {"x-delay": 100}, {"x-overflow": "reject-publish", "x-max-length": 1},
    nested(30), nested(200), {f"{n:x}": None for n in range(1500)},
    {f"{n:x}": n for n in range(8000)}, {"s": "y" * 100_000},
)  # fmt: skip
TYPES = ("direct", "fanout", "topic", "headers", "x-delayed-message", "none")
OPS = (*FUNCTIONS, "no.operation")
SAID = (*METHODS.values(),)


def value_of(name: str, default: object) -> st.SearchStrategy[Any]:
    """A value for a field of this name, whose default has its type."""
    if name == "type":
        return st.sampled_from(TYPES)
    if name == "routing_key":
        return keys
    if name in ("op", "mechanism"):
        return st.sampled_from(OPS)
    if isinstance(default, bool):
        return st.booleans()
    if isinstance(default, int):
        return numbers
    if isinstance(default, dict):
        return st.sampled_from(TABLES)
    if isinstance(default, bytes):
        return st.sampled_from((b"", b"{}", b'{"queue": "other.q"}', b"\xff" * 100))
    return names


def methods() -> st.SearchStrategy[Method]:
    """Any method with any fields."""
    return st.sampled_from(SAID).flatmap(
        lambda kind: st.fixed_dictionaries(
            {name: value_of(name, default) for name, default in vars(kind()).items()}
        ).map(lambda fields: kind(**fields))
    )


args = st.dictionaries(
    st.sampled_from((
        "queue", "exchange", "name", "arguments", "routing_key", "body", "count", "reader", "query",
        "batch", "tokens", "target", "source", "destination", "type", "offset", "durable", "path",
        "to", "tags", "requeue", "limit", "transaction", "bodies", "channel", "after", "partition",
    )),
    st.one_of(
        names, numbers, st.booleans(), st.none(), st.sampled_from(TABLES[:26]),
        st.sampled_from(([], ["eve.a"], [1, 2], [["eve.a", "b"]], {"b64": "AAAA"}, "\ud800")),
    ),
    max_size=6,
)  # fmt: skip

# What a client would really ask for, so that the rest finds something to be wrong about.
mine = st.sampled_from(("eve.a", "eve.b", "eve.s"))
small = st.sampled_from(TABLES[:20])
SENSIBLE: tuple[st.SearchStrategy[Method], ...] = (
    st.builds(QueueDeclare, queue=mine, durable=st.booleans(), arguments=small),
    st.builds(QueueDeclare, queue=st.integers(0, 500).map("eve.{}".format)),
    st.builds(QueueDeclare, queue=st.just("eve.s"), durable=st.just(True),
              arguments=st.just({"x-queue-type": "stream"})),
    st.builds(ExchangeDeclare, exchange=st.just("eve.x"),
              type=st.sampled_from(TYPES[:4]), arguments=st.just({})),
    st.builds(ExchangeDelete, exchange=st.just("eve.x")),
    st.builds(QueueBind, queue=mine, exchange=st.sampled_from(("eve.x", "amq.topic")),
              routing_key=keys, arguments=st.sampled_from(TABLES)),
    st.builds(QueueDelete, queue=mine),
    st.builds(QueuePurge, queue=mine),
    st.builds(BasicConsume, queue=mine, no_ack=st.booleans(), arguments=small),
    st.builds(BasicGet, queue=mine, no_ack=st.booleans()),
    st.builds(BasicQos, prefetch_count=st.sampled_from((0, 1, 1000))),
    st.builds(BasicNack, delivery_tag=st.just(0), multiple=st.just(True), requeue=st.booleans()),
    st.builds(BasicAck, delivery_tag=st.just(0), multiple=st.just(True)),
    st.builds(BasicRecover, requeue=st.just(True)),
    st.builds(TxSelect), st.builds(TxCommit), st.builds(TxRollback), st.builds(ConfirmSelect),
)  # fmt: skip
# What there is again on each of her connections.
FIRST: tuple[Method, ...] = (
    ExchangeDeclare(exchange="eve.x", type="topic", nowait=True),
    QueueDeclare(queue="eve.a", durable=True, nowait=True),
    QueueDeclare(queue="eve.b", nowait=True),
    QueueBind(queue="eve.a", exchange="eve.x", routing_key="#", nowait=True),
    QueueBind(queue="eve.b", exchange="eve.x", routing_key="#", nowait=True),
    ExchangeDeclare(exchange="eve.d", type="direct", nowait=True),
    QueueBind(queue="eve.a", exchange="eve.d", routing_key="eve.a", nowait=True),
)


def first() -> bytes:
    """What she sends on a new connection, on channel 4."""
    return frames(4, FIRST)


# ---- heaps ---------------------------------------------------------------------------------------

FOUR_TYPES = TYPES[:4]
ONE_OF_ALL = ("x-consistent-hash", "x-modulus-hash", "x-random")
KEYS = (1000, 10_000, 100_000)
LETTERS = {"x-dead-letter-exchange": "eve.x", "x-dead-letter-routing-key": "a.b.c"}
LARGE: tuple[dict[str, object], ...] = (
    {},
    {"x": "y" * 8000},
    {"x": [None] * 8000},
    {"x": [{"a": [1, {"b": "c"}]}] * 500},
    {f"{n:x}": n for n in range(1000)},
    {"x-match": "any", **{f"{n:x}": n for n in range(400)}},
)


def frames(channel: int, given: Iterable[Method]) -> bytes:
    return b"".join(method_frame(channel, method.encode()) for method in given)


NUMBER, NEXT = "@@@@@", "&&&&&"


def numbered(channel: int, n: int, *given: Method) -> bytes:
    """These methods n times, up to PUBLISHED_BYTES_MAX, with a number for NUMBER in them, and the
    next one for NEXT. They are encoded once."""
    one = frames(channel, given)
    marks = NUMBER.encode(), NEXT.encode()
    return b"".join(
        one.replace(marks[0], b"%05d" % i).replace(marks[1], b"%05d" % (i + 1))
        for i in range(min(n, PUBLISHED_BYTES_MAX // len(one) + 1))
    )


def message(
    channel: int, exchange: str, key: str, body: bytes = b"x", headers: dict[str, Any] | None = None
) -> bytes:
    """A publish with its content."""
    props = BasicProperties(headers=headers).encode() if headers else TRANSIENT
    head = method_frame(channel, BasicPublish(exchange=exchange, routing_key=key).encode())
    return head + content_frames(channel, props, body, FRAME_MAX)


def to_queue(
    channel: int, queue: str, n: int, body: bytes = b"x", headers: dict[str, Any] | None = None
) -> bytes:
    """The same message n times to one of her queues. She may not write to the default exchange."""
    bind = QueueBind(queue=queue, exchange="eve.d", routing_key=queue, nowait=True)
    return frames(channel, (bind,)) + message(channel, "eve.d", queue, body, headers) * n


def call(channel: int, op: str, given: dict[str, Any]) -> bytes:
    """A penstock.call."""
    data = json.dumps(given).encode("utf-8", "surrogatepass")
    return method_frame(channel, PenstockCall(op=op, arguments=data).encode())


def words(n: int, seed: int) -> str:
    """A key of n words in at most 255 bytes, another one for each seed."""
    return ".".join([f"{seed:x}", *["abc"[seed * 7 % 3 - i % 2] for i in range(n - 1)]])[:255]


def pattern(n: int, seed: int) -> str:
    """As `words`, with wildcards."""
    return (
        ".".join([("#", "*", "a")[(seed >> i % 11) % 3] for i in range(n)])[:254] + f"{seed % 10}"
    )


def copied(channel: int, exchange: str, n: int, n_words: int, count: int) -> bytes:
    """Publishes with n keys in CC each."""
    cc = [words(n_words, seed) for seed in range(n)]
    while sum(map(len, cc)) > 100_000:
        cc.pop()
    return message(channel, exchange, "a.b.c", headers={"CC": cc}) * count


def topics(channel: int, n: int, n_words: int, first_seed: int) -> bytes:
    """Bindings of a topic exchange."""
    bind = [
        QueueBind(queue="eve.a", exchange="eve.t", routing_key=pattern(n_words, seed), nowait=True)
        for seed in range(first_seed, first_seed + n)
    ]
    return frames(channel, (ExchangeDeclare(exchange="eve.t", type="topic", nowait=True), *bind))


def chain(channel: int, n: int, kind: str, headers: int) -> bytes:
    """Exchanges one behind the other, and a message with so many headers to the first."""
    arguments = {"x-match": "any", "1": 1}
    data = numbered(
        channel, n,
        ExchangeDeclare(exchange=f"eve.c{NEXT}", type=kind, nowait=True),
        ExchangeDeclare(exchange=f"eve.c{NUMBER}", type=kind, nowait=True),
        ExchangeBind(destination=f"eve.c{NEXT}", source=f"eve.c{NUMBER}", routing_key="#",
                     arguments=arguments, nowait=True),
    )  # fmt: skip
    last = QueueBind(queue="eve.b", exchange=f"eve.c{n:05}", routing_key="#", arguments=arguments,
                     nowait=True)  # fmt: skip
    table: dict[str, Any] = {f"{i:x}": 1 for i in range(headers)}
    return data + frames(channel, (last,)) + message(channel, "eve.c00000", "#", headers=table)


def matched(channel: int, n: int, table: dict[str, object], kind: str) -> bytes:
    """Bindings with large arguments."""
    exchange = f"eve.{kind}"
    bind = QueueBind(queue="eve.a", exchange=exchange, routing_key=NUMBER, nowait=True,
                     arguments={**table, "number": NUMBER})  # fmt: skip
    declare = ExchangeDeclare(exchange=exchange, type=kind, nowait=True)
    return frames(channel, (declare,)) + numbered(channel, n, bind)


def behind(channel: int, source: str, n: int, kind: str) -> bytes:
    """Exchanges behind one that others use."""
    return numbered(
        channel, n,
        ExchangeDeclare(exchange=f"eve.e{NUMBER}", type=kind, nowait=True),
        ExchangeBind(destination=f"eve.e{NUMBER}", source=source, routing_key="#", nowait=True),
    )  # fmt: skip


def argued(channel: int, n: int, table: dict[str, object]) -> bytes:
    """Queues and exchanges with large arguments."""
    return numbered(
        channel, n,
        QueueDeclare(queue=f"eve.l{NUMBER}", arguments=table, nowait=True),
        ExchangeDeclare(exchange=f"eve.k{NUMBER}", type="fanout", arguments=table, nowait=True),
    )  # fmt: skip


def consumers(channel: int, n: int, table: dict[str, object], no_ack: bool) -> bytes:
    """Consumers of one queue."""
    consume = BasicConsume(queue="eve.b", consumer_tag=NUMBER, no_ack=no_ack, nowait=True,
                           arguments=table)  # fmt: skip
    return numbered(channel, n, consume)


def letters(channel: int, n: int, headers: int, requeue: bool) -> bytes:
    """Messages with many headers, taken and given back at once, by a queue that makes dead letters
    of them."""
    kind = {"x-queue-type": "quorum", "x-delivery-limit": 0} if requeue else {}
    queue = f"eve.d{requeue:d}"
    before = frames(
        channel,
        (
            QueueDeclare(queue=queue, durable=True, arguments={**LETTERS, **kind}, nowait=True),
            BasicConsume(queue=queue, consumer_tag=queue, nowait=True),
        ),
    )
    table = {f"{i:06}": "abc" for i in range(headers)}
    nack = BasicNack(delivery_tag=0, multiple=True, requeue=requeue)
    return before + to_queue(channel, queue, n, headers=table) + frames(channel, (nack,))


def committed(channel: int, n: int, size: int, exchange: str) -> bytes:
    """A transaction."""
    n = min(n, max(1, PUBLISHED_BYTES_MAX // (size + 100)))
    data = message(channel, exchange, "a.b.c", bytes(size))
    return frames(channel, (TxSelect(),)) + data * n + frames(channel, (TxCommit(),))


def spread(channel: int, n: int, size: int, table: dict[str, object]) -> bytes:
    """A message to many queues."""
    declare = ExchangeDeclare(exchange="eve.f", type="fanout", nowait=True)
    made = numbered(
        channel, n,
        QueueDeclare(queue=f"eve.q{NUMBER}", arguments=table, nowait=True),
        QueueBind(queue=f"eve.q{NUMBER}", exchange="eve.f", nowait=True),
    )  # fmt: skip
    return frames(channel, (declare,)) + made + message(channel, "eve.f", "", bytes(size))


def history(channel: int, n: int, size: int) -> bytes:
    """Messages that an exchange keeps, and bindings that get them."""
    declare = ExchangeDeclare(exchange="eve.h", type="x-recent-history", nowait=True,
                              arguments={"x-recent-history-length": 1 << 30})  # fmt: skip
    data = frames(channel, (declare,)) + message(channel, "eve.h", "", bytes(size)) * n
    bind = (
        QueueBind(queue="eve.a", exchange="eve.h", routing_key=NUMBER, nowait=True),
        ExchangeBind(destination="eve.x", source="eve.h", routing_key=NUMBER, nowait=True),
    )
    return data + numbered(channel, 3, *bind)


def hashes(channel: int, n: int, kind: str, size: int) -> bytes:
    """Exchanges that select one of many targets, the last of them by a large header."""
    arguments: dict[str, object] = {"hash-header": "h"} if kind == "x-consistent-hash" else {}
    declare = ExchangeDeclare(exchange=f"eve.{kind}", type=kind, arguments=arguments, nowait=True)
    target = (
        ExchangeDeclare(exchange=f"eve.k{NUMBER}", type="fanout", nowait=True),
        ExchangeBind(destination=f"eve.k{NUMBER}", source=f"eve.{kind}", routing_key="1",
                     nowait=True),
    )  # fmt: skip
    table: dict[str, Any] = {"h": [[i] for i in range(size)]}
    sent = message(channel, f"eve.{kind}", "k", headers=table) * 5
    return frames(channel, (declare,)) + numbered(channel, n, *target) + sent


def once(channel: int, n: int, size: int) -> bytes:
    """Messages with keys, for a queue that drops duplicates."""
    arguments: dict[str, object] = {"x-message-deduplication": True, "x-cache-size": size}
    declare = QueueDeclare(queue=f"eve.o{size}", arguments=arguments, nowait=True)
    headers = {"x-deduplication-header": NUMBER}
    one = to_queue(channel, f"eve.o{size}", 1, headers=headers)
    return frames(channel, (declare,)) + b"".join(
        one.replace(NUMBER.encode(), b"%05d" % i) for i in range(n)
    )


WORDS: list[str] = [f"{n}" + ".a" * 120 for n in range(300)]
CALLS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("peek", {"queue": "eve.a", "count": 1000}),
    ("box.browse", {"name": "eve.a", "n": 1000}),
    ("get", {"queue": "eve.a", "count": 1000, "session": "s"}),
    ("box.stream_info", {"name": "eve.s"}),
    ("describe_stream", {"queue": "eve.s"}),
    ("list_streams", {}),
    ("list_leases", {}),
    ("box.queues", {"n": 1000}),
    ("box.streams", {"n": 1000}),
    ("describe_queue", {"queue": "eve.a"}),
    ("lease_queue", {"queue": "eve.a", "reader": "r", "messages": 1000}),
    ("publish", {"exchange": "eve.x", "bodies": ["x"] * 1000}),
    ("publish", {"exchange": "eve.x", "bodies": ["x"],
                 "properties": {"headers": {"CC": ["k"] * 400}}}),
    ("declare_queue", {"queue": "eve.\ud800"}),
    ("bind_queue", {"queue": "eve.a", "exchange": "eve.t", "routing_key": "\udcff.#"}),
    ("get_messages", {"queue": "eve.a", "count": 1000}),
    ("get_messages", {"queue": "eve.a", "count": 50, "ackmode": "reject_requeue_false"}),
    ("browse_messages", {"queue": "eve.a", "count": 1000, "truncate": 0}),
    ("browse_messages", {"queue": "eve.a", "count": 1000, "headers": {"none": None}}),
    ("delete_messages", {"queue": "eve.a", "dry_run": True, "headers": {"none": None}}),
    ("route", {"exchange": "eve.t", "routing_key": WORDS[-1]}),
    ("publish", {"exchange": "eve.t", "routing_key": WORDS[0], "bodies": ["x"] * 10}),
    ("delete_binding", {"source": "eve.u", "destination": "eve.a", "destination_type": "queue",
                        "properties_key": "none"}),
    ("commit_batch", {"query": "keys", "batch": 0, "previous": -1, "pages": [],
                      "target": {"exchanges": ["eve.t"]},
                      "mandatory_keys": [["eve.t", key] for key in WORDS]}),
    ("list_batches", {}),
)  # fmt: skip


def asked(channel: int, index: int, n: int) -> bytes:
    """The same call many times in one packet."""
    one = call(channel, *CALLS[index])
    return one * min(n, PUBLISHED_BYTES_MAX // len(one) + 1)


def readers(channel: int, n: int, first_number: int) -> bytes:
    """Names of readers of a stream, a reader each."""
    return b"".join(
        call(channel, "set_stream_reader",
             {"queue": "eve.s", "reader": f"r{i:05}" + "r" * 100, "offsets": {"0": 0}})
        for i in range(first_number, first_number + n)
    )  # fmt: skip


def owners(channel: int, n: int, first_number: int) -> bytes:
    """Owners of leases, of a reader each."""
    return b"".join(
        call(channel, "own_lease",
             {"queue": "eve.a", "reader": f"r{i}", "owner": f"o{i}" + "o" * 90, "seconds": 3600})
        for i in range(first_number, first_number + n)
    )  # fmt: skip


def leases(channel: int, n: int, first_number: int) -> bytes:
    """Leases of a message each, of a reader each."""
    given = {"queue": "eve.w", "messages": 1}
    declare = QueueDeclare(queue="eve.w", durable=True, nowait=True)
    return (
        frames(channel, (declare,))
        + to_queue(channel, "eve.w", n)
        + b"".join(
            call(channel, "lease_queue", {**given, "reader": f"r{i:05}" + "r" * 100})
            for i in range(first_number, first_number + n)
        )
    )


def queries(channel: int, n: int, first_number: int) -> bytes:
    """Batches without rows, of a query each."""
    given = {"batch": 0, "previous": -1, "pages": [], "target": {}}
    return b"".join(
        call(channel, "commit_batch", {**given, "query": f"q{i:05}" + "q" * 100})
        for i in range(first_number, first_number + n)
    )


def bound(channel: int, n: int, first_number: int, *, is_undone: bool = False) -> bytes:
    """Durable bindings, and perhaps their end."""
    declare = ExchangeDeclare(exchange="eve.u", type="direct", durable=True, nowait=True)
    keys = [f"k{i}" for i in range(first_number, first_number + n)]
    ends: Any = {"queue": "eve.a", "exchange": "eve.u"}
    bind = [QueueBind(**ends, routing_key=key, nowait=True) for key in keys]
    unbind = [QueueUnbind(**ends, routing_key=key) for key in keys]
    return frames(channel, (declare, *bind, *(unbind if is_undone else ())))


def exclusive(channel: int, n: int, *, has_consumers: bool) -> bytes:
    """Queues that end with the connection, or with their consumers."""
    declare = QueueDeclare(queue=f"eve.z{NUMBER}", exclusive=not has_consumers,
                           auto_delete=has_consumers, nowait=True)  # fmt: skip
    consume = BasicConsume(queue=f"eve.z{NUMBER}", consumer_tag=f"z{NUMBER}", nowait=True)
    return numbered(channel, n, declare, *((consume,) if has_consumers else ()))


def events(channel: int, destination: str) -> bytes:
    """Events of the broker, to one of her exchanges."""
    bind = ExchangeBind(destination=destination, source=EVENTS, routing_key="#", nowait=True)
    return frames(channel, (bind,))


def wide(channel: int, n: int, headers: int) -> bytes:
    """Messages without bodies and with large headers."""
    table = {f"{i:x}": None for i in range(headers)}
    return to_queue(channel, "eve.a", n, b"", table)


def delayed(channel: int, n: int, delay_ms: int) -> bytes:
    """Messages that are due at the same time."""
    return to_queue(channel, "eve.a", n, headers={"x-delay": delay_ms})


def standing_by(channel: int, n: int) -> bytes:
    """Consumers of a queue of which one is active, which end one after the other."""
    arguments: dict[str, object] = {"x-single-active-consumer": True}
    declare = QueueDeclare(queue="eve.v", arguments=arguments, nowait=True)
    consume = BasicConsume(queue="eve.v", consumer_tag=NUMBER, nowait=True)
    cancel = BasicCancel(consumer_tag=NUMBER, nowait=True)
    data = frames(channel, (declare,)) + to_queue(channel, "eve.v", 100)
    return data + numbered(channel, n, consume) + numbered(channel, n, cancel)


def cached(n_channels: int, n_keys: int) -> bytes:
    """Publishes with other keys each, on many channels."""
    one = b"".join(message(1, "eve.x", words(3, seed)) for seed in range(n_keys))
    opened = frames(1, (ChannelOpen(),))
    return b"".join(
        (opened + one).replace(b"\1\0\1\0", b"\1" + i.to_bytes(2) + b"\0")
        .replace(b"\2\0\1\0", b"\2" + i.to_bytes(2) + b"\0")
        .replace(b"\3\0\1\0", b"\3" + i.to_bytes(2) + b"\0")
        for i in range(10, 10 + n_channels)
    )  # fmt: skip


def cleared(channel: int) -> bytes:
    """Delete what heaps have made, for others to have room."""
    exchanges = [f"eve.{kind}" for kind in ("t", "f", "h", "u", *FOUR_TYPES, *ONE_OF_ALL)]
    exchanges += [f"eve.{kind}{i:05}" for kind in "cek" for i in range(300)]
    queues = [f"eve.{kind}{i:05}" for kind in "lq" for i in range(100)]
    queues += [f"eve.o{size}" for size in KEYS]
    ended = call(channel, "delete_queue", {"queue": "eve.w", "force": True})
    return ended + frames(
        channel,
        (
            *(ExchangeDelete(exchange=name, nowait=True) for name in exchanges),
            *(QueueDelete(queue=name, nowait=True) for name in ("eve.d0", "eve.d1", *queues)),
            *(QueueDelete(queue=name, nowait=True) for name in ("eve.a", "eve.b", "eve.s")),
            *FIRST,
            QueueDeclare(queue="eve.s", durable=True, arguments={"x-queue-type": "stream"},
                         nowait=True),
        ),
    )  # fmt: skip


def large_body(
    channel: int, exchange: str, key: str, size_mib: int, *, is_persistent: bool = True
) -> bytes:
    """A publish whose body is beyond what is kept in RAM."""
    method = BasicPublish(exchange=exchange, routing_key=key).encode()
    props = PERSISTENT if is_persistent else TRANSIENT
    content = content_frames(channel, props, bytes(size_mib << 20), FRAME_MAX)
    return method_frame(channel, method) + content


channels = st.integers(1, 4)
large = st.sampled_from(LARGE)
# Few of the largest: each takes as long as all else of its sequence.
LARGE_BODY = (
    st.sampled_from(("eve.d", "eve.x", "eve.f")), st.sampled_from(("eve.a", "eve.s", "")),
    st.sampled_from((4,) * 6 + (16,) * 4 + (40, 100)),
)  # fmt: skip
HEAPS: dict[str, tuple[Callable[..., bytes], tuple[st.SearchStrategy[Any], ...]]] = {
    "copied": (copied, (
        channels, st.sampled_from(("eve.x", "eve.t", "eve.t", "eve.headers", "eve.c00000", "")),
        st.sampled_from((10, 480)), st.sampled_from((1, 20)), st.sampled_from((1, 20)),
    )),
    "topics": (topics, (
        channels, st.sampled_from((50, 500, 2048)), st.sampled_from((3, 20, 126)),
        st.sampled_from((0, 2048, 5000)),
    )),
    "chain": (chain, (
        channels, st.sampled_from((10, 300)), st.sampled_from(("headers", "topic", "fanout")),
        st.sampled_from((2, 8000)),
    )),
    "matched": (matched, (
        channels, st.sampled_from((20, 300)), large, st.sampled_from(FOUR_TYPES),
    )),
    "behind": (behind, (
        channels, st.sampled_from(("amq.topic", "amq.headers", "amq.fanout", "eve.x")),
        st.sampled_from((20, 300)), st.sampled_from(FOUR_TYPES),
    )),
    "argued": (argued, (channels, st.sampled_from((5, 100)), large)),
    "consumers": (consumers, (channels, st.sampled_from((10, 2000)), large, st.booleans())),
    "letters": (letters, (
        channels, st.sampled_from((10, 100)), st.sampled_from((10, 4000)), st.booleans(),
    )),
    "committed": (committed, (
        channels, st.sampled_from((10, 500)), st.sampled_from((0, 1000, 100_000)),
        st.sampled_from(("eve.x", "eve.f", "eve.t", "")),
    )),
    "spread": (spread, (
        channels, st.sampled_from((10, 100)), st.sampled_from((0, 10_000, 1 << 20)),
        st.sampled_from(({}, {"x-max-length": 1}, {"x-message-ttl": 0, **LETTERS})),
    )),
    "asked": (asked, (
        channels, st.sampled_from(range(len(CALLS))), st.sampled_from((1, 50, 1000)),
    )),
    "readers": (readers, (
        channels, st.sampled_from((10, 500)), st.sampled_from((0, 500, 1000)),
    )),
    "owners": (owners, (channels, st.sampled_from((10, 500)), st.sampled_from((0, 500, 1000)))),
    "cached": (cached, (st.sampled_from((1, 50)), st.sampled_from((10, 1000)))),
    "history": (history, (
        channels, st.sampled_from((10, 4000)), st.sampled_from((0, 1000, 100_000)),
    )),
    "hashes": (hashes, (
        channels, st.sampled_from((10, 300)), st.sampled_from(ONE_OF_ALL),
        st.sampled_from((1, 8000)),
    )),
    "once": (once, (channels, st.sampled_from((10, 5000)), st.sampled_from(KEYS))),
    "leases": (leases, (channels, st.sampled_from((10, 500)), st.sampled_from((0, 500, 1000)))),
    "queries": (queries, (channels, st.sampled_from((10, 500)), st.sampled_from((0, 500, 1000)))),
    "bound": (bound, (channels, st.sampled_from((10, 3000)), st.sampled_from((0, 3000, 6000)))),
    "unbound": (partial(bound, is_undone=True), (
        channels, st.sampled_from((10, 3000)), st.sampled_from((0, 3000, 6000)),
    )),
    "exclusive": (partial(exclusive, has_consumers=False), (
        channels, st.sampled_from((10, 1500)),
    )),
    "auto-delete": (partial(exclusive, has_consumers=True), (
        channels, st.sampled_from((10, 1500)),
    )),
    "events": (events, (
        channels, st.sampled_from(("eve.x", "eve.t", "eve.headers", "eve.c00000", "eve.f")),
    )),
    "wide": (wide, (channels, st.sampled_from((10, 200)), st.sampled_from((100, 20_000)))),
    "delayed": (delayed, (
        channels, st.sampled_from((10, 5000)), st.sampled_from((1, 2000, 60_000)),
    )),
    "standing by": (standing_by, (channels, st.sampled_from((10, 2000)))),
    "large": (large_body, (channels, *LARGE_BODY)),
    "cleared": (cleared, (channels,)),
}  # fmt: skip
heaps = tuple(st.tuples(st.just(kind), *given) for kind, (_, given) in HEAPS.items())
# The same in numbers that take milliseconds, for each run of the tests.
small_heaps: tuple[st.SearchStrategy[Any], ...] = (
    st.tuples(st.just("copied"), channels, st.just("eve.x"), st.just(10), st.just(3), st.just(1)),
    st.tuples(st.just("topics"), channels, st.just(50), st.just(3), st.just(0)),
    st.tuples(st.just("chain"), channels, st.just(10), st.just("headers"), st.just(2)),
    st.tuples(st.just("matched"), channels, st.just(20), st.just({}), st.sampled_from(FOUR_TYPES)),
    st.tuples(st.just("behind"), channels, st.just("amq.topic"), st.just(20), st.just("fanout")),
    st.tuples(st.just("letters"), channels, st.just(10), st.just(10), st.booleans()),
    st.tuples(st.just("committed"), channels, st.just(10), st.just(1000), st.just("eve.x")),
    st.tuples(st.just("spread"), channels, st.just(10), st.just(1000), st.just({})),
    st.tuples(st.just("asked"), channels, st.sampled_from(range(len(CALLS))), st.just(1)),
    st.tuples(st.just("history"), channels, st.just(100), st.just(1000)),
    st.tuples(st.just("hashes"), channels, st.just(10), st.just("x-consistent-hash"), st.just(10)),
    st.tuples(st.just("once"), channels, st.just(100), st.just(1000)),
    st.tuples(st.just("leases"), channels, st.just(10), st.just(0)),
    st.tuples(st.just("queries"), channels, st.just(10), st.just(0)),
    st.tuples(st.just("unbound"), channels, st.just(100), st.just(0)),
    st.tuples(st.just("exclusive"), channels, st.just(100)),
    st.tuples(st.just("events"), channels, st.just("eve.x")),
    st.tuples(st.just("wide"), channels, st.just(10), st.just(1000)),
    st.tuples(st.just("delayed"), channels, st.just(100), st.just(2000)),
    st.tuples(st.just("standing by"), channels, st.just(100)),
    st.tuples(
        st.just("large"), channels, st.just("eve.x"), st.just("eve.a"), st.sampled_from((4, 16))
    ),
    st.tuples(st.just("cleared"), channels),
)

# ---- steps ---------------------------------------------------------------------------------------


def said(method: Method) -> tuple[str, bytes]:
    """Its name and payload; nothing if it cannot be encoded."""
    try:
        return method.NAME, method.encode()
    except (ValueError, OverflowError):  # UnicodeEncodeError is one
        return method.NAME, b""


sensible = st.tuples(st.just("method"), channels, st.one_of(*SENSIBLE).map(said))
published = st.tuples(
    st.just("publish"), channels, st.sampled_from(("eve.x",) * 9 + ("amq.topic", "")),
    keys, st.sampled_from((0, 100, 1000, 70_000, 900_000, 3 << 20)),
    st.sampled_from((1, 20, 500, 5000)), st.booleans(),
)  # fmt: skip
usual = (
    *(sensible,) * 8, *(published,) * 6,
    st.tuples(st.just("method"), channels, methods().map(said)),
    st.tuples(st.just("begin"), channels, st.sampled_from((100, 60_000, 900_000, 1 << 30))),
    st.tuples(st.just("call"), channels, st.sampled_from(OPS), args),
    st.tuples(st.just("open"), st.integers(1, 200)),
    st.tuples(st.just("bytes"), st.binary(max_size=200)),
    st.tuples(st.just("again")),
)  # fmt: skip

ADDRESSES = (
    "/health", "/api/overview", "/api/streams/{v}", "/api/streams/{v}/{n}",
    "/api/streams/{v}/{n}/offset?time_us={k}", "/api/streams/{v}/{n}/pages",
    "/api/streams/{v}/{n}/frames?from={k}&to={k}", "/api/streams/{v}/eve.s/frames?from=0&to={k}",
    "/api/streams/{v}/eve.s/arrow?from=0&to={k}", "/api/streams/{v}/{n}/readers/{n}",
    "/api/streams/{v}/eve.s/readers/{n}{k}", "/api/leases/{v}", "/api/leases/{v}/{n}",
    "/api/leases/{v}/{n}/{n}", "/api/leases/{v}/eve.a/r", "/api/leases/{v}/eve.a/{n}/owner",
    "/api/leases/{v}/eve.a/r{k}/owner", "/api/leases/{v}/eve.a/r/frames?from=0&to={k}",
    "/api/staging/{v}", "/api/staging/{v}/{n}", "/api/staging/{v}/{n}/{k}", "/api/staging/{v}/q/1",
    "/api/staging/{v}/{n}/{k}/{k}/{n}", "/api/staging/{v}/q/1/1/a{k}", "/api/{n}", "/{n}",
)  # fmt: skip
# A body is made when it is sent.
BODIES: dict[str, Callable[[], bytes]] = {
    "nothing": bytes,
    "zeros": lambda: bytes(3 << 20),
    "an object": lambda: b"{}",
    "offsets": lambda: b'{"offsets": {"0": 0}, "kept_from": {"0": 0}}',
    "an owner": lambda: b'{"owner": "o", "seconds": 3600}',
    "a lone surrogate": lambda: b'{"owner": "\\ud800", "seconds": 3600}',
    "surrogates": lambda: b'{"offsets": {"\\udfff": 0}, "\\ud800": "\\ud800"}',
    "a lease": lambda: b'{"messages": 1000}',
    "not UTF-8": lambda: b'{"owner": "\xed\xa0\x80\xff"}',
    "no pages": lambda: b'{"pages": [], "target": {"queue": "eve.a"}}',
    "empty lists": lambda: b"[" + b"[]," * (5 << 20) + b"[]]",
    "pages of lists": lambda: b'{"pages": [' + b"[]," * (5 << 20) + b"[]]}",
    "pages of objects": lambda: b'{"pages": [' + b"{}," * (1 << 20) + b"{}]}",
    "deep lists": lambda: b"[" * (1 << 20),
    "pages of a deep list": lambda: b'{"pages": [' + b"[" * 200_000,
    "deep objects": lambda: b'{"a":' * 200_000 + b"1" + b"}" * 200_000,
    "many members": lambda: b"{" + b",".join(b'"%x":1' % i for i in range(5000)) + b"}",
    "a long number": lambda: b'{"offsets": {"0": ' + b"9" * 60_000 + b"}}",
}
asked_over_http = st.tuples(
    st.just("http"), st.sampled_from(("GET", "PUT", "POST", "DELETE", "HEAD")),
    st.sampled_from(ADDRESSES), names, numbers, st.sampled_from(tuple(BODIES)),
)  # fmt: skip
elsewhere = (
    *(asked_over_http,) * 6,
    st.tuples(st.just("http owners"), st.sampled_from((10, 100)), st.sampled_from((0, 1000))),
    st.tuples(st.just("http readers"), st.sampled_from((10, 100)), st.sampled_from((0, 1000))),
    st.tuples(st.just("unread answers"), st.sampled_from((1, 10, 40))),
    st.tuples(st.just("unread deliveries"), st.sampled_from((1, 5, 20)), st.booleans()),
    st.tuples(st.just("passwords"), st.sampled_from((1, 10, 60)), st.booleans()),
)  # fmt: skip
usual_steps = st.one_of(*usual, asked_over_http, *small_heaps)
steps = st.one_of(*usual, *heaps, *elsewhere)


def packet(step: Step) -> bytes:
    """The bytes of a step that goes over AMQP; none if it cannot be said in frames."""
    kind = step[0]
    if kind in HEAPS:
        return bytes(HEAPS[kind][0](*step[1:]))
    if kind == "publish":
        _, number, exchange, key, size, count, is_persistent = step
        count = min(count, max(1, PUBLISHED_BYTES_MAX // (size + 1)))
        props = PERSISTENT if is_persistent else TRANSIENT
        method = BasicPublish(exchange=exchange, routing_key=key).encode()
        one = method_frame(number, method) + content_frames(number, props, bytes(size), FRAME_MAX)
        return bytes(one * count)
    if kind == "begin":
        _, number, size = step
        method = method_frame(number, BasicPublish(exchange="eve.x").encode())
        content = content_frames(number, TRANSIENT, bytes(min(size, 200_000)), 8192)
        head = content[:11] + size.to_bytes(8) + content[19:]
        return bytes(method + head[: 22 + 8192 * (len(head) // 16_384)])
    if kind == "call":
        return call(*step[1:])
    if kind == "open":
        return b"".join(
            b"\x01" + number.to_bytes(2) + b"\0\0\0\x05\0\x14\0\x0a\0\xce"
            for number in range(1, step[1] + 1)
        )
    if kind == "bytes":
        return bytes(step[1])
    assert kind == "method", kind
    _, payload = step[2]
    return method_frame(step[1], payload) if payload else b""
