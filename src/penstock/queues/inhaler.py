"""Inhaler: brings messages back into RAM, a segment of rows or a run of bodies at a time.

In RabbitMQ's queue only a fetch brings messages back, one body per read, which is its weak point;
Qpid's design has an Inhaler that reads ahead once less than a minimum is in RAM, until a maximum is
reached. Here `fetch` on an empty q4 reads a run of bodies at once (up to 256 KiB that lie behind
one another, as far as there is room), and `begin` submits such a read for a queue with a waiting
consumer, or one that is over its limit no more, to be taken over by `_arrived` when the file system
has done it. What was read back is on disk still, so paging it out again writes nothing.

    delta -> q4    `deltas_to_alphas`: a run that has emptied q3 goes on from the slots
    delta -> q3    `deltas_to_betas`: the slots of one segment become rows; when delta is empty,
    what
                   is in q2 joins q3
    q3 -> q4       `betas_to_alphas`: a run of bodies
    back_rows -> q4, back    `back_to_alphas`: the same of what came back
    q1 -> q4       `settle`: q3 and all behind it is empty

An entry whose slot or body fails its check is set aside: it is not delivered, stays alive, so that
its bytes are there for `penstock store salvage`, is counted and told as an event with file and
position, and the next one is delivered. After a restart it is looked at again.
"""

from collections.abc import Callable
from itertools import islice
from typing import Final

from penstock.errors import CorruptionError
from penstock.message import Entry, Message, is_large
from penstock.queues.rows import (
    AT_ENTRY,
    AT_STORE,
    HAS_ENTRY,
    IN_STORE,
    ON_SLOT,
    PERSISTENT,
    ROW_BYTES,
    Row,
    Rows,
)
from penstock.queues.vq_state import ALPHA_BYTES, VQState, alpha_bytes
from penstock.storage import queue_segment
from penstock.storage.queue_segment import PREFIX_BYTES, SegmentFiles, Slot

RUN_BYTES_MAX: Final = 256 << 10
FEW_ROWS: Final = 16  # that stand in q3 before delta, where a fetch reads on from the slots


# ---- delta to q3 ---------------------------------------------------------------------------------


def deltas_to_betas(state: VQState, rows_max: int) -> None:
    """Delta's next segment, at most so many rows, becomes the rear of q3, which is empty; holes and
    damaged slots are skipped, until there is a row or delta is empty. Then q2 joins q3."""
    while state.delta.count and not state.q3.count:
        load_segment(state, rows_max)
    if not state.delta.count and state.q2.count:
        state.q3.extend(state.q2)


def load_segment(state: VQState, rows_max: int) -> None:
    """The next rows of delta, at most so many and of one segment, become the rear of q3."""
    delta, index = state.delta, state.index
    stop = min(state.segment_end(delta.start), delta.end)
    seqs = state.ready_on_disk(delta.start, stop)
    if len(seqs) > rows_max:
        stop = seqs[rows_max]
        seqs = seqs[:rows_max]
    transients = set(state.transients_between(delta.start, stop))
    if seqs:
        rows = rows_on_disk(state, seqs, transients, is_fetching=True)  # OSError: as before
        delta.count -= len(seqs)
        for row in rows:
            state.q3.append(row)
    state.clear_transients(delta.start, stop)
    delta.start = stop
    if not delta.count:
        delta.clear()
        if state.set_aside:
            state.count_bytes()
    elif delta.start >= delta.end:
        raise AssertionError(f"delta of queue {index.number} counts {delta.count} too many")


def rows_on_disk(
    state: VQState, seqs: list[int], transients: set[int], *, is_fetching: bool = False
) -> list[Row]:
    """Rows of these seqs, ascending, of one segment, from its slots or a section of the checkpoint.
    Damaged ones are left out, and set aside if somebody is fetching them."""
    index = state.index
    section = index.section
    on_slot = seqs if not section else [seq for seq in seqs if seq not in section]
    slots: list[Slot] = []
    if on_slot:
        try:
            slots = index.files(on_slot[0] // index.slots).slots(on_slot)
        except CorruptionError:
            slots = _good_slots(state, on_slot, is_fetching=is_fetching)
        state.disk_reads += 1
    rows = [_row_of_slot(slot, is_persistent=slot.seq not in transients) for slot in slots]
    if section:
        rows += [_row_of_message(seq, section[seq].message) for seq in seqs if seq in section]
        rows.sort(key=lambda row: row.seq)
    return rows


def _good_slots(state: VQState, seqs: list[int], *, is_fetching: bool) -> list[Slot]:
    """One by one; what fails its check is set aside."""
    found: list[Slot] = []
    files = state.index.files(seqs[0] // state.index.slots)
    for seq in seqs:
        try:
            found += files.slots([seq])
        except CorruptionError as error:
            if is_fetching:
                set_aside(state, seq, 0, error)
    return found


def _row_of_slot(slot: Slot, *, is_persistent: bool) -> Row:
    flags = ON_SLOT | (PERSISTENT if is_persistent else 0)
    place = slot.where
    if slot.flags & queue_segment.HAS_ENTRY:
        flags |= HAS_ENTRY | AT_ENTRY
    if slot.flags & queue_segment.IN_STORE:
        flags |= IN_STORE
        if not flags & AT_ENTRY:
            flags |= AT_STORE
    return Row(
        slot.seq, flags, slot.id, slot.size, place, slot.expiry_ms, slot.header_len, slot.time
    )


def _row_of_message(seq: int, message: Message) -> Row:
    """Of one that stands in a section of the checkpoint; its body is in the store."""
    flags = PERSISTENT | ON_SLOT
    if message.store_file:
        flags |= IN_STORE | AT_STORE
    return Row(
        seq, flags, message.id, message.size, message.store_file, message.expiry_ms, 0, message.time
    )


# ---- q3 to q4 ------------------------------------------------------------------------------------


def betas_to_alphas(state: VQState, run_bytes: int, messages_max: int) -> bool:
    """A run of bodies from the front of q3 to the rear of q4: what lies in one segment, at most so
    many bytes and messages, but one at least. False if all of it was damaged and set aside."""
    entries = _read_run(state, state.q3, run_bytes, messages_max)
    for entry in entries:
        state.q4.append(entry)
        state.alpha_bytes += alpha_bytes(entry.message)
    return bool(entries)


def back_to_alphas(state: VQState, run_bytes: int, messages_max: int) -> None:
    """The same of the first of the rows that came back: into q4 or back."""
    state.place(_read_run(state, state.back_rows, run_bytes, messages_max))


def _read_run(state: VQState, part: Rows, run_bytes: int, messages_max: int) -> list[Entry]:
    """The entries of a run from the front of a part; what is damaged is set aside. OSError: all is
    where it was."""
    rows = _take_run(state, part, run_bytes, messages_max)
    damaged: list[tuple[Row, CorruptionError]] = []
    try:
        entries = _load_good(state, rows, damaged)
    except OSError:
        for row in reversed(rows):
            part.append_left(row)
        raise
    for row, error in damaged:
        set_aside(state, row.seq, row.size, error)
    return entries


def deltas_to_alphas(state: VQState, run_bytes: int, messages_max: int) -> None:
    """A run goes on in delta, while q3 is empty: what comes next, of one segment, straight from its
    slots to the rear of q4. Whatever is not plain (damaged, in a section of the checkpoint) is left
    to the way by rows."""
    delta, index = state.delta, state.index
    if not delta.count or index.section:
        return
    start = delta.start
    stop = min(state.segment_end(start), delta.end, start + messages_max)
    seqs = state.ready_on_disk(start, stop)
    if not seqs:
        return
    try:
        messages = _plain_messages(state, seqs, run_bytes)
    except CorruptionError:
        return  # by rows it is found out which
    n = len(messages)
    if not n:
        return
    state.disk_reads += 1
    q4 = state.q4
    cost = 0
    if n < len(seqs):
        stop = seqs[n]
    if state.delta_transients:
        _mark_transients(state, seqs, messages, stop)
    for i in range(n):
        message = messages[i]
        cost += alpha_bytes(message)
        q4.append(Entry(seqs[i], message, True))
    state.alpha_bytes += cost
    delta.count -= n
    delta.start = stop
    if not delta.count:
        delta.clear()
        if state.set_aside:
            state.count_bytes()
        if state.q2.count:
            state.q3.extend(state.q2)


def _mark_transients(state: VQState, seqs: list[int], messages: list[Message], stop: int) -> None:
    """Those of the messages that are transient, which the seqs begin with; delta loses all seqs
    below `stop`."""
    transients = set(state.transients_between(seqs[0], stop))
    for seq, message in zip(seqs, messages, strict=False):
        if seq in transients:
            message.persistent = False
    state.clear_transients(state.delta.start, stop)


def _plain_messages(state: VQState, seqs: list[int], run_bytes: int) -> list[Message]:
    """The first of these messages, with bodies, that are no more than so many bytes."""
    index = state.index
    files = index.files(seqs[0] // index.slots)
    slots = files.slots(seqs)
    n = taken = 0
    for slot in slots:
        taken += slot.size + ALPHA_BYTES
        if taken > run_bytes:
            break
        n += 1
    messages = files.entries_of(slots[:n])
    for i in range(n):
        if messages[i].body is None and not is_large(messages[i]):
            state.engine.load_body(index, seqs[i], messages[i])
    return messages


def _load_good(
    state: VQState, rows: list[Row], damaged: list[tuple[Row, CorruptionError]]
) -> list[Entry]:
    try:
        return load(state, rows)
    except CorruptionError:
        entries: list[Entry] = []
        for row in rows:
            try:
                entries += load(state, [row])
            except CorruptionError as error:
                damaged.append((row, error))
        return entries


def _take_run(state: VQState, part: Rows, run_bytes: int, messages_max: int) -> list[Row]:
    rows = [part.pop_first()]
    taken = rows[0].size + ALPHA_BYTES
    border = state.segment_end(rows[0].seq)
    while part.count and len(rows) < messages_max and taken < run_bytes:
        row = part.first()
        taken += row.size + ALPHA_BYTES
        if row.seq >= border or taken > run_bytes:
            break
        part.drop_first()
        rows.append(row)
    return rows


def load(
    state: VQState, rows: list[Row], *, stays: bool = True, has_large: bool = False
) -> list[Entry]:
    """The entries, with bodies, of rows of one segment, ascending. stays: they are to be in RAM
    instead; else somebody looks at them, and the rows stay. has_large: also with large bodies,
    which are in RAM only while somebody looks at them. CorruptionError."""
    engine, index = state.engine, state.index
    section = index.section
    state.disk_reads += 1
    if section and any(row.seq in section for row in rows):
        messages = _load_one_by_one(state, rows)
    else:
        messages = _load_run(state, rows)
    entries: list[Entry] = []
    for i in range(len(rows)):
        row, message = rows[i], messages[i]
        is_persistent = row.flags & PERSISTENT != 0
        message.persistent = is_persistent
        if message.body is None and (has_large or not is_large(message)):
            engine.load_body(index, row.seq, message)
        if is_persistent:
            entries.append(Entry(row.seq, message, row.seq not in section))
            continue
        if stays and row.flags & AT_ENTRY and not row.flags & ON_SLOT:
            state.places[row.seq] = row.place
        entries.append(Entry(row.seq, message, row.flags & ON_SLOT != 0))
    return entries


def _load_run(state: VQState, rows: list[Row]) -> list[Message]:
    index = state.index
    files = index.files(rows[0].seq // index.slots)
    unknown = [row.seq for row in rows if not row.flags & AT_ENTRY and row.flags & ON_SLOT]
    if len(unknown) == len(rows):
        return files.messages(unknown)
    asked: list[Slot] = files.slots(unknown) if unknown else []
    slots: list[Slot] = []
    at = 0
    for row in rows:
        if at < len(asked) and asked[at].seq == row.seq:
            slots.append(asked[at])
            at += 1
        else:
            slots.append(slot_of(row))
    return files.entries_of(slots)


def _load_one_by_one(state: VQState, rows: list[Row]) -> list[Message]:
    """Some of them stand in a section of the checkpoint."""
    return [
        state.index.read([row.seq])[0] if row.seq in state.index.section
        else _load_run(state, [row])[0]
        for row in rows
    ]  # fmt: skip


def slot_of(row: Row) -> Slot:
    """The slot that a row with the position of its entry, or without any entry, stands for."""
    flags = queue_segment.USED
    if row.flags & HAS_ENTRY:
        flags |= queue_segment.HAS_ENTRY
    if row.flags & IN_STORE:
        flags |= queue_segment.IN_STORE
    return Slot(
        row.seq, flags, row.header_len, row.size, row.id, row.expiry_ms, row.place, row.time
    )


def store_file_of(state: VQState, row: Row) -> int:
    """The store file of a row's body; 0 if it is not in the store. CorruptionError."""
    if not row.flags & IN_STORE:
        return 0
    if row.flags & AT_STORE:
        return row.place
    return _load_run(state, [row])[0].store_file


def entry_of(state: VQState, row: Row) -> Entry:
    """What the engine needs to know of a paged message, without header and body."""
    is_persistent = row.flags & PERSISTENT != 0
    try:
        store_file = store_file_of(state, row)
    except CorruptionError as error:
        state.set_aside_events.append(f"the body of seq {row.seq} stays in the store: {error}")
        store_file = 0
    message = Message(
        row.id, b"", None, row.size, row.time, row.expiry_ms, store_file, is_persistent
    )
    return Entry(row.seq, message, row.flags & ON_SLOT != 0 and row.seq not in state.index.section)


def as_entry(row: Row) -> Entry:
    """What is known of a row without looking anywhere."""
    is_persistent = row.flags & PERSISTENT != 0
    message = Message(row.id, b"", None, row.size, row.time, row.expiry_ms, 0, is_persistent)
    return Entry(row.seq, message, row.flags & ON_SLOT != 0)


def take_entry(state: VQState, row: Row) -> Entry:
    """The same, of a row that is in no part of the queue any more."""
    if row.flags & AT_ENTRY and not row.flags & ON_SLOT:
        state.places[row.seq] = row.place
    return entry_of(state, row)


def is_in_files(row: Row) -> int:
    """1 if the files of its segment hold something of a transient row, for which they are kept."""
    return 1 if row.flags & (ON_SLOT | AT_ENTRY) else 0


def set_aside(state: VQState, seq: int, size: int, error: CorruptionError) -> None:
    """A ready message is damaged: it is not delivered, and stays alive for salvage."""
    state.set_aside[seq] = str(error)
    state.set_aside_events.append(f"seq {seq} of queue {state.index.number} set aside: {error}")
    state.len -= 1
    state.bytes -= size


# ---- q1 to q4 ------------------------------------------------------------------------------------


def settle(state: VQState, rows_max: int) -> None:
    """After something has left q3: delta refills it; when all between is empty q1 becomes q4."""
    if state.q3.count or state.is_lazy:
        state.read_error = None
        return
    if state.delta.count:
        try:
            deltas_to_betas(state, rows_max)
        except OSError as error:
            state.read_error = error  # whoever fetches next tries again, and is told
            return
    state.read_error = None
    q3 = state.q3
    if state.q1 and not q3.count:
        state.q4.extend(state.q1)
        state.q1.clear()
        state.q1_bytes = 0


# ---- reading ahead -------------------------------------------------------------------------------


class Inhaler:
    """Reads ahead for one queue: one run at a time, off the owner's thread."""

    def __init__(self, state: VQState) -> None:
        self._state = state
        self.is_reading: bool = False
        self._bad_seq: int = -1  # of a row that could not be taken over: not read ahead again

    def begin(
        self, room_bytes: int, rows_max: int, arrived: Callable[[], None],
        failed: Callable[[str], None],
    ) -> bool:  # fmt: skip
        """Submit the read of the next run of bodies in q3 that lie in one .qs, if there are any.
        Where q3 has few rows those of delta's next segment, at most rows_max, join it first; its
        last row stays there while delta holds anything. What is in the store or in a section is
        not read so. room_bytes: of RAM, for all of that. OSError: of what is read at once."""
        state = self._state
        if self.is_reading or not state.q3.count or state.index.section:
            return self.is_reading
        room_bytes -= self._load_rows(room_bytes, rows_max)
        rows = self._next_run(room_bytes)
        if not rows:
            return False
        start, end = _extent(rows)
        path = f"{state.index.path}/{rows[0].seq // state.index.slots}.qs"
        fs = state.engine.fs

        def read() -> object:
            if start == end:
                return b""
            file = fs.open(path)
            try:
                return file.pread(end - start, start)
            finally:
                file.close()

        def done(result: object) -> None:
            self.is_reading = False
            assert isinstance(result, bytes)
            self._arrived(rows, start, result)
            arrived()

        def error(problem: BaseException) -> None:
            self.is_reading = False
            failed(f"{path}: reading ahead failed: {problem}")

        self.is_reading = True
        state.engine.submit(read, done, error)
        return True

    def _load_rows(self, room_bytes: int, rows_max: int) -> int:
        """If q3 has few rows, more of them from delta; the bytes that they take in RAM. OSError."""
        state = self._state
        q3 = state.q3
        before = q3.count
        run_rows = RUN_BYTES_MAX // state.average_bytes() + FEW_ROWS
        most = min(rows_max, run_rows, room_bytes // (2 * ROW_BYTES))
        if before >= FEW_ROWS or not state.delta.count or not most:
            return 0
        load_segment(state, most)
        loaded = q3.count - before
        if not state.delta.count and state.q2.count:
            q3.extend(state.q2)
        return loaded * ROW_BYTES

    def _next_run(self, room_bytes: int) -> list[Row]:
        """The next rows, with the positions of their entries, for which there is room. OSError."""
        state = self._state
        rows: list[Row] = []
        border = state.segment_end(state.q3.first_seq())
        taken = 0
        room = min(room_bytes, RUN_BYTES_MAX)
        count = state.q3.count
        if state.delta.count:
            count -= 1  # the last one stays before delta
        for row in islice(state.q3.rows(), count):
            taken += row.size + row.header_len + ALPHA_BYTES
            if row.seq >= border or taken > room or row.flags & IN_STORE:
                break
            if row.seq == self._bad_seq or not row.flags & (AT_ENTRY | ON_SLOT):
                break
            rows.append(row)
        self._find_entries(rows)
        return _run_of(rows)

    def _find_entries(self, rows: list[Row]) -> None:
        """Of rows whose slot knows where their entry is and they do not, put it down in them; from
        the first on that has no good slot, rows are dropped. OSError."""
        unknown = [row for row in rows if row.flags & HAS_ENTRY and not row.flags & AT_ENTRY]
        if not unknown:
            return
        index = self._state.index
        try:
            slots = index.files(unknown[0].seq // index.slots).slots([row.seq for row in unknown])
        except CorruptionError:  # whoever fetches it finds out which
            self._bad_seq = unknown[0].seq
            del rows[rows.index(unknown[0]) :]
            return
        for row, slot in zip(unknown, slots, strict=True):
            row.flags |= AT_ENTRY
            row.place = slot.where

    def _arrived(self, rows: list[Row], start: int, data: bytes) -> None:
        """Take over what is still at the front of q3; bad entries are left for `fetch` to judge."""
        state = self._state
        if state.is_lazy or not state.q3.count or state.engine.failed is not None:
            return
        files = state.index.files(rows[0].seq // state.index.slots)
        room = state.target_bytes - state.ram_bytes()
        for row in rows:
            first = state.q3.first_seq() if state.q3.count else row.seq + 1
            if first > row.seq:
                continue  # fetched meanwhile
            if first != row.seq:
                return  # all of q3 is gone, or something was requeued before it
            if state.q3.count == 1 and state.delta.count:
                break
            try:
                message = _message(files, row, data, row.place - start)
            except CorruptionError:
                self._bad_seq = row.seq
                return
            cost = alpha_bytes(message)
            room -= cost - ROW_BYTES
            if room < 0:
                break
            state.q3.drop_first()
            message.persistent = row.flags & PERSISTENT != 0
            if not message.persistent and not row.flags & ON_SLOT:
                state.places[row.seq] = row.place
            state.q4.append(Entry(row.seq, message, row.flags & ON_SLOT != 0))
            state.alpha_bytes += cost
        state.disk_reads += 1
        settle(state, FEW_ROWS)


def _run_of(rows: list[Row]) -> list[Row]:
    """The first of these rows, whose entries ascend and lie close enough for one read."""
    start = last = -1
    for n, row in enumerate(rows):
        if not row.flags & HAS_ENTRY:
            continue
        if start < 0:
            start = row.place
        if row.place < last or row.place + row.size - start > 2 * RUN_BYTES_MAX:
            return rows[: max(n, 1)]
        last = row.place
    return rows


def _extent(rows: list[Row]) -> tuple[int, int]:
    """Where their entries begin and end; the same twice if there are none."""
    start = end = 0
    for row in rows:
        if row.flags & HAS_ENTRY:
            start = start if end else row.place
            end = row.place + PREFIX_BYTES + row.header_len + row.size
    return start, end


def _message(files: SegmentFiles, row: Row, data: bytes, at: int) -> Message:
    """The message of a row, whose entry, if it has one, begins at `at`. CorruptionError."""
    if not row.flags & HAS_ENTRY:
        return Message(row.id, b"", b"", 0, row.time, row.expiry_ms)
    return files.parse(slot_of(row), data, at)
