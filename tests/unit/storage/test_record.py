"""Records: golden bytes of every type, both encoders alike, nothing damaged is decoded."""

from collections.abc import Callable

import pytest

from penstock.fast_crc import pieces_of
from penstock.storage.journal import record_types
from penstock.storage.log import record, record_writer
from penstock.storage.log.record import Op, RecordError
from tests.helpers.golden import golden, hexdump

SEED = 0x1234_5678


def publish(flags: int = 0) -> bytes:
    in_store = flags & record.IN_STORE
    body = b"" if in_store else b"body"
    return record.publish_data(
        flags, 0x0100_0000_0001, 1_700_000_000, 1_700_000_060_000, 9, [(3, 4), (5, 6)], b"hd",
        body, 70_000 if in_store else 4,
    )  # fmt: skip


EXAMPLES: dict[str, tuple[int, int, int, bytes]] = {
    "nop": (record.NOP, 0, 0, b""),
    "publish": (record.PUBLISH, 0, 2, publish()),
    "publish_in_store": (record.PUBLISH, record.IN_STORE, 2, publish(record.IN_STORE)),
    "publish_expiry": (record.PUBLISH, record.HAS_EXPIRY, 2, publish(record.HAS_EXPIRY)),
    "publish_both": (record.PUBLISH, 3, 2, publish(3)),
    "dequeue": (
        record.DEQUEUE, 0, 2,
        record.dequeue_data(
            3, [(7, 2, 500, 0), (10, 1, 70_000, 1)], [(0x0100_0000_0001, 9, 70_000)]
        ),
    ),
    "move": (record.MOVE, record.IN_STORE, 2, record.move_data(3, 8, 70_000, publish(1))),
    "requeue": (record.REQUEUE, 0, 2, record.requeue_data(3, [(7, 1), (8, 2)])),
    "mark": (record.MARK, 0, 0, record.mark_data(3, 4096)),
    "purge": (record.PURGE, 0, 1, record.purge_data(3, 5000, [(7, 2, 500, 1)])),
    "delete_queue": (record.DELETE_QUEUE, 0, 0, record.delete_queue_data(3)),
    "topology": (record.TOPOLOGY, 0, 0, b"any bytes"),
    "tx": (
        record.TX, 0, 2,
        record.encode_ops(
            [Op(record.PUBLISH, 0, 2, publish()), Op(record.MARK, 0, 0, record.mark_data(3, 1))]
        ),
    ),
    "tx_part": (
        record.TX_PART, 0, 1, record.tx_part_data(77, [Op(record.PUBLISH, 0, 2, publish())])
    ),
    "tx_commit": (record.TX_COMMIT, 0, 2, record.tx_commit_data(77, [(3, 100), (5, 200)])),
    "tx_slice": (record.TX_SLICE, 0, 2, record.tx_slice_data(77, 79, [(3, 100), (5, 200)])),
    "release": (record.RELEASE, 0, 0, record.release_data(3, 2)),
    "stream": (
        record.STREAM, 0, 1, record.stream_data(6, 41, 1_700_000_000_000_001, b"meta", b"payload")
    ),
    "reader_offset": (
        record.READER_OFFSET, 0, 0,
        record.reader_data(6, 42, record.NOT_KEPT, 1_700_000_000_000, b"reader"),
    ),
    "seen": (record.SEEN, 0, 0, record.seen_data(1_700_000_060_000, b"0123456789abcdef", b"qname")),
    "lease": (
        record.LEASE, record.LEASED, 2,
        record.lease_data(
            3, 1000, 1_700_000_000_000, b"reader",
            [(4, 7, 2, 500, 0, 1_700_000_000), (3, 10, 1, 70_000, 1, 1_600_000_000)],
        ),
    ),
    "lease_committed": (
        record.LEASE, record.COMMITTED, 0,
        record.lease_data(3, 1003, 1_700_000_000_001, b"reader", []),
    ),
}  # fmt: skip

DECODERS: dict[int, Callable[[bytes, int, int], object]] = {
    record.PUBLISH: lambda data, flags, count: record.decode_publish(data, flags, count),
    record.DEQUEUE: lambda data, flags, count: record.decode_dequeue(data, count),
    record.MOVE: lambda data, flags, count: record.decode_move(data, flags, count),
    record.REQUEUE: lambda data, flags, count: record.decode_requeue(data, count),
    record.MARK: lambda data, flags, count: record.decode_mark(data),
    record.PURGE: lambda data, flags, count: record.decode_purge(data, count),
    record.DELETE_QUEUE: lambda data, flags, count: record.decode_delete_queue(data),
    record.TX: lambda data, flags, count: record.decode_ops(data, count),
    record.TX_PART: lambda data, flags, count: record.decode_tx_part(data, count),
    record.TX_COMMIT: lambda data, flags, count: record.decode_tx_commit(data, count),
    record.TX_SLICE: lambda data, flags, count: record.decode_tx_slice(data, count),
    record.RELEASE: lambda data, flags, count: record.decode_release(data),
    record.LEASE: lambda data, flags, count: record.decode_lease(data, count),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_golden_bytes(name: str) -> None:
    kind, flags, count, data = EXAMPLES[name]
    golden(f"record_{name}", hexdump(record.encode(SEED, 42, kind, flags, count, data)))


@pytest.mark.parametrize("name", EXAMPLES)
def test_round_trip_of_the_envelope(name: str) -> None:
    kind, flags, count, data = EXAMPLES[name]
    found = record.decode(record.encode(SEED, 42, kind, flags, count, data), SEED, 3, 128)
    assert (found.lsn, found.type, found.flags, found.count) == (42, kind, flags, count)
    assert (found.data, found.segment, found.offset) == (data, 3, 128)


def test_round_trip_of_the_data() -> None:
    found = record.decode_publish(publish(3), 3, 2)
    assert (found.id, found.time, found.expiry_ms) == (
        0x0100_0000_0001, 1_700_000_000, 1_700_000_060_000,
    )  # fmt: skip
    assert (found.in_store, found.store_file, found.body_size) == (True, 9, 70_000)
    assert (found.places, found.header, found.body) == ([(3, 4), (5, 6)], b"hd", b"")
    plain = record.decode_publish(publish(), 0, 2)
    assert (plain.in_store, plain.expiry_ms, plain.header, plain.body) == (False, 0, b"hd", b"body")
    dequeue = record.decode_dequeue(EXAMPLES["dequeue"][3], 2)
    assert dequeue == (
        3, [(7, 2, 500, 0), (10, 1, 70_000, 1)], [(0x0100_0000_0001, 9, 70_000)],
    )  # fmt: skip
    move = record.decode_move(EXAMPLES["move"][3], record.IN_STORE, 2)
    assert (move.queue, move.seq, move.size, move.publish.store_file) == (3, 8, 70_000, 9)
    assert record.decode_requeue(EXAMPLES["requeue"][3], 2) == (3, [(7, 1), (8, 2)])
    assert record.decode_mark(EXAMPLES["mark"][3]) == (3, 4096)
    assert record.decode_purge(EXAMPLES["purge"][3], 1) == (3, 5000, [(7, 2, 500, 1)])
    assert record.decode_delete_queue(EXAMPLES["delete_queue"][3]) == 3
    assert record.decode_tx_commit(EXAMPLES["tx_commit"][3], 2) == (77, [(3, 100), (5, 200)])
    assert record.decode_tx_slice(EXAMPLES["tx_slice"][3], 2) == (77, 79, [(3, 100), (5, 200)])
    assert record.decode_release(EXAMPLES["release"][3]) == (3, 2)
    assert record.decode_stream(EXAMPLES["stream"][3]) == (
        6, 41, 1_700_000_000_000_001, b"meta", b"payload", None,
    )  # fmt: skip
    assert record.decode_reader(EXAMPLES["reader_offset"][3]) == (
        6, 42, record.NOT_KEPT, 1_700_000_000_000, b"reader",
    )  # fmt: skip
    assert record.decode_lease(EXAMPLES["lease"][3], 2) == (
        3, 1000, 1_700_000_000_000, b"reader",
        [(4, 7, 2, 500, 0, 1_700_000_000), (3, 10, 1, 70_000, 1, 1_600_000_000)],
    )  # fmt: skip
    assert record.decode_lease(EXAMPLES["lease_committed"][3], 0) == (
        3, 1003, 1_700_000_000_001, b"reader", [],
    )  # fmt: skip
    ops = record.decode_ops(EXAMPLES["tx"][3], 2)
    assert [(op.type, op.count) for op in ops] == [(record.PUBLISH, 2), (record.MARK, 0)]
    part = record.decode_tx_part(EXAMPLES["tx_part"][3], 1)
    assert (part.transaction, part.ops[0].data) == (77, publish())


@pytest.mark.parametrize("name", EXAMPLES)
def test_too_short_or_too_long_is_an_error(name: str) -> None:
    kind, flags, count, data = EXAMPLES[name]
    decode = DECODERS.get(kind)
    if decode is None:
        return
    decode(data, flags, count)
    for length in range(len(data)):
        with pytest.raises(RecordError):
            decode(data[:length], flags, count)
    with pytest.raises(RecordError):
        decode(data + b"\0", flags, count)


@pytest.mark.parametrize("store_file", [0, 9])
@pytest.mark.parametrize("expiry_ms", [0, 1_700_000_060_000])
def test_the_fast_publish_gives_the_same_bytes(store_file: int, expiry_ms: int) -> None:
    flags = record.publish_flags(store_file, expiry_ms)
    body, size = (b"", 70_000) if store_file else (b"body", 4)
    data = record.publish_data(
        flags, 11, 1_700_000_000, expiry_ms, store_file, [(3, 4)], b"header", body, size
    )
    assert record.encode(
        SEED, 42, record.PUBLISH, flags, 1, data
    ) == record_writer.encode_publish_one(
        SEED, 42, flags, 11, 1_700_000_000, expiry_ms, store_file, 3, 4, b"header", body, size
    )


@pytest.mark.parametrize(
    "name", ["lsn", "message_id", "time", "queue", "seq", "size", "store_file"]
)
def test_the_fast_publish_gives_the_same_bytes_for_the_largest_numbers(name: str) -> None:
    given = {"lsn": 42, "message_id": 11, "time": 5, "queue": 3, "seq": 4, "size": 9}
    most = (1 << 64) - 1 if name in ("lsn", "message_id", "seq") else (1 << 32) - 1
    found = {"store_file": 9, **given, name: most}
    lsn, time, queue, size = (found[one] for one in ("lsn", "time", "queue", "size"))
    id_, file, place = found["message_id"], found["store_file"], (queue, found["seq"])
    data = record.publish_data(record.IN_STORE, id_, time, 0, file, [place], b"h", b"", size)
    assert record.encode(SEED, lsn, record.PUBLISH, record.IN_STORE, 1, data) == (
        record_writer.encode_publish_one(
            SEED, lsn, record.IN_STORE, id_, time, 0, file, *place, b"h", b"", size
        )
    )


def test_the_fast_dequeue_gives_the_same_bytes_for_the_largest_numbers() -> None:
    u32, u64 = (1 << 32) - 1, (1 << 64) - 1
    runs = [(u64, u32, u64, u32)]
    slow = record.encode(SEED, u64, record.DEQUEUE, 0, 1, record.dequeue_data(u32, runs, []))
    assert record_writer.encode_dequeue(SEED, u64, u32, runs, []) == slow


@pytest.mark.parametrize("bits", [31, 32, 61, 62])
def test_numbers_at_the_bounds_of_the_fast_way_give_the_same_bytes(bits: int) -> None:
    for most in ((1 << bits) - 1, 1 << bits):
        small = min(most, (1 << 32) - 1)
        data = record.publish_data(0, most, small, 0, 0, [(small, most)], b"h", b"b", 1)
        assert record.encode(SEED, most, record.PUBLISH, 0, 1, data) == (
            record_writer.encode_publish_one(
                SEED, most, 0, most, small, 0, 0, small, most, b"h", b"b", 1
            )
        )


def test_the_fast_stream_record_gives_the_same_bytes() -> None:
    assert record.encode(SEED, 42, *EXAMPLES["stream"]) == record.encode_stream(
        SEED, 42, 6, 41, 1_700_000_000_000_001, b"meta", b"payload"
    )
    assert record.encode(SEED, 42, *EXAMPLES["stream"]) == (
        record.encode_stream_front(
            SEED, 42, 6, 41, 1_700_000_000_000_001, b"meta", pieces_of(b"payload")
        )
        + b"payload"
    )


def test_a_stream_record_that_is_cut_off_is_an_error() -> None:
    data = EXAMPLES["stream"][3]
    for length in range(len(data) - len(b"payload")):
        with pytest.raises(RecordError, match="STREAM"):
            record.decode_stream(data[:length])
    for length in range(len(EXAMPLES["reader_offset"][3]) - len(b"reader")):
        with pytest.raises(RecordError, match="READER_OFFSET"):
            record.decode_reader(EXAMPLES["reader_offset"][3][:length])


@pytest.mark.parametrize("runs", [[(7, 2, 90, 1)], [(7, 2, 90, 0), (10, 1, 5, 0)], []])
@pytest.mark.parametrize("stores", [[], [(1, 9, 70_000)]])
def test_the_fast_dequeue_gives_the_same_bytes(
    runs: list[tuple[int, int, int, int]], stores: list[tuple[int, int, int]]
) -> None:
    data = record.dequeue_data(3, runs, stores)
    slow = record.encode(SEED, 42, record.DEQUEUE, 0, len(runs), data)
    assert record_writer.encode_dequeue(SEED, 42, 3, runs, stores) == slow


def test_a_body_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="4 bytes cannot be logged as one of 5"):
        record_writer.encode_publish_one(SEED, 1, 0, 1, 1, 0, 0, 1, 1, b"", b"body", 5)
    with pytest.raises(ValueError, match="4 bytes cannot be logged as one of 5"):
        record.publish_data(0, 1, 1, 0, 0, [(1, 1)], b"", b"body", 5)


def test_no_flipped_bit_verifies_and_no_other_seed() -> None:
    whole = record.encode(SEED, 42, *EXAMPLES["publish"])
    assert record.verifies(whole, SEED)
    assert not record.verifies(whole, SEED + 1)
    assert not record.verifies(whole[:-1], SEED)
    assert not record.verifies(whole[:10], SEED)
    for bit in range(len(whole) * 8):
        spoilt = bytearray(whole)
        spoilt[bit // 8] ^= 1 << bit % 8
        assert not record.verifies(bytes(spoilt), SEED)
        with pytest.raises(RecordError, match="checksum"):
            record.decode(bytes(spoilt), SEED)


@pytest.mark.parametrize(
    ("kind", "name"), [(record.KNOWN_TYPES_MAX + 1, "number"), (200, "number 200")]
)
def test_unknown_types_are_refused_by_name(kind: int, name: str) -> None:
    with pytest.raises(ValueError, match=name):
        record.encode(SEED, 1, kind, 0, 0, b"")
    listed = record.encode_ops([Op(record.NOP, 0, 0, b"")])
    with pytest.raises(RecordError, match=name):
        record.decode_ops(bytes([kind]) + listed[1:], 1)


@pytest.mark.parametrize("kind", [record.TX, record.TX_PART, record.TX_COMMIT, record.TX_SLICE])
def test_lists_of_operations_do_not_nest(kind: int) -> None:
    with pytest.raises(ValueError, match="inside a list"):
        record.encode_ops([Op(kind, 0, 0, b"")])
    listed = record.encode_ops([Op(record.NOP, 0, 0, b"")])
    with pytest.raises(RecordError, match="inside a list"):
        record.decode_ops(bytes([kind]) + listed[1:], 1)


@pytest.mark.parametrize("message_id", [1, 1 << 40, 1 << 63])
@pytest.mark.parametrize("time", [0, (1 << 31) - 1, 1 << 31])
@pytest.mark.parametrize("places", [[(1, 2)], [((1 << 32) - 1, 1 << 63)], [(1, 2), (3, 4)]])
@pytest.mark.parametrize(("header", "body"), [(b"", b""), (b"hd", b"body")])
def test_recovery_decodes_a_publish_as_others_do(
    message_id: int, time: int, places: list[tuple[int, int]], header: bytes, body: bytes
) -> None:
    data = record.publish_data(0, message_id, time, 0, 0, places, header, body, len(body))
    slow = record.decode_publish(data, 0, len(places))
    fast = record_types.publish_of(data, 0, len(places))
    for name in ("id", "time", "expiry_ms", "store_file", "header", "body"):
        assert getattr(fast.message, name) == getattr(slow, name), name
    assert (fast.message.size, fast.places) == (slow.body_size, slow.places)
    for cut in range(len(data)):
        with pytest.raises(RecordError):
            record_types.publish_of(data[:cut], 0, len(places))
    with pytest.raises(RecordError):
        record_types.publish_of(data + b"x", 0, len(places))


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="65536 entries"):
        record.encode(SEED, 1, record.DEQUEUE, 0, 65_536, b"")
    with pytest.raises(ValueError, match="65536 entries"):
        record_writer.encode_dequeue(SEED, 1, 3, [(2 * i, 1, 9, 0) for i in range(65_536)], [])
    with pytest.raises(RecordError, match="unknown flags"):
        record.decode_publish(publish(), 0x80, 2)
    with pytest.raises(RecordError, match="20 bytes"):
        record.decode_header(b"short")
