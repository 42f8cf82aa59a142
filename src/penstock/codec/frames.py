"""Frames of AMQP 0-9-1: the envelope of everything on the wire after the protocol header.

    frame    type 1 | channel 2 | size 4 | payload (size bytes) | end 1 = 0xCE
    method   payload: class 2 | method 2 | fields                        (spec.py)
    header   payload: class 2 | weight 2 = 0 | body size 8 | properties  (properties.py)
    body     payload: a part of the body
    heartbeat: no payload, on channel 0

A message is a method frame, a header frame and as many body frames as needed: none if its body is
empty. No frame is longer than the agreed frame_max, its 8 bytes of envelope included. This module
writes frames; protocol.connection reads them.
"""

from typing import Final

FRAME_METHOD: Final = 1
FRAME_HEADER: Final = 2
FRAME_BODY: Final = 3
FRAME_HEARTBEAT: Final = 8
FRAME_END: Final = 0xCE

# Bytes of a frame beside its payload: type, channel, size, end.
FRAME_OVERHEAD_BYTES: Final = 8
# Every peer must accept frames of this size; frame_max may not be lower.
FRAME_MAX_MIN: Final = 4096


_METHOD_AT: Final = 7  # of a method frame: its class and method
_BASIC_PUBLISH: Final = b"\x00\x3c\x00\x28"

HEARTBEAT_FRAME: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"
PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"


def begins_with_publish(data: bytes) -> bool:
    """Return whether bytes that begin with a frame begin with a basic.publish. A quick guess: it
    checks neither the type of the frame nor that a frame begins there."""
    return data[_METHOD_AT : _METHOD_AT + len(_BASIC_PUBLISH)] == _BASIC_PUBLISH


def method_frame(channel: int, payload: bytes) -> bytes:
    """Return the frame of a method's payload (Method.encode). channel: 0 to 65535."""
    return b"".join(
        (
            b"\x01",
            channel.to_bytes(2, "big"),
            len(payload).to_bytes(4, "big"),
            payload,
            b"\xce",
        )
    )


def header_frame(channel: int, properties: bytes, body_bytes: int) -> bytes:
    """Return the content header of a body of body_bytes."""
    return b"".join(
        (
            b"\x02",
            channel.to_bytes(2, "big"),
            (len(properties) + 12).to_bytes(4, "big"),
            b"\x00\x3c\x00\x00",
            body_bytes.to_bytes(8, "big"),
            properties,
            b"\xce",
        )
    )


def body_frames(channel: int, body: bytes, frame_max: int) -> bytes:
    """Return a body, or a part of one, in as many frames as needed: none if it is empty.

    frame_max: bytes of the longest frame, 0 if there is no limit.
    """
    if not body:
        return b""
    prefix = b"\x03" + channel.to_bytes(2, "big")
    size = len(body)
    part_bytes = frame_max - FRAME_OVERHEAD_BYTES if frame_max else size
    if size <= part_bytes:
        return b"".join((prefix, size.to_bytes(4, "big"), body, b"\xce"))
    parts: list[bytes] = []
    at = 0
    while at < size:
        part = body[at : at + part_bytes]
        parts.append(prefix)
        parts.append(len(part).to_bytes(4, "big"))
        parts.append(part)
        parts.append(b"\xce")
        at += part_bytes
    return b"".join(parts)


def content_frames(channel: int, properties: bytes, body: bytes, frame_max: int) -> bytes:
    """Return the content header and the body frames of a message, which follow its method frame.

    properties: flags and list, as BasicProperties.encode returns them. frame_max: as above.
    """
    header = header_frame(channel, properties, len(body))
    return header + body_frames(channel, body, frame_max)
