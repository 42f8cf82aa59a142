"""AMQQueue: the queue that people see: a BackingQueue with a name, options, and what they ask for.

RabbitMQ has a process of that name around its backing queue, and what it adds is added here, in its
order: a publish is refused, or enters and pushes others out (arrivals.py); expired heads go before
anything is delivered; what is rejected, expired, pushed out or tried too often goes to the queue
for dead letters (dead_letter.py); what is to wait waits in a wheel of parts (delays.py). The
embedded library calls it under its lock, the broker from its loop. Readers that must see the same
messages again after any crash lease them (leasing.py).

Moves, never copies: a retry with a delay, becoming due and dead-lettering are one record each, so a
message is in exactly one of queue, delay part and dead-letter queue whatever crashes. What a move
brought is delivered once its record is settled (`held`).

**Attempts.** A delivery's `attempts` are those before it: requeues in place (REQUEUE records) and
what the header carries from before a delay. After `max_attempts` deliveries a message that comes
back is dead-lettered, or dropped when there is no dead-letter queue. What comes back without having
been tried (`release`) counts nothing. A process that dies with a message in its hands has not said
that it failed, so that delivery counts nothing; but what may have been delivered before a crash is
from then on counted as it is delivered, so a message that kills its process each time goes, after
`max_attempts` more deliveries, to the dead-letter queue and not round for ever.

**Slices.** No call handles more than 256 expired, overdue or overlong messages: `fetch` then gives
None and `has_more_expired` is True, `tick` returns True. Call again.

**Modes.** What nobody waits for (acks, rejects, requeues, drops) is logged in the mode given, `os`
by default, and never forces a sync. What moves into a queue by itself is logged in the queue's own
mode, because its delivery waits for that.

Not here: threads and waiting, consumers and prefetch, transactions (their owner uses `plan`, and
`backing` for acks), paging (`backing`; `tick` resumes it), storing the options (their owner).
"""

from collections.abc import Callable
from typing import Final, TypeVar

from penstock.errors import DiskFullError, QueueLeasedError, SettledError
from penstock.message import Message
from penstock.queues.arrivals import Arrivals, Plan
from penstock.queues.back_off import retry_delay_ms
from penstock.queues.backing_queue import Delivery
from penstock.queues.expiry import sooner
from penstock.queues.headers import DELIVERY_LIMIT, EXPIRED, REJECTED
from penstock.queues.leasing import LeaseInfo, LeaseSlice, Leasing
from penstock.storage.durability import DISK, OS
from penstock.storage.lease_engine import Taken

AGE_CHECK_MS: Final = 1000  # between two looks at the age of the oldest message

A = TypeVar("A")


class AMQQueue(Arrivals):
    """One queue; how it is made, and how messages get in: see Arrivals.

    `has_more_expired`: the last `fetch` stopped at its slice, and the head is an expired one.
    """

    has_more_expired: bool = False
    _looked_at_age_ms: int = 0
    _leasing: Leasing | None = None

    # ---- delivery ------------------------------------------------------------------------------

    def fetch(self, *, ack_required: bool = True, in_pieces: bool = False) -> Delivery | None:
        """The next message, which is pending until it is settled, or gone at once (without
        `ack_required`). None: there is none, it is held (`held` says for what), or more than a
        slice had expired before it (`has_more_expired`: call again). in_pieces: a large body is
        left in the store; see BackingQueue.fetch."""
        if self._may_expire:
            self.has_more_expired = self.expire()
            if self.has_more_expired:
                return None
        while True:
            delivery = self.backing.fetch(ack_required=ack_required, in_pieces=in_pieces)
            if delivery is None:
                return None
            if delivery.message.header:
                delivery = self._with_attempts(delivery)
            if not ack_required or not self._is_dead(delivery):
                return delivery

    def _is_dead(self, delivery: Delivery) -> bool:
        """Whether a message is dead-lettered instead of delivered: its last deliveries all ended
        with the process, or it was tried more often than is allowed by now; or it had expired
        behind a head that turned out to be damaged."""
        expiry_ms = delivery.message.expiry_ms
        if expiry_ms and expiry_ms <= self._clock.wall_ms():
            self._bury(delivery, EXPIRED, delivery.attempts, self._mode)
            return True
        most = self.options.max_attempts
        if delivery.attempts and most is not None and delivery.attempts >= most:
            self._bury(delivery, DELIVERY_LIMIT, delivery.attempts, self._mode)
            return True
        return False

    def held(self) -> tuple[int, int] | None:
        """(lsn, mode) that the head waits for: `engine.wait` for it and fetch again. None if it may
        be delivered, or there is none."""
        return self.backing.held()

    def peek(self) -> Delivery | None:
        """The message that would be next, with its body; nothing changes but that a slice of
        expired ones goes. None if none is ready."""
        if self._may_expire and self.expire():
            return None
        found = self.backing.browse(None, 1)
        return self._with_attempts(found[0]) if found else None

    def browse(self, after: int | None, n: int) -> list[Delivery]:
        """The next n ready messages behind the tag `after`; see BackingQueue.browse."""
        return [self._with_attempts(found) for found in self.backing.browse(after, n)]

    def fold(self, fun: Callable[[Delivery, bool, A], tuple[bool, A]], acc: A) -> A:
        """Fold over all messages, ready and pending, in order; see BackingQueue.fold."""

        def shown(delivery: Delivery, is_pending: bool, acc: A) -> tuple[bool, A]:
            return fun(self._with_attempts(delivery), is_pending, acc)

        return self.backing.fold(shown, acc)

    # ---- settling ------------------------------------------------------------------------------

    def ack(self, tags: list[int], mode: int = OS) -> int:
        """These are done with; how many of them were pending."""
        return len(self.backing.ack(tags, mode))

    def nack(
        self, tag: int, *, requeue: bool = True, delay_ms: int | None = None, mode: int = OS
    ) -> int:
        """A delivery failed. The message comes back after a delay: delay_ms, or as long as the
        options say for its attempts (0: at once, at its old place); after `max_attempts` it is
        dead-lettered, or dropped. requeue=False: as `reject`. Returns the LSN of the record (0:
        transient). SettledError: it is not pending."""
        delivery = self._pending(tag)
        if not requeue:
            return self._bury(delivery, REJECTED, delivery.attempts + 1, mode)
        attempts = delivery.attempts + 1
        most = self.options.max_attempts
        if most is not None and attempts >= most:
            return self._bury(delivery, DELIVERY_LIMIT, attempts, mode)
        if delay_ms is None:
            least_ms, most_ms = self.options.retry_delay_ms
            delay_ms = retry_delay_ms(attempts, least_ms, most_ms)
        if delay_ms > 0:
            try:
                return self._postpone(delivery, attempts, delay_ms, mode)
            except DiskFullError:  # no room for a new part: it must come back all the same
                pass
        self.backing.requeue([tag], mode, attempted=True)
        self._trim_if_set()
        return self._engine.last_lsn if delivery.message.persistent else 0

    def reject(self, tag: int, mode: int = OS) -> int:
        """The message is not wanted back: it is dead-lettered, or dropped. As nack."""
        return self.nack(tag, requeue=False, mode=mode)

    def requeue(self, tags: list[int], mode: int = OS) -> int:
        """Deliveries failed and come back at once, to their old places, whatever the options say of
        retries: AMQP's requeue. Each counts as an attempt, and after `max_attempts` it is buried.
        How many were pending."""
        n = 0
        most = self.options.max_attempts
        if most is not None:
            tags, over = self._split_over(tags, most)
            for delivery in over:
                self._bury(delivery, DELIVERY_LIMIT, delivery.attempts + 1, mode)
                n += 1
        n += len(self.backing.requeue(tags, mode, attempted=True))
        self._trim_if_set()
        return n

    def _split_over(self, tags: list[int], most: int) -> tuple[list[int], list[Delivery]]:
        """Those that may come back once more, and those that may not."""
        back: list[int] = []
        over: list[Delivery] = []
        for tag in tags:
            try:
                delivery = self._pending(tag)
            except SettledError:
                continue
            if delivery.attempts + 1 >= most:
                over.append(delivery)
            else:
                back.append(tag)
        return back, over

    def discard(self, tags: list[int], mode: int = OS) -> int:
        """None of these is wanted back: they are dead-lettered, or dropped. As `reject`, of many;
        those that are not pending are passed over. How many were pending."""
        n = 0
        if self.dead_letters.route is None:
            n = len(self.backing.ack(tags, mode))
            self.dead_letters.count(REJECTED, n)
            return n
        for tag in tags:
            try:
                self.reject(tag, mode)
            except SettledError:
                continue
            n += 1
        return n

    def release(self, tags: list[int], mode: int = OS) -> int:
        """Messages that were fetched and not tried come back, to their old places; no attempt is
        counted. How many of them were pending."""
        n = len(self.backing.requeue(tags, mode, attempted=False))
        self._trim_if_set()
        return n

    def attempts(self, tag: int) -> int:
        """How often a pending message was delivered before. SettledError: it is not pending."""
        return self._pending(tag).attempts

    def _postpone(self, delivery: Delivery, attempts: int, delay_ms: int, mode: int) -> int:
        now_ms = self._clock.wall_ms()
        message = delivery.message
        header = self.headers.with_(message.header, attempts=attempts)
        header = self._with_priority(header, self._priority(delivery))
        return self.delays.postpone(
            self.backing, delivery, header, mode, now_ms + delay_ms, now_ms, message.expiry_ms
        )

    # ---- for owners that publish themselves ----------------------------------------------------

    def planned_run(
        self, plan: Plan, first_seq: int, messages: list[Message], lsn: int = 0, mode: int = OS
    ) -> None:
        """As `planned`, of several messages that one plan is for: at first_seq and behind it."""
        self.planned(plan, first_seq, messages[0].size, lsn, mode)
        if plan.bucket is None and not self._is_plain:
            for message in messages[1:]:
                self.after_publish(message.size)

    # ---- leases --------------------------------------------------------------------------------

    def lease(self, reader: str, messages_max: int, bytes_max: int, mode: int = DISK) -> LeaseSlice:
        """The next messages are the reader's, in order of delivery, until it commits or releases
        them: a slice of at most so many messages and bytes of bodies (or one message), 1,024 and
        1 MiB at most. It may be told of them once `engine.last_lsn` is settled in this mode. They
        are neither expired, dropped nor purged meanwhile, and count in `depth`. An empty slice:
        nothing may be delivered now.

        NotLeasableError: the queue is not durable. UnknownLeaseError: what the reader had is being
        released. ValueError (its name, the numbers), DiskFullError: nothing happened."""
        leasing = self._leases()
        leasing.check()
        leasing.find(reader)
        if self._may_expire and self.expire():
            return leasing.lease(reader, [], mode)._replace(has_more=True)
        taken = leasing.take(messages_max, bytes_max, self._clock.wall_ms())
        if self.options.max_attempts is not None and self._is_cut_at_dead(taken):
            return leasing.lease(reader, taken, mode)._replace(has_more=True)
        return leasing.lease(reader, taken, mode)

    def _is_cut_at_dead(self, taken: list[Taken]) -> bool:
        """What was tried too often by now is buried, and what is behind it goes back: whether there
        was such a message."""
        most = self.options.max_attempts
        assert most is not None
        for i in range(len(taken)):
            one = taken[i]
            known = one.part.attempts
            for k in range(len(one.entries)):
                entry = one.entries[k]
                attempts = known.get(entry.seq, 0) if known else 0
                if entry.message.header:
                    attempts += self.headers.attempts(entry.message.header)
                if attempts < most:
                    continue
                back = [Taken(one.part, one.entries[k:], one.bodies[k:], 0), *taken[i + 1 :]]
                one.entries, one.bodies = one.entries[:k], one.bodies[:k]
                del taken[i + 1 if k else i :]
                self.backing.untake(back)
                head = self.backing.drop()
                if head is not None:
                    self._bury_head(head.tag, DELIVERY_LIMIT)
                return True
        return False

    def commit_lease(self, reader: str, ordinal: int, mode: int = DISK) -> bool:
        """A slice of the reader's messages below this ordinal is acknowledged; True: call again.
        What is committed already is nothing. UnknownLeaseError; ValueError: it has not leased so
        far."""
        return self._leases().commit(reader, ordinal, mode)

    def release_lease(self, reader: str, mode: int = DISK) -> bool:
        """A slice of what the reader has leased is ready again, the oldest first, each at its old
        place; True: call again (or leave it to `tick`). With the last the reader is forgotten.
        UnknownLeaseError."""
        leasing = self._leases()
        if not self._may_expire and leasing.has_expiring(reader):
            self._may_expire = True
        has_more = leasing.release(reader, mode)
        self._trim_if_set()
        self._ready()
        return has_more

    def materialise(self, reader: str) -> bool:
        """A slice of making the pages of what the reader has leased, if they are not all there;
        True: call again. Before anybody is told of pages. OSError, CorruptionError."""
        return self._leases().materialise(reader)

    def leases(self) -> list[LeaseInfo]:
        """What readers have leased, one each."""
        return self._leases().infos()

    def _leases(self) -> Leasing:
        leasing = self._leasing
        if leasing is None:
            leasing = Leasing(self._engine, self.name, self.backing, self._event)
            self._leasing = leasing
        return leasing

    def _has_leases(self) -> bool:
        """Of this queue; asked at each tick, also of ten thousand queues that have none."""
        table = self._engine.state.leases
        return bool(table.by_queue) and bool(table.of(self.backing.index(0).number))

    def _go_on_releasing(self) -> bool:
        """A slice of a release that was begun, also before a restart."""
        for lease in self._leases().infos():
            if lease.is_releasing:
                self.release_lease(lease.reader, OS)
                return True
        return False

    # ---- time ----------------------------------------------------------------------------------

    def next_event_ms(self) -> int:
        """When `tick` will have something to do: ms since 1970, in the past if at once; 0: never
        (paging apart). The expiry of the head, the next delayed message."""
        head = self.backing.head() if self._may_expire else None
        expiry_ms = 0 if head is None else head.expiry_ms
        return sooner(expiry_ms, self.delays.next_ms())

    def tick(self, now_ms: int) -> bool:
        """What is due at this time (ms since 1970): expired heads, delayed messages, limits that
        were lowered, paging, alerts; a slice of each. True if there is more to do at once."""
        has_more = False
        try:
            if self._may_expire:
                has_more = self.expire()
            if self._must_trim and self._trim():
                has_more = True
            if self.delays.step(now_ms):
                has_more = True
            if self.backing.resume():
                has_more = True
            else:
                self.backing.inhale(at_rest=True)
            if self.delays.resume():
                has_more = True
            if self._has_leases() and self._go_on_releasing():
                has_more = True
        except DiskFullError:  # of which the engine has told; the next tick tries again
            has_more = False
        if self._leasing is not None:
            self._leasing.rest()
        if self._alerts.is_set:
            self._check_alerts(now_ms)
        return has_more

    def _check_alerts(self, now_ms: int) -> None:
        backing = self.backing
        now_s = self._clock.monotonic()
        self._alerts.check(now_s, backing.len(), backing.body_bytes())
        if self.options.alert_age_up is None or now_ms - self._looked_at_age_ms < AGE_CHECK_MS:
            return
        self._looked_at_age_ms = now_ms
        oldest = self.peek() if backing.len() else None
        age_ms = 0 if oldest is None else max(now_ms - oldest.message.time * 1000, 0)
        self._alerts.check_age(now_s, age_ms)

    # ---- counts --------------------------------------------------------------------------------

    def len(self) -> int:
        """Ready messages; delayed ones are not."""
        return self.backing.len()

    def depth(self) -> int:
        """Ready, pending and leased messages."""
        return self.backing.depth()

    def delayed(self) -> int:
        """Messages that wait for a delay."""
        return self.delays.count()

    def body_bytes(self) -> int:
        """Bytes of the bodies of all ready messages."""
        return self.backing.body_bytes()

    def ram_bytes(self) -> int:
        """Bytes counted in RAM, parts for delayed messages included."""
        return self.backing.ram_bytes() + sum(part.ram_bytes() for part in self.delays.parts())

    def info(self) -> dict[str, int | float | str]:
        """The backing queue's counters (BackingQueue.info), and name, delayed, takers, how many
        died as rejected, expired, maxlen and delivery_limit, dead_letters_dropped, and
        alerts_raised (their kinds)."""
        found = self.backing.info()
        found["name"] = self.text_name
        found["ram_bytes"] = self.ram_bytes()
        found["delayed"] = self.delays.count()
        found["takers"] = self.takers
        for reason, n in self.dead_letters.counts.items():
            found[reason] = n
        found["dead_letters_dropped"] = self.dead_letters.dropped
        found["alerts_raised"] = ",".join(self._alerts.raised())
        return found

    # ---- life ----------------------------------------------------------------------------------

    def purge(self, mode: int = OS) -> int:
        """All ready messages die, without dead-lettering; how many. Delayed ones are not ready."""
        return self.backing.purge(mode)

    def purge_delayed(self, mode: int = OS) -> int:
        """All delayed messages die; how many."""
        return self.delays.purge(mode)

    def delete(self, mode: int = DISK, *, force: bool = False) -> int:
        """Delete the queue with all that it holds, delayed or not, in one record. The LSN to wait
        for; 0: it is not durable. QueueLeasedError, unless by force: readers have leased messages
        that they have not committed."""
        if not force and self._has_leases():
            messages, readers = self._leases().open_leases()
            if messages:
                raise QueueLeasedError(self.text_name, messages, readers)
        with self._engine.one_record(mode) as one:
            self.delays.delete(mode)
            self.backing.delete_and_terminate(mode)
        if self._leasing is not None:
            self._leasing.delete()
        return one.lsn

    def terminate(self) -> None:
        """Orderly stop, right before the engine's `close`."""
        if self._leasing is not None:
            self._leasing.close()
        self.delays.terminate()
        self.backing.terminate()
