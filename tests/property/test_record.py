"""Whatever is encoded is decoded as it was; whatever is not that is refused."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.storage.log import record
from penstock.storage.log.record import Op, RecordError

u16 = st.integers(0, 0xFFFF)
u32 = st.integers(0, 0xFFFF_FFFF)
u64 = st.integers(0, 0xFFFF_FFFF_FFFF_FFFF)
places = st.lists(st.tuples(u32, u64), max_size=5)
runs = st.lists(st.tuples(u64, u32, u64, u32), max_size=5)
pairs = st.lists(st.tuples(u64, u32), max_size=5)
stores = st.lists(st.tuples(u64, u32, u32), max_size=5)
blob = st.binary(max_size=200)
kinds = st.integers(0, record.RELEASE)
plain_kinds = kinds.filter(lambda kind: kind not in (record.TX, record.TX_PART, record.TX_COMMIT))
ops = st.lists(st.tuples(plain_kinds, st.integers(0, 255), u16, blob), max_size=5)


@given(u32, u64, kinds, st.integers(0, 255), u16, blob)
def test_envelope(seed: int, lsn: int, kind: int, flags: int, count: int, data: bytes) -> None:
    found = record.decode(record.encode(seed, lsn, kind, flags, count, data), seed)
    assert (found.lsn, found.type, found.flags, found.count, found.data) == (
        lsn, kind, flags, count, data,
    )  # fmt: skip


@given(u64, u32, u64, u32, places, blob, blob, st.integers(0, 3))
def test_publish(
    message_id: int, time: int, expiry_ms: int, store_file: int,
    where: list[tuple[int, int]], header: bytes, body: bytes, flags: int,
) -> None:  # fmt: skip
    size = len(body)
    if flags & record.IN_STORE:
        body = b""
    data = record.publish_data(
        flags, message_id, time, expiry_ms, store_file, where, header, body, size
    )
    found = record.decode_publish(b"any" + data, flags, len(where), 3)
    assert (found.id, found.time, found.body_size) == (message_id, time, size)
    assert (found.places, found.header, found.body) == (where, header, body)
    assert found.expiry_ms == (expiry_ms if flags & record.HAS_EXPIRY else 0)
    assert found.store_file == (store_file if flags & record.IN_STORE else 0)
    move = record.decode_move(record.move_data(1, 2, 3, data), flags, len(where))
    assert (move.queue, move.seq, move.size, move.publish.places) == (1, 2, 3, where)


@given(u32, u64, u64, runs, pairs, stores)
def test_the_others(
    queue: int, a: int, b: int, gone: list[tuple[int, int, int, int]],
    some: list[tuple[int, int]], refs: list[tuple[int, int, int]],
) -> None:  # fmt: skip
    many = len(some)
    dequeue = record.decode_dequeue(record.dequeue_data(queue, gone, refs), len(gone))
    assert dequeue == (queue, gone, refs)
    assert record.decode_requeue(record.requeue_data(queue, some), many) == (queue, some)
    assert record.decode_purge(record.purge_data(queue, a, gone), len(gone)) == (queue, a, gone)
    assert record.decode_mark(record.mark_data(queue, b)) == (queue, b)
    assert record.decode_release(record.release_data(queue, queue)) == (queue, queue)
    firsts = [(n, seq) for seq, n in some]
    assert record.decode_tx_slice(record.tx_slice_data(a, b, firsts), many) == (a, b, firsts)
    assert record.decode_tx_commit(record.tx_commit_data(b, firsts), many) == (b, firsts)


@given(u64, ops)
def test_transactions(transaction: int, given_ops: list[tuple[int, int, int, bytes]]) -> None:
    listed = [Op(*op) for op in given_ops]
    found = record.decode_tx_part(record.tx_part_data(transaction, listed), len(listed))
    assert found.transaction == transaction
    assert [(op.type, op.flags, op.count, op.data) for op in found.ops] == given_ops


@given(kinds, st.integers(0, 255), st.integers(0, 20), blob)
def test_any_bytes_are_decoded_or_refused(kind: int, flags: int, count: int, data: bytes) -> None:
    decoders = (
        lambda: record.decode_publish(data, flags, count),
        lambda: record.decode_dequeue(data, count),
        lambda: record.decode_move(data, flags, count),
        lambda: record.decode_requeue(data, count),
        lambda: record.decode_mark(data),
        lambda: record.decode_purge(data, count),
        lambda: record.decode_delete_queue(data),
        lambda: record.decode_release(data),
        lambda: record.decode_ops(data, count),
        lambda: record.decode_tx_part(data, count),
        lambda: record.decode_tx_commit(data, count),
        lambda: record.decode_tx_slice(data, count),
        lambda: record.decode(data, kind),
    )
    for decoder in decoders:
        try:
            decoder()
        except RecordError:
            pass
