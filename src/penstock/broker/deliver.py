"""Deliver: a message as frames on the wire, written from bytes that are kept as they came.

A stored header holds exchange, routing key and properties as the publisher sent them
(amqp_headers.py). A delivery therefore decodes nothing: three slices and the body, with lengths in
between.

    method   1 | channel 2 | length 4 | 60 2 | 60 2 | consumer tag 1+n | delivery tag 8
             | redelivered 1 | exchange 1+n | routing key 1+n | CE
    header   2 | channel 2 | length 4 | 60 2 | 0 2 | body size 8 | property flags and list | CE
    body     3 | channel 2 | length 4 | bytes | CE               none if empty, several if large

Of a large body that is in the store only method and header are written here; its frames are made
when the client takes them (large_content.py).

What stands in front of and behind the delivery tag is kept with the consumer, for the last address:
messages of one queue mostly have the same.

Hot: `write_delivery` runs once per message delivered.

Not here: which message, and to whom (dispatch.py).
"""

from typing import Final

from librt.strings import BytesWriter, write_i16_be, write_i32_be, write_i64_be

from penstock.broker.consumers import ALL_COUNTS, COUNTS_OF_DEATHS, NO_COUNTS, Consumer
from penstock.broker.output import Output
from penstock.queues.amqp_headers import FORMAT, AmqpHeaders
from penstock.queues.backing_queue import Delivery

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
FRAME_EXTRA_BYTES: Final = 8  # type, channel, length, end
APART_BYTES: Final = 8192  # bodies from here on are not copied into the buffer

HEADERS: Final = AmqpHeaders()


def address_of(header: bytes, queue: str) -> tuple[bytes, bytes]:
    """(exchange and routing key as two short strings, properties) of a stored header. queue: where
    it is, for a message that the embedded library put there."""
    return HEADERS.parts(header, queue)


def counted_props(header: bytes, props: bytes, attempts: int, counts: int) -> bytes:
    """The properties with x-delivery-count and the attempts of deaths, as `counts` (consumers.py)
    says."""
    if counts & COUNTS_OF_DEATHS:
        props = HEADERS.told_props(header, props)
    if counts & ALL_COUNTS or (counts and attempts):
        props = HEADERS.delivered_props(props, attempts)
    return props


def write_delivery(
    output: Output, channel: int, consumer: Consumer, delivery_tag: int, delivery: Delivery
) -> None:
    """A basic.deliver with its content."""
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
    out = output.writer(channel)
    out.write(consumer.front)
    write_i64_be(out, delivery_tag)
    out.write(consumer.redelivered if delivery.is_redelivered else consumer.fresh)
    write_content(output, channel, props, message.size, message.body)


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
    """What stands in front of a frame's payload of `size` bytes. END is to follow it."""
    out.append(kind)
    write_i16_be(out, channel if channel < 0x8000 else channel - 0x10000)  # as signed ones
    write_i32_be(out, size)


def write_content(
    output: Output, channel: int, props: bytes, size: int, body: bytes | None
) -> None:
    """Content header and body frames. body: None if the body, of `size` bytes, is large and comes
    from the store: `Output.put_large` is to follow."""
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
        for start in range(0, size, piece_bytes):
            _write_body(output, channel, body[start : start + piece_bytes])
    elif size >= APART_BYTES:
        _write_body(output, channel, body)
    elif size:
        begin_frame(out, BODY, channel, size)
        out.write(body)
        out.append(END)


def _write_body(output: Output, channel: int, body: bytes) -> None:
    """A body frame whose content is not copied."""
    out = output.writer(channel)
    begin_frame(out, BODY, channel, len(body))
    out = output.put(channel, body)
    out.append(END)


def write_get_ok(
    output: Output, channel: int, queue: str, delivery_tag: int, delivery: Delivery, ready: int,
    counts: int,
) -> None:  # fmt: skip
    """A basic.get-ok with its content. ready: how many are left. counts: as a consumer's."""
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
    """A basic.return with its content: a mandatory message that no queue got. size, body: see
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
