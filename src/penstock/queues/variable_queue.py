"""VariableQueue: the queue. A BackingQueue whose RAM is bounded, whatever its length.

It is the queue of RabbitMQ's variable_queue.md and of the essay of 2011 at the head of its source:
q1, q2, delta, q3, q4; alpha, beta, gamma, delta (see vq_state.py for the picture and the
invariants), over a storage engine in which every persistent message is in the log already when it
arrives here. So paging is not what makes a message safe: it only moves it out of RAM.

    arrive     `add`, called by the engine: to q4 while q3 is empty, else to q1. Over the limit, or
               on a flowed queue, a step of the Purger follows
    fetch      the head of q4; if that is empty, a run of q3 is read into it first
    settle     pending messages die in one DEQUEUE record per call
    requeue    back to the old place: before q3's head to what came back; before delta into q3;
               else delta grows

It is also the `Holder` of its QueueIndex: what a checkpoint must materialise is what is in q1, q4
and pending and on no slot yet.

Not here: when and how much is paged (paging.py), and the steps of it (purger.py, inhaler.py); where
requeued messages go (vq_requeue.py); fold and browse (vq_scan.py); marks and holds
(delivered_mark.py). Which message is dead before its time, how many may be in a queue, and what
becomes of the dead is the business of whoever owns one (amq_queue.py).
"""

from collections.abc import Callable
from heapq import heappush
from typing import Final, TypeVar

from penstock.errors import CorruptionError, DiskFullError, SyncFailedError, is_disk_full
from penstock.message import Entry, Message, is_large
from penstock.queues import inhaler, purger
from penstock.queues.backing_queue import Delivery, Head, NewMessage
from penstock.queues.rows import PERSISTENT, Row
from penstock.queues.vq_holder import VqHolder
from penstock.queues.vq_lease import VqLease
from penstock.queues.vq_pending import ACKS_MAX
from penstock.queues.vq_state import ALPHA_BYTES, CHECKS, alpha_bytes
from penstock.shared_body import SharedMessage
from penstock.storage.durability import DISK, NONE
from penstock.storage.engine import StorageEngine
from penstock.storage.holder import DictHolder
from penstock.storage.queue_index import QueueIndex

BATCH_MESSAGES: Final = 256  # of a batch, between two steps of paging
BATCH_BYTES: Final = 1 << 20
READ_MESSAGES: Final = 256  # that a fetch from disk reads at once
POLICIES: Final = ("ratio", "eager")
MODES: Final = ("default", "lazy")

A = TypeVar("A")


class VariableQueue(VqLease):
    """Takes over `index`: what lives in it is ready, in delta.

    mode: of the records of the delivered mark, a mode of storage/durability.py. policy: "eager",
    gammas are rolled at once, as of 2011; or "ratio", as many stay as the ratio permits.
    read_bytes: that a fetch from disk reads at once; 0: one message. on_event(kind, text): flowed,
    recovered, page_out_failed, corruption.
    """

    def __init__(
        self, engine: StorageEngine, index: QueueIndex, *, mode: int = DISK, policy: str = "eager",
        read_bytes: int = 256 << 10, on_event: Callable[[str, str], None] | None = None,
    ) -> None:  # fmt: skip
        if policy not in POLICIES:
            raise ValueError(f"policy {policy!r}, expected one of {POLICIES}")
        super().__init__(engine, index, mode, policy == "eager", on_event)
        self._read_bytes: int = read_bytes
        self.state.reads_runs = read_bytes > 0
        self._is_batch: bool = False
        self._take_over(engine, index)

    def _take_over(self, engine: StorageEngine, index: QueueIndex) -> None:
        state = self.state
        held = index.holder
        entries = held.materialise(index.next_seq) if isinstance(held, DictHolder) else []
        fresh = [entry for entry in entries if entry.seq not in index.section]
        if fresh:  # published before anybody owned the queue
            try:
                index.write(fresh)
            except OSError as error:
                if not is_disk_full(error) or not engine.upkeep.reserve.release():
                    raise
                index.write(fresh)
            for entry in fresh:
                entry.on_slot = True
        index.holder = VqHolder(self)
        ready = index.count - index.leased.count
        if ready:
            state.delta.start = max(index.first_ready(), 0)
            state.delta.end = index.next_seq
            state.delta.count = state.len = ready
            state.bytes = index.bytes - index.leased.bytes
            self._after()

    # ---- arrival -------------------------------------------------------------------------------

    def index(self, priority: int = 0) -> QueueIndex:
        return self._index

    def indexes(self) -> list[QueueIndex]:
        return [self._index]

    def arrive(self, entry: Entry) -> None:
        """An entry has come to life at the end of the queue."""
        state = self.state
        message = entry.message
        state.len += 1
        state.bytes += message.size
        state.rates.n_in += 1
        if not message.persistent:
            state.has_transients = True
        if isinstance(message, SharedMessage):
            message.shared.join(state.shared)
        if state.is_lazy:
            self._arrive_lazy(entry)
            return
        state.add_alpha(entry)
        if not self._is_batch and (state.is_flowed or state.ram_bytes() > state.target_bytes):
            self.paging.step(purger.PUBLISH_MESSAGES, purger.PUBLISH_BYTES)
        if CHECKS.is_on:
            state.check()

    def _arrive_lazy(self, entry: Entry) -> None:
        """Straight to disk; if that fails the queue is not lazy any more."""
        state = self.state
        try:
            rows = purger.page_out(state, [entry])
        except (OSError, SyncFailedError) as error:
            self._leave_lazy(error)
            state.add_alpha(entry)
        else:
            try:
                purger.roll_rows(state, rows)
            except (OSError, SyncFailedError) as error:
                self._leave_lazy(error)
        self._checked()

    def _leave_lazy(self, error: OSError | SyncFailedError) -> None:
        self.state.is_lazy = self.state.becomes_lazy = False
        self.paging.failed(error)
        inhaler.settle(self.state, purger.load_rows(self.state))

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
        if (state.q4 and not state.has_back) or state.head_in_ram():
            entry = state.q4[0]
            return self._waits_for(entry.seq, entry.message.persistent)
        row = self._first_row()
        return None if row is None else self._waits_for(row.seq, row.flags & PERSISTENT != 0)

    def _first_row(self) -> Row | None:
        """The head, which is not in RAM: the first that came back, or the front of q3, which delta
        refills if it is empty."""
        state = self.state
        if state.back_rows.count:
            return state.back_rows.first()
        if not state.q3.count:
            inhaler.deltas_to_betas(state, purger.load_rows(state))
            self.paging.tell_set_aside()
        return state.q3.first() if state.q3.count else None

    def _waits_for(self, seq: int, is_persistent: bool) -> tuple[int, int] | None:
        return self.mark.waits_for(seq, has_mark=is_persistent, out_per_s=self.state.rates.out)

    # ---- delivery ------------------------------------------------------------------------------

    def fetch(self, *, ack_required: bool = True, in_pieces: bool = False) -> Delivery | None:
        state = self.state
        while state.len:
            if self.held() is not None:
                return None
            if (state.has_back or not state.q4) and not state.head_in_ram():
                if not self._read_run():
                    return None
                if self.held() is not None:  # the head was damaged, and this is another one
                    if state.is_lazy:
                        purger.push_q4(state, 1)
                    return None
            delivery = self._fetch(ack_required=ack_required, in_pieces=in_pieces)
            if delivery is not None:
                return delivery
        return None

    def _fetch(self, *, ack_required: bool, in_pieces: bool = False) -> Delivery | None:
        """The head; None if there is none, or it was damaged and is set aside now."""
        state = self.state
        if (state.has_back or not state.q4) and not state.head_in_ram() and not self._read_run():
            return None
        entry = state.q4[0]
        message = entry.message
        cost = alpha_bytes(message)
        size = message.size
        seq = entry.seq
        # First what may fail; the head is the head until it has not.
        if message.body is None:
            try:
                message = self._for_delivery(entry, in_pieces=in_pieces)
            except CorruptionError as error:
                state.q4.popleft()
                state.alpha_bytes -= cost
                inhaler.set_aside(state, seq, size, error)
                self._after()
                return None
        attempts = self._attempts(seq, message.persistent)
        if seq < self._suspect_below and ack_required and message.persistent:
            self._count_delivery(seq)
        is_redelivered = self._delivered(seq, message.persistent)
        if not ack_required:
            self._die(entry, self._mode)
        state.q4.popleft()
        state.alpha_bytes -= cost
        state.len -= 1
        state.bytes -= size
        state.rates.n_out += 1
        if ack_required:
            state.ram_pending[seq] = entry
            state.pending_bytes += cost
            state.unacked_bytes += size
            state.rates.n_ack_in += 1
            if state.pending_order is not None:
                self._note_pending(seq)
        if not state.q3.count:
            inhaler.settle(state, purger.load_rows(state))
        if state.is_flowed and not state.q3.count:
            self.paging.note_recovered()
        elif ack_required and state.ram_bytes() > state.target_bytes:
            self.paging.step(purger.PUBLISH_MESSAGES, purger.PUBLISH_BYTES)
        if CHECKS.is_on:
            state.check()
        return Delivery(seq, message, is_redelivered or attempts > 0, attempts)

    def _for_delivery(self, entry: Entry, *, in_pieces: bool) -> Message:
        """The message of an entry whose body is not in RAM, with it, or as it is if that is large
        and may stay in the store. CorruptionError, OSError: it cannot be read, or opened."""
        message = entry.message
        if in_pieces and is_large(message):
            self.engine.open_body(message).close()
            return message
        return self._with_body(entry)

    def _read_run(self) -> bool:
        """The next run of what came back, or of q3, becomes q4. False if there is none."""
        state = self.state
        state.join_rows()
        while True:
            if state.back_rows.count:
                run = min(self._read_bytes, state.target_bytes // 4)
                inhaler.back_to_alphas(state, min(run, self.paging.room_for(run)), READ_MESSAGES)
                self.paging.tell_set_aside()
                if state.head_in_ram():
                    return True
                state.join_rows()
                continue
            if not state.q3.count:
                inhaler.deltas_to_betas(state, purger.load_rows(state))
                self.paging.tell_set_aside()
            if not state.q3.count:
                return state.head_in_ram()
            run = 0 if state.is_lazy else min(self._read_bytes, state.target_bytes // 4)
            room = self.paging.room_for(run)
            run = min(run, room)
            before = state.alpha_bytes
            inhaler.betas_to_alphas(state, run, READ_MESSAGES)
            left = run - (state.alpha_bytes - before)
            if left > 0 and not state.q3.count and state.reads_runs and not state.is_lazy:
                inhaler.deltas_to_alphas(state, left, READ_MESSAGES)
            inhaler.settle(state, purger.load_rows(state))
            self.paging.tell_set_aside()
            if state.q4:
                return True

    def _delivered(self, seq: int, is_persistent: bool) -> bool:
        """Whether a message was delivered before; now it is."""
        mark = self.mark
        if seq < mark.delivered:
            return True
        if seq >= mark.half and is_persistent:
            mark.reserve(seq, self.state.rates.out)
        mark.delivered = seq + 1
        return False

    def _note_pending(self, seq: int) -> None:
        order = self.state.pending_order
        assert order is not None
        heappush(order, -seq)

    def drop(self, *, ack_required: bool = True) -> Head | None:
        state = self.state
        head = self.head()
        if head is None:
            return None
        seq = head.tag
        row: Row | None = None
        if state.head_in_ram():
            entry = state.q4[0]
        else:
            row = self._first_row()
            assert row is not None, "there is a head"
            entry = inhaler.take_entry(state, row) if not ack_required else inhaler.as_entry(row)
        self._delivered(seq, entry.message.persistent)
        if not ack_required:
            self._die(entry, self._mode)  # it may fail: the head is the head until it has not
        if row is not None:
            (state.back_rows if state.back_rows.count else state.q3).drop_first()
        else:
            state.q4.popleft()
            state.alpha_bytes -= alpha_bytes(entry.message)
        state.len -= 1
        state.bytes -= head.size
        state.rates.n_out += 1
        if ack_required:
            state.unacked_bytes += head.size
            state.rates.n_ack_in += 1
            if row is not None:
                state.disk_pending.insert(row)
            else:
                state.ram_pending[seq] = entry
                state.pending_bytes += alpha_bytes(entry.message)
                if state.pending_order is not None:
                    self._note_pending(seq)
        self._after()
        return head

    def head(self) -> Head | None:
        state = self.state
        if state.head_in_ram():
            entry = state.q4[0]
            m = entry.message
            return Head(entry.seq, m.id, m.size, m.expiry_ms)
        row = self._first_row()
        return None if row is None else Head(row.seq, row.id, row.size, row.expiry_ms)

    def dropwhile(self, predicate: Callable[[Head], bool], mode: int) -> Head | None:
        while True:
            dead: list[int] = []
            head = self.head()
            while head is not None and len(dead) < ACKS_MAX and predicate(head):
                self.drop()
                dead.append(head.tag)
                head = self.head()
            try:
                self.ack(dead, mode)
            except (OSError, DiskFullError):
                self.requeue(dead, mode, attempted=False)
                raise
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

    # ---- counts --------------------------------------------------------------------------------

    def len(self) -> int:
        return self.state.len

    def depth(self) -> int:
        state = self.state
        pending = len(state.ram_pending) + state.disk_pending.count
        return state.len + pending + self._index.leased.count

    def body_bytes(self) -> int:
        return self.state.bytes

    def info(self) -> dict[str, int | float | str]:
        return {**self.state.info(), **self.paging.info()}

    # ---- memory --------------------------------------------------------------------------------

    def ram_bytes(self) -> int:
        return self.state.ram_bytes()

    def elsewhere_bytes(self) -> int:
        return self.state.shared.elsewhere_bytes

    def unshare(self) -> None:
        self.state.unshare()

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

    def out_bytes_per_s(self) -> float:
        state = self.state
        if not state.len:
            return 0.0
        return state.rates.out * (ALPHA_BYTES + state.bytes / state.len)

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

    def inhale(self, *, at_rest: bool = False) -> bool:
        return self.paging.inhale(at_rest=at_rest)

    # ---- life ----------------------------------------------------------------------------------

    def terminate(self) -> None:
        self.mark.terminate()

    def delete_and_terminate(self, mode: int) -> int:
        self.deleted()
        return self.engine.delete_queue(self._index, mode)

    def deleted(self) -> None:
        """A record deletes, or is about to delete, the queue: transient messages are let go."""
        state = self.state
        state.unshare()
        for entry in list(state.ram_pending.values()):
            if not entry.message.persistent:
                self.forget([entry.seq])
        for row in list(state.disk_pending.rows()):
            if not row.flags & PERSISTENT:
                self.forget([row.seq])
        index = self._index
        held = index.holder.materialise(index.next_seq) if index.asks_for_dead() else []
        index.holder = DictHolder()
        for entry in held:
            index.holder.add(entry)
        self.purged()
