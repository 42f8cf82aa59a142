"""ReferenceQueue: a BackingQueue that keeps everything in RAM, for tests.

It is what the VariableQueue and the PriorityQueue are compared with, so it is simple first: an
ordered list of the seqs that are ready, a dict of the entries that are ready, one of those that are
pending. Nothing is ever paged; limits, shares and durations are taken and forgotten. It recovers
what lives in its index by asking the engine for each entry, bodies included.

What it shares with a real one is what can be seen from outside: order, tags, redelivered marks that
are reserved in the log in blocks, holding back what is not settled, records for every change.

Not here: parts (every tag is a plain seq), memory, events.
"""

import bisect
from collections.abc import Callable
from typing import Final, TypeVar

from penstock.message import Entry, QueuedMessage
from penstock.queues.backing_queue import BackingQueue, Delivery, NewMessage, ReadyHead
from penstock.queues.rows import Row
from penstock.storage.engine import StorageEngine
from penstock.storage.files.durability import DISK, NONE, OS
from penstock.storage.index.queue_index import Holder, QueueIndex
from penstock.storage.parts.lease_engine import Taken
from tests.helpers.engine_rig import EngineRig
from tests.helpers.inside import live_seqs

BLOCK: Final = 1024  # seqs that are reserved at a time for first deliveries

A = TypeVar("A")


class ReferenceHolder(Holder):
    """The engine's side of a ReferenceQueue: everything that lives is here, in RAM."""

    def __init__(self) -> None:
        self.ready: dict[int, Entry] = {}
        self.pending: dict[int, Entry] = {}
        self.order: list[int] = []  # the seqs of `ready`, ascending

    def add(self, entry: Entry) -> None:
        self.ready[entry.seq] = entry
        self.order.append(entry.seq)

    def drop(self, first: int, n: int) -> None:
        for seq in range(first, first + n):
            self.pending.pop(seq, None)
            if self.ready.pop(seq, None) is not None:
                del self.order[bisect.bisect_left(self.order, seq)]

    def get(self, seq: int) -> Entry | None:
        return self.ready.get(seq) or self.pending.get(seq)

    def candidates(self, below: int, n: int) -> list[Entry]:
        found = [entry for entry in self.ready.values() if entry.seq < below]
        found.sort(key=lambda entry: entry.seq, reverse=True)
        return found[:n]

    def unsettled(self) -> list[Entry]:
        return list(self.pending.values())

    def materialised(self, entries: list[Entry]) -> None:
        """They stay in RAM all the same."""


class ReferenceQueue(BackingQueue):
    """The queue of one index, all in RAM. mode: of the records of its delivered mark."""

    def __init__(self, engine: StorageEngine, index: QueueIndex, *, mode: int = DISK) -> None:
        self._engine = engine
        self._index = index
        self._mode = mode
        self._held = ReferenceHolder()
        for seq in live_seqs(index):
            if index.leased.has(seq):
                continue
            self._held.add(engine.entry(index, seq))
        index.holder = self._held
        self._attempts: dict[int, int] = {}  # of transient messages; the index has the others
        self._holds: dict[int, tuple[int, int]] = {}
        self._flags: dict[int, bool] = {}  # pending: was it redelivered
        self._queue_mode = "default"
        self._delivered = index.mark  # everything below may have been delivered
        self._reserved = 0
        self._marks: list[tuple[int, int]] = []  # (mark, lsn) of each block, ascending
        self._reserve(self._delivered)

    # ---- arrival -------------------------------------------------------------------------------

    def index(self, priority: int = 0) -> QueueIndex:
        return self._index

    def indexes(self) -> list[QueueIndex]:
        return [self._index]

    def publish(
        self, header: bytes, body: bytes, mode: int, *, expiry_ms: int = 0, priority: int = 0
    ) -> int:
        if not self._index.is_durable:
            mode = NONE
        self._engine.publish([self._index], header, body, mode, expiry_ms)
        return self._index.next_seq - 1

    def batch_publish(self, messages: list[NewMessage], mode: int) -> list[int]:
        return [self.publish(m.header, m.body, mode, expiry_ms=m.expiry_ms) for m in messages]

    def hold(self, tag: int, lsn: int, mode: int) -> None:
        self._holds[tag] = (lsn, mode)

    def held(self) -> tuple[int, int] | None:
        if not self._held.order:
            return None
        seq = self._held.order[0]
        for held, (lsn, mode) in sorted(self._holds.items()):
            if self._engine.log.settled(mode) >= lsn:
                del self._holds[held]
            elif held <= seq:
                return lsn, mode
        entry = self._held.ready[seq]
        if not entry.message.persistent or seq < self._delivered:
            return None
        self._reserve(seq)
        lsn = min((lsn for mark, lsn in self._marks if mark > seq), default=0)
        return (lsn, self._mode) if self._engine.log.settled(self._mode) < lsn else None

    def _reserve(self, seq: int) -> None:
        """The delivered mark is to be above seq, by half a block, before that is needed."""
        if not self._index.is_durable or self._mode == NONE:
            return
        if seq + BLOCK // 2 >= self._reserved:
            self._reserved = seq + BLOCK
            lsn = self._engine.mark(self._index, self._reserved, self._mode)
            settled = self._engine.log.settled(self._mode)
            self._marks = [m for m in self._marks if m[1] > settled]
            self._marks.append((self._reserved, lsn))

    # ---- delivery ------------------------------------------------------------------------------

    def fetch(self, *, ack_required: bool = True, in_pieces: bool = False) -> Delivery | None:
        if not self._held.order or self.held() is not None:
            return None
        return self._deliver(self._take(self._held.order[0]), ack_required=ack_required)

    def _take(self, seq: int) -> Entry:
        """The entry leaves the ready ones."""
        del self._held.order[bisect.bisect_left(self._held.order, seq)]
        entry = self._held.ready.pop(seq)
        self._held.pending[seq] = entry
        return entry

    def _deliver(self, entry: Entry, *, ack_required: bool) -> Delivery:
        seq = entry.seq
        is_redelivered = seq < self._delivered
        self._load(entry)
        delivery = self._delivery(entry, is_redelivered=is_redelivered)
        self._note_delivered(seq)
        if ack_required:
            self._flags[seq] = is_redelivered
        else:
            self._settle([entry], OS)
        return delivery

    def _note_delivered(self, seq: int) -> None:
        if seq >= self._delivered:
            self._delivered = seq + 1
        self._reserve(self._delivered)

    def _load(self, entry: Entry) -> None:
        message = entry.message
        if message.body is None:
            message.body = self._engine.load_body(self._index, entry.seq, message)

    def _delivery(self, entry: Entry, *, is_redelivered: bool) -> Delivery:
        return Delivery(entry.seq, entry.message, is_redelivered, self._attempts_of(entry.seq))

    def _attempts_of(self, seq: int) -> int:
        return self._index.attempts.get(seq, 0) or self._attempts.get(seq, 0)

    def count_crashes(self) -> None:
        """It keeps no count of what may have been delivered."""

    def drop(self, *, ack_required: bool = True) -> ReadyHead | None:
        head = self.head()
        if head is not None:
            entry = self._take(head.tag)
            self._flags[head.tag] = head.tag < self._delivered
            self._note_delivered(head.tag)
            if not ack_required:
                self._settle([entry], OS)
        return head

    def head(self) -> ReadyHead | None:
        if not self._held.order:
            return None
        seq = self._held.order[0]
        message = self._held.ready[seq].message
        return ReadyHead(seq, message.id, message.size, message.expiry_ms, message.time)

    def dropwhile(self, predicate: Callable[[ReadyHead], bool], mode: int) -> ReadyHead | None:
        entries: list[Entry] = []
        while (head := self.head()) is not None and predicate(head):
            entries.append(self._take(head.tag))
            self._note_delivered(head.tag)
        self._settle(entries, mode)
        return head

    # ---- settling ------------------------------------------------------------------------------

    def _settle(self, entries: list[Entry], mode: int) -> None:
        """These, which are in `pending`, die."""
        entries.sort(key=lambda entry: entry.seq)
        persistent = [entry for entry in entries if entry.message.persistent]
        if persistent:
            self._engine.dequeue(self._index, persistent, mode)
        for entry in entries:
            self._forget(entry)

    def _forget(self, entry: Entry) -> None:
        self._held.pending.pop(entry.seq, None)
        self._flags.pop(entry.seq, None)
        self._attempts.pop(entry.seq, None)
        if not entry.message.persistent:
            self._engine.bodies.release(entry.message)

    def _known(self, tags: list[int]) -> list[Entry]:
        """The pending ones of these, each once, in the order of the tags."""
        return [self._held.pending[t] for t in dict.fromkeys(tags) if t in self._held.pending]

    def ack(self, tags: list[int], mode: int) -> list[int]:
        entries = self._known(tags)
        ids = [entry.message.id for entry in entries]
        self._settle(entries, mode)
        return ids

    def requeue(self, tags: list[int], mode: int, *, attempted: bool = True) -> list[int]:
        entries = sorted(self._known(tags), key=lambda entry: entry.seq)
        if attempted:
            counts = [(e, self._attempts_of(e.seq) + 1) for e in entries]
            logged = [(e.seq, count) for e, count in counts if e.message.persistent]
            if logged:
                self._engine.requeue(self._index, logged, mode)
            self._attempts.update((e.seq, n) for e, n in counts if not e.message.persistent)
        for entry in entries:
            del self._held.pending[entry.seq]
            self._flags.pop(entry.seq, None)
            self._held.ready[entry.seq] = entry
            bisect.insort(self._held.order, entry.seq)
        return [entry.message.id for entry in entries]

    def move(
        self, tag: int, targets: list[QueueIndex], header: bytes, mode: int, expiry_ms: int = 0
    ) -> int:
        entry = self._held.pending[tag]
        self._load(entry)
        message = entry.message
        body = message.body or b""
        durable = [target for target in targets if target.is_durable and message.persistent]
        others = [target for target in targets if target not in durable]
        if others:
            self._engine.publish_transient(others, header, body, expiry_ms)
        lsn = 0
        if message.persistent:
            lsn, _ = self._engine.move(self._index, entry, durable, header, mode, expiry_ms)
        self._forget(entry)
        return lsn

    def pending(
        self, tag: int, *, with_header: bool = False, with_body: bool = False
    ) -> Delivery | None:
        entry = self._held.pending.get(tag)
        if entry is None:
            return None
        if with_body:
            self._load(entry)
        return self._delivery(entry, is_redelivered=self._flags[tag])

    def entries(self, tags: list[int]) -> list[tuple[QueueIndex, list[Entry]]]:
        for tag in tags:
            if tag not in self._held.pending:
                raise KeyError(tag)
        found = [e for e in self._known(tags) if e.message.persistent]
        return [(self._index, sorted(found, key=lambda entry: entry.seq))] if found else []

    def forget(self, tags: list[int]) -> None:
        for tag in tags:
            self._flags.pop(tag, None)
        for entry in self._known(tags):
            self._forget(entry)

    def fold(self, fun: Callable[[Delivery, bool, A], tuple[bool, A]], acc: A) -> A:
        both = {**self._held.ready, **self._held.pending}
        for seq, entry in sorted(both.items()):
            self._load(entry)
            is_pending = seq in self._held.pending
            is_redelivered = self._flags.get(seq, seq < self._delivered)
            delivery = self._delivery(entry, is_redelivered=is_redelivered)
            goes_on, acc = fun(delivery, is_pending, acc)
            if not goes_on:
                break
        return acc

    def browse(self, after: int | None, n: int, *, in_pieces: bool = False) -> list[Delivery]:
        seqs = [seq for seq in self._held.order if after is None or seq > after][:n]
        entries = [self._held.ready[seq] for seq in seqs]
        for entry in entries:
            self._load(entry)
        return [self._delivery(e, is_redelivered=e.seq < self._delivered) for e in entries]

    def before_last(self, n: int) -> int | None:
        order = list(self._held.order)
        return order[-1 - n] if n < len(order) else None

    def state_of(self, tag: int) -> str:
        return "alpha"

    def purge(self, mode: int) -> int:
        count = len(self._held.order)
        dead = list(self._held.ready.values())
        if any(entry.message.persistent for entry in dead):
            kept = [e for e in self._held.pending.values() if e.message.persistent]
            kept.sort(key=lambda entry: entry.seq)
            self._engine.purge(self._index, kept, mode)
        self._held.ready.clear()
        self._held.order.clear()
        for entry in dead:
            self._forget(entry)
        return count

    # ---- leases --------------------------------------------------------------------------------

    def take(self, messages_max: int, bytes_max: int, now_ms: int) -> list[Taken]:
        entries: list[Entry] = []
        size = 0
        while len(entries) < messages_max and self.may_take():
            head = self.head()
            assert head is not None
            if (entries and size + head.size > bytes_max) or 0 < head.expiry_ms <= now_ms:
                break
            size += head.size
            entry = self._take(head.tag)
            del self._held.pending[entry.seq]
            self._load(entry)
            entries.append(entry)
        if not entries:
            return []
        bodies = [entry.message.body or b"" for entry in entries]
        mark = max([e.seq + 1 for e in entries if e.message.persistent], default=0)
        return [Taken(self._index, entries, bodies, mark)]

    def may_take(self) -> bool:
        if not self._held.order:
            return False
        waiting = [
            t for t, (lsn, mode) in self._holds.items() if self._engine.log.settled(mode) < lsn
        ]
        return not any(tag <= self._held.order[0] for tag in waiting)

    def leased_count(self) -> int:
        return self._index.leased.count

    def untake(self, taken: list[Taken]) -> None:
        for entry in [entry for one in taken for entry in one.entries]:
            self._held.ready[entry.seq] = entry
            bisect.insort(self._held.order, entry.seq)

    def leased(self, taken: list[Taken], lsn: int) -> None:
        for entry in [entry for one in taken for entry in one.entries]:
            if entry.message.persistent:
                self._delivered = max(self._delivered, entry.seq + 1)
            else:
                self._forget(entry)

    def returning(self, index: QueueIndex, seqs: list[int]) -> list[Row]:
        return []

    def readmit(self, index: QueueIndex, seqs: list[int], rows: list[Row]) -> None:
        for seq in seqs:
            self._held.ready[seq] = self._engine.entry(self._index, seq)
            bisect.insort(self._held.order, seq)

    def purge_acks(self, mode: int) -> int:
        entries = list(self._held.pending.values())
        self._settle(entries, mode)
        return len(entries)

    # ---- counts --------------------------------------------------------------------------------

    def len(self) -> int:
        return len(self._held.order)

    def depth(self) -> int:
        return len(self._held.order) + len(self._held.pending) + self.leased_count()

    def body_bytes(self) -> int:
        return sum(entry.message.size for entry in self._held.ready.values())

    def info(self) -> dict[str, int | float | str]:
        pending = self._held.pending.values()
        counts: dict[str, int | float | str] = {
            "len": self.len(), "depth": self.depth(), "bytes": self.body_bytes(),
            "unacked_bytes": sum(e.message.size for e in pending) + self._index.leased.bytes,
            "leased": self._index.leased.count, "leased_bytes": self._index.leased.bytes,
            "ram_bytes": self.ram_bytes(), "ram_messages": self.depth(), "alphas": self.len(),
            "betas": 0, "gammas": 0, "delta": 0, "pending": len(pending), "paged_pending": 0,
            "q1": 0, "q2": 0, "q3": 0, "q4": self.len(), "is_flowed": 0, "target_bytes": 0,
            "disk_reads": 0, "disk_writes": 0, "mode": self._queue_mode,
        }  # fmt: skip
        return counts

    # ---- memory: there is plenty ---------------------------------------------------------------

    def ram_bytes(self) -> int:
        entries = [*self._held.ready.values(), *self._held.pending.values()]
        return sum(_size(entry.message) for entry in entries)

    def elsewhere_bytes(self) -> int:
        return 0

    def unshare(self) -> None:
        return

    def set_limits(self, max_bytes: int, min_bytes: int) -> None:
        if not 0 <= min_bytes <= max_bytes:
            raise ValueError(f"limits must be 0 <= min <= max, not {min_bytes}, {max_bytes}")

    def set_share(self, share_bytes: int) -> None:
        """All the same."""

    def set_ram_duration_target(self, seconds: float) -> None:
        """All the same."""

    def out_bytes_per_s(self) -> float:
        return 0.0

    def ram_duration(self) -> float:
        return float("inf")

    def set_queue_mode(self, mode: str) -> None:
        if mode not in ("default", "lazy"):
            raise ValueError(f"the mode is default or lazy, not {mode!r}")
        self._queue_mode = mode

    def resume(self) -> bool:
        return False

    def inhale(self, *, at_rest: bool = False) -> bool:
        return False

    # ---- life ----------------------------------------------------------------------------------

    def terminate(self) -> None:
        self._index.mark = min(
            self._delivered, self._index.next_seq
        )  # exact, after a stop in order

    def delete_and_terminate(self, mode: int) -> int:
        for entry in [*self._held.ready.values(), *self._held.pending.values()]:
            if not entry.message.persistent:
                self._engine.bodies.release(entry.message)
        lsn = self._engine.delete_queue(self._index, mode)
        self._held.ready.clear()
        self._held.pending.clear()
        self._held.order.clear()
        return lsn


def _size(message: QueuedMessage) -> int:
    return 200 + message.size + len(message.header)


def open_reference(rig: EngineRig, name: bytes, is_durable: bool) -> BackingQueue:
    """The queue of this name, declared when it is missing: an Opener of worlds."""
    if is_durable:
        return ReferenceQueue(rig.engine, rig.queue(name))
    return ReferenceQueue(rig.engine, rig.engine.declare_queue(name, is_durable=False))
