"""VariableQueue: the queue. A BackingQueue whose RAM is bounded, whatever its length.

It is the queue of RabbitMQ's variable_queue.md and of the essay of 2011 at the head of its source:
q1, q2, delta, q3, q4; alpha, beta, gamma, delta (see vq_state.py for the picture and the
invariants), over a storage engine in which every persistent message is in the log already when it
arrives here. So paging is not what makes a message safe: it only moves it out of RAM.

    arrive     `add`, called by the engine: to q4 while q3 is empty, else to q1. Over the limit, or
               on a flowed queue, a step of the Purger follows
    fetch      the head of q4; if that is empty, a run of q3 is read into it first
    settle     pending messages die in one DEQUEUE record per call
    requeue    back to the old place: before q3's head into q4, if it is in RAM or there is room;
               before delta into q3; else delta grows

It is also the `Holder` of its QueueIndex: what a checkpoint must materialise is what is in q1, q4
and pending and on no slot yet.

Not here: when and how much is paged (paging.py), and the steps of it (purger.py, inhaler.py); where
requeued messages go (vq_requeue.py); fold and browse (vq_scan.py); marks and holds
(delivered_mark.py). Which message is dead before its time, how many may be in a queue, and what
becomes of the dead is the business of whoever owns one (amq_queue.py).
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final, TypeVar

from penstock.errors import CorruptionError
from penstock.message import Entry, Message
from penstock.queues import inhaler, purger, vq_requeue, vq_scan
from penstock.queues.backing_queue import BackingQueue, Delivery, Head, NewMessage
from penstock.queues.delivered_mark import DeliveredMark
from penstock.queues.paging import Paging
from penstock.queues.rows import AT_ENTRY, PERSISTENT, Row
from penstock.queues.vq_state import CHECKS, VQState, alpha_bytes
from penstock.storage.durability import DISK, NONE
from penstock.storage.engine import StorageEngine
from penstock.storage.holder import DictHolder, Holder
from penstock.storage.queue_index import QueueIndex

BATCH_MESSAGES: Final = 256  # of a batch, between two steps of paging
BATCH_BYTES: Final = 1 << 20
READ_MESSAGES: Final = 256  # that a fetch from disk reads at once
ACKS_MAX: Final = 4096  # in one record, when all pending messages are to die
POLICIES: Final = ("ratio", "eager")
MODES: Final = ("default", "lazy")

A = TypeVar("A")


class VqHolder(Holder):
    """What the engine calls: arrivals, and what a checkpoint must write."""

    def __init__(self, queue: "VariableQueue") -> None:
        self._queue = queue
        self._state = queue.state

    def add(self, entry: Entry) -> None:
        self._queue.arrive(entry)

    def drop(self, first: int, n: int) -> None:
        """Nothing: the queue itself took it out before the engine was told."""

    def get(self, seq: int) -> Entry | None:
        state = self._state
        held = state.ram_pending.get(seq)
        if held is not None:
            return held
        for alphas in (state.q4, state.q1):
            at = bisect_left(alphas, seq, key=_seq_of)
            if at < len(alphas) and alphas[at].seq == seq:
                return alphas[at]
        return None

    def materialise(self, below: int) -> Iterable[Entry]:
        state = self._state
        found: list[Entry] = []
        for alphas in (state.q4, state.q1, state.ram_pending.values()):
            for entry in alphas:
                if not entry.on_slot and entry.seq < below and entry.message.persistent:
                    found.append(entry)
        found.sort(key=_seq_of)
        return found

    def materialised(self, entries: list[Entry]) -> None:
        """Nothing: that they are on their slots makes paging them out free, and no more."""


def _seq_of(entry: Entry) -> int:
    return entry.seq


def _seq_of_row(row: Row) -> int:
    return row.seq


class VariableQueue(BackingQueue):
    """Takes over `index`: what lives in it is ready, in delta.

    mode: of the records of the delivered mark, a mode of storage/durability.py. policy: "ratio", or
    "eager" for the rolling of gammas as of 2011. read_bytes: that a fetch from disk reads at once;
    0: one message. on_event(kind, text): flowed, recovered, page_out_failed, corruption.
    """

    def __init__(
        self, engine: StorageEngine, index: QueueIndex, *, mode: int = DISK, policy: str = "ratio",
        read_bytes: int = 256 << 10, on_event: Callable[[str, str], None] | None = None,
    ) -> None:  # fmt: skip
        if policy not in POLICIES:
            raise ValueError(f"policy {policy!r}, expected one of {POLICIES}")
        self.engine = engine
        self.state: VQState = VQState(engine, index)
        self.state.eager = policy == "eager"
        self.mark: DeliveredMark = DeliveredMark(engine, index, mode)
        self.paging: Paging = Paging(self.state, on_event)
        self._index = index
        self._mode: int = mode
        self._read_bytes: int = read_bytes
        self._is_batch: bool = False
        self._confirms: deque[tuple[int, int, int]] = deque()  # (lsn, mode, id)
        self._take_over(index)

    def _take_over(self, index: QueueIndex) -> None:
        state = self.state
        held = index.holder
        entries = held.materialise(index.next_seq) if isinstance(held, DictHolder) else []
        fresh = [entry for entry in entries if entry.seq not in index.section]
        if fresh:  # published before anybody owned the queue
            index.write(fresh)
            for entry in fresh:
                entry.on_slot = True
        index.holder = VqHolder(self)
        if index.count:
            state.delta.start = max(index.next_live(0), 0)
            state.delta.end = index.next_seq
            state.delta.count = state.len = index.count
            state.bytes = index.bytes
            self._after()

    # ---- arrival -------------------------------------------------------------------------------

    def index(self, priority: int = 0) -> QueueIndex:
        return self._index

    def arrive(self, entry: Entry) -> None:
        """An entry has come to life at the end of the queue."""
        state = self.state
        message = entry.message
        cost = alpha_bytes(message)
        state.len += 1
        state.bytes += message.size
        state.alpha_bytes += cost
        state.rates.n_in += 1
        if state.is_lazy:
            state.alpha_bytes -= cost
            self._arrive_lazy(entry)
            return
        if state.q3.count or state.delta.count:
            state.q1.append(entry)
            state.q1_bytes += cost
        else:
            state.q4.append(entry)
        if not self._is_batch and (
            state.is_flowed or state.alpha_bytes + state.pending_bytes > state.target_bytes
        ):
            self.paging.step(purger.PUBLISH_MESSAGES, purger.PUBLISH_BYTES)
        if CHECKS.is_on:
            state.check()

    def _arrive_lazy(self, entry: Entry) -> None:
        """Straight to disk; if that fails the queue is not lazy any more."""
        state = self.state
        try:
            purger.page_out_to_delta(state, [entry])
        except OSError as error:
            self.paging.failed(error)
            self.set_queue_mode("default")
            state.alpha_bytes += alpha_bytes(entry.message)
            if state.q3.count:
                state.q1.append(entry)
                state.q1_bytes += alpha_bytes(entry.message)
            else:
                state.q4.append(entry)
        self._checked()

    def publish(
        self, header: bytes, body: bytes, mode: int, *, expiry_ms: int = 0, priority: int = 0,
        needs_confirming: bool = False,
    ) -> int:  # fmt: skip
        engine, index = self.engine, self._index
        if not index.is_durable:
            mode = NONE
        message = engine.publish([index], header, body, mode, expiry_ms)
        if needs_confirming:
            lsn = engine.last_lsn if mode != NONE else 0
            self._confirms.append((lsn, mode, message.id))
        return index.next_seq - 1

    def batch_publish(self, messages: list[NewMessage], mode: int) -> list[int]:
        engine, index = self.engine, self._index
        if not index.is_durable:
            mode = NONE
        targets = [index]
        tags: list[int] = []
        n = size = 0
        self._is_batch = True
        try:
            for new in messages:
                engine.publish(targets, new.header, new.body, mode, new.expiry_ms)
                tags.append(index.next_seq - 1)
                n += 1
                size += len(new.body)
                if n >= BATCH_MESSAGES or size >= BATCH_BYTES:
                    self._page_batch(n)
                    n = size = 0
        finally:
            self._is_batch = False
            self._page_batch(n)
        return tags

    def _page_batch(self, n: int) -> None:
        """What n publishes of their own would have paged out."""
        if purger.is_over(self.state):
            slice_messages = min(n * (purger.PUBLISH_MESSAGES + 1), purger.SLICE_MESSAGES * 2)
            self.paging.step(slice_messages, 2 * purger.SLICE_BYTES)

    def publish_delivered(
        self, header: bytes, body: bytes, mode: int, *, expiry_ms: int = 0, priority: int = 0
    ) -> Delivery:
        if self.state.len:
            raise ValueError(f"queue {self._index.number} is not empty: {self.state.len} messages")
        self.publish(header, body, mode, expiry_ms=expiry_ms)
        delivery = self._fetch(ack_required=True)
        assert delivery is not None, "what was just published is there"
        return delivery

    def hold(self, tag: int, lsn: int, mode: int) -> None:
        self.mark.hold(tag, lsn, mode)

    def held(self) -> tuple[int, int] | None:
        state = self.state
        if not state.len:
            return None
        if state.q4:
            entry = state.q4[0]
            return self._waits_for(entry.seq, entry.message.persistent)
        if not state.q3.count:
            inhaler.deltas_to_betas(state, purger.segment_rows(state))
            if not state.q3.count:
                return None
        row = state.q3.first()
        return self._waits_for(row.seq, row.flags & PERSISTENT != 0)

    def _waits_for(self, seq: int, is_persistent: bool) -> tuple[int, int] | None:
        return self.mark.waits_for(seq, has_mark=is_persistent, out_per_s=self.state.rates.out)

    # ---- delivery ------------------------------------------------------------------------------

    def fetch(self, *, ack_required: bool = True) -> Delivery | None:
        if not self.state.len or self.held() is not None:
            return None
        return self._fetch(ack_required=ack_required)

    def _fetch(self, *, ack_required: bool) -> Delivery | None:
        state = self.state
        if not state.q4 and not self._read_run():
            return None
        entry = state.q4.popleft()
        message = entry.message
        cost = alpha_bytes(message)
        size = message.size
        seq = entry.seq
        if message.body is None:
            try:
                message = self._with_body(entry)
            except CorruptionError as error:
                state.alpha_bytes -= cost
                inhaler.set_aside(state, seq, size, error)
                self._after()
                return self._fetch(ack_required=ack_required)
        state.alpha_bytes -= cost
        state.len -= 1
        state.bytes -= size
        state.rates.n_out += 1
        is_redelivered = self._delivered(seq, message.persistent)
        attempts = self._attempts(seq, message.persistent)
        if ack_required:
            state.ram_pending[seq] = entry
            state.pending_bytes += cost
            state.unacked_bytes += size
            state.rates.n_ack_in += 1
            if state.pending_order is not None:
                self._note_pending(seq)
        if not state.q3.count:
            inhaler.settle(state, purger.segment_rows(state))
        if not ack_required:
            self._die([entry], self._mode)
            if state.is_flowed:
                self.paging.note_recovered()
        elif state.alpha_bytes + state.pending_bytes > state.target_bytes:
            self.paging.step(purger.PUBLISH_MESSAGES, purger.PUBLISH_BYTES)
        if CHECKS.is_on:
            state.check()
        return Delivery(seq, message, is_redelivered or attempts > 0, attempts)

    def _read_run(self) -> bool:
        """The next run of q3 becomes q4. False if there is none."""
        state = self.state
        while True:
            if not state.q3.count:
                inhaler.deltas_to_betas(state, purger.segment_rows(state))
                self.paging.tell_set_aside()
            if not state.q3.count:
                return bool(state.q4)
            run = 0 if state.is_lazy else self._read_bytes
            room = state.target_bytes - state.ram_bytes()
            inhaler.betas_to_alphas(state, min(run, max(room, 0)), READ_MESSAGES)
            inhaler.settle(state, purger.segment_rows(state))
            self.paging.tell_set_aside()
            if state.q4:
                return True

    def _with_body(self, entry: Entry) -> Message:
        """Its message, with a body that does not stay in RAM."""
        copy = entry.message.copy()
        self.engine.load_body(self._index, entry.seq, copy)
        self.state.disk_reads += 1
        return copy

    def _delivered(self, seq: int, is_persistent: bool) -> bool:
        """Whether a message was delivered before; now it is."""
        mark = self.mark
        if seq < mark.delivered:
            return True
        mark.delivered = seq + 1
        if seq >= mark.half and is_persistent:
            mark.reserve(seq, self.state.rates.out)
        return False

    def _attempts(self, seq: int, is_persistent: bool) -> int:
        if is_persistent:
            return self._index.attempts.get(seq, 0) if self._index.attempts else 0
        known = self.state.transient_attempts
        return known.get(seq, 0) if known else 0

    def _note_pending(self, seq: int) -> None:
        order = self.state.pending_order
        assert order is not None
        if not order or seq > order[-1]:
            order.append(seq)
        else:
            self.state.pending_order = None

    def drop(self, *, ack_required: bool = True) -> Head | None:
        state = self.state
        head = self.head()
        if head is None:
            return None
        entry: Entry | None = None
        if state.q4:
            entry = state.q4.popleft()
            state.alpha_bytes -= alpha_bytes(entry.message)
            is_persistent = entry.message.persistent
            if ack_required:
                state.ram_pending[head.tag] = entry
                state.pending_bytes += alpha_bytes(entry.message)
                state.pending_order = None
        else:
            row = state.q3.first()
            is_persistent = row.flags & PERSISTENT != 0
            if ack_required:
                state.disk_pending.insert(row)
            else:
                entry = inhaler.take_entry(state, row)  # OSError: as before
            state.q3.pop_first()
        state.len -= 1
        state.bytes -= head.size
        state.rates.n_out += 1
        self._delivered(head.tag, is_persistent)
        inhaler.settle(state, purger.segment_rows(state))
        if ack_required:
            state.unacked_bytes += head.size
            state.rates.n_ack_in += 1
        elif entry is not None:
            self._die([entry], self._mode)
        self._after()
        return head

    def head(self) -> Head | None:
        state = self.state
        if state.q4:
            entry = state.q4[0]
            m = entry.message
            return Head(entry.seq, m.id, m.size, m.expiry_ms)
        if not state.q3.count:
            inhaler.deltas_to_betas(state, purger.segment_rows(state))
            self.paging.tell_set_aside()
            if not state.q3.count:
                return None
        row = state.q3.first()
        return Head(row.seq, row.id, row.size, row.expiry_ms)

    def dropwhile(self, predicate: Callable[[Head], bool], mode: int) -> Head | None:
        while True:
            dead: list[int] = []
            head = self.head()
            while head is not None and len(dead) < ACKS_MAX and predicate(head):
                self.drop()
                dead.append(head.tag)
                head = self.head()
            if dead:
                self.ack(dead, mode)
            if len(dead) < ACKS_MAX:
                return head

    def fetchwhile(
        self, predicate: Callable[[Head], bool], fun: Callable[[Delivery, A], A], acc: A
    ) -> tuple[Head | None, A]:
        while True:
            head = self.head()
            if head is None or not predicate(head):
                return head, acc
            delivery = self._fetch(ack_required=True)
            if delivery is not None:
                acc = fun(delivery, acc)

    # ---- settling ------------------------------------------------------------------------------

    def ack(self, tags: list[int], mode: int) -> list[int]:
        state = self.state
        entries: list[Entry] = []
        ids: list[int] = []
        try:
            for tag in tags:
                entry = self._take_pending(tag)
                if entry is not None:
                    entries.append(entry)
                    ids.append(entry.message.id)
        except OSError:
            for entry in entries:
                state.keep_pending(entry)
            raise
        if entries:
            state.rates.n_ack_out += len(entries)
            self._die(entries, mode)
            if state.is_flowed:
                self.paging.note_recovered()
        if CHECKS.is_on:
            state.check()
        return ids

    def _take_pending(self, seq: int) -> Entry | None:
        """A pending message, no longer pending; without its body if it was paged out."""
        state = self.state
        entry = state.ram_pending.pop(seq, None)
        if entry is not None:
            state.pending_bytes -= alpha_bytes(entry.message)
        elif state.disk_pending.count:
            row = state.disk_pending.find(seq)
            if row is None:
                return None
            entry = inhaler.take_entry(state, row)  # OSError: as before
            state.disk_pending.remove(seq)
        else:
            return None
        state.unacked_bytes -= entry.message.size
        return entry

    def _die(self, entries: list[Entry], mode: int) -> None:
        """Entries, of which nothing here knows any more, are dequeued."""
        persistent = entries
        if len(entries) > 1:
            persistent = sorted([e for e in entries if e.message.persistent], key=_seq_of)
        elif not entries[0].message.persistent:
            persistent = []
        if persistent:
            self.engine.dequeue(self._index, persistent, mode)
        if len(persistent) < len(entries):
            for entry in entries:
                if not entry.message.persistent:
                    self._release(entry)

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
        for tag in tags:
            entry = state.ram_pending.pop(tag, None)
            if entry is not None:
                alphas.append(entry)
                state.pending_bytes -= alpha_bytes(entry.message)
                continue
            row = state.disk_pending.remove(tag) if state.disk_pending.count else None
            if row is not None:
                rows.append(row)
        alphas.sort(key=_seq_of)
        rows.sort(key=_seq_of_row)
        ids = {entry.seq: entry.message.id for entry in alphas}
        ids.update({row.seq: row.id for row in rows})
        size = sum([e.message.size for e in alphas]) + sum([row.size for row in rows])
        state.unacked_bytes -= size
        state.bytes += size
        state.len += len(ids)
        state.rates.n_in += len(ids)
        state.rates.n_ack_out += len(ids)
        if attempted and ids:
            self._count_attempts(alphas, rows, mode)
        vq_requeue.put_back(state, alphas, rows)
        self._after()
        return [ids[seq] for seq in sorted(ids)]

    def _count_attempts(self, alphas: list[Entry], rows: list[Row], mode: int) -> None:
        known = self._index.attempts
        seqs = [entry.seq for entry in alphas if entry.message.persistent]
        seqs += [row.seq for row in rows if row.flags & PERSISTENT]
        if seqs:
            counted = [(seq, known.get(seq, 0) + 1) for seq in sorted(seqs)]
            self.engine.requeue(self._index, counted, mode)
        transient = self.state.transient_attempts
        for seq in [entry.seq for entry in alphas if not entry.message.persistent]:
            transient[seq] = transient.get(seq, 0) + 1
        for seq in [row.seq for row in rows if not row.flags & PERSISTENT]:
            transient[seq] = transient.get(seq, 0) + 1

    def move(
        self, tag: int, targets: list[QueueIndex], header: bytes, mode: int, expiry_ms: int = 0
    ) -> int:
        found = self.pending(tag, with_body=True)
        if found is None:
            raise KeyError(f"tag {tag} of queue {self._index.number} is not pending")
        engine = self.engine
        message = found.message
        body = message.body
        assert body is not None, "asked for with its body"
        durable = [target for target in targets if target.is_durable and message.persistent]
        others = [target for target in targets if not (target.is_durable and message.persistent)]
        lsn = 0
        if others:
            engine.publish_transient(others, header, body, expiry_ms)
        entry = self._take_pending(tag)
        assert entry is not None, "it is pending"
        self.state.rates.n_ack_out += 1
        entry.message = message
        try:
            if durable:
                lsn, _ = engine.move(self._index, entry, durable, header, mode, expiry_ms)
            else:
                self._die([entry], mode)
                lsn = engine.last_lsn if message.persistent else 0
        except BaseException:
            self.state.keep_pending(entry)
            raise
        self._after()
        return lsn

    def pending(self, tag: int, *, with_body: bool = False) -> Delivery | None:
        state = self.state
        entry = state.ram_pending.get(tag)
        if entry is not None:
            message = entry.message
            if with_body and message.body is None:
                message = self._with_body(entry)
        else:
            row = state.disk_pending.find(tag) if state.disk_pending.count else None
            if row is None:
                return None
            if with_body:
                (entry,) = inhaler.load(state, [row])
                if row.flags & AT_ENTRY:
                    state.places.pop(tag, None)
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
        for tag in tags:
            entry = self._take_pending(tag)
            if entry is not None:
                self.state.rates.n_ack_out += 1
                if not entry.message.persistent:
                    self._release(entry)
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
            for seq, message, _ in vq_scan.ready_after(self.state, -1 if after is None else after):
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
        kept.sort(key=_seq_of)
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
        for alphas in (state.q4, state.q1):
            for entry in alphas:
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
        left: deque[tuple[int, int, int]] = deque()
        for lsn, mode, id in self._confirms:
            if mode == NONE or self.engine.settled(mode) >= lsn:
                confirmed.append(id)
            else:
                left.append((lsn, mode, id))
        self._confirms = left
        return confirmed

    # ---- counts --------------------------------------------------------------------------------

    def len(self) -> int:
        return self.state.len

    def depth(self) -> int:
        state = self.state
        return state.len + len(state.ram_pending) + state.disk_pending.count

    def body_bytes(self) -> int:
        return self.state.bytes

    def info(self) -> dict[str, int | float | str]:
        return self.state.info()

    # ---- memory --------------------------------------------------------------------------------

    def ram_bytes(self) -> int:
        return self.state.ram_bytes()

    def set_limits(self, max_bytes: int, min_bytes: int) -> None:
        self.paging.set_limits(max_bytes, min_bytes)
        self._checked()

    def set_share(self, share_bytes: int) -> None:
        self.paging.set_share(share_bytes)
        self._checked()

    def set_ram_duration_target(self, seconds: float) -> None:
        self.paging.set_duration(seconds)
        self._checked()

    def ram_duration(self) -> float:
        return self.paging.duration()

    def set_queue_mode(self, mode: str) -> None:
        if mode not in MODES:
            raise ValueError(f"queue mode {mode!r}, expected one of {MODES}")
        state = self.state
        if mode == "lazy":
            state.becomes_lazy = not state.is_lazy
            self.resume()
        else:
            state.is_lazy = state.becomes_lazy = False
        self._after()

    def resume(self) -> bool:
        more = self.paging.step(purger.SLICE_MESSAGES, purger.SLICE_BYTES)
        self._after()
        return more

    def inhale(self) -> bool:
        return self.paging.inhale()

    # ---- life ----------------------------------------------------------------------------------

    def terminate(self) -> None:
        self.mark.terminate()

    def delete_and_terminate(self, mode: int) -> int:
        self.deleted()
        return self.engine.delete_queue(self._index, mode)

    def deleted(self) -> None:
        """A record deletes, or is about to delete, the queue: transient messages are let go."""
        state = self.state
        for entry in list(state.ram_pending.values()):
            if not entry.message.persistent:
                self.forget([entry.seq])
        for row in list(state.disk_pending.rows()):
            if not row.flags & PERSISTENT:
                self.forget([row.seq])
        held = self._index.holder.materialise(self._index.next_seq)
        self._index.holder = DictHolder()
        for entry in held:
            self._index.holder.add(entry)
        self.purged()

    def _after(self) -> None:
        """After anything that may have emptied a part of the queue."""
        inhaler.settle(self.state, purger.segment_rows(self.state))
        self.paging.tell_set_aside()
        if self.state.is_flowed:
            self.paging.note_recovered()
        self._checked()

    def _checked(self) -> None:
        if CHECKS.is_on:
            self.state.check()
