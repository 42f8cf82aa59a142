"""Operations on streams: what they hold, where a time is, named readers, retention, the box's ways.

    list_streams                                  [description], of those that the caller may read
    describe_stream     queue                     description: partitions, readers, arguments
    find_stream_offset  queue, partition, time_us the first offset that is not older
    set_stream_reader   queue, reader, offsets, kept_from, wait
    delete_stream_reader queue, reader
    retain_stream       queue                     {pages}: how many went now

    box.append_to       name                      this channel's publishes all go to the stream
    box.appended        n                         [[partition, offset]] of the last ones
    box.streams         after, n                  names behind `after`, sorted, that may be read
    box.stream_info     name, reader              partitions, readers, offsets: see `stream_info`

Reading a stream is enough for all but the last of the first six: a reader's position is the
reader's own affair. Taking records away needs configure, appending write. Offsets are objects by
partition, {"0": 1000}; a partition that is not named stays as it is, and one that is named without
`kept_from` keeps nothing. What a reader asks to keep is kept for ten minutes after it was heard of.

A reader's position is answered at once, and may be older after a crash; with wait=true it is
answered when it is on disk.

Not here: the bytes of streams, which whoever may open the files reads by itself (penstock.http).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from penstock.broker.operation_args import OperationArgs, Reply, refused
from penstock.broker.refusals import precondition_failed
from penstock.broker.served_stream import ServedStream
from penstock.broker.stream_arguments import READER_BYTES_MAX, is_reader
from penstock.broker.vhost import VHost
from penstock.errors import CorruptionError
from penstock.storage.durability import DISK, OS
from penstock.storage.streams import ReaderOffset, Stream

if TYPE_CHECKING:
    from penstock.broker.operations import Caller
    from penstock.broker.operations_box import BoxCall

Info = dict[str, object]

READ: Final = "read"
CONFIGURE: Final = "configure"
U63_MAX: Final = (1 << 63) - 1
NAMES_MAX: Final = 1000


# ---- telling -------------------------------------------------------------------------------------


def description(stream: ServedStream) -> Info:
    """Of one stream. bytes, records: what it holds; path: the directory of a partition."""
    return {
        "name": stream.name,
        "partitions": [_partition(number, part) for number, part in enumerate(stream.parts)],
        "readers": {
            reader: _reader(by_partition) for reader, by_partition in _readers(stream).items()
        },
        "arguments": stream.arguments,
    }


def _partition(number: int, part: Stream) -> Info:
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


def _readers(stream: ServedStream) -> dict[str, dict[int, ReaderOffset]]:
    return dict(sorted(stream.known_readers().items()))


def _reader(by_partition: dict[int, ReaderOffset]) -> Info:
    kept = {str(n): at.kept_from for n, at in by_partition.items() if at.kept_from is not None}
    return {
        "offsets": {str(n): at.offset for n, at in by_partition.items()},
        "kept_from": kept,
        "time_ms": max(at.time_ms for at in by_partition.values()),
    }


def list_streams(caller: "Caller", args: OperationArgs, reply: Reply) -> None:
    """[description], by name."""
    args.done()
    reply(
        [
            description(stream)
            for stream in caller.vhost.streams.all()
            if caller.is_operator or caller.identity.may_read(stream.name)
        ]
    )


def describe_stream(caller: "Caller", args: OperationArgs, reply: Reply) -> None:
    """description."""
    stream = _stream(caller, args, READ)
    args.done()
    reply(description(stream))


def find_stream_offset(caller: "Caller", args: OperationArgs, reply: Reply) -> None:
    """The first offset whose record is not older than time_us (since 1970); the head if none is."""
    stream = _stream(caller, args, READ)
    number = args.whole("partition", 0, 0, len(stream.parts) - 1)
    time_us = args.whole("time_us", None, 0, U63_MAX)
    args.done()
    part = stream.parts[number]
    try:
        found = part.queue.find(time_us)
    except (CorruptionError, OSError) as error:
        raise stream.unreadable(error) from error
    reply(min(found, part.head_offset))


def _stream(caller: "Caller", args: OperationArgs, verb: str) -> ServedStream:
    name = args.name("queue")
    caller.check(verb, "queue", name)
    return found_stream(caller.vhost, name)


def found_stream(vhost: VHost, name: str) -> ServedStream:
    """The stream. ChannelError: 404 (there is none), 406 (it is a queue of another type)."""
    found = vhost.find_queue(name)
    if not isinstance(found, ServedStream):
        raise precondition_failed(f"{vhost.table.called(name)} is no stream")
    return found


# ---- readers -------------------------------------------------------------------------------------


def set_stream_reader(caller: "Caller", args: OperationArgs, reply: Reply) -> None:
    """{}."""
    stream = _stream(caller, args, READ)
    reader = args.text("reader")
    offsets = _by_partition(args, "offsets", stream)
    kept_from = _by_partition(args, "kept_from", stream)
    must_wait = args.flag("wait")
    args.done()
    if not is_reader(reader):
        raise refused(f"{args.op}: argument 'reader': expected 1 to {READER_BYTES_MAX} bytes")
    if not offsets:
        raise refused(f"{args.op}: argument 'offsets': expected an object such as {{\"0\": 1000}}")
    for number in kept_from:
        if number not in offsets:
            raise refused(f"{args.op}: kept_from of partition {number} without its offset")
    engine = caller.vhost.engine
    with engine.one_record(DISK if must_wait else OS) as one:
        for number, offset in offsets.items():
            part = stream.parts[number]
            engine.set_reader(part, reader, offset, OS, kept_from.get(number))
    _answer(caller.vhost, one.lsn if must_wait else 0, reply)


def delete_stream_reader(caller: "Caller", args: OperationArgs, reply: Reply) -> None:
    """{}; also if there is none."""
    stream = _stream(caller, args, READ)
    reader = args.text("reader")
    args.done()
    engine = caller.vhost.engine
    with engine.one_record(OS):
        for part in stream.parts:
            if reader in part.readers:
                engine.delete_reader(part, reader, OS)
    _answer(caller.vhost, 0, reply)


def _answer(vhost: VHost, lsn: int, reply: Reply) -> None:
    vhost.dispatch.be_due()
    if not lsn:
        reply({})
    else:
        vhost.when_settled(lsn, DISK, lambda: reply({}))


def _by_partition(args: OperationArgs, name: str, stream: ServedStream) -> dict[int, int]:
    count = len(stream.parts)
    found: dict[int, int] = {}
    for key, value in args.table(name).items():
        is_right = key.isascii() and key.isdigit() and len(key) <= 3 and int(key) < count
        if not is_right or type(value) is not int or not 0 <= value <= U63_MAX:
            raise refused(
                f"{args.op}: argument {name!r}: given {key!r}: {value!r}, expected offsets by "
                f"partition, 0 to {count - 1}"
            )
        found[int(key)] = value
    return found


def retain_stream(caller: "Caller", args: OperationArgs, reply: Reply) -> None:
    """{pages}: how many went, of those that are in a checkpoint."""
    stream = _stream(caller, args, CONFIGURE)
    args.done()
    reply({"pages": stream.retain()})


OPERATIONS: Final[dict[str, Callable[["Caller", OperationArgs, Reply], None]]] = {
    "list_streams": list_streams,
    "describe_stream": describe_stream,
    "find_stream_offset": find_stream_offset,
    "set_stream_reader": set_stream_reader,
    "delete_stream_reader": delete_stream_reader,
    "retain_stream": retain_stream,
}


# ---- the library's box on a broker ---------------------------------------------------------------


def append_to(call: "BoxCall") -> None:
    """box.append_to: null: the channel's publishes go where they are published to again."""
    name = call.args.name_or_none("name")
    call.args.done()
    stream = None
    if name is not None:
        call.check_write(name)
        stream = found_stream(call.vhost, name)
    call.channel.publisher.send_to(stream)
    call.reply(None)


def appended(call: "BoxCall") -> None:
    """box.appended: they are forgotten when they are told."""
    n = call.args.whole("n", None, 0, U63_MAX)
    call.args.done()
    noted = call.channel.publisher.appended
    places = [] if noted is None else list(noted)
    if noted is not None:
        noted.clear()
    if len(places) < n:
        raise precondition_failed(f"box.appended: {len(places)} are remembered, asked for {n}")
    call.reply([list(place) for place in places[len(places) - n :]])


def streams(call: "BoxCall") -> None:
    """box.streams: names, as many as fit into a frame, whatever the vhost holds."""
    after = call.args.text("after", "")
    n = call.args.whole("n", None, 1, NAMES_MAX)
    call.args.done()
    may_read = call.channel.identity.may_read
    names = sorted(
        stream.name
        for stream in call.vhost.streams.all()
        if stream.name > after and may_read(stream.name)
    )
    call.reply(names[:n])


def stream_info(call: "BoxCall") -> None:
    """box.stream_info: {partitions: [[first, head, last_time_us, bytes]], readers: [names],
    offsets: by partition, of the reader that was asked for, {} if it is not known}. Small also with
    all the partitions that there may be."""
    name = call.args.name("name")
    reader = call.args.text("reader", "")
    call.args.done()
    call.check_read(name)
    stream = found_stream(call.vhost, name)
    known = stream.known_readers()
    call.reply(
        {
            "partitions": [
                [part.first_offset, part.head_offset, part.queue.last_time_us, part.queue.bytes]
                for part in stream.parts
            ],
            "readers": sorted(known)[:NAMES_MAX],
            "offsets": {str(n): at.offset for n, at in known.get(reader, {}).items()},
        }
    )
