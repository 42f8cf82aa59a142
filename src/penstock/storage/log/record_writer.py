"""The two most frequent records, written number by number: PUBLISH to one queue, DEQUEUE of a run.

The formats are those of record.py, and so are the bytes. To pack ten numbers as a struct makes an
object of each of them, which was a fifth of what a publish without confirms costs. Written one by
one to a BytesWriter they are none. A number beyond LONG_MAX or NUMBER_MAX, which only a test has,
goes the way of record.py, whose errors are given then.

A module of its own, because record.py is also imported by readers, which may be executors of Spark
without the package `librt`.
"""

from typing import Final

from librt.strings import BytesWriter, write_i32_be, write_i64_be

from penstock.fast_crc import crc32
from penstock.storage.log.record import (
    DEQUEUE,
    IN_STORE,
    PUBLISH,
    Run,
    StoreRef,
    dequeue_data,
    encode,
    publish_data,
)

LONG_MAX: Final = (1 << 61) - 1
NUMBER_MAX: Final = (1 << 31) - 1


def encode_publish_one(
    seed: int, lsn: int, flags: int, message_id: int, time: int, expiry_ms: int, store_file: int,
    queue: int, seq: int, header: bytes, body: bytes, body_size: int,
) -> bytes:  # fmt: skip
    """Encode a whole PUBLISH record for one queue.

    `flags` say which of `expiry_ms`, `store_file` and `body` count; `body` must be b"" if it is
    IN_STORE, else `body_size` must be its length (ValueError). struct.error for a number that
    does not fit its field.
    """
    if flags == 0 and len(body) != body_size:
        raise ValueError(f"a body of {len(body)} bytes cannot be logged as one of {body_size}")
    if (
        flags > IN_STORE
        or not 0 <= lsn <= LONG_MAX
        or not 0 <= message_id <= LONG_MAX
        or not 0 <= seq <= LONG_MAX
        or not 0 <= time <= NUMBER_MAX
        or not 0 <= body_size <= NUMBER_MAX
        or not 0 <= store_file <= NUMBER_MAX
        or not 0 <= queue <= NUMBER_MAX
    ):
        places = [(queue, seq)]
        data = publish_data(
            flags, message_id, time, expiry_ms, store_file, places, header, body, body_size
        )
        return encode(seed, lsn, PUBLISH, flags, 1, data)
    head = BytesWriter()
    write_i64_be(head, lsn)
    write_i32_be(head, PUBLISH << 24 | flags << 16 | 1)
    write_i64_be(head, message_id)
    write_i32_be(head, time)
    write_i32_be(head, len(header))
    write_i32_be(head, body_size)
    if flags == IN_STORE:
        write_i32_be(head, store_file)
    write_i32_be(head, queue)
    write_i64_be(head, seq)
    # Concatenations cost less than one more CRC call, or a join (measured).
    rest = head.getvalue() + header
    if flags == 0:
        rest = rest + body  # += is compiled to a slower call
    return _begun(rest, seed, head)


def encode_dequeue(
    seed: int, lsn: int, queue: int, runs: list[Run], stores: list[StoreRef]
) -> bytes:
    """Encode a whole DEQUEUE record. ValueError for more than COUNT_MAX runs."""
    if len(runs) == 1 and not stores:
        first, many, size, in_store = runs[0]
        if (
            0 <= lsn <= LONG_MAX
            and 0 <= queue <= NUMBER_MAX
            and 0 <= first <= LONG_MAX
            and 0 <= many <= NUMBER_MAX
            and 0 <= size <= LONG_MAX
            and 0 <= in_store <= NUMBER_MAX
        ):
            head = BytesWriter()
            write_i64_be(head, lsn)
            write_i32_be(head, DEQUEUE << 24 | 1)
            write_i32_be(head, queue)
            write_i64_be(head, first)
            write_i32_be(head, many)
            write_i64_be(head, size)
            write_i32_be(head, in_store)
            write_i32_be(head, 0)
            return _begun(head.getvalue(), seed, head)
    return encode(seed, lsn, DEQUEUE, 0, len(runs), dequeue_data(queue, runs, stores))


def _begun(rest: bytes, seed: int, writer: BytesWriter) -> bytes:
    """Return the record that goes on like this, with its length and checksum before it. writer:
    any, to write with."""
    writer.truncate(0)
    write_i64_be(writer, (len(rest) + 8) << 32 | crc32(rest, seed))
    return writer.getvalue() + rest
