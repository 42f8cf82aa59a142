"""Driver: traffic for one storage engine on a FaultyFileSystem, entered in a Ledger as it happens.

It is a client and the owner of the engine at once: publishes of each placement (segment, store,
shared, own file, spooled), acks in and out of order, transactions small and in parts, moves,
requeues, marks, purges, queues that come and go; and it writes, polls, pages out and steps
checkpoints between. Everything is decided by the seed. The options are as small as they may be, so
that a few operations cross every border: segments of 4 slots, log files of 2 KiB, store files that
are sealed at 512 bytes.

Each change is noted before the call that makes it, under the LSN that its record will have; a call
that fails leaves it in doubt (`Ledger.doubt`), because its record may have been appended.
"""

import random
from collections.abc import Callable
from typing import ClassVar

from penstock.clock import ManualClock
from penstock.message import Entry, QueuedMessage
from penstock.storage.files.durability import DISK, INTERVAL, OS
from penstock.storage.files.options import StorageOptions
from penstock.storage.index.queue_index import DictHolder, QueueIndex
from penstock.storage.index.routing_table import set_parameter
from penstock.storage.journal.checkpoint import IDLE, SLICES
from penstock.storage.parts.transaction import Transaction
from tests.helpers.faulty_filesystem import FaultyFileSystem
from tests.helpers.inside import live_seqs
from tests.helpers.ledger import Change, Ledger, Violation, body_of
from tests.helpers.tiny_engine import (
    MIDDLE,
    OPTIONS,
    OWN,
    PATH,
    SMALL,
    STORED,
    make_vhost,
    open_engine,
)

__all__ = ["OPTIONS", "PATH", "QUEUES", "Driver", "open_engine"]

QUEUES = (b"a", b"b", b"c")
MODES = (DISK, DISK, OS, INTERVAL)
STEPS_MAX = 10_000  # of waiting for one thing: more is a hang


class Driver:
    """An open engine and its clients. `open` may raise what the engine's opening raises. path: of
    the vhost; a subclass may have it elsewhere."""

    path: ClassVar[str] = PATH

    def __init__(
        self, fs: FaultyFileSystem, seed: int, *, options: StorageOptions = OPTIONS,
        ledger: Ledger | None = None, first_uid: int = 1,
    ) -> None:  # fmt: skip
        self.fs = fs
        self.rng = random.Random(seed)
        self.options = options
        self.ledger = ledger or Ledger()
        self.clock = ManualClock()
        self.uid = first_uid
        self.trace: list[str] = []
        self.events: list[tuple[str, str]] = []
        self.unacked: dict[int, set[int]] = {}
        self.transactions: list[tuple[Transaction, list[Change]]] = []
        self.make(fs)
        self.engine = open_engine(fs, seed, options, self.clock, self.events, self.path)
        for queue in self.engine.state.queues.values():
            self._adopt(queue)

    def make(self, fs: FaultyFileSystem) -> None:
        """The vhost's directory, if it is missing."""
        if not fs.exists(PATH):
            make_vhost(fs)

    def watch(self) -> None:
        """From here on the ledger knows at each operation how far the log has settled."""

        def before(number: int, kind: str, path: str) -> None:
            ledger.settle(number, log.settled(DISK), log.settled(OS), log.last_lsn)

        ledger, log = self.ledger, self.engine.log
        self.fs.before_operation = before

    def look(self) -> None:
        """Note now what the log says; for the end of a run."""
        self.ledger.watch(self.engine, self.fs.operations)

    # ---- small things --------------------------------------------------------------------------

    def _adopt(self, queue: QueueIndex) -> None:
        queue.holder = DictHolder(keeps=self.rng.random() < 0.3)
        self.unacked[queue.number] = set()
        self.ledger.numbers.add(queue.number)

    def queues(self) -> list[QueueIndex]:
        """The durable queues, by name."""
        known = self.engine.state.queues.values()
        return sorted((queue for queue in known if queue.is_durable), key=lambda queue: queue.name)

    def some_queue(self, *, live: int = 0) -> QueueIndex | None:
        """A queue with at least that many live messages, if there is one."""
        able = [queue for queue in self.queues() if queue.count >= live]
        return self.rng.choice(able) if able else None

    def holder(self, queue: QueueIndex) -> DictHolder:
        assert isinstance(queue.holder, DictHolder)
        return queue.holder

    def entry(self, queue: QueueIndex, seq: int) -> Entry:
        """A live entry from RAM, or read, as a consumer's queue would."""
        return self.engine.entry(queue, seq)

    def _do(self, call: Callable[[], object], *changes: Change) -> None:
        """Do what appends one record that makes these changes; note them, or doubt them."""
        lsn = self.engine.log.last_lsn + 1
        try:
            call()
        except BaseException:
            if self.engine.log.last_lsn >= lsn:
                self.ledger.doubt(lsn, *changes)
            raise
        self.ledger.note(lsn, *changes)

    def _header(self) -> bytes:
        roll = self.rng.random()
        if roll < 0.6:
            return b""
        return b"h%d" % self.uid if roll < 0.95 else b"H" * self.rng.randrange(250, 300)

    def _size(self, *ranges: tuple[int, int]) -> int:
        low, high = self.rng.choice(ranges)
        return self.rng.randint(low, high)

    # ---- queues --------------------------------------------------------------------------------

    def declare(self, name: bytes) -> None:
        number = self.engine.state.next_queue
        self.ledger.numbers.add(number)
        self._do(lambda: self._adopt(self.engine.declare_queue(name)), ("declare", name, number))

    def declare_missing(self) -> None:
        """One of the queues that are not there."""
        missing = [name for name in QUEUES if name not in self.engine.state.routing.queues]
        if missing:
            self.declare(self.rng.choice(missing))

    def delete(self) -> None:
        """A queue goes, with all it has."""
        queue = self.some_queue()
        if queue is None:
            return
        for change in [c for c in self.transactions if _uses(c[0], queue)]:
            self.rollback(change)
        mode = self.rng.choice(MODES)
        self._do(lambda: self.engine.delete_queue(queue, mode), ("delete", queue.number))

    def roll(self) -> None:
        """So many bytes of log that the next record goes into another log file."""
        value = b"%d:" % self.uid + bytes(1500)
        self.uid += 1
        data = set_parameter(b"test", b"filler", value)
        mode = self.rng.choice(MODES)
        self._do(lambda: self.engine.apply_topology(data, mode), ("param", b"filler", value))

    # ---- messages ------------------------------------------------------------------------------

    def publish(self, size: int | None = None, copies: int | None = None) -> None:
        """One message, to one or two queues, of any placement."""
        names = self.queues()
        if not names:
            return
        if copies is None:
            copies = 2 if self.rng.random() < 0.3 else 1
        targets = self.rng.sample(names, min(copies, len(names)))
        if size is None:
            size = self._size(SMALL, SMALL, MIDDLE, STORED, STORED, OWN)
        self._publish(targets, size, self.rng.choice(MODES))

    def _publish(self, targets: list[QueueIndex], size: int, mode: int) -> None:
        uid, header = self.uid, self._header()
        self.uid += 1
        places = tuple((queue.number, queue.next_seq) for queue in targets)
        expiry = self.rng.choice((0, 0, 0, 1_800_000_000_000 + uid))
        made: list[QueuedMessage] = []
        self._do(
            lambda: made.append(
                self.engine.publish(targets, header, body_of(uid, size), mode, expiry)
            ),
            ("put", (uid, size, header), places),
        )
        self.ledger.give_id(made[0].id, uid)

    def spool(self) -> None:
        """A body that comes in pieces, into a file of its own; sometimes its end never comes."""
        targets = self.queues()[:1]
        if not targets:
            return
        uid, size = self.uid, self._size(SMALL, STORED, OWN)
        self.uid += 1
        body = body_of(uid, size)
        message = self.engine.placement.new_message(b"", b"")
        self.ledger.give_id(message.id, uid)
        spool = self.engine.state.store.spool(message.id)
        spool.write(body[: size // 2])
        if self.rng.random() < 0.3:
            self.turn()
        fate = self.rng.random()
        if fate < 0.15:
            spool.abort()
            return
        if fate < 0.25:
            return
        spool.write(body[size // 2 :])
        message.store_file, message.size, message.body = spool.finish(), size, None
        header, mode = self._header(), self.rng.choice(MODES)
        places = tuple((queue.number, queue.next_seq) for queue in targets)
        self._do(
            lambda: self.engine.publish_spooled(targets, header, message, mode),
            ("put", (uid, size, header), places),
        )

    def publish_transient(self) -> None:
        """It takes a seq and a place in RAM, and is never seen again after a stop."""
        queue = self.some_queue()
        if queue is None:
            return
        message = self.engine.publish_transient([queue], b"", b"transient")
        self.ledger.give_id(message.id, -self.uid)
        self.uid += 1

    def ack(self) -> None:
        """Some messages of a queue: the head, or from the middle, or several."""
        queue = self.some_queue(live=1)
        if queue is None:
            return
        seqs = self._free(queue)
        if not seqs:
            return
        roll = self.rng.random()
        if roll < 0.4:
            seqs = seqs[:1]
        elif roll < 0.7:
            seqs = [self.rng.choice(seqs)]
        else:
            seqs = sorted(self.rng.sample(seqs, self.rng.randint(1, min(5, len(seqs)))))
        entries = [self.entry(queue, seq) for seq in seqs]
        mode = self.rng.choice((OS, OS, DISK))
        self._do(
            lambda: self.engine.dequeue(queue, entries, mode),
            ("take", queue.number, tuple(seqs)),
        )
        self.unacked[queue.number].difference_update(seqs)

    def _free(self, queue: QueueIndex) -> list[int]:
        """Live messages that no open transaction is about to acknowledge."""
        taken = {
            entry.seq
            for tx, _ in self.transactions
            for q, entries in tx.dequeues
            if q is queue
            for entry in entries
        }
        return [seq for seq in live_seqs(queue) if seq not in taken]

    def move(self) -> None:
        """The head of a queue goes to the end of one or two others, with a new header."""
        queue = self.some_queue(live=1)
        seqs = self._free(queue) if queue is not None else []
        if queue is None or not seqs:
            return
        seq = seqs[0] if self.rng.random() < 0.5 else self.rng.choice(seqs)
        known = self.queues()
        targets = self.rng.sample(known, self.rng.choice((1, 1, min(2, len(known)))))
        if self.rng.random() < 0.05:
            targets = []
        entry, header, mode = self.entry(queue, seq), self._header(), self.rng.choice(MODES)
        uid = self.ledger.ids[entry.message.id]
        places = tuple((target.number, target.next_seq) for target in targets)
        self._do(
            lambda: self.engine.move(queue, entry, targets, header, mode),
            ("put", (uid, entry.message.size, header), places),
            ("take", queue.number, (seq,)),
        )
        self.unacked[queue.number].difference_update([seq])

    def purge(self) -> None:
        """Everything but the unacknowledged."""
        queue = self.some_queue(live=1)
        if queue is None:
            return
        live = live_seqs(queue)
        kept = sorted(set(live) - set(self._free(queue)) | (self.unacked[queue.number] & set(live)))
        entries = [self.entry(queue, seq) for seq in kept]
        upper, mode = queue.next_seq, self.rng.choice(MODES)
        self._do(
            lambda: self.engine.purge(queue, entries, mode),
            ("purge", queue.number, upper, frozenset(kept)),
        )
        self.unacked[queue.number].difference_update([seq for seq in live if seq not in kept])

    def deliver(self) -> None:
        """Some messages become unacknowledged; the mark is reserved ahead."""
        queue = self.some_queue(live=1)
        if queue is None:
            return
        seqs = live_seqs(queue)[: self.rng.randint(1, 3)]
        self.unacked[queue.number].update(seqs)
        if seqs[-1] >= queue.mark:
            self.mark(queue, seqs[-1] + self.rng.randint(1, 6))

    def mark(self, queue: QueueIndex | None = None, mark: int = 0) -> None:
        queue = queue or self.some_queue()
        if queue is None:
            return
        wanted = mark or queue.mark + self.rng.randint(1, 8)
        self._do(lambda: self.engine.mark(queue, wanted, DISK), ("mark", queue.number, wanted))

    def requeue(self) -> None:
        """Attempts of some messages are remembered."""
        queue = self.some_queue(live=1)
        if queue is None:
            return
        seqs = live_seqs(queue)[:2]
        attempts = [(seq, queue.attempts.get(seq, 0) + 1) for seq in seqs]
        mode = self.rng.choice(MODES)
        self._do(
            lambda: self.engine.requeue(queue, attempts, mode),
            ("requeue", queue.number, tuple(attempts)),
        )
        self.unacked[queue.number].difference_update(seqs)

    # ---- transactions --------------------------------------------------------------------------

    def begin(self) -> None:
        """A transaction with some publishes and acks; it stays open."""
        if len(self.transactions) >= 2:
            self.commit()
            return
        names = self.queues()
        if not names:
            return
        tx = self.engine.begin()
        changes: list[Change] = []
        self.transactions.append((tx, changes))
        for _ in range(self.rng.randint(1, 4)):
            uid, header = self.uid, self._header()
            self.uid += 1
            targets = self.rng.sample(names, min(len(names), self.rng.choice((1, 1, 2))))
            size = self._size(SMALL, MIDDLE, STORED, OWN)
            published = tx.publish(targets, header, body_of(uid, size))
            self.ledger.give_id(published.message.id, uid)
            changes.append(("put", (uid, size, header), tuple(q.number for q in targets)))
        queue = self.some_queue(live=1)
        if queue is not None:
            seqs = self._free(queue)[:3]
            if seqs:
                tx.dequeue(queue, [self.entry(queue, seq) for seq in seqs])
                changes.append(("take", queue.number, tuple(seqs)))

    def see(self) -> None:
        """A queue sees a key, new or not, with its message or, as an exchange would, alone."""
        queue = self.some_queue()
        if queue is None:
            return
        key = b"%016d" % self.rng.randrange(20)
        until_ms = self.rng.randrange(1, 1 << 40)
        mode = self.rng.choice(MODES)
        change: Change = ("seen", queue.name, key, until_ms)
        name = b"q" + queue.name
        if self.rng.random() < 0.3:
            self._do(lambda: self.engine.see(name, key, until_ms, mode), change)
            return
        uid, size = self.uid, self._size(SMALL, STORED)
        self.uid += 1
        tx = self.engine.begin()
        self.ledger.give_id(tx.publish([queue], b"", body_of(uid, size)).message.id, uid)
        tx.see(self.engine.windows.of(name), key, until_ms)
        put: Change = ("put", (uid, size, b""), ((queue.number, queue.next_seq),))
        self._do(lambda: tx.commit(mode), put, change)

    def commit(self) -> None:
        """The oldest open transaction happens."""
        if not self.transactions:
            self.begin()
            if not self.transactions:
                return
        tx, planned = self.transactions.pop(0)
        next_seqs = {queue.number: queue.next_seq for queue in self.queues()}
        changes: list[Change] = []
        for change in planned:
            if change[0] == "put":
                places = []
                numbers = change[2]
                assert isinstance(numbers, tuple)
                for number in numbers:
                    places.append((number, next_seqs[number]))
                    next_seqs[number] += 1
                changes.append(("put", change[1], tuple(places)))
            else:
                changes.append(change)
        before = self.engine.log.last_lsn
        try:
            lsn = tx.commit(self.rng.choice(MODES))
        except BaseException:
            # Of one in parts nobody knows whether the last record is the deciding one.
            if self.engine.log.last_lsn > before:
                self.ledger.doubt(self.engine.log.last_lsn, *changes)
            raise
        self.ledger.note(lsn, *changes)
        for queue, entries in tx.dequeues:
            self.unacked[queue.number].difference_update([entry.seq for entry in entries])

    def ack_in_slices(self) -> None:
        """Most messages of all queues are acknowledged by one commit in slices, others published in
        between."""
        tx = self.engine.begin()
        changes: list[Change] = []
        for queue in self.queues():
            seqs = self._free(queue)[:20]
            for seq in seqs:
                tx.dequeue(queue, [self.entry(queue, seq)])
            if seqs:
                changes.append(("take", queue.number, tuple(seqs)))
        mode = self.rng.choice(MODES)
        self.transactions.append((tx, changes))
        try:
            while tx.write_part(mode):
                self._between()
            before = self.engine.log.last_lsn
            try:
                lsn = tx.commit(mode)
            except BaseException:
                if self.engine.log.last_lsn > before:
                    self.ledger.doubt(self.engine.log.last_lsn, *changes)
                raise
            self.ledger.note(lsn, *changes)
        finally:
            self.transactions.remove((tx, changes))
        for queue, entries in tx.dequeues:
            self.unacked[queue.number].difference_update([entry.seq for entry in entries])
        while tx.has_parts:
            self._between()
            tx.apply_part(mode)

    def _between(self) -> None:
        """What may happen between two slices."""
        for name in self.rng.choices(("publish", "flush", "poll"), k=2):
            getattr(self, name)()

    def rollback(self, which: tuple[Transaction, list[Change]] | None = None) -> None:
        """An open transaction is forgotten."""
        if which is None:
            if not self.transactions:
                return
            which = self.rng.choice(self.transactions)
        self.transactions.remove(which)
        which[0].rollback()

    def tx(self) -> None:
        """A whole transaction; one in ten is rolled back."""
        self.begin()
        if self.rng.random() < 0.1:
            self.rollback()
        else:
            self.commit()

    # ---- background ----------------------------------------------------------------------------

    def page_out(self) -> None:
        """Some messages leave RAM for their slots."""
        queue = self.some_queue(live=1)
        if queue is None:
            return
        held = self.holder(queue)
        ready = [entry for entry in held.materialise(queue.next_seq) if queue.is_live(entry.seq)]
        ready = [e for e in ready if e.seq not in queue.section][: self.rng.randint(1, 6)]
        if ready:
            queue.write(ready)
            for entry in ready:
                entry.on_slot = True
            held.materialised(ready)

    def checkpoint(self) -> None:
        """A whole checkpoint."""
        self.engine.checkpoint()

    def begin_checkpoint(self) -> None:
        """The cut; its slices come at each turn."""
        self.engine.upkeep.begin_checkpoint()

    def step_checkpoint(self) -> None:
        """One slice, if a checkpoint is at that."""
        if self.engine.checkpoints.phase == SLICES:
            self.engine.upkeep.step_checkpoint(self.clock.monotonic())

    def finish_checkpoint(self) -> None:
        """Until the checkpoint in progress is CURRENT and has cleaned up."""
        engine = self.engine
        for _ in range(STEPS_MAX):
            if engine.checkpoints.phase == IDLE:
                return
            self.step_checkpoint()
            engine.flush()
            engine.poll(wait=True)
        raise Violation(f"a checkpoint hangs in phase {engine.checkpoints.phase}")

    def trim(self) -> None:
        """What is done in a time of rest, at any time: the log goes on in a small segment, dead
        files that are written to are left, a checkpoint begins that lets them go."""
        engine = self.engine
        engine.log.lean(self.rng.random() < 0.5)
        engine.log.shrink()
        engine.upkeep.trimmer.drop_transient()
        if engine.checkpoints.phase == IDLE and engine.upkeep.trimmer.leave_dead(0):
            engine.upkeep.begin_checkpoint()

    def combine(self) -> None:
        """Store files are combined, if any are worth it."""
        self.engine.upkeep.combine()

    def reap(self) -> None:
        """One purged segment is read for its references."""
        self.engine.upkeep.reap()

    def flush(self) -> None:
        self.engine.flush()

    def poll(self) -> None:
        self.engine.poll()

    def sync(self) -> None:
        self.engine.sync()

    def idle(self) -> None:
        """Time goes by: interval syncs, idle headers, acks are synced."""
        self.engine.sync()
        for _ in range(3):
            self.clock.advance(0.06)
            self.engine.tick()

    def tick(self) -> None:
        self.clock.advance(self.rng.choice((0.01, 0.1, 1.0)))
        self.engine.tick()

    def prepare_ahead(self) -> None:
        self.engine.log.prepare_ahead()

    def turn(self) -> None:
        """The end of a turn of the owner's loop: some of what it does there."""
        roll = self.rng.random()
        if roll < 0.7:
            self.engine.flush()
        if roll < 0.5:
            self.engine.poll()
        self.step_checkpoint()
        if 0.6 < roll < 0.66:
            self.engine.upkeep.reap()
        self.look()

    def close(self) -> None:
        """An orderly stop; open transactions are rolled back."""
        while self.transactions:
            self.rollback(self.transactions[0])
        self.engine.close()

    def step(self, name: str) -> None:
        """One operation by name, and the end of a turn."""
        self.trace.append(name)
        getattr(self, name)()
        self.turn()


def _uses(tx: Transaction, queue: QueueIndex) -> bool:
    return any(queue in p.queues for p in tx.publishes) or any(q is queue for q, _ in tx.dequeues)
