"""What goes out to a client: frames of deliveries, the output buffer, large bodies, the transport.

**Output.** Frames of all channels of a connection go into one buffer in the order they are made; at
the end of the turn it is handed to the transport. A body of 8 KiB or more is not copied into it: it
stands between two pieces of the buffer, and the transport sends the pieces together; one of several
frames as views of it, until the turn ends (what the socket does not take is copied: a view would
keep all of the body). A buffer of
more than 128 KiB counts as full: nothing more is delivered to that client in this turn. (Much
larger buffers cost more per delivery, in page faults, than the writes that they save.) Answers,
confirms and returns are still added; a client that does not read them is not read either.

**Deliveries.** A stored header holds exchange, routing key and properties as the publisher sent
them (amqp_headers.py), so a delivery decodes nothing: three slices and the body, with lengths in
between.

    method   1 | channel 2 | length 4 | 60 2 | 60 2 | consumer tag 1+n | delivery tag 8
             | redelivered 1 | exchange 1+n | routing key 1+n | CE
    header   2 | channel 2 | length 4 | 60 2 | 0 2 | body size 8 | property flags and list | CE
    body     3 | channel 2 | length 4 | bytes | CE               none if empty, several if large

The bytes before and after the delivery tag are kept with the consumer, for the last address:
messages of one queue mostly have the same.

**Large bodies** are not read into RAM to be delivered. Their method and header frames are written
as others; their body frames are made when the client takes them, at most PIECE_BYTES at a time,
from the open body in the store. An open body can be read to its end, whatever becomes of the
message (storage/store/store_file.py). The frames of one content must follow one another on their
channel, so from its header frame until its last body frame the channel's other frames wait in a
*lane*; other channels continue in the buffer. The connection asks for the next piece when its
transport has room (`next_frames`): channels take turns, a piece each. For a consumer that need not
acknowledge, the message is acknowledged when all of it was handed to the transport: until then it
is pending in its source, and goes back there if the client leaves.

**Outlet** is the transport as the broker's core sees it: output and flow control. The core knows no
sockets: the server's session writes to a transport, a test keeps what is sent in a list.
`is_writable` is False while more waits to be sent than the client takes; the core delivers nothing
more then, and is called (`ConnectionHandler.writable`) when it may continue. `pause` and `resume`
say whether the client is to be read: not while it publishes and memory or disk are short, nor while
too much work of it waits here. What was read already is handled or kept by the core.

Hot: `write_delivery` runs once per message delivered.
"""

from abc import ABC, abstractmethod
from collections import deque
from typing import Final

from librt.strings import BytesWriter, write_i16_be, write_i32_be, write_i64_be

from penstock.broker.broker_queue import ALL_COUNTS, COUNTS_OF_DEATHS, NO_COUNTS, Consumer
from penstock.broker.dispatch import Dispatch, Peer, Source
from penstock.codec.frames import method_frame
from penstock.codec.method import Method
from penstock.native import mypyc_attr
from penstock.queues.amqp_headers import FORMAT, AmqpHeaders
from penstock.queues.backing_queue import Delivery
from penstock.storage.store.store_file import StoredBody

Piece = bytes | memoryview  # of what is sent; a view is of a body


@mypyc_attr(allow_interpreted_subclasses=True)
class Outlet(ABC):
    """The transport of one connection. `is_writable`: more may be sent; set by the
    implementation."""

    is_writable: bool = True

    @abstractmethod
    def send(self, data: Piece) -> None:
        """Send frames, or pieces of them, in order; they go together at the end of the turn. Keep
        no view beyond it. Never blocks; does nothing after `close`."""

    @abstractmethod
    def pause(self) -> None:
        """Stop reading from the client; again: nothing happens."""

    @abstractmethod
    def resume(self) -> None:
        """Read from the client again; again: nothing happens."""

    def closing(self) -> None:  # noqa: B027 - where nothing can be dropped there is nothing to do
        """Note that the client was sent a close. Drop a client that does not answer in time."""

    @abstractmethod
    def close(self, *, client_first: bool) -> None:
        """Close the transport after everything was sent. client_first: the client said goodbye and
        waits for close-ok, so it closes; we do only if it takes too long."""


PIECE_BYTES: Final = 256 << 10
FRAME_EXTRA_BYTES: Final = 8  # type, channel, length, end
FRAME_END: Final = b"\xce"


class LargeContent:
    """The body of one content that is being sent, in frames of `frame_max` bytes at most. source
    and tag: the delivery to settle when it was sent; None if there is none."""

    def __init__(
        self, channel: int, frame_max: int, body: StoredBody, source: Source | None = None,
        tag: int = 0,
    ) -> None:  # fmt: skip
        self.channel: int = channel
        self._body: StoredBody = body
        self._payload_bytes: int = min(frame_max - FRAME_EXTRA_BYTES, PIECE_BYTES)
        self._source: Source | None = source
        self._tag: int = tag

    def is_whole(self) -> bool:
        """Return whether all frames were made."""
        return not self._body.left

    def next_frames(self) -> list[bytes]:
        """Make the next body frames, PIECE_BYTES or a little more, in parts that follow one
        another. CorruptionError, OSError: the rest cannot be read; call `abandon`."""
        parts: list[bytes] = []
        made = 0
        front = b"\x03" + self.channel.to_bytes(2, "big")
        while made < PIECE_BYTES and self._body.left:
            data = self._body.read(self._payload_bytes)
            made += len(data) + FRAME_EXTRA_BYTES
            parts += (front + len(data).to_bytes(4, "big"), data, FRAME_END)
        return parts

    def sent(self) -> None:
        """Close the body and settle its delivery: the client has all of it."""
        self._body.close()
        source, self._source = self._source, None
        if source is not None and not source.is_deleted:
            source.sent([self._tag])

    def abandon(self) -> tuple[Source, int] | None:
        """Close the body: the client will not get the rest. Return its delivery, which the caller
        gives back; None if there is none."""
        self._body.close()
        source, self._source = self._source, None
        return None if source is None else (source, self._tag)


FULL_BYTES: Final = 128 << 10


class ChannelLane:
    """The frames of one channel while it has a large body: the body, and what waits for its end."""

    def __init__(self, content: LargeContent) -> None:
        self.content: LargeContent = content
        self.writer: BytesWriter = BytesWriter()  # behind all else
        self._behind: deque[bytes | LargeContent] = deque()
        self._behind_bytes: int = 0

    def add(self, content: LargeContent) -> None:
        """Add another large body, whose header frame was written last."""
        self._write(self.writer.getvalue())
        self.writer = BytesWriter()
        self._behind.append(content)

    def put(self, data: Piece) -> BytesWriter:
        """Add bytes that are not copied, see Output.put."""
        self._write(self.writer.getvalue())
        self._write(bytes(data))
        self.writer = BytesWriter()
        return self.writer

    def _write(self, data: bytes) -> None:
        self._behind.append(data)
        self._behind_bytes += len(data)

    def go_on(self, parts: list[bytes]) -> bool:
        """After the body was sent, add to `parts` what waits, up to the next large body. Returns
        False if there is none: the lane is at its end."""
        behind = self._behind
        while behind:
            item = behind.popleft()
            if isinstance(item, LargeContent):
                self.content = item
                return True
            self._behind_bytes -= len(item)
            parts.append(item)
        if len(self.writer):
            parts.append(self.writer.getvalue())
        return False

    def waiting_bytes(self) -> int:
        """Return the bytes of frames that wait for the end of the body."""
        return self._behind_bytes + len(self.writer)

    def contents(self) -> list[LargeContent]:
        """Return the large bodies that were not sent."""
        return [self.content, *[item for item in self._behind if isinstance(item, LargeContent)]]


class Output:
    """The output of one connection. frame_max: as it was tuned. `sender` is flushed at the end of
    each turn in which something was written."""

    def __init__(self, dispatch: Dispatch, frame_max: int) -> None:
        self.frame_max: int = frame_max
        self.sender: Peer | None = None
        self._dispatch: Dispatch = dispatch
        self._writer: BytesWriter = BytesWriter()
        self._pieces: list[Piece] = []  # what was written before the last body that stands apart
        self._piece_bytes: int = 0
        self._is_due: bool = False
        # By channel, while large bodies are being sent on it; whose turn is next is first.
        self.lanes: dict[int, ChannelLane] = {}

    def writer(self, channel: int) -> BytesWriter:
        """Return the writer for whole frames of this channel."""
        if not self._is_due and self.sender is not None:
            self._is_due = True
            self._dispatch.add_output(self.sender)
        if self.lanes:
            lane = self.lanes.get(channel)
            if lane is not None:
                return lane.writer
        return self._writer

    def send(self, channel: int, method: Method) -> None:
        """Write a method without content."""
        self.writer(channel).write(method_frame(channel, method.encode()))

    def put(self, channel: int, data: Piece) -> BytesWriter:
        """Add bytes that are large enough not to be copied. Returns the writer for what follows."""
        if self.lanes:
            lane = self.lanes.get(channel)
            if lane is not None:
                return lane.put(data)
        written = self._writer.getvalue()
        self._pieces.append(written)
        self._pieces.append(data)
        self._piece_bytes += len(written) + len(data)
        self._writer = BytesWriter()
        return self._writer

    def is_full(self) -> bool:
        """Return whether nothing more should be delivered in this turn."""
        return self._piece_bytes + len(self._writer) >= FULL_BYTES

    def has_frames(self) -> bool:
        """Return whether there is anything to `take`."""
        return self._piece_bytes + len(self._writer) > 0

    def take(self) -> list[Piece]:
        """Remove and return everything in the buffer, in order."""
        pieces = self._pieces
        if len(self._writer):
            pieces.append(self._writer.getvalue())
            self._writer = BytesWriter()
        self._pieces = []
        self._piece_bytes = 0
        self._is_due = False
        return pieces

    # ---- large bodies --------------------------------------------------------------------------

    def put_large(self, content: LargeContent) -> None:
        """Send this large body, whose header frame was written just now."""
        lane = self.lanes.get(content.channel)
        if lane is None:
            self.lanes[content.channel] = ChannelLane(content)
        else:
            lane.add(content)

    def is_busy(self, channel: int) -> bool:
        """Return whether a large body is being sent on this channel."""
        return channel in self.lanes

    def next_frames(self) -> tuple[int, list[bytes]]:
        """Return the next piece of a large body, in parts, with what waited for its end; before it
        the number of the channel if that was all, else -1. There must be a large body.
        CorruptionError, OSError: it cannot be read; call `abandon`."""
        number = next(iter(self.lanes))
        lane = self.lanes[number]
        content = lane.content
        parts = content.next_frames()
        is_whole = content.is_whole()
        if is_whole:
            content.sent()
        del self.lanes[number]
        if is_whole and not lane.go_on(parts):
            return number, parts
        self.lanes[number] = lane  # the others come first now
        return -1, parts

    def abandon(self) -> list[tuple[Source, int]]:
        """Drop the large bodies and what waits for them. Return their deliveries that have no
        delivery tag (no_ack): the caller gives them back."""
        lanes, self.lanes = self.lanes, {}
        given = [content.abandon() for lane in lanes.values() for content in lane.contents()]
        return [one for one in given if one is not None]

    def waiting_bytes(self) -> int:
        """Return the bytes of frames that wait for large bodies."""
        return sum([lane.waiting_bytes() for lane in self.lanes.values()])

    def large_bytes(self) -> int:
        """Return the bytes of RAM that large bodies take, with what waits for them."""
        return len(self.lanes) * PIECE_BYTES + self.waiting_bytes()


METHOD: Final = 1
HEADER: Final = 2
BODY: Final = 3
END: Final = 0xCE
DELIVER: Final = b"\x00\x3c\x00\x3c"  # class 60, method 60
GET_OK: Final = b"\x00\x3c\x00\x47"  # 60, 71
RETURN: Final = b"\x00\x3c\x00\x32"  # 60, 50
CONTENT: Final = b"\x00\x3c\x00\x00"  # class 60, weight 0
METHOD_FIXED_BYTES: Final = 4 + 8 + 1  # class and method, delivery tag, redelivered
HEADER_FIXED_BYTES: Final = 4 + 8
ADDRESS_BYTES_KEPT_MAX: Final = 128  # of exchange and routing key, for the next delivery
APART_BYTES: Final = 8192  # bodies from here on are not copied into the buffer

HEADERS: Final = AmqpHeaders()


def address_of(header: bytes, queue: str) -> tuple[bytes, bytes]:
    """Return (exchange and routing key as two short strings, properties) of a stored header. queue:
    its queue, for a message that the embedded library put there."""
    return HEADERS.parts(header, queue)


def counted_props(header: bytes, props: bytes, attempts: int, counts: int) -> bytes:
    """Return the properties with x-delivery-count and the attempts of deaths, as `counts`
    (broker_queue.py) asks."""
    if counts & COUNTS_OF_DEATHS:
        props = HEADERS.props_with_attempts(header, props)
    if counts & ALL_COUNTS or (counts and attempts):
        props = HEADERS.delivered_props(props, attempts)
    return props


def write_delivery(
    output: Output, channel: int, consumer: Consumer, delivery_tag: int, delivery: Delivery
) -> None:
    """Write a basic.deliver with its content."""
    message = delivery.message
    header = message.header
    if delivery.attempts or not header or header[0] != FORMAT:
        address, props = address_of(header, consumer.queue.name)
        if consumer.counts != NO_COUNTS:
            props = counted_props(header, props, delivery.attempts, consumer.counts)
    else:
        at = 2 + header[1]
        at += 1 + header[at]
        address = header[1:at]
        props = header[at:]
    if address != consumer.address or not consumer.front:
        _set_address(consumer, channel, address)
        if consumer.tracer is not None:
            consumer.address = b""  # so that the next one comes here, too
            consumer.tracer(consumer, address, props, delivery)
    out = output.writer(channel)
    out.write(consumer.front)
    write_i64_be(out, delivery_tag)
    out.write(consumer.redelivered if delivery.is_redelivered else consumer.fresh)
    write_content(output, channel, props, message.size, message.body)
    if len(address) > ADDRESS_BYTES_KEPT_MAX:
        consumer.forget_address()


def _set_address(consumer: Consumer, channel: int, address: bytes) -> None:
    tag = consumer.tag.encode("utf-8", "surrogateescape")
    size = METHOD_FIXED_BYTES + 1 + len(tag) + len(address)
    consumer.address = address
    consumer.front = b"\x01%b%b%b%c%b" % (
        channel.to_bytes(2, "big"), size.to_bytes(4, "big"), DELIVER, len(tag), tag
    )  # fmt: skip
    consumer.fresh = b"\x00%b\xce" % address
    consumer.redelivered = b"\x01%b\xce" % address


def begin_frame(out: BytesWriter, kind: int, channel: int, size: int) -> None:
    """Write what precedes a frame's payload of `size` bytes. END must follow the payload."""
    out.append(kind)
    write_i16_be(out, channel if channel < 0x8000 else channel - 0x10000)  # as signed ones
    write_i32_be(out, size)


def write_content(
    output: Output, channel: int, props: bytes, size: int, body: bytes | None
) -> None:
    """Write content header and body frames. body: None for a large body of `size` bytes that comes
    from the store; then call `Output.put_large`."""
    out = output.writer(channel)
    begin_frame(out, HEADER, channel, HEADER_FIXED_BYTES + len(props))
    out.write(CONTENT)
    write_i64_be(out, size)
    out.write(props)
    out.append(END)
    if body is None:
        return
    piece_bytes = output.frame_max - FRAME_EXTRA_BYTES
    if size > piece_bytes:
        view = memoryview(body)
        for start in range(0, size, piece_bytes):
            _write_body(output, channel, view[start : start + piece_bytes])
    elif size >= APART_BYTES:
        _write_body(output, channel, body)
    elif size:
        begin_frame(out, BODY, channel, size)
        out.write(body)
        out.append(END)


def _write_body(output: Output, channel: int, body: Piece) -> None:
    """Write a body frame whose content is not copied."""
    out = output.writer(channel)
    begin_frame(out, BODY, channel, len(body))
    out = output.put(channel, body)
    out.append(END)


def write_get_ok(
    output: Output, channel: int, queue: str, delivery_tag: int, delivery: Delivery, ready: int,
    counts: int,
) -> None:  # fmt: skip
    """Write a basic.get-ok with its content. ready: how many messages are left. counts: as a
    consumer's."""
    message = delivery.message
    address, props = address_of(message.header, queue)
    props = counted_props(message.header, props, delivery.attempts, counts)
    out = output.writer(channel)
    begin_frame(out, METHOD, channel, METHOD_FIXED_BYTES + len(address) + 4)
    out.write(GET_OK)
    write_i64_be(out, delivery_tag)
    out.append(1 if delivery.is_redelivered else 0)
    out.write(address)
    out.write(min(ready, 0xFFFFFFFF).to_bytes(4, "big"))
    out.append(END)
    write_content(output, channel, props, message.size, message.body)


def write_return(
    output: Output, channel: int, code: int, text: str, address: bytes, props: bytes, size: int,
    body: bytes | None,
) -> None:  # fmt: skip
    """Write a basic.return with its content: a mandatory message that no queue got. size, body: see
    write_content."""
    reply = text.encode("utf-8", "surrogateescape")
    out = output.writer(channel)
    begin_frame(out, METHOD, channel, 4 + 2 + 1 + len(reply) + len(address))
    out.write(RETURN)
    write_i16_be(out, code)
    out.append(len(reply))
    out.write(reply)
    out.write(address)
    out.append(END)
    write_content(output, channel, props, size, body)
