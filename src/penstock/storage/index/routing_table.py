"""RoutingTable: the durable topology of a vhost: exchanges, queues, bindings, parameters.

As in Qpid's Flow to Disk Design, the topology is apart from the message store and recovered before
any message. It has no database of its own: a change is a TOPOLOGY record in the vhost's log, atomic
and durable with the records around it. The checkpoint has a snapshot, which is the shortest list of
such records. The same code applies both.

    declare exchange  1 | name | type | flags 1 | arguments
    delete exchange   2 | name
    declare queue     3 | name | number 4 | flags 1 | arguments     (deleting is DELETE_QUEUE)
    bind              4 | source | kind 1 (q or e) | destination | key | arguments
    unbind            5 | as bind
    set parameter     6 | component | name | value                   policies, limits
    clear parameter   7 | component | name

name, type, source, key ...: length 2 and bytes. arguments, value: length 4 and bytes, opaque here
(an encoded AMQP table). Big-endian. Deleting an exchange or a queue deletes its bindings.

Who has declared something is a parameter of the component "creator", so an older Penstock keeps it
and does not look at it. Its name is `e` and the exchange, `q` and the queue's first part, `b` and a
digest of the binding, or `r` and a digest of a stream's partition and a named reader of it; its
value is the user. It is deleted with what it is about. What an older Penstock has declared has
none.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from penstock.storage.index.queue_index import Ticks

DECLARE_EXCHANGE: Final = 1
DELETE_EXCHANGE: Final = 2
DECLARE_QUEUE: Final = 3
BIND: Final = 4
UNBIND: Final = 5
SET_PARAMETER: Final = 6
CLEAR_PARAMETER: Final = 7

OP_TEXTS: Final = {
    DECLARE_EXCHANGE: "declare exchange", DELETE_EXCHANGE: "delete exchange",
    DECLARE_QUEUE: "declare queue", BIND: "bind", UNBIND: "unbind",
    SET_PARAMETER: "set parameter", CLEAR_PARAMETER: "clear parameter",
}  # fmt: skip

CREATOR: Final = b"creator"
SLICE: Final = 256  # entries of a piece of `capture_in_slices`
_DIGEST_BYTES: Final = 16

_U16: Final = struct.Struct(">H")
_U32: Final = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class DurableExchange:
    """A durable exchange. flags and arguments are the broker's."""

    name: bytes
    type: bytes
    flags: int = 0
    arguments: bytes = b""

    def record(self) -> bytes:
        return b"".join(
            (bytes((DECLARE_EXCHANGE,)), _short(self.name), _short(self.type),
             bytes((self.flags,)), _long(self.arguments))
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class DurableQueue:
    """A durable queue: its name, and the number in its records and files."""

    name: bytes
    number: int
    flags: int = 0
    arguments: bytes = b""

    def record(self) -> bytes:
        return b"".join(
            (bytes((DECLARE_QUEUE,)), _short(self.name), _U32.pack(self.number),
             bytes((self.flags,)), _long(self.arguments))
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class DurableBinding:
    """A binding from a source exchange to a destination (kind b"q": queue, b"e": exchange) for a
    routing key."""

    source: bytes
    kind: bytes
    destination: bytes
    key: bytes = b""
    arguments: bytes = b""

    def record(self, op: int = BIND) -> bytes:
        return b"".join(
            (bytes((op,)), _short(self.source), self.kind, _short(self.destination),
             _short(self.key), _long(self.arguments))
        )  # fmt: skip


def exchange_key(name: bytes) -> bytes:
    """Return the key in `creators` of an exchange."""
    return b"e" + name


def queue_key(name: bytes) -> bytes:
    """Return the key in `creators` of a queue whose first part has this name."""
    return b"q" + name


def binding_key(binding: DurableBinding) -> bytes:
    """Return the key in `creators` of a binding."""
    return b"b" + blake2b(binding.record(), digest_size=_DIGEST_BYTES).digest()


def reader_key(stream: bytes, reader: bytes) -> bytes:
    """Return the key in `creators` of a named reader of the stream with this name."""
    return b"r" + blake2b(_short(stream) + reader, digest_size=_DIGEST_BYTES).digest()


def set_creator(key: bytes, user: bytes) -> bytes:
    """Return the record that says who has declared what has this key."""
    return set_parameter(CREATOR, key, user)


def delete_exchange(name: bytes) -> bytes:
    """Return the record that deletes an exchange."""
    return bytes((DELETE_EXCHANGE,)) + _short(name)


def name_of(data: bytes) -> bytes:
    """Return the name that a record of one exchange or queue begins with."""
    reader = _TopologyReader(data)
    reader.byte()
    return reader.short()


def set_parameter(component: bytes, name: bytes, value: bytes) -> bytes:
    """Return the record that sets a parameter, such as a policy."""
    return bytes((SET_PARAMETER,)) + _short(component) + _short(name) + _long(value)


def clear_parameter(component: bytes, name: bytes) -> bytes:
    """Return the record that clears a parameter."""
    return bytes((CLEAR_PARAMETER,)) + _short(component) + _short(name)


class RoutingTable:
    """The durable topology, which only `apply`, `delete_queue` and `delete_reader` change.
    creators: key -> user; `exchange_key`, `queue_key`, `binding_key` and `reader_key` make the
    keys."""

    def __init__(self, ticks: Ticks) -> None:
        self.exchanges: dict[bytes, DurableExchange] = {}
        self.queues: dict[bytes, DurableQueue] = {}
        self.bindings: dict[DurableBinding, None] = {}
        # For deletes without a search: names by number, bindings by both ends.
        self._names: dict[int, bytes] = {}
        self._ends: dict[
            tuple[bytes, bytes], dict[DurableBinding, None]
        ] = {}  # (kind, name) of an end
        self.parameters: dict[tuple[bytes, bytes], bytes] = {}
        self.creators: dict[bytes, bytes] = {}
        self._users: dict[bytes, bytes] = {}  # one object for each name
        self._ticks = ticks
        self._epoch = ticks.epoch
        self._captured: list[bytes] = []

    def apply(self, data: bytes) -> None:
        """Apply one record. ValueError: it is not a record, although its checksum is right, and
        nothing has changed."""
        self.capture()
        r = _TopologyReader(data)
        op = r.byte()
        if op == DECLARE_EXCHANGE:
            exchange = DurableExchange(r.short(), r.short(), r.byte(), r.long())
            r.end()
            self.exchanges[exchange.name] = exchange
        elif op == DELETE_EXCHANGE:
            name = r.short()
            r.end()
            self.exchanges.pop(name, None)
            self.creators.pop(exchange_key(name), None)
            self._unbind_all(name, b"e")
        elif op == DECLARE_QUEUE:
            queue = DurableQueue(r.short(), r.u32(), r.byte(), r.long())
            r.end()
            known = self.queues.get(queue.name)
            if known is not None and known.number != queue.number:
                self._names.pop(known.number, None)  # that number is of a deleted queue
            self.queues[queue.name] = queue
            self._names[queue.number] = queue.name
        elif op in (BIND, UNBIND):
            binding = DurableBinding(r.short(), r.take(1), r.short(), r.short(), r.long())
            r.end()
            if op == BIND:
                self._bind(binding)
            else:
                self._unbind(binding)
        elif op in (SET_PARAMETER, CLEAR_PARAMETER):
            key = (r.short(), r.short())
            value = r.long() if op == SET_PARAMETER else b""
            r.end()
            if key[0] == CREATOR:
                self._set_creator(key[1], value)
            elif op == SET_PARAMETER:
                self.parameters[key] = value
            else:
                self.parameters.pop(key, None)
        else:
            raise ValueError(f"unknown topology operation {op}")

    def delete_queue(self, number: int) -> None:
        """Apply a DELETE_QUEUE record: delete the queue of this number and its bindings."""
        self.capture()
        name = self._names.pop(number, None)
        if name is not None:
            del self.queues[name]
            self.creators.pop(queue_key(name), None)
            self._unbind_all(name, b"q")

    def delete_reader(self, stream: bytes, reader: bytes) -> None:
        """Forget who made a named reader of the stream with this name, which is gone."""
        key = reader_key(stream, reader)
        if key in self.creators:
            self.capture()
            del self.creators[key]

    def _set_creator(self, key: bytes, user: bytes) -> None:
        if user:
            self.creators[key] = self._users.setdefault(user, user)
        else:
            self.creators.pop(key, None)

    def _bind(self, binding: DurableBinding) -> None:
        self.bindings[binding] = None
        for end in ((b"e", binding.source), (binding.kind, binding.destination)):
            self._ends.setdefault(end, {})[binding] = None

    def _unbind(self, binding: DurableBinding) -> None:
        if binding not in self.bindings:
            return
        del self.bindings[binding]
        if self.creators:
            self.creators.pop(binding_key(binding), None)
        for end in {(b"e", binding.source), (binding.kind, binding.destination)}:
            of_end = self._ends[end]
            del of_end[binding]
            if not of_end:
                del self._ends[end]

    def _unbind_all(self, name: bytes, kind: bytes) -> None:
        for binding in list(self._ends.get((kind, name), ())):
            self._unbind(binding)

    def snapshot(self) -> list[bytes]:
        """Return the records that rebuild the present table."""
        records = [e.record() for e in self.exchanges.values()]
        records += [q.record() for q in self.queues.values()]
        records += [b.record() for b in self.bindings]
        return records + self.parameter_records()

    def parameter_records(self) -> list[bytes]:
        """Return the records that set the present parameters, and say who has declared what."""
        records = [set_parameter(c, n, v) for (c, n), v in self.parameters.items()]
        return records + [set_creator(key, user) for key, user in self.creators.items()]

    def capture(self) -> list[bytes]:
        """Return the snapshot as of the last cut. It is taken at the first change after the cut, or
        here."""
        if self._epoch != self._ticks.epoch:
            self._epoch = self._ticks.epoch
            self._captured = self.snapshot()
        return self._captured

    def capture_in_slices(self) -> Iterator[None]:
        """Do what `capture` does; changes may come at each yield, the first of which captures the
        table whole and ends this."""
        if self._epoch == self._ticks.epoch:
            return
        epoch = self._ticks.epoch
        entries: list[DurableExchange | DurableQueue | DurableBinding] = [
            *self.exchanges.values(), *self.queues.values(), *self.bindings
        ]  # fmt: skip
        records: list[bytes] = []
        for n, entry in enumerate(entries, 1):
            records.append(entry.record())
            if n % SLICE == 0:
                yield
                if self._epoch == epoch:
                    return
        records += [set_parameter(c, n, v) for (c, n), v in self.parameters.items()]
        for n, (key, user) in enumerate(list(self.creators.items()), 1):
            records.append(set_creator(key, user))
            if n % SLICE == 0:
                yield
                if self._epoch == epoch:
                    return
        self._epoch = epoch
        self._captured = records


def _short(data: bytes) -> bytes:
    if len(data) > 0xFFFF:
        raise ValueError(f"a name of {len(data)} bytes, expected at most 65535")
    return _U16.pack(len(data)) + data


def _long(data: bytes) -> bytes:
    return _U32.pack(len(data)) + data


class _TopologyReader:
    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def take(self, n: int) -> bytes:
        piece = self._data[self._at : self._at + n]
        if len(piece) != n:
            raise ValueError(f"a topology record of {len(self._data)} bytes is cut off")
        self._at += n
        return piece

    def byte(self) -> int:
        return self.take(1)[0]

    def u32(self) -> int:
        value: int = _U32.unpack(self.take(4))[0]
        return value

    def short(self) -> bytes:
        return self.take(_U16.unpack(self.take(2))[0])

    def long(self) -> bytes:
        return self.take(_U32.unpack(self.take(4))[0])

    def end(self) -> None:
        if self._at != len(self._data):
            raise ValueError(f"a topology record has {len(self._data) - self._at} bytes too many")


def topology_text(record: bytes) -> str:
    """Return a record in words, also one that cannot be applied."""
    name = OP_TEXTS.get(record[0] if record else 0)
    return f"{name or 'DAMAGED topology'} {record[1:]!r}"
