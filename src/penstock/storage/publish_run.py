"""A run of publishes, as the bytes that a TX has for them.

Messages that are alike but for their bodies, and go to one queue, are encoded in one loop, straight
into one buffer: the same bytes as record.py makes of them one by one, for a fraction of the time. A
batch that is moved into a queue consists of such runs.

Beside record.py, for whoever only reads pages (an executor of Spark that was sent the package) has
that one, and no librt.
"""

from librt.strings import BytesWriter, write_i32_be, write_i64_be

from penstock.message import Message
from penstock.storage.record import (
    HAS_EXPIRY,
    PLACE_BYTES,
    PUBLISH,
    PUBLISH_FIXED_BYTES,
)


def run_of_publishes(queue: int, first_seq: int, messages: list[Message]) -> bytes:
    """Operations as in a TX: these messages, of one header, time and expiry, to one queue, at
    first_seq and behind it. Their bodies are in RAM, and belong into the record."""
    first = messages[0]
    header = first.header
    expiry = first.expiry_ms.to_bytes(8, "big") if first.expiry_ms else b""
    flags = HAS_EXPIRY if expiry else 0
    fixed = PUBLISH_FIXED_BYTES + len(expiry) + PLACE_BYTES + len(header)
    head = bytes((PUBLISH, flags, 0, 1))
    middle = first.time.to_bytes(4, "big") + len(header).to_bytes(4, "big")
    number = expiry + queue.to_bytes(4, "big")
    out = BytesWriter()
    seq = first_seq
    for m in messages:
        body = m.body
        assert body is not None, "a body that belongs into the record is in RAM"
        out.write(head)
        write_i32_be(out, fixed + m.size)
        write_i64_be(out, m.id)
        out.write(middle)
        write_i32_be(out, m.size)
        out.write(number)
        write_i64_be(out, seq)
        out.write(header)
        out.write(body)
        seq += 1
    return out.getvalue()
