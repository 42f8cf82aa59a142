"""Scripts: what one session sends, step by step.

A step is what goes out in one packet (one for each connection); after it the runner (runner.py)
listens until the broker has said all. Names of queues and exchanges are made by `Script.name`, so
that sessions that run at one time on one broker do not meet; the transcript has them without that.

`Call` is a method as the corpus writes it: `declare("q", durable=1)`. It goes to channel 1 of the
first connection unless `on` sends it elsewhere.
"""

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from tests.conformance.compared.amqp import (
    frame,
    header_payload,
    method_payload,
    properties_bytes,
)

ANSWERS = {
    "queue.declare", "queue.bind", "queue.unbind", "queue.purge", "queue.delete",
    "exchange.declare", "exchange.delete", "exchange.bind", "exchange.unbind", "basic.qos",
    "basic.consume", "basic.cancel", "basic.get", "basic.recover", "tx.select", "tx.commit",
    "tx.rollback", "confirm.select", "channel.open", "channel.close", "channel.flow",
    "connection.close", "access.request",
}  # fmt: skip


@dataclass(frozen=True)
class Call:
    """build(channel): the bytes. is_asking: an answer must come. special: "open" opens the channel
    if it is not open, "lose" ends the connection without a word, "connect" does that and begins a
    new one on which nothing is said. is_whole: after it another method
    may come on the channel. operation: what an operator does meanwhile, with its arguments."""

    build: Callable[[int], bytes]
    is_asking: bool = False
    channel: int = 1
    connection: int = 0
    special: str = ""
    is_whole: bool = False
    operation: tuple[str, dict[str, Any]] | None = None


def on(channel: int, call: Call, connection: int = 0) -> Call:
    return replace(call, channel=channel, connection=connection)


def by(connection: int, call: Call) -> Call:
    """The same on channel 1 of another connection."""
    return replace(call, connection=connection)


def call(name: str, *values: Any, nowait: object = False) -> Call:
    payload = method_payload(name, *values)
    is_asking = name in ANSWERS and not nowait
    return Call(lambda channel: frame(1, channel, payload), is_asking, is_whole=True)


def raw(data: bytes, *, is_asking: bool = False) -> Call:
    """Bytes as they are."""
    return Call(lambda _: data, is_asking)


def method_frame(payload: bytes, *, is_asking: bool = True) -> Call:
    return Call(lambda channel: frame(1, channel, payload), is_asking)


def header(size: int, properties: bytes = b"\0\0", **options: int) -> Call:
    payload = header_payload(size, properties, **options)
    return Call(lambda channel: frame(2, channel, payload))


def body(data: bytes) -> Call:
    return Call(lambda channel: frame(3, channel, data))


REOPEN = Call(
    lambda channel: frame(1, channel, method_payload("channel.open", "")), True, special="open"
)
LOSE = Call(lambda _: b"", special="lose")
CONNECT = Call(lambda _: b"", special="connect")


def declare(
    queue: Any = "", args: Any = None, *, passive: object = 0, durable: object = 0,
    exclusive: object = 0, auto_delete: object = 0, nowait: object = 0,
) -> Call:  # fmt: skip
    values = (0, queue, passive, durable, exclusive, auto_delete, nowait, args or {})
    return call("queue.declare", *values, nowait=nowait)


def exchange(
    name: Any, kind: Any = "direct", args: Any = None, *, passive: object = 0,
    durable: object = 0, auto_delete: object = 0, internal: object = 0, nowait: object = 0,
) -> Call:  # fmt: skip
    values = (0, name, kind, passive, durable, auto_delete, internal, nowait, args or {})
    return call("exchange.declare", *values, nowait=nowait)


def delete_exchange(name: Any, *, if_unused: object = 0, nowait: object = 0) -> Call:
    return call("exchange.delete", 0, name, if_unused, nowait, nowait=nowait)


def bind(queue: Any, source: Any, key: Any = "", args: Any = None, nowait: object = 0) -> Call:
    return call("queue.bind", 0, queue, source, key, nowait, args or {}, nowait=nowait)


def unbind(queue: Any, source: Any, key: Any = "", args: Any = None) -> Call:
    return call("queue.unbind", 0, queue, source, key, args or {})


def bind_exchange(
    to: Any, source: Any, key: Any = "", args: Any = None, nowait: object = 0
) -> Call:
    return call("exchange.bind", 0, to, source, key, nowait, args or {}, nowait=nowait)


def unbind_exchange(to: Any, source: Any, key: Any = "", args: Any = None) -> Call:
    return call("exchange.unbind", 0, to, source, key, 0, args or {})


def delete(queue: Any, *, if_unused: object = 0, if_empty: object = 0, nowait: object = 0) -> Call:
    return call("queue.delete", 0, queue, if_unused, if_empty, nowait, nowait=nowait)


def purge(queue: Any, *, nowait: object = 0) -> Call:
    return call("queue.purge", 0, queue, nowait, nowait=nowait)


def consume(
    queue: Any, tag: Any = "tag", args: Any = None, *, no_local: object = 0, no_ack: object = 0,
    exclusive: object = 0, nowait: object = 0,
) -> Call:  # fmt: skip
    values = (0, queue, tag, no_local, no_ack, exclusive, nowait, args or {})
    return call("basic.consume", *values, nowait=nowait)


def cancel(tag: Any, *, nowait: object = 0) -> Call:
    return call("basic.cancel", tag, nowait, nowait=nowait)


def get(queue: Any, *, no_ack: object = 0) -> Call:
    return call("basic.get", 0, queue, no_ack)


def qos(count: int, *, size: int = 0, is_global: object = 0) -> Call:
    return call("basic.qos", size, count, is_global)


def ack(tag: int, multiple: object = 0) -> Call:
    return call("basic.ack", tag, multiple)


def nack(tag: int, *, multiple: object = 0, requeue: object = 1) -> Call:
    return call("basic.nack", tag, multiple, requeue)


def reject(tag: int, *, requeue: object = 1) -> Call:
    return call("basic.reject", tag, requeue)


def operation(op: str, **given: Any) -> Call:
    """What an operator does, by the name of Penstock's operation."""
    return Call(lambda _: b"", operation=(op, given))


def policy(
    name: str, pattern: str, definition: dict[str, Any] | None, *, priority: int = 0,
    apply_to: str = "all", is_operators: bool = False,
) -> Call:  # fmt: skip
    """An operator sets a policy, or clears it (no definition)."""
    what = "operator_policy" if is_operators else "policy"
    if definition is None:
        return operation(f"clear_{what}", name=name)
    return operation(
        f"set_{what}", name=name, pattern=pattern, definition=definition, priority=priority,
        apply_to=apply_to,
    )  # fmt: skip


def topic_permissions(source: str, write: str | None, read: str = "") -> Call:
    """An operator sets guest's topic permissions on an exchange, or clears them (no pattern)."""
    given = {"user": "guest", "exchange": source}
    if write is None:
        return operation("clear_topic_permissions", **given)
    return operation("set_topic_permissions", **given, write=write, read=read)


def publish(
    key: Any, data: bytes = b"m", exchange: Any = "", *, mandatory: object = 0,
    immediate: object = 0, **properties: object,
) -> Call:  # fmt: skip
    """basic.publish with its header and body."""
    method = method_payload("basic.publish", 0, exchange, key, mandatory, immediate)
    head = header_payload(len(data), properties_bytes(**properties))

    def build(channel: int) -> bytes:
        out = frame(1, channel, method) + frame(2, channel, head)
        return out + frame(3, channel, data) if data else out

    return Call(build, is_whole=True)


@dataclass
class Script:
    """id: of the session. connections: how many; is_bare: nothing is said on the first one, not
    even the handshake, and the script does it. patience_s: silence that ends a step."""

    id: str
    steps: list[tuple[Call, ...]] = field(default_factory=list)
    connections: int = 1
    is_bare: bool = False
    patience_s: float = 0.08
    names: list[str] = field(default_factory=list)
    prefix: str = ""

    def __post_init__(self) -> None:
        self.prefix = f"{zlib.crc32(self.id.encode()):08x}."

    def name(self, text: str) -> str:
        """A name of a queue or an exchange that only this session has."""
        full = self.prefix + text
        if full not in self.names:
            self.names.append(full)
        return full

    def step(self, *calls: Call) -> "Script":
        """These in one packet; then what the broker says to it."""
        self.steps.append(calls)
        return self

    def each(self, *calls: Call) -> "Script":
        """Each in a step of its own."""
        for one in calls:
            self.step(one)
        return self
