"""Pending messages of a VariableQueue, and how they are settled; the half below delivery.

What was fetched is pending, in RAM or, paged out, as a row. It dies by `ack` (one DEQUEUE record
per call), goes back by `requeue`, goes elsewhere by `move` (one MOVE record, so that nothing is
lost or doubled between two queues), or was taken by a transaction (`entries`, then `forget`). A
purge is one record too; it keeps what is pending.

A call that fails leaves messages pending: what is read of them is read before they are taken out.

Not here: arrival, delivery and limits (variable_queue.py), the places that requeued messages go
back to (vq_requeue.py), looking without changing (vq_scan.py).
"""

from abc import abstractmethod
from collections.abc import Callable
from itertools import islice
from typing import Final, TypeVar

from penstock.message import Entry, Message, is_large, seq_of
from penstock.queues import inhaler, purger, vq_requeue, vq_scan
from penstock.queues.backing_queue import BackingQueue, Delivery
from penstock.queues.delivered_mark import DeliveredMark
from penstock.queues.paging import Paging
from penstock.queues.rows import AT_ENTRY, ON_SLOT, PERSISTENT, Row, seq_of_row
from penstock.queues.vq_state import CHECKS, VQState, alpha_bytes
from penstock.shared_body import SharedMessage
from penstock.storage.durability import NONE, OS
from penstock.storage.engine import StorageEngine
from penstock.storage.queue_index import QueueIndex
from penstock.storage.sharing import Sharing

ACKS_MAX: Final = 4096  # in one record, when all pending messages are to die

A = TypeVar("A")


class VqPending(BackingQueue):
    """The base of VariableQueue. mode: of records that nobody asked for."""

    def __init__(
        self, engine: StorageEngine, index: QueueIndex, mode: int, eager: bool,
        on_event: Callable[[str, str], None] | None,
    ) -> None:  # fmt: skip
        self.engine = engine
        self.state: VQState = VQState(engine, index)
        self.state.eager = eager
        self.mark: DeliveredMark = DeliveredMark(engine, index, mode)
        self.paging: Paging = Paging(self.state, on_event)
        self._index = index
        self._mode: int = mode
        self._confirms: list[tuple[int, int, int]] = []  # (lsn, mode, id)
        # Of messages below this seq a delivery counts when it is made; those that are counted.
        self._suspect_below: int = 0
        self._crash_mark: int = 0 if engine.recovered.is_clean else self.mark.delivered
        self._counted: set[int] = set()

    @abstractmethod
    def arrive(self, entry: Entry) -> None:
        """An entry has come to life at the end of the queue."""

    # ---- settling ------------------------------------------------------------------------------

    def ack(self, tags: list[int], mode: int) -> list[int]:
        state = self.state
        # First what may fail: reading, and the log; nothing has happened until it has not.
        entries = self._pending_entries(tags)
        if entries:
            self._dequeue(entries, mode)
            for entry in entries:
                self._drop_pending(entry)
            state.rates.n_ack_out += len(entries)
            if state.is_flowed:
                self.paging.note_recovered()
        if CHECKS.is_on:
            state.check()
        return [entry.message.id for entry in entries]

    def _pending_entries(self, tags: list[int]) -> list[Entry]:
        """The pending ones of these, without bodies if they were paged out; each once."""
        state = self.state
        entries: list[Entry] = []
        for tag in tags if len(tags) < 2 else dict.fromkeys(tags):
            entry = state.ram_pending.get(tag)
            if entry is not None:
                entries.append(entry)
            elif state.disk_pending.count:
                row = state.disk_pending.find(tag)
                if row is not None:
                    entries.append(inhaler.entry_of(state, row))
        return entries

    def _dequeue(self, entries: list[Entry], mode: int) -> None:
        """Entries die in the log and in the index, if they are persistent."""
        persistent = entries
        if len(entries) > 1:
            persistent = sorted([e for e in entries if e.message.persistent], key=seq_of)
        elif not entries[0].message.persistent:
            return
        if persistent:
            self.engine.dequeue(self._index, persistent, mode)

    def _drop_pending(self, entry: Entry) -> None:
        """A pending message that is dead: nothing here knows of it any more."""
        state = self.state
        seq = entry.seq
        held = state.ram_pending.pop(seq, None)
        if held is not None:
            message = held.message
            state.pending_bytes -= alpha_bytes(message)
            if isinstance(message, SharedMessage):
                message.shared.leave(state.shared)
        else:
            row = state.disk_pending.remove(seq)
            assert row is not None, "it was pending"
            if row.flags & AT_ENTRY and not row.flags & ON_SLOT:
                state.places[seq] = row.place
        state.unacked_bytes -= entry.message.size
        if self._counted:
            self._counted.discard(seq)
        if not entry.message.persistent:
            self._release(entry)

    def _die(self, entry: Entry, mode: int) -> None:
        """An entry that was never pending dies."""
        message = entry.message
        if message.persistent:
            self.engine.dequeue(self._index, [entry], mode)
        else:
            self._release(entry)
        if isinstance(message, SharedMessage):
            message.shared.leave(self.state.shared)

    def _release(self, entry: Entry) -> None:
        """A transient message is gone."""
        state = self.state
        if state.places.pop(entry.seq, None) is not None or entry.on_slot:
            self._index.keep_transients(entry.seq // self._index.slots, -1)
        state.transient_attempts.pop(entry.seq, None)
        self.engine.release(entry.message)

    def requeue(self, tags: list[int], mode: int, *, attempted: bool = True) -> list[int]:
        state = self.state
        alphas: list[Entry] = []
        rows: list[Row] = []
        for tag in dict.fromkeys(tags):
            entry = state.ram_pending.get(tag)
            if entry is not None:
                alphas.append(entry)
                continue
            row = state.disk_pending.find(tag) if state.disk_pending.count else None
            if row is not None:
                rows.append(row)
        alphas.sort(key=seq_of)
        rows.sort(key=seq_of_row)
        ids = {entry.seq: entry.message.id for entry in alphas}
        ids.update({row.seq: row.id for row in rows})
        if attempted and ids:  # first what may fail: DiskFullError, and nothing has happened
            self._count_attempts(alphas, rows, mode)
        elif self._counted:
            self._uncount(list(ids), mode)
        for entry in alphas:
            del state.ram_pending[entry.seq]
            state.pending_bytes -= alpha_bytes(entry.message)
        for row in rows:
            state.disk_pending.remove(row.seq)
        size = sum([e.message.size for e in alphas]) + sum([row.size for row in rows])
        state.unacked_bytes -= size
        state.bytes += size
        state.len += len(ids)
        state.rates.n_in += len(ids)
        state.rates.n_ack_out += len(ids)
        vq_requeue.put_back(state, alphas, rows)
        self._after()
        return [ids[seq] for seq in sorted(ids)]

    def _count_attempts(self, alphas: list[Entry], rows: list[Row], mode: int) -> None:
        known = self._index.attempts
        seqs = [entry.seq for entry in alphas if entry.message.persistent]
        seqs += [row.seq for row in rows if row.flags & PERSISTENT]
        counted = [(q, known.get(q, 0) + 1) for q in sorted(seqs) if q not in self._counted]
        if counted:
            self.engine.requeue(self._index, counted, mode)
        self._counted.difference_update(seqs)
        transient = self.state.transient_attempts
        for seq in [entry.seq for entry in alphas if not entry.message.persistent]:
            transient[seq] = transient.get(seq, 0) + 1
        for seq in [row.seq for row in rows if not row.flags & PERSISTENT]:
            transient[seq] = transient.get(seq, 0) + 1

    def move(
        self, tag: int, targets: list[QueueIndex], header: bytes, mode: int, expiry_ms: int = 0
    ) -> int:
        found = self.pending(tag, with_header=True)
        if found is None:
            raise KeyError(f"tag {tag} of queue {self._index.number} is not pending")
        engine = self.engine
        message = found.message
        durable = [target for target in targets if target.is_durable and message.persistent]
        others = [target for target in targets if not (target.is_durable and message.persistent)]
        is_stored = message.body is None and is_large(message)
        if message.body is None and not is_stored:
            message = self._with_body(Entry(tag, message))
        body = message.body
        shared = None if body is None else engine.share_of(body, len(targets), message)
        with Sharing(engine, shared):
            if durable:
                # It stays pending until it is dead: the target may be this very queue.
                lsn, _ = engine.move(
                    self._index, self._moving(tag, message), durable, header, mode, expiry_ms
                )
                self._drop_pending(Entry(tag, message))
                self.state.rates.n_ack_out += 1
            if others and is_stored:  # given before it is taken: it may be the same body
                engine.publish_stored(others, header, engine.in_transient(message), expiry_ms)
            if not durable:
                self.ack([tag], mode)
                lsn = engine.last_lsn if message.persistent else 0
            if others and body is not None:
                engine.publish_transient(others, header, body, expiry_ms)
        self._after()
        return lsn

    def _moving(self, tag: int, message: Message) -> Entry:
        entry = self.state.ram_pending.get(tag)
        return Entry(tag, message, True if entry is None else entry.on_slot)

    def pending(
        self, tag: int, *, with_header: bool = False, with_body: bool = False
    ) -> Delivery | None:
        state = self.state
        entry = state.ram_pending.get(tag)
        if entry is not None:
            message = entry.message
            if message.body is None and (with_body or (with_header and not is_large(message))):
                message = self._with_body(entry)
        else:
            row = state.disk_pending.find(tag) if state.disk_pending.count else None
            if row is None:
                return None
            if with_header or with_body:
                (entry,) = inhaler.load(state, [row], stays=False, has_large=with_body)
            else:
                entry = inhaler.entry_of(state, row)
            message = entry.message
        attempts = self._attempts(tag, message.persistent)
        return Delivery(tag, message, tag < self.mark.delivered, attempts)

    def entries(self, tags: list[int]) -> list[tuple[QueueIndex, list[Entry]]]:
        state = self.state
        found: list[Entry] = []
        for tag in sorted(tags):
            entry = state.ram_pending.get(tag)
            if entry is None:
                row = state.disk_pending.find(tag) if state.disk_pending.count else None
                if row is None:
                    raise KeyError(f"tag {tag} of queue {self._index.number} is not pending")
                entry = inhaler.entry_of(state, row)
            if entry.message.persistent:
                found.append(entry)
        return [(self._index, found)] if found else []

    def forget(self, tags: list[int]) -> None:
        for entry in self._pending_entries(tags):
            self._drop_pending(entry)
            self.state.rates.n_ack_out += 1
        self._after()

    def ackfold(self, fun: Callable[[Delivery, A], A], acc: A, tags: list[int]) -> A:
        for tag in tags:
            delivery = self.pending(tag, with_body=True)
            if delivery is not None:
                acc = fun(delivery, acc)
        return acc

    def fold(self, fun: Callable[[Delivery, bool, A], tuple[bool, A]], acc: A) -> A:
        for seq, message, is_pending in vq_scan.everything(self.state):
            go_on, acc = fun(self._seen(seq, message), is_pending, acc)
            if not go_on:
                break
        return acc

    def browse(self, after: int | None, n: int) -> list[Delivery]:
        found: list[Delivery] = []
        if n > 0:
            for seq, message, _ in vq_scan.ready_after(
                self.state, -1 if after is None else after, min(n, vq_scan.RUN_ROWS)
            ):
                found.append(self._seen(seq, message))
                if len(found) >= n:
                    break
        return found

    def _seen(self, seq: int, message: Message) -> Delivery:
        attempts = self._attempts(seq, message.persistent)
        return Delivery(seq, message, seq < self.mark.delivered or attempts > 0, attempts)

    def purge(self, mode: int) -> int:
        died = self.state.len
        if self._index.count:
            self.engine.purge(self._index, self.purge_kept(), mode)
        self.purged()
        return died

    def purge_kept(self) -> list[Entry]:
        """The persistent pending messages, ascending: what the record of a purge keeps."""
        state = self.state
        kept = [entry for entry in state.ram_pending.values() if entry.message.persistent]
        rows = [row for row in state.disk_pending.rows() if row.flags & PERSISTENT]
        kept += [inhaler.entry_of(state, row) for row in rows]
        kept.sort(key=seq_of)
        return kept

    def purged(self) -> None:
        """A record has purged the persistent messages: let go of all that is ready."""
        state = self.state
        for seq, id, file, in_files in list(vq_scan.paged_transients(state)):
            if in_files:
                self._index.keep_transients(seq // self._index.slots, -1)
            if file:
                self.engine.release(Message(id, b"", None, 0, 0, 0, file, False))
            state.transient_attempts.pop(seq, None)
        if state.has_transients:
            for entry in [*state.q4, *state.q1, *state.back.values()]:
                if not entry.message.persistent:
                    self._release(entry)
        state.clear_ready()
        self._after()

    def purge_acks(self, mode: int) -> int:
        state = self.state
        died = len(state.ram_pending) + state.disk_pending.count
        while state.ram_pending:
            self.ack(list(islice(state.ram_pending, ACKS_MAX)), mode)
        while state.disk_pending.count:
            self.ack(list(islice(state.disk_pending.seqs(), ACKS_MAX)), mode)
        return died

    def drain_confirmed(self) -> list[int]:
        confirmed: list[int] = []
        left: list[tuple[int, int, int]] = []
        for lsn, mode, id in self._confirms:
            if mode == NONE or self.engine.settled(mode) >= lsn:
                confirmed.append(id)
            else:
                left.append((lsn, mode, id))
        self._confirms = left
        return confirmed

    # ---- attempts of messages that may have killed this process --------------------------------

    def count_crashes(self) -> None:
        self._suspect_below = self._crash_mark

    def _count_delivery(self, seq: int) -> None:
        """A suspect is about to be delivered: the count is in the log, and written, before it is.
        (That it was delivered before the crash is not certain, so that is not counted.)"""
        attempts = self._index.attempts.get(seq, 0) + 1
        lsn = self.engine.requeue(self._index, [(seq, attempts)], OS)
        self.engine.wait(lsn, OS)
        self._counted.add(seq)

    def _uncount(self, seqs: list[int], mode: int) -> None:
        """Suspects come back untried."""
        known = self._index.attempts
        back = [(seq, known.get(seq, 1) - 1) for seq in sorted(seqs) if seq in self._counted]
        if back:
            self.engine.requeue(self._index, back, mode)
            self._counted.difference_update(seqs)

    # ---- what both halves need -----------------------------------------------------------------

    def _with_body(self, entry: Entry) -> Message:
        """Its message, with a body that does not stay in RAM."""
        copy = entry.message.copy()
        self.engine.load_body(self._index, entry.seq, copy)
        self.state.disk_reads += 1
        return copy

    def _attempts(self, seq: int, is_persistent: bool) -> int:
        if is_persistent:
            if not self._index.attempts:
                return 0
            return self._index.attempts.get(seq, 0) - (seq in self._counted)
        known = self.state.transient_attempts
        return known.get(seq, 0) if known else 0

    def _after(self) -> None:
        """After anything that may have emptied a part of the queue."""
        inhaler.settle(self.state, purger.load_rows(self.state))
        self.paging.tell_set_aside()
        if self.state.is_flowed:
            self.paging.note_recovered()
        self._checked()

    def _checked(self) -> None:
        if CHECKS.is_on:
            self.state.check()
