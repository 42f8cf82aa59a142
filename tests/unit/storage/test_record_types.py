"""The table of record types: no cell is empty, and each cell does what the record says."""

import pytest

from penstock.errors import StorageError
from penstock.message import Entry, QueuedMessage
from penstock.storage.journal import record_types
from penstock.storage.journal.record_types import (
    RECORD_TYPES,
    Append,
    AppliedRecord,
    LogOperation,
    LogState,
    Publish,
)
from penstock.storage.journal.state import StorageState
from penstock.storage.log import record
from penstock.storage.log.record import Op
from penstock.storage.pages import batches
from penstock.storage.tools.dump import op_text
from penstock.storage.tools.salvage import SalvagedVhost
from tests.unit.storage.test_batches import DATA as BATCH_EXAMPLES
from tests.unit.storage.test_record import EXAMPLES

CALLS = ("encode", "apply", "text")
# A new type goes into one of these: salvage finds messages only where `contents` is defined.
BRING_MESSAGES = {record.PUBLISH, record.STREAM, record.TX, record.TX_PART}
BRING_NONE = {
    record.NOP, record.DEQUEUE, record.MOVE, record.REQUEUE, record.MARK, record.PURGE,
    record.DELETE_QUEUE, record.TOPOLOGY, record.TX_COMMIT, record.RELEASE, record.LEASE,
    record.READER_OFFSET, record.BATCH, record.TX_SLICE, record.SEEN,
}  # fmt: skip
LOG_STATE_CALLS = sorted(name for name in vars(LogState) if name.startswith("apply_"))


def example_ops() -> dict[str, Op]:
    """An operation of each type, and of each variant that has golden bytes."""
    found = {name: Op(*example) for name, example in EXAMPLES.items()}
    for flags, (data, count, _) in BATCH_EXAMPLES.items():
        found[f"batch_{flags}"] = Op(record.BATCH, flags, count, data)
    return found


OPS = example_ops()


class Calls(LogState):
    """Notes the names of the calls that operations make."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.places: list[tuple[int, int]] = []
        self.offsets: list[int] = []
        self.born: list[Entry] | None = None

    def apply_publish(
        self,
        message: QueuedMessage,
        places: list[record.Place],
        born: list[Entry] | None,
        is_held: bool,
    ) -> None:
        self.names.append("apply_publish")
        self.places += places

    def apply_dequeue(
        self, lsn: int, number: int, runs: list[record.Run], stores: list[record.StoreRef],
        entries: list[Entry],
    ) -> None:  # fmt: skip
        self.names.append("apply_dequeue")

    def apply_requeue(self, number: int, attempts: list[tuple[int, int]]) -> None:
        self.names.append("apply_requeue")

    def apply_mark(self, number: int, mark: int) -> None:
        self.names.append("apply_mark")

    def apply_purge(self, lsn: int, number: int, upper: int, kept: list[record.Run]) -> None:
        self.names.append("apply_purge")

    def apply_delete(self, lsn: int, number: int) -> None:
        self.names.append("apply_delete")

    def apply_topology(self, data: bytes) -> None:
        self.names.append("apply_topology")

    def apply_release(self, number: int, segment: int, refs: list[record.StoreRef] | None) -> None:
        self.names.append("apply_release")

    def apply_stream(self, lsn: int, mode: int, found: record.StreamData) -> None:
        self.names.append("apply_stream")
        self.offsets.append(found.offset)

    def apply_reader(self, found: record.ReaderData, flags: int) -> None:
        self.names.append("apply_reader")

    def apply_seen(self, lsn: int, name: bytes, key: bytes, until_ms: int) -> None:
        self.names.append("apply_seen")

    def apply_lease(self, lsn: int, found: record.LeaseData, flags: int) -> None:
        self.names.append("apply_lease")

    def apply_batch(self, lsn: int, flags: int, found: batches.BatchRecord) -> None:
        self.names.append("apply_batch")

    def apply_part(self, at: AppliedRecord, transaction: int, ops: list[Op]) -> None:
        self.names.append("apply_part")

    def apply_commit(self, at: AppliedRecord, transaction: int, first_seqs: dict[int, int]) -> None:
        self.names.append("apply_commit")

    def apply_slice(
        self, at: AppliedRecord, transaction: int, part_lsn: int, first_seqs: dict[int, int]
    ) -> None:
        self.names.append("apply_slice")


def apply(op: Op, first_seqs: dict[int, int] | None = None) -> Calls:
    calls = Calls()
    record_types.decode(op).apply(calls, AppliedRecord(7, 0, first_seqs or {}))
    return calls


def test_each_number_has_its_row_in_its_place() -> None:
    assert [row.number for row in RECORD_TYPES] == list(range(record.KNOWN_TYPES_MAX + 1))
    assert {row.number: row.name for row in RECORD_TYPES} == record.TYPE_NAMES


def test_no_cell_is_empty() -> None:
    assert len({row.operation for row in RECORD_TYPES}) == len(RECORD_TYPES)
    assert len({row.decode for row in RECORD_TYPES}) == len(RECORD_TYPES)
    for row in RECORD_TYPES:
        assert issubclass(row.operation, LogOperation), row.name
        assert [name for name in CALLS if name not in vars(row.operation)] == [], row.name
        assert callable(row.stored), row.name


def test_both_states_say_what_each_call_does() -> None:
    for state in (StorageState, SalvagedVhost):
        assert [name for name in LOG_STATE_CALLS if name not in vars(state)] == []


def test_there_is_an_example_of_each_type() -> None:
    assert {op.type for op in OPS.values()} == {row.number for row in RECORD_TYPES}


@pytest.mark.parametrize("name", OPS)
def test_an_operation_is_encoded_to_the_bytes_that_it_was_decoded_from(name: str) -> None:
    op = OPS[name]
    operation = record_types.decode(op)
    assert isinstance(operation, RECORD_TYPES[op.type].operation)
    found = operation.encode()
    assert (found.type, found.flags, found.count, found.data) == (
        op.type, op.flags, op.count, op.data,
    )  # fmt: skip


def test_every_type_but_nop_changes_something_and_every_call_is_made_by_one() -> None:
    made: set[str] = set()
    for name, op in OPS.items():
        names = apply(op).names
        assert bool(names) == (op.type != record.NOP), name
        made.update(names)
    assert sorted(made) == LOG_STATE_CALLS


def test_a_move_is_a_publish_and_a_dequeue_and_a_transaction_all_of_its_operations() -> None:
    assert apply(OPS["move"]).names == ["apply_publish", "apply_dequeue"]
    ops = record.decode_ops(OPS["tx"].data, OPS["tx"].count)
    one_by_one = [name for op in ops for name in apply(op).names]
    assert apply(OPS["tx"]).names == one_by_one
    assert len(one_by_one) > 1


def test_places_in_a_transaction_in_parts_are_ordinals() -> None:
    ordinals = record.publish_data(0, 1, 2, 0, 0, [(3, 0), (4, 1)], b"h", b"b", 1)
    calls = apply(Op(record.PUBLISH, 0, 2, ordinals), {3: 100, 4: 200})
    assert calls.places == [(3, 100), (4, 201)]
    data = record.stream_data(5, 2, 9, b"", b"x")
    assert apply(Op(record.STREAM, 0, 1, data), {5: 70}).offsets == [72]
    with pytest.raises(KeyError):
        apply(Op(record.STREAM, 0, 1, data), {6: 70})


def test_messages_and_stream_records_are_found_wherever_they_stand() -> None:
    kinds = {
        name: [type(x) for x in record_types.decode(op).contents()] for name, op in OPS.items()
    }
    assert kinds["publish"] == kinds["publish_in_store"] == [Publish]
    assert kinds["stream"] == [Append]
    of_tx = record.decode_ops(OPS["tx"].data, OPS["tx"].count)
    assert Publish in kinds["tx"]
    assert kinds["tx"] == [type(x) for op in of_tx for x in record_types.decode(op).contents()]
    bring = {row.number for row in RECORD_TYPES if "contents" in vars(row.operation)}
    assert bring == BRING_MESSAGES
    assert {row.number for row in RECORD_TYPES} - bring == BRING_NONE
    assert {OPS[name].type for name, found in kinds.items() if found} <= bring


def found_at(op: Op) -> record.Record:
    return record.Record(1, op.type, op.flags, op.count, op.data, 1, 128)


def test_a_publish_names_the_body_that_it_has_in_the_store_also_in_a_transaction() -> None:
    op = OPS["publish_in_store"]
    p = record.decode_publish(op.data, op.flags, op.count)
    body = (p.store_file, p.id)
    plain = OPS["publish"]
    assert record_types.stored_bodies(found_at(op)) == [body]
    for list_op in (record_types.Tx([op, plain, op]), record_types.TxPart(7, [op, plain, op])):
        assert record_types.stored_bodies(found_at(list_op.encode())) == [body, body]
    for name, other in OPS.items():
        if other.type not in (record.PUBLISH, record.TX, record.TX_PART):
            assert record_types.stored_bodies(found_at(other)) == [], name


@pytest.mark.parametrize("name", OPS)
def test_every_operation_reads_in_words(name: str) -> None:
    op = OPS[name]
    text = op_text(op)
    assert text.startswith(record.type_name(op.type) + " ")
    assert text == f"{record.type_name(op.type)} {record_types.decode(op).text()}"


def test_an_operation_is_of_its_own_class_and_no_other_whoever_asks() -> None:
    for name, op in OPS.items():
        operation = record_types.decode(op)
        found = [row.number for row in RECORD_TYPES if isinstance(operation, row.operation)]
        assert found == [op.type], name
        assert isinstance(operation, LogOperation)


def test_what_means_nothing_is_refused() -> None:
    in_no_file = record.publish_data(record.IN_STORE, 1, 2, 0, 0, [(3, 4)], b"", b"", 5)
    for op in (Op(200, 0, 0, b""), Op(record.PUBLISH, record.IN_STORE, 1, in_no_file)):
        with pytest.raises(record.RecordError):
            record_types.decode(op)
    for row in RECORD_TYPES:
        op = Op(row.number, 0, 3, b"x")
        if row.number not in (record.NOP, record.TOPOLOGY):
            with pytest.raises((record.RecordError, StorageError)):
                record_types.decode(op)
            assert op_text(op).startswith(f"DAMAGED {row.name}: ")
