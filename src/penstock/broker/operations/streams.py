"""Operations on streams: what they hold, the offset of a time, named readers, retention.

Offsets are an object by partition, {"0": 1000}. A partition that is not named stays as it is, and
one that is named without `kept_from` keeps no records for the reader. What a reader asks to keep is
kept for ten minutes after its last call. A reader's position needs read permission only.

A reader is described with what it has not read of what exists, by partition: `lag_records`, and in
`lag_ms` the age of the oldest such record, 0 without one and null if its page cannot be read.

`set_stream_reader` replies at once, and the position may be older after a crash; with wait=true it
replies when the position is on disk.

The operations that begin with "box." serve the library's box on a broker (box.py).
"""

from collections.abc import Generator
from typing import Final

from penstock.broker.broker_stream import BrokerStream
from penstock.broker.dispatch import STEP_BYTES
from penstock.broker.operations.call import Call, Functions, Slices, first_names
from penstock.broker.permissions import WRITE
from penstock.broker.refusals import precondition_failed
from penstock.codec.properties import BasicProperties
from penstock.errors import CorruptionError
from penstock.operation_json import JsonParts, dumps, loads
from penstock.operation_table import AUDIT_STREAM, NAMES_MAX, U63_MAX
from penstock.queues.amqp_headers import short_string
from penstock.queues.stream_options import (
    MAX_BYTES,
    PAGE_BYTES,
    PAGE_BYTES_MIN,
    QUEUE_TYPE,
    STREAM,
)
from penstock.storage.files.durability import DISK, OS
from penstock.storage.pages.stream_meta import ReaderOffset
from penstock.storage.pages.streams import StoredStream

Info = dict[str, object]

READER_STEPS: Final = 16  # to describe one
LAG_STEPS: Final = 2  # to look up the time of a record
AUDIT_PAGES: Final = 8  # of the bytes that the stream of the audit keeps
READERS_PER_STEP: Final = 16  # that are gathered


# ---- descriptions --------------------------------------------------------------------------------


def _describe(call: Call, stream: BrokerStream, found: JsonParts) -> Generator[None, None, None]:
    """Describe a stream. bytes, records: what it holds; path: the directory of a partition.
    ChannelError 311: the answer is too large."""
    budget = call.vhost.budget
    lags = Lags(call.vhost.clock.wall_us())
    by_reader: dict[str, dict[int, ReaderOffset]] = {}
    for number, part in enumerate(stream.parts):
        for reader, at in list(part.readers.items()):
            by_reader.setdefault(reader, {})[number] = at
            budget.left -= 1
            if budget.left <= 0:
                yield
    found.begin(b"{")
    for key, value in _facts(stream).items():
        budget.left -= found.add(value, key) // STEP_BYTES
    found.begin(b"{", "readers")
    for reader, by_partition in sorted(by_reader.items()):
        looked_up = lags.looked_up
        size = found.add(_reader(stream, by_partition, lags), reader)
        call.check_room(found.bytes)
        steps = READER_STEPS + LAG_STEPS * (lags.looked_up - looked_up)
        budget.left -= steps + size // STEP_BYTES
        if budget.left <= 0:
            yield
    found.end(b"}")
    found.end(b"}")


def _facts(stream: BrokerStream) -> Info:
    return {
        "name": stream.name,
        "partitions": [_partition(number, part) for number, part in enumerate(stream.parts)],
        "arguments": stream.arguments,
    }


def _partition(number: int, part: StoredStream) -> Info:
    return {
        "partition": number,
        "number": part.number,
        "stream_id": part.queue.stream_id.hex(),
        "path": part.queue.fs.place(part.path),
        "first": part.first_offset,
        "head": part.head_offset,
        "last_time_us": part.queue.last_time_us,
        "bytes": part.queue.bytes,
        "records": part.head_offset - part.first_offset,
    }


class Lags:
    """How far readers of streams are behind. looked_up: of how many records the time was, each a
    read of 16 bytes. now_us: since 1970."""

    def __init__(self, now_us: int) -> None:
        self._now_us = now_us
        self._ages_us: dict[tuple[int, int], int | None] = {}
        self.looked_up = 0

    def records(self, part: StoredStream, offset: int) -> int:
        """Return how many records from `offset` on exist in a partition."""
        return max(part.head_offset - max(offset, part.first_offset), 0)

    def age_us(self, part: StoredStream, offset: int) -> int | None:
        """Return the age of the first record from `offset` on; 0 without one, None if unknown."""
        if not self.records(part, offset):
            return 0
        key = part.number, max(offset, part.first_offset)
        if key not in self._ages_us:
            self.looked_up += 1
            try:
                time_us = part.queue.indexed_time(key[1])
                self._ages_us[key] = max(self._now_us - time_us, 0)
            except (CorruptionError, OSError):
                self._ages_us[key] = None
        return self._ages_us[key]


def _reader(stream: BrokerStream, by_partition: dict[int, ReaderOffset], lags: Lags) -> Info:
    kept = {str(n): at.kept_from for n, at in by_partition.items() if at.kept_from is not None}
    records, ages_ms = {}, {}
    for n, at in by_partition.items():
        part = stream.parts[n]
        age_us = lags.age_us(part, at.offset)
        records[str(n)] = lags.records(part, at.offset)
        ages_ms[str(n)] = None if age_us is None else age_us // 1000
    return {
        "offsets": {str(n): at.offset for n, at in by_partition.items()},
        "kept_from": kept,
        "time_ms": max(at.time_ms for at in by_partition.values()),
        "lag_records": records,
        "lag_ms": ages_ms,
    }


def _listed(call: Call) -> Slices:
    found = JsonParts(is_exact=call.is_operator)
    found.begin(b"[")
    for stream in call.vhost.streams.all():
        if not stream.is_deleted and call.may_read(stream.name):
            yield from _describe(call, stream, found)
            call.check_room(found.bytes)
        call.vhost.budget.left -= 1 + len(stream.parts)
        yield
    found.end(b"]")
    return found


def _describe_stream(call: Call) -> None:
    stream = _stream(call)
    if call.args.flag("without_readers"):
        call.reply(_facts(stream))
    else:
        call.in_slices(_described(call, stream))


def _described(call: Call, stream: BrokerStream) -> Slices:
    found = JsonParts(is_exact=call.is_operator)
    yield from _describe(call, stream, found)
    return found


def _find_stream_offset(call: Call) -> None:
    stream = _stream(call)
    number = call.args.whole("partition")
    if number >= len(stream.parts):
        text = f"given {number}, expected a whole number from 0 to {len(stream.parts) - 1}"
        raise call.args.wrong("partition", text)
    part = stream.parts[number]
    try:
        found = part.queue.find(call.args.whole("time_us"))
    except (CorruptionError, OSError) as error:
        raise stream.unreadable(error) from error
    call.reply(min(found, part.head_offset))


def _stream(call: Call, argument: str = "queue") -> BrokerStream:
    """Return the stream. ChannelError: 404 (there is none), 406 (it is another type of queue)."""
    name = call.args.text(argument)
    found = call.vhost.table.find_queue(name)
    if not isinstance(found, BrokerStream):
        raise precondition_failed(f"{call.vhost.table.called(name)} is not a stream")
    return found


# ---- readers and retention -----------------------------------------------------------------------


def _set_stream_reader(call: Call) -> None:
    stream = _stream(call)
    reader = call.args.text("reader")
    offsets = _by_partition(call, "offsets", stream)
    kept_from = _by_partition(call, "kept_from", stream)
    must_wait = call.args.flag("wait")
    if not offsets:
        raise call.args.wrong("offsets", 'expected an object such as {"0": 1000}')
    for number in kept_from:
        if number not in offsets:
            op = call.args.op
            raise precondition_failed(f"{op}: kept_from of partition {number} without its offset")
    engine = call.vhost.engine
    call.vhost.check_reader(stream, reader, call.identity)
    with engine.journal.one_record(DISK if must_wait else OS):
        for number, offset in offsets.items():
            part = stream.parts[number]
            engine.streams.set_reader(part, reader, offset, OS, kept_from.get(number))
    stream.reader_made(reader, call.identity.name)
    _answer(call, engine.log.last_lsn if must_wait else 0)


def _delete_stream_reader(call: Call) -> None:
    stream = _stream(call)
    reader = call.args.text("reader")
    engine = call.vhost.engine
    with engine.journal.one_record(OS):
        for part in stream.parts:
            if reader in part.readers:
                engine.streams.delete_reader(part, reader, OS)
    stream.reader_deleted(reader)
    _answer(call, 0)


def _answer(call: Call, lsn: int) -> None:
    dispatch, reply = call.vhost.dispatch, call.reply
    dispatch.schedule()
    if not lsn:
        reply({})
    else:
        dispatch.when_settled(lsn, DISK, lambda: reply({}))


def _by_partition(call: Call, name: str, stream: BrokerStream) -> dict[int, int]:
    count = len(stream.parts)
    found: dict[int, int] = {}
    for key, value in call.args.table(name).items():
        is_right = key.isascii() and key.isdigit() and len(key) <= 3 and int(key) < count
        if not is_right or type(value) is not int or not 0 <= value <= U63_MAX:
            raise call.args.wrong(
                name,
                f"given {key!r}: {value!r}, expected offsets by partition, 0 to {count - 1}",
            )
        found[int(key)] = value
    return found


# ---- the library's box on a broker ---------------------------------------------------------------


def _append_to(call: Call) -> None:
    name = call.args.text_or_none("name")
    stream = None
    if name is not None:
        call.check(WRITE, "queue", name)
        call.vhost.check_not_audit(name)
        stream = _stream(call, "name")
    call.channel.publisher.send_to(stream)
    call.reply(None)


def _appended(call: Call) -> None:
    n = left = call.args.whole("n")
    noted = call.channel.publisher.appended
    runs: list[list[int]] = []
    while noted and left:
        partition, first, count = noted.pop()
        taken = min(count, left)
        runs.append([partition, first + count - taken, taken])
        left -= taken
    if noted:
        noted.clear()
    if left:
        raise precondition_failed(f"box.appended: {n - left} are remembered, asked for {n}")
    call.reply(runs[::-1])


def _streams(call: Call) -> None:
    after = call.args.text("after")
    names = [stream.name for stream in call.vhost.streams.all()]
    call.in_slices(first_names(call, names, call.args.whole("n"), after, call.may_read))


def _informed(call: Call, stream: BrokerStream) -> Slices:
    known: set[str] = set()
    for part in stream.parts:
        known.update(part.readers)
        call.vhost.budget.left -= len(part.readers) // READERS_PER_STEP
        yield
    names = yield from first_names(call, list(known), NAMES_MAX, "", _is_any)
    reader = call.args.text("reader")
    readers: list[str] = []
    found: Info = {
        "partitions": [
            [part.first_offset, part.head_offset, part.queue.last_time_us, part.queue.bytes]
            for part in stream.parts
        ],
        "readers": readers,
        "offsets": {
            str(n): part.readers[reader].offset
            for n, part in enumerate(stream.parts)
            if reader in part.readers
        },
    }
    left_bytes = call.room_bytes - len(dumps(found))
    for name in names:
        left_bytes -= len(dumps(name)) + 1
        if left_bytes < 0:
            break
        readers.append(name)
    return found


def _is_any(_name: str) -> bool:
    return True


# ---- the audit -----------------------------------------------------------------------------------


def _append_audit(call: Call) -> None:
    """Append to the stream of the audit, which is made if it is not there."""
    vhost, most = call.vhost, call.args.whole("bytes_max")
    arguments: dict[str, object] = {
        QUEUE_TYPE: STREAM, MAX_BYTES: most, PAGE_BYTES: max(most // AUDIT_PAGES, PAGE_BYTES_MIN),
    }  # fmt: skip

    def append() -> None:
        stream = vhost.table.find(AUDIT_STREAM)
        if stream is None:
            if vhost.prepare_queue(
                AUDIT_STREAM, durable=True, arguments=arguments,
                again=lambda: call.answer_errors(append), failed=call.fail,
            ):  # fmt: skip
                return
            stream, _ = vhost.declare_queue(
                AUDIT_STREAM, durable=True, arguments=arguments, is_reserved_allowed=True
            )
        if not isinstance(stream, BrokerStream):
            raise precondition_failed(f"{vhost.table.called(AUDIT_STREAM)} is no stream")
        address = short_string(b"") + short_string(AUDIT_STREAM.encode())
        lsn = 0
        for line in call.args.texts("lines"):
            entry = loads(line.encode())
            props = BasicProperties(
                content_type="application/json", delivery_mode=2, type=str(entry["event"]),
                timestamp=vhost.clock.wall_ms() // 1000,
            ).encode()  # fmt: skip
            lsn = stream.append(b"\x02" + address + props, line.encode(), vhost.mode)
        vhost.dispatch.schedule()
        call.settled(lsn, {})

    append()


FUNCTIONS: Final[Functions] = {
    "append_audit": _append_audit,
    "list_streams": lambda call: call.in_slices(_listed(call)),
    "describe_stream": _describe_stream,
    "find_stream_offset": _find_stream_offset,
    "set_stream_reader": _set_stream_reader,
    "delete_stream_reader": _delete_stream_reader,
    "retain_stream": lambda call: call.reply({"pages": _stream(call).retain()}),
    "box.append_to": _append_to,
    "box.appended": _appended,
    "box.streams": _streams,
    "box.stream_info": lambda call: call.in_slices(_informed(call, _stream(call, "name"))),
}
