"""Arrivals: the half of an AMQQueue that leads into it, and out again for want of room or time.

A publish is refused, or enters and pushes others out: in RabbitMQ's order, which is overflow first,
then the message, then drop-head. Others publish for several queues at once, or in a transaction:
they `plan`, publish themselves, and say what came of it. Messages also arrive by themselves: dead
letters of other queues, and delayed messages that are due. Those are never refused: what does not
fit pushes out the head. And nothing that comes back is refused: a requeue may exceed a limit.

What leaves without being delivered is buried: dead-lettered if the options name a target, else
dropped. Burying a head that cannot be read leaves it pending, an event, and out of the way.

How a publish costs nothing it does not ask for: `_is_plain` says that the queue has no limit, no
ttl, no delay and no alert; then a publish is one call of the backing queue.

Not here: delivery, settling, and when something is due (amq_queue.py).
"""

from collections.abc import Callable
from typing import Final

from penstock.errors import (
    CorruptionError,
    DiskFullError,
    OptionError,
    QueueFullError,
    SettledError,
)
from penstock.queues.alerts import Alert, Alerts, thresholds_of
from penstock.queues.backing_queue import PART_SHIFT, UNLIMITED, BackingQueue, Delivery, NewMessage
from penstock.queues.dead_letter import (
    NESTED_HOPS_MAX,
    DeadLetterRoute,
    DeadLetters,
    Landing,
    QueueRoute,
    Taker,
    move_to,
)
from penstock.queues.delays import Bucket, Delays, find_parts
from penstock.queues.expiry import SLICE, expire, expiry_at, sooner
from penstock.queues.headers import EXPIRED, MAXLEN, HeaderCodec
from penstock.queues.max_length import MaxLength
from penstock.queues.queue_options import QueueOptions
from penstock.storage.durability import DISK, NONE, OS
from penstock.storage.engine import StorageEngine
from penstock.storage.queue_index import QueueIndex

GRACE_MS: Final = 1000  # for a message of ttl 0 that somebody is waiting for


class Plan:
    """Where a message goes that its owner publishes itself, and as what. See `Arrivals.plan`."""

    __slots__ = ("bucket", "expiry_ms", "header", "index", "part")

    def __init__(
        self, index: QueueIndex, header: bytes, expiry_ms: int, part: int, bucket: Bucket | None
    ) -> None:
        self.index: QueueIndex = index
        self.header: bytes = header
        self.expiry_ms: int = expiry_ms
        self.part: int = part
        self.bucket: Bucket | None = bucket


class Arrivals(Taker):
    """The queue `name`, of which AMQQueue is the whole.

    backing: holds its messages (factory.open_backing); options.priorities is its highest part.
    open_part(name, is_durable): a BackingQueue for a part of delayed messages, declared or
    recovered; close_part(part): it is about to be deleted or terminated.
    find(name): the queue of that name, for dead letters, or None. route_of(options): where dead
    letters go instead, for owners with more than queues; None: nowhere.
    mode: of what moves by itself; is_durable: False for a queue that is gone after a restart.
    on_event(kind, text): dead_letter_missing, dead_letter_cycle, dead_letter_hops, corruption,
    warning.
    on_alert, on_alert_over: an alert fired, is over. on_ready(name): messages became ready by
    something else than the caller's own publish or requeue on this queue: wake whoever waits.
    delay_parts: names of its parts found at the start (delays.find_parts); None: looked for here.

    `takers`: how many wait for a message right now; kept by the owner, for messages of ttl 0.
    An owner with consumers says so (`has_consumers`): then `serve(most)` is called before a limit
    or a ttl of 0 acts. It delivers what they have room for, and returns how many messages more they
    would take, as far as `most`: what is left in spite of that is held, and will be theirs.
    """

    def __init__(
        self,
        engine: StorageEngine,
        name: bytes,
        options: QueueOptions,
        backing: BackingQueue,
        *,
        headers: HeaderCodec,
        open_part: Callable[[bytes, bool], BackingQueue],
        find: Callable[[bytes], Taker | None] | None = None,
        route_of: Callable[[QueueOptions], DeadLetterRoute | None] | None = None,
        mode: int = DISK,
        is_durable: bool = True,
        close_part: Callable[[BackingQueue], None] | None = None,
        on_event: Callable[[str, str], None] | None = None,
        on_alert: Callable[[Alert], None] | None = None,
        on_alert_over: Callable[[Alert], None] | None = None,
        on_ready: Callable[[bytes], None] | None = None,
        delay_parts: list[bytes] | None = None,
    ) -> None:
        self.name: bytes = name
        self.text_name: str = name.decode("utf-8", "surrogateescape")
        self.backing: BackingQueue = backing
        self.headers: HeaderCodec = headers
        self.is_durable: bool = is_durable
        self.takers: int = 0
        self.has_consumers: bool = False
        self.serve: Callable[[int], int] = _serve_nobody
        self._engine = engine
        self._clock = engine.clock
        self._mode: int = max(mode, OS)
        self._on_event = on_event
        self._on_alert = on_alert
        self._on_alert_over = on_alert_over
        self._on_ready = on_ready
        self._priorities: int = options.priorities
        self._may_expire: bool = self._holds_expiries()
        self._must_trim: bool = False
        self._is_trimming: bool = False
        self._known_thresholds: tuple[list[int], list[int], float] | None = None
        self._find: Callable[[bytes], Taker | None] = find or _find_none
        self._route_of: Callable[[QueueOptions], DeadLetterRoute | None] = route_of or self._route
        self.dead_letters: DeadLetters = DeadLetters(self.text_name, headers, engine, self._event)
        self.delays: Delays = Delays(
            name, headers, is_durable=is_durable, open_part=open_part, close_part=close_part,
            arrive=self._arrive, on_event=self._event,
        )  # fmt: skip
        self._apply_options(options, has_memory=options.memory_bytes is not None)
        if delay_parts is None and is_durable:
            delay_parts = find_parts(engine.state.routing.queues).get(name)
        if delay_parts:
            self.delays.recover(delay_parts)

    def _holds_expiries(self) -> bool:
        """Whether anything recovered may expire, or did: then each fetch looks at the head."""
        for index in self.backing.indexes():
            if any(s.expiry_ms for s in index.segments.values()):
                return True
        return False

    # ---- options -------------------------------------------------------------------------------

    def set_options(self, options: QueueOptions) -> None:
        """New options from here on; messages that are here keep the expiry that they have. Too
        long a queue is shortened in the slices of `tick`. OptionError: priorities never change."""
        if options.priorities != self._priorities:
            expected = f"{self._priorities}, which is fixed for the life of queue {self.text_name}"
            raise OptionError("priorities", options.priorities, expected)
        self._apply_options(options, has_memory=self.options.memory_bytes != options.memory_bytes)

    def _apply_options(self, options: QueueOptions, *, has_memory: bool) -> None:
        self.options: QueueOptions = options
        self._max_length: MaxLength = MaxLength(self.text_name, options)
        self._must_trim = self._max_length.is_set and self._max_length.drops_head
        self.dead_letters.route = self._route_of(options)
        thresholds = thresholds_of(options)
        known = (thresholds.ups, thresholds.downs, thresholds.repeat_gap_s)
        if known != self._known_thresholds:  # else those that have fired stay so
            self._known_thresholds = known
            self._alerts: Alerts = Alerts(
                self.text_name, thresholds, self._alert, self._on_alert_over
            )
        # Whether a publish has nothing to look at but the message itself.
        self._is_plain: bool = not (
            self._max_length.is_set or options.ttl_ms is not None or options.delay_ms
            or self._alerts.is_set
        )  # fmt: skip
        memory = options.memory_bytes
        if has_memory:
            most, least = (UNLIMITED, UNLIMITED) if memory is None else memory
            self.backing.set_limits(most, least)
            self.delays.set_memory(None if memory is None else most)
        if memory is not None and (warning := thresholds.warning(memory[0])) is not None:
            self._event("warning", f"queue {self.text_name!r}: {warning}")
        self.backing.set_queue_mode("lazy" if options.lazy else "default")
        if options.max_attempts is not None:
            self.backing.count_crashes()

    def _route(self, options: QueueOptions) -> DeadLetterRoute | None:
        target = options.dead_letter_to
        return None if target is None else QueueRoute(target, self.headers, self._find)

    # ---- publish -------------------------------------------------------------------------------

    def publish(
        self, header: bytes, body: bytes, mode: int, *, priority: int = 0,
        ttl_ms: int | None = None, delay_ms: int | None = None,
    ) -> int:  # fmt: skip
        """Publish to this queue alone. Returns the LSN to wait for in this mode, 0 for a transient
        message. priority: one above the highest counts as the highest.

        ttl_ms: it expires after that, or the queue's own ttl if that is sooner; counted from when
        it is due. 0: it is for whoever is waiting now (`takers`), else it is dead at once.
        delay_ms: it is due after that; None: the queue's own delay.

        QueueFullError (the queue rejects what does not fit), and the engine's (DiskFullError ...):
        the message is not in the queue."""
        if priority > self._priorities:
            header = self._with_priority(header, priority)
        if self._is_plain and ttl_ms is None and not delay_ms:
            self.backing.publish(header, body, mode, priority=priority)
        else:
            size = len(body)
            if self._max_length.may_refuse:
                self._check_room(header, body, mode, priority)
            now_ms = self._clock.wall_ms()
            delay = self.options.delay_ms if delay_ms is None else delay_ms
            if delay > 0:
                self._publish_later(header, body, mode, priority, ttl_ms, now_ms, delay)
                return self._lsn(mode)
            expiry_ms = expiry_at(now_ms, ttl_ms, self.options.ttl_ms)
            if expiry_ms:
                if expiry_ms == now_ms:
                    if self._wanted() <= self.backing.len():
                        return self._publish_dead(header, body, mode, priority)
                    expiry_ms += GRACE_MS
                self._may_expire = True
            self.backing.publish(header, body, mode, expiry_ms=expiry_ms, priority=priority)
            self.after_publish(size)
        return self._lsn(mode)

    def publish_many(
        self, messages: list[NewMessage], mode: int, *, delay_ms: int | None = None
    ) -> int:
        """Publish all of them to this queue; their expiry_ms are dates, to which the queue's own
        ttl is added. Returns the LSN to wait for, 0 if they are transient. QueueFullError: not all
        of them fit, and none of them is in the queue (nor dead-lettered)."""
        if not messages:
            return 0
        if not self._is_plain:
            self.before_publish(sum(len(m.body) for m in messages), len(messages))
        now_ms = self._clock.wall_ms()
        delay = self.options.delay_ms if delay_ms is None else delay_ms
        ttl_ms = self.options.ttl_ms
        if ttl_ms == 0:  # each is for somebody who is waiting, or dead
            return max([
                self.publish(m.header, m.body, mode, priority=m.priority, delay_ms=delay)
                for m in messages
            ])  # fmt: skip
        for m in messages:
            if m.priority > self._priorities:
                m.header = self._with_priority(m.header, m.priority)
            if ttl_ms is not None:
                m.expiry_ms = sooner(m.expiry_ms, now_ms + max(delay, 0) + ttl_ms)
            if m.expiry_ms:
                self._may_expire = True
        if delay > 0:
            for m in messages:
                header = self._with_priority(m.header, m.priority)
                self.delays.publish(header, m.body, mode, now_ms + delay, now_ms, m.expiry_ms)
        else:
            self.backing.batch_publish(messages, mode)
            if not self._is_plain:
                for m in messages if self._alerts.is_set else messages[:1]:
                    self.after_publish(len(m.body))
        return self._lsn(mode)

    def _publish_later(
        self, header: bytes, body: bytes, mode: int, priority: int, ttl_ms: int | None,
        now_ms: int, delay_ms: int,
    ) -> None:  # fmt: skip
        due_ms = now_ms + delay_ms
        expiry_ms = expiry_at(due_ms, ttl_ms, self.options.ttl_ms)
        if expiry_ms == due_ms:
            expiry_ms += GRACE_MS
        header = self._with_priority(header, priority)
        self.delays.publish(header, body, mode, due_ms, now_ms, expiry_ms)

    def _publish_dead(self, header: bytes, body: bytes, mode: int, priority: int) -> int:
        """A message of ttl 0 for which nobody is waiting never touches the queue."""
        if self.dead_letters.route is None:
            self.dead_letters.count(EXPIRED, 1)
            return 0
        return self.dead_letters.bury_new(header, body, priority, EXPIRED, mode)

    def _check_room(self, header: bytes, body: bytes, mode: int, priority: int) -> None:
        """QueueFullError, after dead-lettering what is refused if the queue does that."""
        try:
            self._check_limits(1, len(body))
        except QueueFullError:
            if self._max_length.buries_refused:
                self.dead_letters.bury_new(header, body, priority, MAXLEN, mode)
            raise

    def _with_priority(self, header: bytes, priority: int) -> bytes:
        """The header says the priority, because where the message goes its part does not."""
        if not priority or self.headers.priority(header) == priority:
            return header
        return self.headers.with_(header, priority=min(priority, 255))

    def _lsn(self, mode: int) -> int:
        return self._engine.last_lsn if mode != NONE and self.is_durable else 0

    # ---- for owners that publish themselves: to several queues, or in a transaction ------------

    def before_publish(self, body_bytes: int, n: int = 1) -> None:
        """QueueFullError if n messages of `body_bytes` together are refused."""
        self._check_limits(n, body_bytes)

    def _check_limits(self, n: int, body_bytes: int) -> None:
        """The same."""
        try:
            self._max_length.check(self.backing, n, body_bytes)
        except QueueFullError:
            if not self.has_consumers:
                raise
            room = self.serve(self.backing.len() + n)
            self._max_length.check(self.backing, n, body_bytes, room)

    def _wanted(self) -> int:
        """How many of the messages that are ready somebody waits for; consumers are served first,
        so what they have got is not ready any more."""
        if self.has_consumers:
            self.takers = self.serve(self.backing.len() + 1)
        return self.takers

    def plan(
        self, header: bytes, *, priority: int = 0, ttl_ms: int | None = None,
        delay_ms: int | None = None,
    ) -> Plan:  # fmt: skip
        """Where a message is to be published (Plan.index), with which header and expiry. Each plan
        is ended by `planned` or `unplan`: until then its delay part stays. With a ttl of 0 it is
        for whoever is waiting now, as in `publish`; else it is the first to expire."""
        due_ms = self._clock.wall_ms()
        delay = self.options.delay_ms if delay_ms is None else delay_ms
        if delay > 0:
            due_ms += delay
        expiry_ms = expiry_at(due_ms, ttl_ms, self.options.ttl_ms)
        if expiry_ms == due_ms and (delay > 0 or self._wanted() > self.backing.len()):
            expiry_ms += GRACE_MS
        if expiry_ms:
            self._may_expire = True
        if delay > 0:
            bucket = self.delays.bucket(due_ms, due_ms - delay)
            bucket.pins += 1
            header = self.delays.header(self._with_priority(header, priority), expiry_ms)
            return Plan(bucket.part.index(), header, due_ms, 0, bucket)
        if priority > self._priorities:
            header = self._with_priority(header, priority)
        part = min(priority, self._priorities)
        return Plan(self.backing.index(part), header, expiry_ms, part, None)

    def planned(self, plan: Plan, seq: int, body_bytes: int, lsn: int = 0, mode: int = OS) -> None:
        """The message of the plan has been published at `seq` of its index. lsn: it is delivered
        once that is settled in this mode; 0: at once (a plain publish)."""
        bucket = plan.bucket
        if bucket is not None:
            bucket.pins -= 1
            self.delays.touched(bucket, self._clock.wall_ms())
            return
        if lsn:
            self.backing.hold(plan.part << PART_SHIFT | seq, lsn, mode)
        self.after_publish(body_bytes)

    def unplan(self, plan: Plan) -> None:
        """The message of the plan is not published after all."""
        if plan.bucket is not None:
            plan.bucket.pins -= 1
            self.delays.touched(plan.bucket, self._clock.wall_ms())

    def after_publish(self, body_bytes: int) -> None:
        """A message of so many bytes has come into the queue: keep the limits, look at alerts."""
        if self._max_length.is_set and self._max_length.drops_head:
            self._trim()
        if self._alerts.is_set:
            now_s = self._clock.monotonic()
            backing = self.backing
            self._alerts.check(now_s, backing.len(), backing.body_bytes(), body_bytes)

    # ---- arriving by itself ----------------------------------------------------------------------

    def landing(self, header: bytes, priority: int) -> Landing:
        if priority > self._priorities:
            header = self._with_priority(header, priority)
        expiry_ms = self._own_expiry()
        if expiry_ms:
            self._may_expire = True
        return Landing(self.backing, min(priority, self._priorities), header, expiry_ms)

    def accept(self, header: bytes, body: bytes, priority: int, mode: int) -> int:
        if priority > self._priorities:
            header = self._with_priority(header, priority)
        expiry_ms = self._own_expiry()
        if expiry_ms:
            self._may_expire = True
        self.backing.publish(header, body, mode, expiry_ms=expiry_ms, priority=priority)
        return self._lsn(mode)

    def _own_expiry(self) -> int:
        """The expiry of a dead letter that comes now, by this queue's ttl; 0 for never."""
        ttl_ms = self.options.ttl_ms
        if ttl_ms is None:
            return 0
        if not ttl_ms and self._wanted() > self.backing.len():
            ttl_ms = GRACE_MS
        return self._clock.wall_ms() + ttl_ms

    def after_dead_letters(self, hops: int = 0) -> None:
        """Dead letters are never refused: what does not fit pushes out the head, whatever the
        options say of publishes."""
        if self._max_length.is_set:
            if hops < NESTED_HOPS_MAX:
                self._trim(hops)
            elif not self._is_trimming:
                self._must_trim = True
        self._ready()

    def _arrive(
        self, source: BackingQueue, delivery: Delivery, header: bytes, expiry_ms: int
    ) -> None:
        """A delayed message is due. Its time to live was counted when it was delayed."""
        priority = self.headers.priority(header)
        part = min(priority, self._priorities)
        if expiry_ms:
            self._may_expire = True
        landing = Landing(self.backing, part, header, expiry_ms)
        move_to([landing], source, delivery, self._mode, self._engine)
        self.after_publish(delivery.message.size)
        self._ready()

    # ---- leaving undelivered ---------------------------------------------------------------------

    def _trim_if_set(self) -> None:
        if self._max_length.is_set and self._max_length.drops_head:
            self._trim()

    def _trim(self, hops: int = 0) -> bool:
        """A slice of what is too much leaves at the head; True if there is more to do at once. A
        queue that is at it already goes on by itself when something comes back to it. On a full
        disk, of which the engine has told, it is tried again at the next tick: what was published
        is published."""
        if self._is_trimming:
            return False
        bury = None if self.dead_letters.route is None else self._bury_overlong
        self._is_trimming = True
        self._must_trim = True
        room = 0
        try:
            if self.has_consumers and self._max_length.is_over(self.backing):
                room = self.serve(self.backing.len())
            self.dead_letters.hops = hops
            n = self._max_length.trim(self.backing, SLICE, bury, room)
        except DiskFullError:
            return False
        finally:
            self._is_trimming = False
            self.dead_letters.hops = 0
        if n and bury is None:
            self.dead_letters.count(MAXLEN, n)
        self._must_trim = self._max_length.is_over(self.backing)
        return self._must_trim and self._max_length.is_over(self.backing, room)

    def expire(self) -> bool:
        """A slice of the expired heads dies; True if the head is still an expired one."""
        bury = None if self.dead_letters.route is None else self._bury_expired
        n, has_more = expire(self.backing, self._clock.wall_ms(), SLICE, bury, self._mode)
        if n and bury is None:
            self.dead_letters.count(EXPIRED, n)
        return has_more

    def _bury(self, delivery: Delivery, reason: str, attempts: int, mode: int) -> int:
        """A pending message dies: it moves to the dead-letter queue, or is dropped. The LSN."""
        if self.dead_letters.route is None:
            self.backing.ack([delivery.tag], mode)
            self.dead_letters.count(reason, 1)
            return self._engine.last_lsn if delivery.message.persistent else 0
        priority = self._priority(delivery)
        return self.dead_letters.bury(self.backing, delivery, priority, reason, attempts, mode)

    def _bury_head(self, tag: int, reason: str) -> None:
        """A head was dropped, and is pending, because it expired or did not fit."""
        is_done = False
        try:
            delivery = self._pending(tag)
            self._bury(delivery, reason, delivery.attempts, self._mode)
            is_done = True
        except CorruptionError as error:
            is_done = True  # it stays pending, out of the way; a salvage may still find it
            self._event("corruption", f"queue {self.text_name!r}: {error}")
        finally:
            if not is_done:
                self.backing.requeue([tag], OS, attempted=False)

    def _bury_expired(self, tag: int) -> None:
        self._bury_head(tag, EXPIRED)

    def _bury_overlong(self, tag: int) -> None:
        self._bury_head(tag, MAXLEN)

    # ---- of one message ------------------------------------------------------------------------

    def _with_attempts(self, delivery: Delivery) -> Delivery:
        """As people see it: with the attempts that its header knows of."""
        attempts = self.headers.attempts(delivery.message.header)
        if not attempts:
            return delivery
        return Delivery(delivery.tag, delivery.message, True, delivery.attempts + attempts)

    def _pending(self, tag: int) -> Delivery:
        """A pending message with its header, which may have left RAM with the body, and all its
        attempts."""
        found = self.backing.pending(tag)
        if found is not None and found.message.body is None:
            found = self.backing.pending(tag, with_header=True)
        if found is None:
            raise SettledError(self.text_name, tag)
        return self._with_attempts(found) if found.message.header else found

    def _priority(self, delivery: Delivery) -> int:
        return self.headers.priority(delivery.message.header) or delivery.tag >> PART_SHIFT

    # ---- telling -------------------------------------------------------------------------------

    def _event(self, kind: str, text: str) -> None:
        if self._on_event is not None:
            self._on_event(kind, text)

    def _alert(self, alert: Alert) -> None:
        if self._on_alert is not None:
            self._on_alert(alert)

    def _ready(self) -> None:
        if self._on_ready is not None:
            self._on_ready(self.name)


def _serve_nobody(_most: int) -> int:
    """For owners without consumers."""
    return 0


def _find_none(name: bytes) -> Taker | None:
    """For owners that know no other queues."""
    return None
