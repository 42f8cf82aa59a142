"""QueueLedger and Books: what queues do to their messages, record by record, for crash tests.

A Tap stands before the Holder of every QueueIndex and so hears what each record of the log brings
to life and takes away, whoever asked for it: a publish, a commit, a nack, time. That goes into a
Ledger, whose judge demands after a crash that the storage is the fold of these up to one LSN.

So what can be wrong above the storage is left to ask, and Books asks it of every record:

  * nothing appears that nobody published, nothing is doubled: a message that was there already
    comes to life only in the record that takes it away elsewhere (a move is one record);
  * nothing is lost: a message dies without a new place only if its client acknowledged, purged or
    deleted it, or its queue has nowhere to send the dead;
  * what leaves a delay part for its queue is due;
  * a record that nothing explains is a violation.

Every prefix of such records is a legal state, and the judge says that a crash leaves a prefix.

QueueLedger adds what a life must know of the one before: what was delivered, by operation of the
file system, dates of expiry, and the exact marks of an orderly stop. No message is transient here:
they are the driver's business, since no crash may bring one back.
"""

from collections import Counter

from penstock.message import Entry
from penstock.queues.variable_queue import VariableQueue
from penstock.storage.engine import StorageEngine
from penstock.storage.files.durability import DISK, OS
from penstock.storage.index.queue_index import Holder, QueueIndex
from tests.helpers.ledger import Content, Ledger, Model, Violation

Place = tuple[int, int]  # queue number, seq


class QueueLedger(Ledger):
    """See the head. `seen`: places that were delivered in earlier lives; `delivered`: in this one,
    each with the operations that the file system had done. `lowered`: exact marks of a stop."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[Place] = set()
        self.delivered: list[tuple[int, Place]] = []
        self.expiries: dict[Place, int] = {}
        self.later: dict[Place, int] = {}  # of a place in a delay part: its expiry once it is due
        self.lowered: dict[int, int] = {}
        self.lowered_lsn = 0
        self.wall_s = 0.0
        self.options = 0
        self._found: dict[int, int] = {}
        self._is_clean = False

    def seen_at(self, operation: int) -> set[Place]:
        """What had been delivered when the operation was done."""
        return self.seen | {place for at, place in self.delivered if at <= operation}

    def restarted(self, lsn: int, model: Model) -> "QueueLedger":
        plain = super().restarted(lsn, model)
        after = QueueLedger()
        after.base, after.base_lsn = plain.base, plain.base_lsn
        after.ids, after.numbers = plain.ids, plain.numbers
        after.seen = self.seen_at(1 << 62)
        after.expiries, after.later = dict(self.expiries), dict(self.later)
        after.wall_s, after.options = self.wall_s, self.options
        return after

    def check(self, engine: StorageEngine, need: int, last: int) -> tuple[int, Model]:
        self._found = {queue.number: queue.mark for queue in engine.state.queues.values()}
        self._is_clean = engine.recovered.is_clean
        return super().check(engine, need, last)

    def fold(self, lsn: int) -> Model:
        """With the marks that an orderly stop lowered, if its checkpoint is what was found."""
        model = super().fold(lsn)
        if not self.lowered or lsn < self.lowered_lsn:
            return model
        model = model.copy()
        for number, mark in self.lowered.items():
            if number in model.marks and (self._is_clean or self._found.get(number) == mark):
                model.marks[number] = mark
        return model


class Tap(Holder):
    """Hears what comes to life and dies in one queue, and hands it on."""

    def __init__(self, books: "Books", index: QueueIndex) -> None:
        self._books = books
        self._number = index.number
        self._inner = index.holder
        index.holder = self

    def add(self, entry: Entry) -> None:
        if entry.message.persistent:
            self._books.put(self._number, entry)
        self._inner.add(entry)

    def drop(self, first: int, n: int) -> None:
        self._books.take(self._number, range(first, first + n))
        self._inner.drop(first, n)

    def get(self, seq: int) -> Entry | None:
        return self._inner.get(seq)

    def candidates(self, below: int, n: int) -> list[Entry]:
        return self._inner.candidates(below, n)

    def unsettled(self) -> list[Entry]:
        return self._inner.unsettled()

    def materialised(self, entries: list[Entry]) -> None:
        self._inner.materialised(entries)


class Books:
    """The live messages of one engine, and the judge of each record.

    fresh: body -> uid of what is being published; dates: of what gets new ones; may_die: places
    that the call at hand may settle; free: names of queues that may drop messages by themselves.
    """

    def __init__(self, engine: StorageEngine, ledger: QueueLedger) -> None:
        self.engine = engine
        self.ledger = ledger
        self.at: dict[Place, Content] = {}
        self.names: dict[int, bytes] = {}
        self.parts: dict[int, VariableQueue] = {}
        self.marks: dict[int, int] = {}
        self.attempts: dict[Place, int] = {}
        self.holds: dict[Place, tuple[int, int]] = {}  # (lsn, mode) of what a record moved
        self.fresh: dict[bytes, int] = {}
        # uid -> queue, due (0: at once), expiry from then on
        self.dates: dict[int, tuple[str, int, int]] = {}
        self.may_die: set[Place] = set()
        self.free: set[bytes] = set()
        self.purged: set[Place] = set()
        self.deleting = False
        self.dropped: Counter[int] = Counter()  # uids that free queues have dropped
        self.tx_mode: int | None = None
        self.died: dict[int, int] = {}  # queue number -> one above the highest seq that died
        self.is_fetch = False
        self.subject: Place | None = None
        self.counted_lsn = 0  # of the last record that counted attempts
        self._before: dict[Place, int] = {}
        self._puts: dict[int, list[tuple[Place, int]]] = {}
        self._takes: dict[int, list[tuple[Place, int]]] = {}
        self._explained: set[int] = set()
        self._start = 0

    # ---- queues --------------------------------------------------------------------------------

    def open(self, index: QueueIndex, part: VariableQueue, declared_lsn: int) -> None:
        """A queue is open now. declared_lsn: of the record that declared it; 0: it was there."""
        number = index.number
        if declared_lsn:
            self.ledger.numbers.add(number)
            self.ledger.note(declared_lsn, ("declare", index.name, number))
            self._explained.add(declared_lsn)
            self.marks[number] = 0
        else:
            base = self.ledger.base
            self.marks[number] = base.marks[number]
            for seq, content in base.queues[number].items():
                self.at[number, seq] = content
            for seq, n in base.attempts[number].items():
                self.attempts[number, seq] = n
        self.names[number] = index.name
        self.parts[number] = part
        Tap(self, index)
        self._note_mark(number)

    def deleted(self, number: int) -> None:
        """The next record deletes this queue."""
        lsn = self.engine.log.last_lsn + 1
        left = [place for place in self.at if place[0] == number]
        if left and not self.deleting:
            raise Violation(f"queue {self.names[number]!r} is deleted with {len(left)} messages")
        if number in self.parts:
            self._note_mark(number)  # reserved in this very call, by a delivery
        self.ledger.note(lsn, ("delete", number))
        self._explained.add(lsn)
        for place in left:
            del self.at[place]
            self.attempts.pop(place, None)
        self.parts.pop(number, None)
        self.marks.pop(number, None)

    def note_marks(self) -> None:
        """Marks that were reserved since the last time."""
        for number in self.parts:
            self._note_mark(number)

    def _note_mark(self, number: int) -> None:
        part = self.parts[number]
        mark = part.index().mark
        if mark != self.marks[number]:
            self.marks[number] = mark
            lsn = part.mark._lsn
            self.ledger.note(lsn, ("mark", number, mark))
            self._explained.add(lsn)

    # ---- records -------------------------------------------------------------------------------

    def _lsn(self) -> int:
        return self.engine.log.last_lsn + (self.engine.journal.gathering is not None)

    def put(self, number: int, entry: Entry) -> None:
        """A record brings a persistent message to life."""
        message, place, lsn = entry.message, (number, entry.seq), self._lsn()
        uid = self.ledger.ids.get(message.id)
        if uid is None:
            if message.body is None or message.body not in self.fresh:
                raise Violation(f"nobody published {message.id:#x} at {place}")
            uid = self.fresh[message.body]
            self.ledger.give_id(message.id, uid)
        content = (uid, message.size, message.header)
        self.at[place] = content
        self.ledger.expiries[place] = message.expiry_ms
        self.ledger.note(lsn, ("put", content, (place,)))
        self._puts.setdefault(lsn, []).append((place, uid))

    def take(self, number: int, seqs: range) -> None:
        """A record takes persistent messages away."""
        lsn = self._lsn()
        for seq in seqs:
            place = (number, seq)
            if place in self.purged:
                continue
            if place not in self.at:
                raise Violation(f"{place} dies, and was not alive")
            uid = self.at.pop(place)[0]
            self.died[number] = max(self.died.get(number, 0), seq + 1)
            self.attempts.pop(place, None)
            self.ledger.note(lsn, ("take", number, (seq,)))
            self._takes.setdefault(lsn, []).append((place, uid))

    def purge(self, lsn: int, index: QueueIndex, kept: set[int]) -> None:
        """The record of this LSN purges a queue but for these seqs."""
        number = index.number
        self.ledger.note(lsn, ("purge", number, index.next_seq, frozenset(kept)))
        self._explained.add(lsn)
        for place in [p for p in self.at if p[0] == number and p[1] not in kept]:
            self.purged.add(place)
            del self.at[place]
            self.attempts.pop(place, None)

    def _requeued(self, lsn: int, number: int, counts: dict[int, int]) -> None:
        """The record of this LSN counts attempts of messages."""
        self.ledger.note(lsn, ("requeue", number, tuple(counts.items())))
        self.counted_lsn = lsn
        self._explained.add(lsn)
        for seq, n in counts.items():
            if (number, seq) in self.at:
                self.attempts[number, seq] = n

    def _changed_attempts(self) -> dict[int, dict[int, int]]:
        """Queue number -> seq -> attempts that no record explains yet."""
        found: dict[int, dict[int, int]] = {}
        for number, part in self.parts.items():
            for seq, n in part.index().attempts.items():
                if self.attempts.get((number, seq), 0) != n:
                    found.setdefault(number, {})[seq] = n
        return found

    def _explain_attempts(self) -> None:
        """Records that say nothing else count attempts: of the message that the next record takes,
        in a fetch (it was tried too often), else of those whose count is another now, else of the
        `subject`, which has died since."""
        for lsn in range(self._start + 1, self.engine.log.last_lsn + 1):
            if lsn in self._puts or lsn in self._takes or lsn in self._explained:
                continue
            changed = self._changed_attempts()
            taken = self._takes.get(lsn + 1) if self.is_fetch else None
            place = taken[0][0] if taken else self.subject
            if changed and not taken:
                number = min(changed)
                self._requeued(lsn, number, changed[number])
            elif place is not None:
                self._requeued(lsn, place[0], {place[1]: self._before.get(place, 0) + 1})
            elif self.tx_mode is None:
                raise Violation(f"nothing explains record {lsn}")
        changed = self._changed_attempts()
        if changed:
            raise Violation(f"attempts were counted, and no record says so: {changed}")

    # ---- calls ---------------------------------------------------------------------------------

    def begin(self) -> None:
        """A call begins; its records are judged together."""
        self._start = self.engine.log.last_lsn
        self._puts, self._takes, self._explained = {}, {}, set()
        self.may_die, self.purged = set(), set()
        self.is_fetch, self.subject = False, None
        self._before = dict(self.attempts)

    def end(self) -> None:
        """The call has ended: is each of its records right?"""
        self.note_marks()
        self._explain_attempts()
        fresh = set(self.fresh.values())
        for lsn, puts in self._puts.items():
            taken = self._takes.get(lsn, [])
            for place, uid in puts:
                sources = [source for source, other in taken if other == uid]
                if sources:
                    self._judge_move(lsn, place, uid, sources)
                elif uid not in fresh:
                    raise Violation(f"message {uid} is doubled: at {place} by record {lsn}")
                else:
                    self._judge_dates(place, uid)
                    if self.tx_mode is not None:
                        self.holds[place] = (lsn, self.tx_mode)
        for lsn, taken in self._takes.items():
            put = {uid for _, uid in self._puts.get(lsn, [])}
            for place, uid in taken:
                if uid in put or place in self.may_die:
                    continue
                if not self._is_free(place[0]):
                    raise Violation(f"message {uid} is lost: it left {place} by record {lsn}")
                self.dropped[uid] += 1
        self.fresh, self.tx_mode, self.dates = {}, None, {}

    def _judge_dates(self, place: Place, uid: int) -> None:
        """A message that was published, or nacked with a delay, has the dates that it should."""
        wanted, expiry_ms = self.dates.get(uid), self.ledger.expiries[place]
        name = self.names[place[0]].partition(b"\0")[0].decode()
        if wanted is None or wanted[0] != name:
            return
        _, due_ms, own_ms = wanted
        if expiry_ms != (due_ms or own_ms):
            raise Violation(f"message {uid} at {place} has date {expiry_ms}, should be {wanted}")
        if due_ms:
            self.ledger.later[place] = own_ms

    def _judge_move(self, lsn: int, place: Place, uid: int, sources: list[Place]) -> None:
        if len(sources) != 1:
            raise Violation(f"message {uid} comes to {place} from {sources}")
        (source,) = sources
        mode = OS
        expiries, later = self.ledger.expiries, self.ledger.later
        if not is_bucket(self.names[source[0]]):
            if is_bucket(self.names[place[0]]):
                self._judge_dates(place, uid)
        elif is_bucket(self.names[place[0]]):
            if source in later:
                later[place] = later[source]
            if expiries[place] != expiries[source]:
                raise Violation(f"message {uid} has another due time at {place}")
        else:
            mode = DISK
            if expiries[source] > self.engine.clock.wall_ms():
                raise Violation(f"message {uid} is early: due {expiries[source]}")
            if expiries[place] != later.get(source, expiries[place]):
                raise Violation(f"message {uid} expires at {expiries[place]}: {later[source]}")
        self.holds[place] = (lsn, mode)

    def _is_free(self, number: int) -> bool:
        name = self.names.get(number, b"")
        return not is_bucket(name) and name.partition(b"\0")[0] in self.free


def is_bucket(name: bytes) -> bool:
    """Whether this is the name of a part for delayed messages."""
    return b"\0d" in name
