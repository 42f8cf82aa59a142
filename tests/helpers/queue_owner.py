"""QueueOwner: an engine with AMQQueues, as their owner has them, and the judge of deliveries.

A Driver (vhost_driver.py: flushes, polls, checkpoints, a clock) with queues in place of bare
indexes: four of them, with priorities, limits, times to live, retries, dead letters, and memory
limits so small that nearly everything is paged. Every call goes through `_call`, so that the Books
(queue_ledger.py) judge its records; every delivery is judged here: body, header, date, attempts,
order, whether it was to be held, and that it is called redelivered if and only if it may have been
delivered before.

What the queues' clients do is in queue_driver.py, the rest of the judge in queue_judge.py.
"""

import functools
from collections.abc import Callable
from typing import Final

from penstock.errors import DiskFullError
from penstock.queues.amq_queue import AMQQueue
from penstock.queues.backing_queue import PART_SHIFT, BackingQueue, Delivery
from penstock.queues.headers import PlainHeaders
from penstock.queues.priority_queue import PriorityQueue, base_names, open_backing, priorities_of
from penstock.queues.queue_options import QueueOptions
from penstock.queues.variable_queue import VariableQueue
from penstock.storage.files.durability import DISK, OS
from penstock.storage.files.options import StorageOptions
from penstock.storage.index.queue_index import QueueIndex
from tests.helpers.faulty_filesystem import FaultyFileSystem
from tests.helpers.ledger import Content, Violation, body_of
from tests.helpers.queue_ledger import Books, Place, QueueLedger
from tests.helpers.tiny_engine import OPTIONS
from tests.helpers.vhost_driver import Driver

HEADERS: Final = PlainHeaders()
SEQ_MASK: Final = (1 << PART_SHIFT) - 1
STEPS_MAX: Final = 10_000  # of one thing: more is a hang
FAILURES: Final = (OSError, DiskFullError)  # calls that may fail, and have then done all or nothing
ROOM_BYTES: Final = 1 << 20
JUMPS_S: Final = (0.001, 0.3, 1.0, 1.0, 5.0, 60.0, 3600.0, 80_000.0)

SETS: Final[tuple[dict[str, dict[str, object]], ...]] = (
    {
        "jobs": {"dead_letter_to": "dead", "max_attempts": 3, "max_memory_bytes": 900},
        "ranked": {
            "priorities": 2, "max_length": 6, "dead_letter_to": "jobs", "retry_delay_ms_min": 0,
            "max_memory_bytes": 900,
        },
        "loose": {
            "max_length_bytes": 1500, "overflow": "reject-publish", "ttl_ms": 70_000,
            "policy": "eager", "max_memory_bytes": 600,
        },
        "dead": {"lazy": True},
    },
    {
        "jobs": {
            "dead_letter_to": "dead", "max_length": 9, "overflow": "reject-publish-dlx",
            "lazy": True, "max_attempts": 2,
        },
        "ranked": {"priorities": 3, "ttl_ms": 30_000, "dead_letter_to": "dead",
                   "max_memory_bytes": 0, "retry_delay_ms_min": 0},
        "loose": {"max_length": 7, "max_memory_bytes": 2000},
        "dead": {"max_memory_bytes": 700},
    },
)  # fmt: skip
NAMES: Final = tuple(SETS[0])


class QueueOwner(Driver):
    """An open engine; `open_queues` opens its queues, after which clients may come."""

    def __init__(
        self, fs: FaultyFileSystem, seed: int, *, options: StorageOptions = OPTIONS,
        ledger: QueueLedger, first_uid: int = 1,
    ) -> None:  # fmt: skip
        super().__init__(fs, seed, options=options, ledger=ledger, first_uid=first_uid)
        self.clock.advance(ledger.wall_s)
        self.amq: dict[str, AMQQueue] = {}
        self.pending: list[tuple[str, Delivery]] = []
        self.transients: set[int] = set()
        self.most: dict[int, int] = {}  # queue number -> one above the highest seq delivered
        self.books: Books
        self.suspects: dict[int, int] = {}  # queue number -> what may have been delivered is below
        self.focus = ""
        self.is_strict = True  # False: calls fail, and what failed may count as a delivery
        self._is_stopping = False

    @property
    def life(self) -> QueueLedger:
        """The ledger of this life; recovery's judge puts another in its place."""
        assert isinstance(self.ledger, QueueLedger)
        return self.ledger

    def _adopt(self, queue: QueueIndex) -> None:
        self.ledger.numbers.add(queue.number)

    # ---- queues --------------------------------------------------------------------------------

    def options_of(self, name: str) -> QueueOptions:
        return _options(self.life.options, name)

    def open_queues(self) -> None:
        """Open what is there, as its owner does after a start."""
        self.books = Books(self.engine, self.life)
        for at in base_names(self.engine):
            self._open(at.decode())

    def declare_missing(self) -> None:
        """One of the queues that are not there."""
        missing = [name for name in NAMES if name not in self.amq]
        if missing:
            self._open(self.focus or self.rng.choice(missing))

    def _open(self, name: str) -> None:
        options = self.options_of(name)
        at = name.encode()
        self.books.begin()
        self.amq[name] = AMQQueue(
            self.engine, at, options, self._open_part(at, True, options), headers=HEADERS,
            open_part=self._open_part, close_part=self._close_part,
            find=lambda at: self.amq.get(at.decode()), mode=DISK,
            on_event=lambda kind, text: self.events.append((kind, text)),
        )  # fmt: skip
        self._set_free()
        self.books.end()

    def _set_free(self) -> None:
        """Queues without a dead-letter queue that is there may drop what they like."""
        self.books.free.clear()
        for name in NAMES:
            if self.options_of(name).dead_letter_to not in self.amq:
                self.books.free.add(name.encode())

    def _open_part(
        self, name: bytes, is_durable: bool, options: QueueOptions | None = None
    ) -> BackingQueue:
        options = options or QueueOptions()
        is_new = priorities_of(self.engine, name) is None
        lsn = self.engine.log.last_lsn + 1 if is_new else 0
        backing = open_backing(
            self.engine, name, priorities=options.priorities, policy=options.policy,
            on_event=lambda kind, text: self.events.append((kind, text)),
        )  # fmt: skip
        for part in parts_of(backing):
            index = part.index()
            self.books.open(index, part, lsn)
            mark = 0 if is_new else min(index_mark(self, index), index.next_seq)
            self.most[index.number] = mark
            self.suspects[index.number] = 0 if self.engine.recovered.is_clean else mark
        return backing

    def _close_part(self, part: BackingQueue) -> None:
        if not self._is_stopping:
            self.books.deleted(part.index().number)

    def _some(self) -> str | None:
        if self.focus:
            return self.focus if self.focus in self.amq else None
        return self.rng.choice(sorted(self.amq)) if self.amq else None

    def _call(
        self, call: Callable[[], object], *, fresh: dict[bytes, int] | None = None,
        may_die: set[Place] | None = None, tx_mode: int | None = None,
        dates: dict[int, tuple[str, int, int]] | None = None,
    ) -> None:  # fmt: skip
        """One call of a client, whose records are judged."""
        books = self.books
        books.begin()
        books.dates = dates or {}
        books.fresh, books.may_die, books.tx_mode = fresh or {}, may_die or set(), tx_mode
        try:
            call()
        except FAILURES:
            books.end()
            raise
        books.end()

    def fetch(self, name: str, *, ack_required: bool = True, waits: bool = True) -> Delivery | None:
        """What this queue delivers, judged."""
        amq, books = self.amq[name], self.books
        for _ in range(STEPS_MAX):
            books.begin()
            books.is_fetch = True
            known = dict(books.at)
            attempts = dict(books.attempts)
            try:
                delivery = amq.fetch(ack_required=ack_required)
            except FAILURES:
                books.end()
                raise
            if delivery is not None:
                place = self._place(amq, delivery)
                if not ack_required:
                    books.may_die.add(place)
                books.end()
                if delivery.message.persistent:
                    self._judge_delivery(name, delivery, place, known, attempts.get(place, 0))
                    if ack_required and amq.options.max_attempts is not None:
                        self._judge_suspect(f"{name}, {place}", place, attempts.get(place, 0))
                else:
                    self._judge_transient(delivery)
                if ack_required:
                    self.pending.append((name, delivery))
                return delivery
            books.end()
            held = amq.held()
            if held is None or not waits:
                return None
            self.engine.wait(*held)
        raise Violation(f"queue {name} is held for ever")

    def _place(self, amq: AMQQueue, delivery: Delivery) -> Place:
        index = amq.backing.index(delivery.tag >> PART_SHIFT)
        return index.number, delivery.tag & SEQ_MASK

    def _judge_delivery(
        self,
        name: str,
        delivery: Delivery,
        place: Place,
        known: dict[Place, Content],
        attempts: int,
    ) -> None:
        number, seq = place
        at = f"{name}, {place}"
        if place not in known:
            raise Violation(f"{at} is delivered, and was not alive")
        self.judge_message(at, delivery, known[place])
        is_old = seq < self.most[number]
        before = attempts + HEADERS.attempts(known[place][2])
        same(f"{at}: attempts", delivery.attempts, before)
        if self.is_strict or is_old:
            same(f"{at}: is redelivered", delivery.is_redelivered, is_old or before > 0)
        expiry_ms = delivery.message.expiry_ms
        if 0 < expiry_ms <= self.clock.wall_ms():
            raise Violation(f"{at} had expired when it was delivered")
        lsn, mode = self.books.holds.get(place, (0, OS))
        if self.engine.log.settled(mode) < lsn:
            raise Violation(f"{at} is delivered before its record, {lsn}, is settled")
        taken = {self._place(self.amq[n], d) for n, d in self.pending}
        parts = [part.index().number for part in parts_of(self.amq[name].backing)]
        for other in self.books.at if self.is_strict else ():
            if other not in taken and other != place and (
                (other[0] == number and other[1] < seq)
                or (other[0] in parts and parts.index(other[0]) > parts.index(number))
            ):  # fmt: skip
                raise Violation(f"{at} is delivered before {other}")
        self.most[number] = max(self.most[number], seq + 1)
        self.life.delivered.append((self.fs.operations, place))

    def _judge_suspect(self, at: str, place: Place, before: int) -> None:
        """Its delivery was counted as it was made, in writing, if it may have been delivered before
        a crash: it may be what killed the process."""
        counted = 1 if place[1] < self.suspects.get(place[0], 0) else 0
        same(f"{at}: attempts now", self.books.attempts.get(place, 0), before + counted)
        if counted and self.engine.log.settled(OS) < self.books.counted_lsn:
            raise Violation(f"{at} is delivered before the count of that is written")

    def judge_message(self, at: str, delivery: Delivery, content: Content) -> None:
        """Header and body are its own."""
        uid, size, header = content
        body = delivery.message.body
        if body != body_of(uid, size):
            raise Violation(f"{at}: the body is {(body or b'')[:20]!r}, it should be that of {uid}")
        same(f"{at}: header", delivery.message.header, header)
        same(f"{at}: id", self.ledger.ids.get(delivery.message.id), uid)

    def _judge_transient(self, delivery: Delivery) -> None:
        body = delivery.message.body or b""
        uid = int(body.partition(b":")[0])
        if uid not in self.transients or body != body_of(uid, len(body)):
            raise Violation(f"a transient message is {body[:20]!r}")

    # ---- time and memory -----------------------------------------------------------------------

    def tick_queues(self) -> None:
        """A slice of what is due in each queue."""
        for name in sorted(self.amq):
            self._call(lambda name=name: self.amq[name].tick(self.clock.wall_ms()))  # type: ignore[misc]

    def pass_time(self, seconds: float = 0.0) -> None:
        """Time goes by, and all that is due happens."""
        self.clock.advance(seconds or self.rng.choice(JUMPS_S))
        self.life.wall_s = self.clock.monotonic()
        more = [True]

        def tick(name: str) -> None:
            more.append(self.amq[name].tick(self.clock.wall_ms()))

        for _ in range(STEPS_MAX):
            more.clear()
            for name in sorted(self.amq):
                self._call(lambda name=name: tick(name))  # type: ignore[misc]
            if not any(more):
                return
        raise Violation("ticking never ends")

    def resume(self) -> None:
        name = self._some()
        if name is not None:
            self._call(lambda: self.amq[name].backing.resume())

    def inhale(self) -> None:
        name = self._some()
        if name is not None:
            self._call(lambda: self.amq[name].backing.inhale())

    def squeeze_out(self) -> None:
        """All that can leave RAM does."""
        name = self._some()
        if name is not None:
            backing = self.amq[name].backing
            self._call(lambda: backing.set_share(0))
            for _ in range(3):
                self._call(backing.resume)

    def widen(self) -> None:
        """There is room for all of it again; only reading brings it back."""
        name = self._some()
        if name is not None:
            backing = self.amq[name].backing
            self._call(lambda: backing.set_queue_mode("default"))
            self._call(lambda: backing.set_limits(ROOM_BYTES, ROOM_BYTES))
            self._call(lambda: backing.set_share(ROOM_BYTES))

    def squeeze(self) -> None:
        """Another share of memory, or another mode of paging."""
        name = self._some()
        if name is None:
            return
        backing, roll = self.amq[name].backing, self.rng.random()
        if roll < 0.7:
            share = self.rng.choice((0, 300, 700, 1500, 1 << 40))
            self._call(lambda: backing.set_share(share))
        else:
            mode = self.rng.choice(("lazy", "default", "default"))
            self._call(lambda: backing.set_queue_mode(mode))

    # ---- the end of a life ---------------------------------------------------------------------

    def close(self) -> None:
        """An orderly stop."""
        self._is_stopping = True
        life = self.life
        for amq in self.amq.values():
            amq.terminate()
        life.lowered = {number: part.index().mark for number, part in self.books.parts.items()}
        life.lowered_lsn = self.engine.log.last_lsn
        self.engine.close()

    def step(self, name: str) -> None:
        """One operation by name, with ":" and a queue if it is for that one."""
        self.trace.append(name)
        name, _, self.focus = name.partition(":")
        getattr(self, name)()
        self.focus = ""
        self.turn()


@functools.cache
def _options(which: int, name: str) -> QueueOptions:
    return QueueOptions.of(SETS[which][name])


def index_mark(owner: QueueOwner, index: QueueIndex) -> int:
    """The mark that recovery found."""
    return owner.ledger.base.marks[index.number]


def parts_of(backing: BackingQueue) -> list[VariableQueue]:
    """Its VariableQueues, lowest priority first."""
    if isinstance(backing, PriorityQueue):
        return [part.queue for part in backing.parts]
    assert isinstance(backing, VariableQueue)
    return [backing]


def uid_of(delivery: Delivery) -> int:
    """Of a message whose body tells it."""
    return int((delivery.message.body or b"").partition(b":")[0])


def same(what: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise Violation(f"{what}: {found!r}, should be {wanted!r}")
