"""QueueDriver: traffic for AMQQueues on a FaultyFileSystem, judged record by record as it happens.

The clients of a QueueOwner's queues: they publish with priorities, times to live and delays, one
by one and in batches; fetch, ack, nack with and without delays, reject, release; purge and delete;
commit and roll back. Everything is decided by the seed. `step("nack:jobs")` does it to that queue.

Each operation says what it may do: which bodies are new, which messages may die, with which dates.
"""

from typing import Final

from penstock.errors import QueueFullError
from penstock.queues.amq_queue import Plan, expiry_at
from penstock.queues.backing_queue import Delivery, NewMessage
from penstock.queues.variable_queue import VariableQueue
from penstock.storage.files.durability import DISK, INTERVAL, NONE, OS
from penstock.storage.parts.transaction import Transaction
from tests.helpers.inside import live_seqs
from tests.helpers.ledger import Violation, body_of
from tests.helpers.queue_owner import FAILURES, HEADERS, QueueOwner, parts_of, same, uid_of
from tests.helpers.tiny_engine import MIDDLE, OWN, SMALL, STORED

MODES: Final = (DISK, DISK, OS, INTERVAL)
DELAYS_MS: Final = (1, 700, 700, 5000, 61_000, 4_000_000)
AHEAD: Final = 1100  # seqs: more than a block of the mark
SIZED: Final = (12, 40)  # of a body that tells its uid


class OpenTransaction:
    """A transaction that is neither committed nor rolled back."""

    def __init__(self, tx: Transaction) -> None:
        self.tx = tx
        self.plans: list[tuple[str, Plan, int]] = []  # queue, plan, bytes of the body
        self.acked: list[tuple[str, Delivery]] = []
        self.uids: set[int] = set()


class QueueDriver(QueueOwner):
    """See the head. `tx_open`: the transaction that is neither committed nor rolled back."""

    tx_open: OpenTransaction | None = None

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
        return {
            uid: (name, due_ms, expiry_at(due_ms or now_ms, ttl_ms, self.options_of(name).ttl_ms))
        }

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

    def put_twice(self) -> None:
        """One message for two queues, in one record."""
        names = self.rng.sample(sorted(self.amq), min(2, len(self.amq)))
        uid = self.uid
        header, body = self._message(SMALL, MIDDLE, STORED, OWN)
        mode = self.rng.choice(MODES)

        def publish() -> None:
            plans = [(name, self.amq[name].plan(header)) for name in names]
            dates = {(plan.header, plan.expiry_ms) for _, plan in plans}
            if len(dates) != 1 or not plans:
                for name, plan in plans:
                    self.amq[name].unplan(plan)
                return
            ((_, expiry_ms),) = dates
            indexes = [plan.index for _, plan in plans]
            try:
                self.engine.publish(indexes, header, body, mode, expiry_ms)
            except FAILURES:
                for name, plan in plans:
                    self.amq[name].unplan(plan)
                raise
            for name, plan in plans:
                self.amq[name].planned(plan, plan.index.next_seq - 1, len(body))

        self._call(publish, fresh={body: uid})

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
            # Of one that was paged out while it was pending nobody knows the number any more.
            transients = [d for d in some if not d.message.persistent and d.message.body]
            gone = {uid_of(d) for d in transients}
            self._call(lambda: amq.ack([d.tag for d in some], mode), may_die=places)
            self.transients -= gone

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
        header = delivery.message.header
        wanted = delivery.attempts - HEADERS.attempts(header) + 1
        most = amq.options.max_attempts

        def call() -> None:
            books.subject = place
            amq.nack(delivery.tag, delay_ms=delay_ms, mode=mode)

        dates: dict[int, tuple[str, int, int]] = {}
        if delay_ms and place in books.at:
            later = (name, self.clock.wall_ms() + delay_ms, self.life.expiries[place])
            dates[books.at[place][0]] = later
        drops = most is not None and delivery.attempts + 1 >= most and self._is_free(name)
        self._call(call, may_die={place} if drops else set(), dates=dates)
        if place in books.at:
            same(f"{name}, {place}: attempts", books.attempts.get(place, 0), wanted)

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
            amq = self.amq[name]
            self._call(lambda: amq.release([d.tag for d in some]))
            for d in some:
                place = self._place(amq, d)
                if place in self.books.at:
                    wanted = d.attempts - HEADERS.attempts(d.message.header)
                    same(f"{place}: attempts", self.books.attempts.get(place, 0), wanted)

    def browse(self) -> None:
        name = self._some()
        if name is not None:
            self._call(lambda: self.amq[name].browse(None, 5))

    # ---- purging -------------------------------------------------------------------------------

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
        before = self.engine.log.last_lsn
        amq.delete(mode)
        if self.engine.log.last_lsn != before + 1:
            raise Violation(f"{self.engine.log.last_lsn - before} records delete queue {name}")
        self.books.deleting = False
        self.books.end()

    def purge(self) -> None:
        """All that is ready dies."""
        name = self._some()
        if name is None:
            return
        amq, lsn, mode = self.amq[name], self.engine.log.last_lsn + 1, self.rng.choice(MODES)
        self.books.begin()
        kept = [(part, self._kept(part)) for part in parts_of(amq.backing) if part.index().count]
        purges = self._begin_purge(kept)
        error: BaseException | None = None
        try:
            amq.purge(mode)
        except FAILURES as failure:
            error = failure
        if self.engine.log.last_lsn >= lsn:
            self._note_purge(lsn, purges)
        self.books.end()
        if error is not None:
            raise error

    def purge_later(self) -> None:
        """All that is delayed dies: per part a record for the ready, others for the pending."""
        name = self._some()
        if name is None:
            return
        lsn = self.engine.log.last_lsn + 1
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
        return {seq for seq in live_seqs(part.index()) if part.state.is_pending(seq)}

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
            self._publish_in(opened)
        name, some = self._take_pending(3)
        if some:
            for index, entries in self.amq[name].backing.entries([d.tag for d in some]):
                opened.tx.dequeue(index, entries)
            opened.acked = [(name, d) for d in some]
            self.pending += opened.acked

    def _publish_in(self, opened: OpenTransaction) -> None:
        name, uid, rng = self.rng.choice(sorted(self.amq)), self.uid, self.rng
        header, body = self._message(SMALL, MIDDLE, STORED, OWN)
        amq = self.amq[name]
        delay_ms, priority = rng.choice((None, None, 700, 61_000)), rng.randrange(4)

        def publish() -> None:
            plan = amq.plan(header, priority=priority, delay_ms=delay_ms)
            try:
                published = opened.tx.publish([plan.index], plan.header, body, plan.expiry_ms)
            except BaseException:
                amq.unplan(plan)
                raise
            self.ledger.give_id(published.message.id, uid)
            opened.plans.append((name, plan, len(body)))

        self._call(publish)
        opened.uids.add(uid)

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
            seqs = [entry.seq for p in opened.tx.publishes for entry in p.born]
            for name, d in opened.acked:
                self.amq[name].backing.forget([d.tag])
            for (name, plan, size), seq in zip(opened.plans, seqs, strict=True):
                self.amq[name].planned(plan, seq, size, lsn, mode)

        self.pending = [item for item in self.pending if item not in opened.acked]
        try:
            self._call(commit, may_die=places, tx_mode=mode)
        except FAILURES:
            if opened.tx.is_open:
                self.tx_open = opened  # nothing has happened
            raise

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

    def close(self) -> None:
        """An orderly stop; what is open is rolled back."""
        self.abort()
        super().close()
