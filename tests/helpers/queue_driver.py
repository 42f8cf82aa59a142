"""QueueDriver: traffic for AMQQueues on a FaultyFileSystem, judged record by record as it happens.

A Driver (vhost_driver.py: the owner of the engine, its flushes, polls and checkpoints) with queues
in place of bare indexes: four of them, with priorities, limits, times to live, retries, dead
letters, and memory limits so small that nearly everything is paged. Its clients publish, fetch,
ack, nack with and without delays, reject, release, purge, delete, commit and roll back; time goes
by in jumps from a millisecond to a day. `step("nack:jobs")` does it to that queue.

Each delivery is judged: body, header, date, attempts, order, whether it was to be held, whether it
is called redelivered if and only if it may have been delivered before. After a start `judge_queues`
asks the same of everything that was found, and `drain` takes it all out.
"""

import functools
import random
from collections.abc import Callable
from typing import Final

from penstock.errors import QueueFullError
from penstock.queues.amq_queue import AMQQueue
from penstock.queues.arrivals import Plan
from penstock.queues.backing_queue import PART_SHIFT, BackingQueue, Delivery, NewMessage
from penstock.queues.expiry import expiry_at
from penstock.queues.factory import base_names, open_backing, part_names, priorities_of
from penstock.queues.headers import PlainHeaders
from penstock.queues.priority_queue import PriorityQueue
from penstock.queues.queue_options import QueueOptions
from penstock.queues.variable_queue import VariableQueue
from penstock.storage.durability import DISK, INTERVAL, NONE, OS
from penstock.storage.options import StorageOptions
from penstock.storage.queue_index import QueueIndex
from penstock.storage.transaction import Transaction
from tests.helpers.faulty_filesystem import FaultyFileSystem
from tests.helpers.ledger import Content, Violation, body_of
from tests.helpers.queue_ledger import Books, Place, QueueLedger, is_bucket
from tests.helpers.tiny_engine import MIDDLE, OPTIONS, OWN, SMALL, STORED
from tests.helpers.vhost_driver import Driver

HEADERS: Final = PlainHeaders()
SEQ_MASK: Final = (1 << PART_SHIFT) - 1
STEPS_MAX: Final = 10_000  # of one thing: more is a hang
MODES: Final = (DISK, DISK, OS, INTERVAL)
DELAYS_MS: Final = (1, 700, 700, 5000, 61_000, 4_000_000)
JUMPS_S: Final = (0.001, 0.3, 1.0, 1.0, 5.0, 60.0, 3600.0, 80_000.0)
AHEAD: Final = 1100  # seqs: more than a block of the mark
SIZED: Final = (12, 40)  # of a body that tells its uid

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


class OpenTransaction:
    """A transaction that is neither committed nor rolled back."""

    def __init__(self, tx: Transaction) -> None:
        self.tx = tx
        self.plans: list[tuple[str, Plan, int]] = []  # queue, plan, bytes of the body
        self.acked: list[tuple[str, Delivery]] = []
        self.uids: set[int] = set()


class QueueDriver(Driver):
    """An open engine; `open_queues` opens its queues, after which clients may come."""

    def __init__(
        self, fs: FaultyFileSystem, seed: int, *, options: StorageOptions = OPTIONS,
        ledger: QueueLedger, first_uid: int = 1,
    ) -> None:  # fmt: skip
        super().__init__(fs, seed, options=options, ledger=ledger, first_uid=first_uid)
        self.clock.advance(ledger.wall_s)
        self.amq: dict[str, AMQQueue] = {}
        self.pending: list[tuple[str, Delivery]] = []
        self.tx_open: OpenTransaction | None = None
        self.transients: set[int] = set()
        self.most: dict[int, int] = {}  # queue number -> one above the highest seq delivered
        self.books: Books
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
        lsn = self.engine.last_lsn + 1 if is_new else 0
        backing = open_backing(
            self.engine, name, priorities=options.priorities, policy=options.policy,
            on_event=lambda kind, text: self.events.append((kind, text)),
        )  # fmt: skip
        for part in parts_of(backing):
            index = part.index()
            self.books.open(index, part, lsn)
            self.most[index.number] = 0 if is_new else min(index_mark(self, index), index.next_seq)
        return backing

    def _close_part(self, part: BackingQueue) -> None:
        if not self._is_stopping:
            self.books.deleted(part.index().number)

    def delete(self) -> None:
        """A queue goes, with all that it has."""
        name = self._some()
        if name is None:
            return
        self.abort()
        amq = self.amq.pop(name)
        self.pending = [(n, d) for n, d in self.pending if n != name]
        mode = self.rng.choice(MODES)
        self._set_free()
        self.books.begin()
        self.books.deleting = True
        for part in parts_of(amq.backing):
            self.books.deleted(part.index().number)
        before = self.engine.last_lsn
        amq.delete(mode)
        if self.engine.last_lsn != before + 1:
            raise Violation(f"{self.engine.last_lsn - before} records delete queue {name}")
        self.books.deleting = False
        self.books.end()

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
        finally:
            books.end()

    # ---- publishing ----------------------------------------------------------------------------

    def _message(self, *sizes: tuple[int, int]) -> tuple[bytes, bytes]:
        """The header and body of message `self.uid`, which is the next one's from here on."""
        uid, roll = self.uid, self.rng.random()
        self.uid += 1
        header = b""
        if roll < 0.3:
            header = HEADERS.with_values(b"", {"u": uid})
        elif roll < 0.35:
            header = HEADERS.with_values(b"", {"long": "H" * self.rng.randrange(250, 300)})
        return header, body_of(uid, self._size(*sizes))

    def put(self, *, delays: tuple[int | None, ...] = (None, None, None, *DELAYS_MS)) -> None:
        """A message, maybe with a priority, a time to live or a delay."""
        name = self._some()
        if name is None:
            return
        uid, rng = self.uid, self.rng
        header, body = self._message(SMALL, SIZED, MIDDLE, STORED, STORED, OWN)
        mode, priority, delay_ms = rng.choice(MODES), rng.randrange(5), rng.choice(delays)
        ttl_ms = rng.choice((None, None, None, None, 0, 500, 20_000))

        def publish() -> None:
            try:
                self.amq[name].publish(
                    header, body, mode, priority=priority, ttl_ms=ttl_ms, delay_ms=delay_ms
                )
            except QueueFullError:
                pass

        self._call(publish, fresh={body: uid}, dates=self._dates(uid, name, ttl_ms, delay_ms or 0))

    def _dates(
        self, uid: int, name: str, ttl_ms: int | None, delay_ms: int
    ) -> dict[int, tuple[str, int, int]]:
        """When a message will be due, and its expiry from then on."""
        if ttl_ms == 0:
            return {}
        now_ms = self.clock.wall_ms()
        due_ms = now_ms + delay_ms if delay_ms else 0
        return {uid: (name, due_ms, expiry_at(due_ms or now_ms, ttl_ms, self.options_of(name).ttl_ms))}

    def put_now(self) -> None:
        self.put(delays=(None,))

    def put_later(self) -> None:
        self.put(delays=DELAYS_MS)

    def put_many(self) -> None:
        """A batch, with priorities."""
        name = self._some()
        if name is None:
            return
        fresh: dict[bytes, int] = {}
        batch: list[NewMessage] = []
        for _ in range(self.rng.randint(2, 9)):
            uid = self.uid
            header, body = self._message(SIZED, SIZED, MIDDLE, STORED)
            fresh[body] = uid
            batch.append(NewMessage(header, body, 0, self.rng.randrange(4)))
        mode = self.rng.choice(MODES)

        def publish() -> None:
            try:
                self.amq[name].publish_many(batch, mode)
            except QueueFullError:
                pass

        self._call(publish, fresh=fresh)

    def run_ahead(self) -> None:
        """The queue is where so many transient messages that came and went would have brought it:
        beyond what is reserved of its mark."""
        name = self._some()
        if name is not None:
            index = self.amq[name].backing.index()
            index.skip_to(index.next_seq + AHEAD)
            self.put_many()
            self.engine.sync()

    def put_transient(self) -> None:
        """Nothing of it may be seen after a stop."""
        name = self._some()
        if name is None:
            return
        self.transients.add(self.uid)
        header, body = self._message(SIZED, MIDDLE, STORED)
        delay_ms = self.rng.choice((None, None, 700))

        def publish() -> None:
            try:
                self.amq[name].publish(header, body, NONE, delay_ms=delay_ms)
            except QueueFullError:
                pass

        self._call(publish)

    # ---- delivery ------------------------------------------------------------------------------

    def get(self) -> None:
        """The next message, which stays pending; now and then it is gone at once."""
        name = self._some()
        if name is not None:
            ack_required = self.rng.random() < 0.9
            self.fetch(name, ack_required=ack_required, waits=self.rng.random() < 0.8)

    def fetch(self, name: str, *, ack_required: bool = True, waits: bool = True) -> Delivery | None:
        """What this queue delivers, judged."""
        amq, books = self.amq[name], self.books
        for _ in range(STEPS_MAX):
            books.begin()
            known = dict(books.at)
            attempts = dict(books.attempts)
            try:
                delivery = amq.fetch(ack_required=ack_required)
            except BaseException:
                books.end()
                raise
            if delivery is not None:
                place = self._place(amq, delivery)
                if not ack_required:
                    books.may_die.add(place)
                books.end()
                if delivery.message.persistent:
                    self._judge_delivery(name, delivery, place, known, attempts.get(place, 0))
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
        self, name: str, delivery: Delivery, place: Place, known: dict[Place, Content], attempts: int
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
        if self.engine.settled(mode) < lsn:
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

    def _take_pending(self, n: int = 1) -> tuple[str, list[Delivery]]:
        """Some of the pending messages of one queue; no longer noted as pending."""
        name = self._some()
        busy = [] if self.tx_open is None else self.tx_open.acked
        able = [d for other, d in self.pending if other == name and (other, d) not in busy]
        if name is None or not able:
            return "", []
        some = self.rng.sample(able, min(n, len(able)))
        self.pending = [(other, d) for other, d in self.pending if d not in some]
        return name, some

    def ack(self) -> None:
        name, some = self._take_pending(self.rng.choice((1, 1, 2, 4)))
        if some:
            amq, mode = self.amq[name], self.rng.choice((OS, OS, DISK))
            places = {self._place(amq, d) for d in some}
            self._call(lambda: amq.ack([d.tag for d in some], mode), may_die=places)
            self.transients -= {uid_of(d) for d in some if not d.message.persistent}

    def ack_all(self, name: str) -> None:
        """All that is pending in one queue."""
        amq = self.amq[name]
        some = [d for other, d in self.pending if other == name]
        self.pending = [(other, d) for other, d in self.pending if other != name]
        places = {self._place(amq, d) for d in some}
        self._call(lambda: amq.ack([d.tag for d in some], OS), may_die=places)

    def nack(self, delays: tuple[int | None, ...] = (None, 0, 0, 1, 700, 5000, 61_000)) -> None:
        """It comes back, at once or later, or has been tried too often."""
        name, some = self._take_pending()
        if not some:
            return
        amq, (delivery,) = self.amq[name], some
        mode, delay_ms = self.rng.choice((OS, OS, DISK)), self.rng.choice(delays)
        place = self._place(amq, delivery)
        books = self.books
        lsn = self.engine.last_lsn + 1
        attempts = books.attempts.get(place, 0) + 1
        most = amq.options.max_attempts

        def call() -> None:
            try:
                amq.nack(delivery.tag, delay_ms=delay_ms, mode=mode)
            finally:
                books.note_marks()
                is_new = self.engine.last_lsn >= lsn and not books.is_explained(lsn)
                if is_new and delivery.message.persistent:
                    books.requeued(lsn, place, attempts)

        dates: dict[int, tuple[str, int, int]] = {}
        if delay_ms and place in books.at:
            later = (name, self.clock.wall_ms() + delay_ms, self.life.expiries[place])
            dates[books.at[place][0]] = later
        drops = most is not None and delivery.attempts + 1 >= most and self._is_free(name)
        self._call(call, may_die={place} if drops else set(), dates=dates)

    def _is_free(self, name: str) -> bool:
        return name.encode() in self.books.free

    def nack_later(self) -> None:
        self.nack((1, 700, 5000, 61_000))

    def requeue(self) -> None:
        self.nack((0,))

    def reject(self) -> None:
        name, some = self._take_pending()
        if some:
            self._call(lambda: self.amq[name].reject(some[0].tag, self.rng.choice((OS, DISK))))

    def release(self) -> None:
        """Not tried: they come back, and nothing is counted."""
        name, some = self._take_pending(3)
        if some:
            self._call(lambda: self.amq[name].release([d.tag for d in some]))

    def browse(self) -> None:
        name = self._some()
        if name is not None:
            self._call(lambda: self.amq[name].browse(None, 5))

    # ---- purging -------------------------------------------------------------------------------

    def purge(self) -> None:
        """All that is ready dies."""
        name = self._some()
        if name is None:
            return
        amq, lsn, mode = self.amq[name], self.engine.last_lsn + 1, self.rng.choice(MODES)
        self.books.begin()
        kept = [(part, self._kept(part)) for part in parts_of(amq.backing) if part.index().count]
        purges = self._begin_purge(kept)
        try:
            amq.purge(mode)
        finally:
            if self.engine.last_lsn >= lsn:
                self._note_purge(lsn, purges)
            self.books.end()

    def purge_later(self) -> None:
        """All that is delayed dies: a record for what is ready in a part, others for the pending."""
        name = self._some()
        if name is None:
            return
        lsn = self.engine.last_lsn + 1
        self.books.begin()
        for backing in self.amq[name].delays.parts():
            (part,) = parts_of(backing)
            kept = self._kept(part)
            number = part.index().number
            if part.index().count:
                self._note_purge(lsn, self._begin_purge([(part, kept)]))
                lsn += 1
            in_ram = kept & part.state.ram_pending.keys()
            lsn += bool(in_ram) + bool(kept - in_ram)  # a record for each
            self.books.may_die |= {(number, seq) for seq in kept}
        self.amq[name].purge_delayed(self.rng.choice(MODES))
        self.books.end()

    def _kept(self, part: VariableQueue) -> set[int]:
        return {seq for seq in part.index().live_seqs() if part.state.is_pending(seq)}

    def _begin_purge(
        self, kept: list[tuple[VariableQueue, set[int]]]
    ) -> list[tuple[VariableQueue, set[int]]]:
        """From here on these deaths are those of the purge."""
        for part, seqs in kept:
            number = part.index().number
            self.books.purged |= {p for p in self.books.at if p[0] == number and p[1] not in seqs}
        return kept

    def _note_purge(self, lsn: int, kept: list[tuple[VariableQueue, set[int]]]) -> None:
        for part, seqs in kept:
            self.books.purge(lsn, part.index(), seqs)

    # ---- transactions --------------------------------------------------------------------------

    def begin(self) -> None:
        """A transaction over several queues, delays and priorities; it stays open."""
        if self.tx_open is not None or not self.amq:
            return
        opened = self.tx_open = OpenTransaction(self.engine.begin())
        for _ in range(self.rng.randint(1, 4)):
            name, uid, rng = self.rng.choice(sorted(self.amq)), self.uid, self.rng
            header, body = self._message(SMALL, MIDDLE, STORED, OWN)
            amq, plans = self.amq[name], opened.plans
            delay_ms, priority = rng.choice((None, None, 700, 61_000)), rng.randrange(4)

            def plan(amq: AMQQueue = amq, name: str = name, header: bytes = header,
                     body: bytes = body, delay_ms: int | None = delay_ms,
                     priority: int = priority, uid: int = uid) -> None:  # fmt: skip
                planned = amq.plan(header, priority=priority, delay_ms=delay_ms)
                try:
                    published = opened.tx.publish(
                        [planned.index], planned.header, body, planned.expiry_ms
                    )
                except BaseException:
                    amq.unplan(planned)
                    raise
                self.ledger.give_id(published.message.id, uid)
                plans.append((name, planned, len(body)))

            self._call(plan)
            opened.uids.add(uid)
        name, some = self._take_pending(3)
        if some:
            for index, entries in self.amq[name].backing.entries([d.tag for d in some]):
                opened.tx.dequeue(index, entries)
            opened.acked = [(name, d) for d in some]
            self.pending += opened.acked

    def commit(self) -> None:
        """The open transaction happens."""
        opened, self.tx_open = self.tx_open, None
        if opened is None:
            return
        mode = self.rng.choice(MODES)
        places = {self._place(self.amq[name], d) for name, d in opened.acked}
        books = self.books

        def commit() -> None:
            lsn = opened.tx.commit(mode)
            books.fresh = {b"%d" % uid: uid for uid in opened.uids}
            seqs = [(index, entry.seq) for p in opened.tx.publishes for index, entry in p.entries]
            for name, d in opened.acked:
                self.amq[name].backing.forget([d.tag])
            for (name, plan, size), (_, seq) in zip(opened.plans, seqs, strict=True):
                self.amq[name].planned(plan, seq, size, lsn, mode)

        self.pending = [item for item in self.pending if item not in opened.acked]
        self._call(commit, may_die=places, tx_mode=mode)

    def abort(self) -> None:
        """The open transaction is rolled back; what it was to acknowledge is pending still."""
        opened, self.tx_open = self.tx_open, None
        if opened is not None:
            opened.tx.rollback()
            for name, plan, _ in opened.plans:
                self._call(lambda name=name, plan=plan: self.amq[name].unplan(plan))  # type: ignore[misc]

    def tx(self) -> None:
        self.begin()
        self.abort() if self.rng.random() < 0.1 else self.commit()

    # ---- time and memory -----------------------------------------------------------------------

    def tick_queues(self) -> None:
        """A slice of what is due in each queue."""
        for name in sorted(self.amq):
            self._call(lambda name=name: self.amq[name].tick(self.clock.wall_ms()))  # type: ignore[misc]

    def pass_time(self, seconds: float = 0.0) -> None:
        """Time goes by, and all that is due happens."""
        self.clock.advance(seconds or self.rng.choice(JUMPS_S))
        self.life.wall_s = self.clock.monotonic()
        for _ in range(STEPS_MAX):
            more: list[bool] = []
            for name in sorted(self.amq):
                self._call(
                    lambda name=name: more.append(self.amq[name].tick(self.clock.wall_ms()))  # type: ignore[misc]
                )
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
        """An orderly stop; what is open is rolled back."""
        self.abort()
        self._is_stopping = True
        life = self.life
        for amq in self.amq.values():
            amq.terminate()
        life.lowered = {number: part.index().mark for number, part in self.books.parts.items()}
        life.lowered_lsn = self.engine.last_lsn
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


def index_mark(driver: QueueDriver, index: QueueIndex) -> int:
    """The mark that recovery found."""
    return driver.ledger.base.marks[index.number]


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


__all__ = ["NAMES", "SETS", "QueueDriver", "is_bucket", "part_names"]
