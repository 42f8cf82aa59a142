"""PriorityQueue: a BackingQueue made of one VariableQueue for each priority.

As in RabbitMQ's rabbit_priority_queue, a fetch returns the first message of the highest priority
that has any. Nothing is ever sorted: a part is an ordinary queue with an index of its own, and is
paged, recovered and checked like any other. To users it is one queue: what is done to it as a whole
(declare, purge, delete) is one record of the log, so no crash leaves half of it.

**Parts.** A tag is the part's number << 56 | seq; the VariableQueue of a part uses plain seqs, and
`Part` translates. A bitmap, an int of up to 256 bits, says which parts have anything ready: its
highest bit is the part to deliver from, so 256 parts cost a delivery no more than two. Messages
also arrive without a publish here (a transaction, a dead letter, a publish to several queues): the
engine gives them to the Holder of the part's index, a `PartHolder`, which makes room in the common
budget and updates the counts of the whole. A part has no queue before its first message: its index
is declared with the others, and the queue over it, some 9 KiB, is made when somebody first
publishes to it or asks for it. (256 queues made 1.9 MiB for a declare.) A part keeps the limits
that it was given and its last known counts, so the counts of the whole change by differences.

`held`: the head is that of the highest part that has any. While it is held nothing is delivered,
not from a lower part either: a priority is not overtaken because its record is being written. A
lease takes messages in the same order and stops at the same heads.

**Budget** (`PriorityBudget`). The limits and the share of the whole are one budget, given out from
the highest priority down, so that the lowest is paged out first (Qpid's AMQPriorityQueueTest asks
for that). Each part gets a limit of its own. The whole stays below its limit as long as each part
is below its own:

    [PB] what all parts are charged for, and the pool, add up to the limit of the whole; a part is
         charged for its limit, or for what it had in RAM when that was lowered if that is more

The *pool* is what nobody is charged for; it is below zero while more is in RAM than may be. An
arrival that its part has no room for takes what it needs from the pool, with an eighth of the
part's limit to spare, so most arrivals ask for nothing. A part with nothing lower in RAM leaves a
sixteenth of the budget in the pool, for more urgent messages than there are now. When the pool is
down to that, an arrival that has not paged out anything of its own part makes the lowest part page
out instead, as many messages as a publish may, so the next ones find room. Only what is too large
for the pool is paged out by its own part.

A *deal* computes how much each part could use: all that it holds, wherever that is now, because it
will be read before anything of a lower part. Limits that are too high are lowered at once, but
nobody gets that room before the part has paged out; until then it is charged for it. An eighth of
the budget always goes to the pool, so paging is mostly done when there is time (`resume`), not by
publishes. A deal costs something for each part. PriorityQueue makes one when its owner has time and
anything has happened since the last; an arrival makes one only if there is no room and an eighth of
the budget was asked for in vain. Lowering a limit pages nothing out by itself.

*Reading back* is decided for the whole, as in a queue without priorities. If all of it would fit
in the budget but the reserve, or from the time when less than the minimum is in RAM until the low
mark is reached, each part reads up to its own limit, the highest first. The minimum for each part
alone would be used up by the parts with messages in RAM, and those below would read nothing. A part
with messages on disk gets an eighth more than it needs, because a queue reads all of itself back
only with room to spare.

**Names.** A queue without priorities is one VariableQueue over one QueueIndex of the queue's own
name. One with priorities 0 to n has n + 1 parts, each with an index named as RabbitMQ names them:

    jobs NUL 0 | jobs NUL 1 | ... | jobs NUL n        n in decimal, without leading zeros

So no queue name may contain NUL; names with NUL and another suffix are parts, too (delays.py).
`base_names` returns the names of whole queues. Arguments and flags are stored with the first part.
The number of priorities follows from the parts and cannot be changed: messages would have to be
sorted again. `open_backing` declares or opens the VariableQueue or PriorityQueue of a name.
"""

from bisect import insort
from collections.abc import Callable, Iterable
from typing import Final, Generic, TypeVar

from penstock.errors import OptionError, UnknownQueueError
from penstock.message import Entry
from penstock.queues.backing_queue import (
    PART_SHIFT,
    UNLIMITED,
    BackingQueue,
    Delivery,
    NewMessage,
    QueueStates,
    ReadyHead,
)
from penstock.queues.paging import PUBLISH_BYTES, PUBLISH_MESSAGES
from penstock.queues.queue_ram import ALPHA_BYTES, alpha_bytes, low_mark
from penstock.queues.rows import Row
from penstock.queues.variable_queue import VariableQueue
from penstock.storage.engine import StorageEngine
from penstock.storage.files.durability import DISK
from penstock.storage.index.queue_index import Holder, QueueIndex
from penstock.storage.index.routing_table import DurableQueue
from penstock.storage.parts.lease_engine import Taken

SEQ_MASK: Final = (1 << PART_SHIFT) - 1

A = TypeVar("A")


def _open_nothing(part: "Part") -> VariableQueue:
    raise AssertionError(f"part {part.number} of a queue that was deleted is not opened")


class Part:
    """One priority: its queue, and its counts as last seen. opened: its queue, None before the
    first message. open_queue(part): makes it."""

    def __init__(
        self, number: int, index: QueueIndex, open_queue: Callable[["Part"], VariableQueue]
    ) -> None:
        self.number: int = number
        self.index: QueueIndex = index
        self.opened: VariableQueue | None = None
        self._open_queue: Callable[[Part], VariableQueue] = open_queue
        self.base: int = number << PART_SHIFT  # of its tags
        self.bit: int = 1 << number
        # As of PriorityQueue's last `count`.
        self.len: int = 0
        self.in_hand: int = 0
        self.body_bytes: int = 0
        # The limits it was given, and the one that it should have, by the last deal.
        self.max_bytes: int = UNLIMITED
        self.min_bytes: int = UNLIMITED
        self.due_bytes: int = 0
        # Its part of the budget: the limit, or what was in RAM when that was lowered.
        self.charged_bytes: int = 0

    @property
    def queue(self) -> VariableQueue:
        """Return its queue, which is opened if necessary."""
        opened = self.opened
        return opened if opened is not None else self._open_queue(self)

    def unlink(self) -> None:
        """Drop what refers back to the whole, which was deleted."""
        self._open_queue = _open_nothing
        if self.opened is not None:
            self.opened.unlink()

    def ram_bytes(self) -> int:
        """Return the bytes counted in RAM."""
        return 0 if self.opened is None else self.opened.ram_bytes()

    def whole_bytes(self) -> int:
        """Return the bytes counted if all of it were in RAM."""
        if self.opened is None:
            return 0
        state = self.opened.state
        return max(state.ram_bytes(), state.whole_bytes())

    def useful_bytes(self) -> int:
        """Return the limit that the part could use: all that it holds, and an eighth of the limit
        if some of it is on disk, because it reads all of it back only with room to spare."""
        whole = self.whole_bytes()
        if self.opened is not None and self.opened.state.is_flowed:
            whole += whole // 7 + ALPHA_BYTES
        return whole

    def delivery(self, delivery: Delivery) -> Delivery:
        """Change the delivery's tag to the one that callers see, and return it."""
        delivery.tag = self.base | delivery.tag
        return delivery

    def copied(self, delivery: Delivery) -> Delivery:
        """Return a copy with the tag that callers see; the part may use the original again."""
        tag = self.base | delivery.tag
        return Delivery(tag, delivery.message, delivery.is_redelivered, delivery.attempts)

    def head(self, head: ReadyHead) -> ReadyHead:
        """Return a copy with the tag that callers see."""
        return ReadyHead(self.base | head.tag, head.id, head.size, head.expiry_ms, head.time)

    def set_limits(self, max_bytes: int, min_bytes: int) -> None:
        """Set the queue's limits, if they have changed, without paging out: its target is lowered
        first, so `VariableQueue.set_limits` does not act."""
        if max_bytes == self.max_bytes and min_bytes == self.min_bytes:
            return
        self.max_bytes = max_bytes
        self.min_bytes = min_bytes
        self.apply_limits()

    def apply_limits(self) -> None:
        """Set the limits of the part for its queue, if it is open."""
        queue = self.opened
        if queue is None:
            return
        if self.max_bytes < queue.state.target_bytes:
            queue.state.target_bytes = self.max_bytes
        queue.set_limits(self.max_bytes, self.min_bytes)

    def give_back(self) -> int:
        """Lower the limit to what is in RAM. Return how much less of the budget it takes."""
        used = self.ram_bytes()
        max_bytes = min(self.max_bytes, used)
        self.set_limits(max_bytes, min(self.min_bytes, max_bytes))
        given = max(self.charged_bytes - used, 0)
        self.charged_bytes -= given
        return given

    def page_out(self, n_bytes: int) -> None:
        """Page out so many bytes, but no more than one publish may. The caller calls `give_back`
        next."""
        queue = self.queue
        target = queue.state.target_bytes
        queue.state.target_bytes = min(target, max(queue.ram_bytes() - n_bytes, 0))
        queue.paging.step(PUBLISH_MESSAGES, PUBLISH_BYTES)
        queue.state.target_bytes = target

    def has_ram(self) -> bool:
        """Return whether any message is in RAM, ready or pending."""
        if self.opened is None:
            return False
        state = self.opened.state
        return state.alpha_bytes + state.pending_bytes > 0

    def asking(self, predicate: Callable[[ReadyHead], bool]) -> Callable[[ReadyHead], bool]:
        """Return a predicate over heads of this part that passes the tags that callers see."""
        return lambda head: predicate(self.head(head))


class PartFold(Generic[A]):
    """A fold over one part. goes_on: whether it was not cut short."""

    def __init__(self, part: Part, fun: Callable[[Delivery, bool, A], tuple[bool, A]]) -> None:
        self._part = part
        self._fun: Callable[[Delivery, bool, A], tuple[bool, A]] = fun
        self.goes_on: bool = True

    def step(self, delivery: Delivery, is_pending: bool, acc: A) -> tuple[bool, A]:
        """Pass one message on."""
        self.goes_on, acc = self._fun(self._part.copied(delivery), is_pending, acc)
        return self.goes_on, acc


SPARE_SHIFT: Final = 3  # an eighth: of the budget for the pool, of a limit beyond what is needed
RESERVE_SHIFT: Final = 4  # a sixteenth of the budget, for what is more urgent than all there is


class PriorityBudget:
    """The budget of a PriorityQueue; see the head of this module. parts: lowest priority first."""

    def __init__(self, parts: list[Part]) -> None:
        self._parts = parts
        self._max_bytes: int = UNLIMITED
        self._min_bytes: int = UNLIMITED
        self._share_bytes: int = UNLIMITED
        self._wanted_bytes: int = 0  # asked for in vain since the last deal
        self._lowest: int = 0  # no part below has anything in RAM to give
        self._reads_back: bool = False  # all parts, the lowest last, as much as they may have
        self.limit_bytes: int = UNLIMITED
        self.pool_bytes: int = 0

    def info(self, *, is_flowed: bool) -> dict[str, int | str]:
        """Return the limits of the whole, as Paging.info returns them of a queue."""
        by = "max_memory" if self._max_bytes <= self._share_bytes else "share"
        return {
            "max_bytes": self._max_bytes,
            "min_bytes": self._min_bytes,
            "share_bytes": self._share_bytes,
            "paged_by": by if is_flowed else "",
        }

    def set_limits(self, max_bytes: int, min_bytes: int) -> None:
        """Set the queue's own limits. Raises ValueError unless 0 <= min <= max."""
        if not 0 <= min_bytes <= max_bytes:
            raise ValueError(
                f"limits must be 0 <= min <= max, not min {min_bytes}, max {max_bytes}"
            )
        self._max_bytes = max_bytes
        self._min_bytes = min_bytes
        self._set()

    def set_share(self, share_bytes: int) -> None:
        """Set the share of the whole machine's budget."""
        self._share_bytes = max(share_bytes, 0)
        self._set()

    def _set(self) -> None:
        self.limit_bytes = min(self._max_bytes, self._share_bytes, UNLIMITED)
        self.deal()

    def make_room(self, part: Part, entry: Entry) -> None:
        """Give the part room for an entry that is about to arrive, if possible."""
        if part.max_bytes >= UNLIMITED:
            return
        if part.number < self._lowest:
            self._lowest = part.number
        needed = part.queue.ram_bytes() + alpha_bytes(entry.message) - part.max_bytes
        if needed <= 0:
            return
        room = self._room_for(part)
        if needed > room:
            self._wanted_bytes += needed
            if self._wanted_bytes > self.limit_bytes >> SPARE_SHIFT:
                self.deal()
                room = self._room_for(part)
        if needed <= room:
            given = min(needed + (part.max_bytes >> SPARE_SHIFT), room)
            part.set_limits(part.max_bytes + given, part.min_bytes)
            self._charge(part, part.max_bytes)

    def _charge(self, part: Part, n_bytes: int) -> None:
        """Charge the part for so much of the budget, if it is not charged already."""
        if n_bytes > part.charged_bytes:
            self.pool_bytes -= n_bytes - part.charged_bytes
            part.charged_bytes = n_bytes

    def _room_for(self, part: Part) -> int:
        """Return what a part may take of the pool."""
        if part.number > self._lowest:
            return self.pool_bytes
        return self.pool_bytes - (self.limit_bytes >> RESERVE_SHIFT)

    def fill_pool(self, part: Part) -> None:
        """Refill a low pool after an arrival for which the part paged nothing out: the lowest part
        with anything in RAM pages out, at worst the part itself."""
        reserve = self.limit_bytes >> RESERVE_SHIFT
        if part.max_bytes >= UNLIMITED or self.pool_bytes >= reserve:
            return
        while self._lowest <= part.number:
            low = self._parts[self._lowest]
            self.pool_bytes += low.give_back()
            if self.pool_bytes >= reserve:
                return
            if low.has_ram():
                low.page_out((self.limit_bytes >> SPARE_SHIFT) - self.pool_bytes)
                self.pool_bytes += low.give_back()
                return
            self._lowest += 1

    def deal(self) -> None:
        """Give out the budget, from the highest priority down."""
        self._wanted_bytes = 0
        self._lowest = 0
        limit = self.limit_bytes
        if limit >= UNLIMITED:
            for part in self._parts:
                part.set_limits(UNLIMITED, self._min_bytes)
            return
        left = self._for_parts()
        pool = limit
        for number in range(len(self._parts) - 1, -1, -1):
            part = self._parts[number]
            ram_bytes = part.ram_bytes()
            part.due_bytes = min(part.useful_bytes(), left)
            left -= part.due_bytes
            # What it has in RAM is in use in any case: a limit up to that costs nothing.
            allowed = min(part.due_bytes, max(part.max_bytes, ram_bytes))
            part.set_limits(allowed, min(part.min_bytes, allowed))
            part.charged_bytes = max(ram_bytes, allowed)
            pool -= part.charged_bytes
        self.pool_bytes = pool
        min_left = limit if self._reads_back else min(self._min_bytes, limit)
        for number in range(len(self._parts) - 1, -1, -1):
            part = self._parts[number]
            given = min(part.due_bytes - part.max_bytes, max(self.pool_bytes, 0))
            max_bytes = part.max_bytes + given
            min_bytes = min(max_bytes, min_left)
            min_left -= min_bytes
            part.set_limits(max_bytes, min_bytes)
            self._charge(part, max_bytes)

    def _for_parts(self) -> int:
        """Return what the parts may have together; the rest is for the pool. Decide whether they
        read back: until the whole is at its low mark once it was below its minimum, or if the whole
        fits."""
        ram_bytes = sum([part.ram_bytes() for part in self._parts])
        whole_bytes = sum([part.whole_bytes() for part in self._parts])
        most = self.limit_bytes - (self.limit_bytes >> RESERVE_SHIFT)
        fits = whole_bytes <= most
        if not fits:
            most = self.limit_bytes - (self.limit_bytes >> SPARE_SHIFT)
        if fits or ram_bytes < self._min_bytes:
            self._reads_back = True
        elif ram_bytes >= low_mark(most):
            self._reads_back = False
        return most

    def check(self) -> None:
        """Assert [PB]."""
        if self.limit_bytes < UNLIMITED:
            charged = sum([part.charged_bytes for part in self._parts])
            assert charged + self.pool_bytes == self.limit_bytes, "[PB] the budget does not add up"
            assert all(p.max_bytes <= p.charged_bytes for p in self._parts), (
                "[PB] a part may use more than it is charged"
            )


class PartHolder(Holder):
    """A Holder in front of a part's own: reacts to messages that arrive."""

    def __init__(self, owner: "PriorityQueue", part: Part, holder: Holder) -> None:
        self._owner = owner
        self._part = part
        self._holder = holder

    def add(self, entry: Entry) -> None:
        budget, part = self._owner.budget, self._part
        budget.make_room(part, entry)
        writes = part.queue.state.disk_writes
        self._holder.add(entry)
        if part.queue.state.disk_writes == writes:
            budget.fill_pool(part)
        self._owner.count(part)

    def drop(self, first: int, n: int) -> None:
        self._holder.drop(first, n)

    def wants_drops(self) -> bool:
        return self._holder.wants_drops()

    def get(self, seq: int) -> Entry | None:
        return self._holder.get(seq)

    def candidates(self, below: int, n: int) -> list[Entry]:
        return self._holder.candidates(below, n)

    def unsettled(self) -> list[Entry]:
        return self._holder.unsettled()

    def materialised(self, entries: list[Entry]) -> None:
        self._holder.materialised(entries)


def take_by_priority(
    queue: "PriorityQueue", messages_max: int, bytes_max: int, now_ms: int
) -> list[Taken]:
    """Take messages by priority; see BackingQueue.take."""
    found: list[Taken] = []
    while messages_max > 0 and (part := queue.highest()) is not None:
        try:
            head = part.queue.head()
            if found and head is not None and head.size > bytes_max:
                break
            taken = part.queue.take(messages_max, bytes_max, now_ms)
        except BaseException:
            queue.untake(found)
            raise
        queue.count(part)
        found += taken
        for one in taken:
            messages_max -= len(one.entries)
            bytes_max -= sum([entry.message.size for entry in one.entries])
        if part.len:
            break  # enough, or the head cannot be taken now: nothing overtakes it
    return found


PARTS_MAX: Final = 256


class PriorityQueue(BackingQueue):
    """See the head of this module. indexes: 2 to 256, lowest priority first; another number raises
    ValueError. make: makes the queue of an index."""

    def __init__(
        self, engine: StorageEngine, indexes: list[QueueIndex],
        make: Callable[[QueueIndex], VariableQueue],
    ) -> None:  # fmt: skip
        if not 2 <= len(indexes) <= PARTS_MAX:
            raise ValueError(f"a priority queue has 2 to {PARTS_MAX} parts, not {len(indexes)}")
        self._engine = engine
        self.on_opened: Callable[[], None] = _ignore  # a part was opened: it takes memory
        self._make: Callable[[QueueIndex], VariableQueue] = make
        self.parts: list[Part] = [
            Part(number, index, self._open) for number, index in enumerate(indexes)
        ]
        self.opened: list[Part] = []  # those that have a queue, lowest priority first
        self._all: int = 0  # their bits
        self._counts_crashes: bool = False
        self._duration_s: float = float("inf")
        self._mode: str = "default"
        self._ready: int = 0  # bits of the parts that have something ready
        self._busy: int = 0  # bits of the parts that may have something to page out
        self._stuck: int = 0  # bits of those that could not; `resume` tries again
        self._len: int = 0
        self._in_hand: int = 0  # ready and pending; what is leased changes by itself
        self._body_bytes: int = 0
        self._is_dealt: bool = True  # the budget, and nothing has happened since
        self.budget: PriorityBudget = PriorityBudget(self.parts)  # PartHolders use it
        for part in self.parts:
            if part.index.count or not part.number:
                self._open(part)

    def _open(self, part: Part) -> VariableQueue:
        """Make the queue of a part, with the settings of the whole."""
        queue = self._make(part.index)
        part.opened = queue
        queue.paging.on_read = self._read_on
        insort(self.opened, part, key=_number_of)
        self._all |= part.bit
        part.index.holder = PartHolder(self, part, part.index.holder)
        part.apply_limits()
        if self._duration_s != float("inf"):
            queue.set_ram_duration_target(self._duration_s)
        if self._mode != "default":
            queue.set_queue_mode(self._mode)
        if self._counts_crashes:
            queue.count_crashes()
        self.count(part)
        self.on_opened()
        return queue

    # ---- arrival -------------------------------------------------------------------------------

    def index(self, priority: int = 0) -> QueueIndex:
        return self._part_for(priority).queue.index()

    def indexes(self) -> list[QueueIndex]:
        return [part.index for part in self.parts]

    def publish(
        self, header: bytes, body: bytes, mode: int, *, expiry_ms: int = 0, priority: int = 0
    ) -> int:
        part = self._part_for(priority)
        return part.base | part.queue.publish(header, body, mode, expiry_ms=expiry_ms)

    def batch_publish(self, messages: list[NewMessage], mode: int) -> list[int]:
        batches: dict[int, list[int]] = {}
        for i in range(len(messages)):
            number = self._number_for(messages[i].priority)
            batches.setdefault(number, []).append(i)
        tags = [0] * len(messages)
        for number, places in batches.items():
            part = self.parts[number]
            published = part.queue.batch_publish([messages[i] for i in places], mode)
            for i, tag in zip(places, published, strict=True):
                tags[i] = part.base | tag
        return tags

    def hold(self, tag: int, lsn: int, mode: int) -> None:
        part = self._part_of(tag)
        if part is not None:
            part.queue.hold(tag & SEQ_MASK, lsn, mode)

    def held(self) -> tuple[int, int] | None:
        part = self.highest()
        return None if part is None else part.queue.held()

    def _number_for(self, priority: int) -> int:
        return max(0, min(priority, len(self.parts) - 1))

    def _part_for(self, priority: int) -> Part:
        return self.parts[self._number_for(priority)]

    def _part_of(self, tag: int) -> Part | None:
        """Return the part of this tag, or None."""
        number = tag >> PART_SHIFT
        if not 0 <= number < len(self.parts) or self.parts[number].opened is None:
            return None
        return self.parts[number]

    def highest(self) -> Part | None:
        """Return the part to deliver from, or None."""
        ready = self._ready
        return self.parts[ready.bit_length() - 1] if ready else None

    def count(self, part: Part) -> None:
        """Update the counts of the whole from a part. For this class and PartHolder."""
        queue = part.queue
        n = queue.len()
        if n != part.len:
            if not n or not part.len:
                self._ready ^= part.bit
            self._len += n - part.len
            part.len = n
        n = queue.depth() - queue.leased_count()
        self._in_hand += n - part.in_hand
        part.in_hand = n
        n = queue.body_bytes()
        self._body_bytes += n - part.body_bytes
        part.body_bytes = n
        if not self._busy & part.bit:
            self._busy |= part.bit
        self._is_dealt = False

    # ---- delivery ------------------------------------------------------------------------------

    def fetch(self, *, ack_required: bool = True, in_pieces: bool = False) -> Delivery | None:
        while (part := self.highest()) is not None:
            delivery = part.queue.fetch(ack_required=ack_required, in_pieces=in_pieces)
            self.count(part)
            if delivery is not None:
                return part.delivery(delivery)
            if part.len:
                return None  # it is held
        return None

    def count_crashes(self) -> None:
        self._counts_crashes = True
        for part in self.opened:
            part.queue.count_crashes()

    def drop(self, *, ack_required: bool = True) -> ReadyHead | None:
        while (part := self.highest()) is not None:
            head = part.queue.drop(ack_required=ack_required)
            self.count(part)
            if head is not None:
                return part.head(head)
            if part.len:
                return None
        return None

    def head(self) -> ReadyHead | None:
        while (part := self.highest()) is not None:
            head = part.queue.head()
            if head is not None:
                return part.head(head)
            self.count(part)
            if part.len:
                return None
        return None

    def dropwhile(self, predicate: Callable[[ReadyHead], bool], mode: int) -> ReadyHead | None:
        while (part := self.highest()) is not None:
            head = part.queue.dropwhile(part.asking(predicate), mode)
            self.count(part)
            if head is not None:
                return part.head(head)
            if part.len:
                return self.head()
        return None

    # ---- settling ------------------------------------------------------------------------------

    def ack(self, tags: list[int], mode: int) -> list[int]:
        if len(tags) == 1:
            only = self._part_of(tags[0])
            if only is None:
                return []
            ids = only.queue.ack([tags[0] & SEQ_MASK], mode)
            self.count(only)
            return ids
        found: dict[int, int] = {}
        for number, seqs in self._groups(tags).items():
            part = self.parts[number]
            known = [s for s in dict.fromkeys(seqs) if part.queue.pending(s) is not None]
            ids = part.queue.ack(known, mode)
            self.count(part)
            for seq, id in zip(known, ids, strict=True):
                found[part.base | seq] = id
        return [found[tag] for tag in dict.fromkeys(tags) if tag in found]

    def requeue(self, tags: list[int], mode: int, *, attempted: bool = True) -> list[int]:
        ids: list[int] = []
        for number, seqs in sorted(self._groups(tags).items()):
            part = self.parts[number]
            ids += part.queue.requeue(seqs, mode, attempted=attempted)
            self.count(part)
        return ids

    def move(
        self, tag: int, targets: list[QueueIndex], header: bytes, mode: int, expiry_ms: int = 0
    ) -> int:
        part = self._part_of(tag)
        if part is None or part.queue.pending(tag & SEQ_MASK) is None:
            raise KeyError(f"tag {tag} is not pending")
        lsn = part.queue.move(tag & SEQ_MASK, targets, header, mode, expiry_ms)
        self.count(part)
        return lsn

    def pending(
        self, tag: int, *, with_header: bool = False, with_body: bool = False
    ) -> Delivery | None:
        part = self._part_of(tag)
        if part is None:
            return None
        delivery = part.queue.pending(tag & SEQ_MASK, with_header=with_header, with_body=with_body)
        return None if delivery is None else part.delivery(delivery)

    def pending_headers(self, tags: list[int]) -> list[Delivery]:
        found: list[Delivery] = []
        for number, seqs in self._groups(tags).items():
            part = self.parts[number]
            found += [part.delivery(one) for one in part.queue.pending_headers(seqs)]
        return found

    def entries(self, tags: list[int]) -> list[tuple[QueueIndex, list[Entry]]]:
        for tag in tags:
            if self.pending(tag) is None:
                raise KeyError(f"tag {tag} is not pending")
        found: list[tuple[QueueIndex, list[Entry]]] = []
        for number, seqs in sorted(self._groups(tags).items()):
            found += self.parts[number].queue.entries(seqs)
        return found

    def forget(self, tags: list[int]) -> None:
        for number, seqs in self._groups(tags).items():
            part = self.parts[number]
            part.queue.forget(seqs)
            self.count(part)

    def fold(self, fun: Callable[[Delivery, bool, A], tuple[bool, A]], acc: A) -> A:
        for number in range(len(self.parts) - 1, -1, -1):
            part = self.parts[number]
            if part.opened is not None and part.queue.depth():
                fold = PartFold(part, fun)
                acc = part.queue.fold(fold.step, acc)
                if not fold.goes_on:
                    break
        return acc

    def browse(self, after: int | None, n: int, *, in_pieces: bool = False) -> list[Delivery]:
        found: list[Delivery] = []
        highest = len(self.parts) - 1
        behind: int | None = None
        if after is not None:
            highest = min(after >> PART_SHIFT, highest)
            behind = after & SEQ_MASK
        for number in range(highest, -1, -1):
            if len(found) >= n:
                break
            part = self.parts[number]
            if part.opened is not None and part.queue.len():
                some = part.queue.browse(behind, n - len(found), in_pieces=in_pieces)
                found += [part.delivery(delivery) for delivery in some]
            behind = None
        return found

    def before_last(self, n: int) -> int | None:
        for part in self.parts:  # the lowest priority comes last
            if part.opened is not None:
                found = part.queue.before_last(n)
                if found is not None:
                    return part.base | found
                n -= part.queue.len()
        return None

    def state_of(self, tag: int) -> str:
        return self.parts[tag >> PART_SHIFT].queue.state_of(tag & SEQ_MASK)

    def purge(self, mode: int) -> int:
        died = 0
        purged: list[tuple[QueueIndex, Iterable[Entry]]] = []
        for part in self.opened:
            queue = part.queue
            died += queue.len()
            if queue.len() and queue.index().count:
                purged.append((queue.index(), queue.purge_kept()))
        if purged:
            self._engine.purge_queues(purged, mode)
        for part in self.opened:
            if part.queue.len():
                part.queue.purged()
                self.count(part)
        return died

    def purge_acks(self, mode: int) -> int:
        died = 0
        for part in self.opened:
            if part.queue.depth() > part.queue.len():
                died += part.queue.purge_acks(mode)
                self.count(part)
        return died

    # ---- leases --------------------------------------------------------------------------------

    def take(self, messages_max: int, bytes_max: int, now_ms: int) -> list[Taken]:
        return take_by_priority(self, messages_max, bytes_max, now_ms)

    def may_take(self) -> bool:
        part = self.highest()
        return part is not None and part.queue.may_take()

    def leased_count(self) -> int:
        return sum([part.index.leased.count for part in self.opened])

    def untake(self, taken: list[Taken]) -> None:
        for one in taken:
            part = self._part_with(one.part)
            part.queue.untake([one])
            self.count(part)

    def leased(self, taken: list[Taken], lsn: int) -> None:
        for one in taken:
            part = self._part_with(one.part)
            part.queue.leased([one], lsn)
            self.count(part)

    def returning(self, index: QueueIndex, seqs: list[int]) -> list[Row]:
        return self._part_with(index).queue.returning(index, seqs)

    def readmit(self, index: QueueIndex, seqs: list[int], rows: list[Row]) -> None:
        part = self._part_with(index)
        part.queue.readmit(index, seqs, rows)
        self.count(part)

    def _part_with(self, index: QueueIndex) -> Part:
        for part in self.parts:
            if part.index is index:
                return part
        raise KeyError(f"queue {index.number} is no part of this one")

    def _groups(self, tags: list[int]) -> dict[int, list[int]]:
        """Return the seqs by part, without tags that no part can have given."""
        groups: dict[int, list[int]] = {}
        for tag in tags:
            number = tag >> PART_SHIFT
            if self._part_of(tag) is not None:
                groups.setdefault(number, []).append(tag & SEQ_MASK)
        return groups

    # ---- counts --------------------------------------------------------------------------------

    def len(self) -> int:
        return self._len

    def depth(self) -> int:
        return self._in_hand + self.leased_count()

    def body_bytes(self) -> int:
        return self._body_bytes

    def add_states(self, into: QueueStates) -> None:
        for part in self.opened:
            part.queue.add_states(into)

    def info(self) -> dict[str, int | float | str]:
        whole: dict[str, int | float | str] = {}
        for part in self.opened:
            for key, value in part.queue.info().items():
                known = whole.get(key, 0)
                if isinstance(value, str) or isinstance(known, str):
                    whole[key] = value
                elif key == "is_flowed":
                    whole[key] = max(known, value)
                else:
                    whole[key] = known + value
        target = sum([min(part.queue.state.target_bytes, UNLIMITED) for part in self.opened])
        whole["target_bytes"] = min(target, UNLIMITED)
        if self.budget.limit_bytes < UNLIMITED:
            whole["target_bytes"] = self.budget.limit_bytes
        whole |= self.budget.info(is_flowed=bool(whole["is_flowed"]))
        whole["duration_target_s"] = self._duration_s
        return whole

    # ---- memory --------------------------------------------------------------------------------

    def ram_bytes(self) -> int:
        return sum([part.queue.ram_bytes() for part in self.opened])

    def elsewhere_bytes(self) -> int:
        return sum([part.queue.elsewhere_bytes() for part in self.opened])

    def unshare(self) -> None:
        for part in self.opened:
            part.queue.unshare()

    def set_limits(self, max_bytes: int, min_bytes: int) -> None:
        self.budget.set_limits(max_bytes, min_bytes)
        self._busy = self._all

    def set_share(self, share_bytes: int) -> None:
        self.budget.set_share(share_bytes)
        self._busy = self._all

    def set_ram_duration_target(self, seconds: float) -> None:
        self._busy = self._all
        self._duration_s = seconds
        for part in self.opened:
            part.queue.set_ram_duration_target(seconds)

    def ram_duration(self) -> float:
        return min([part.queue.ram_duration() for part in self.opened])

    def out_bytes_per_s(self) -> float:
        return sum([part.queue.out_bytes_per_s() for part in self.opened])

    def set_queue_mode(self, mode: str) -> None:
        self._busy = self._all
        for part in self.opened:
            part.queue.set_queue_mode(mode)
        self._mode = mode

    def resume(self) -> bool:
        self._deal()
        self._busy |= self._stuck
        self._stuck = 0
        while self._busy:
            lowest = self._busy & -self._busy
            part = self.parts[lowest.bit_length() - 1]
            before = part.queue.ram_bytes()
            has_more = part.queue.resume()
            ram_bytes = part.queue.ram_bytes()
            if not has_more:
                self._busy ^= lowest
                if ram_bytes > part.max_bytes:
                    self._stuck |= lowest
            if has_more or ram_bytes != before:
                self._is_dealt = False
                return True
        return False

    def inhale(self, *, at_rest: bool = False) -> bool:
        self._deal()
        ready = self._ready
        while ready:
            part = self.parts[ready.bit_length() - 1]
            if part.queue.inhale(at_rest=at_rest):
                self._is_dealt = False
                return True
            ready ^= part.bit
        return False

    def _read_on(self) -> None:
        """Go on with the next part when one has been read, not at the next tick, seconds later."""
        self._is_dealt = False
        self.inhale(at_rest=True)

    def _deal(self) -> None:
        """Deal the budget again if anything has happened, and update counts that changed by
        themselves."""
        if not self._is_dealt:
            self.budget.deal()
            for part in self.opened:
                self.count(part)
            self._is_dealt = True

    def check(self) -> None:
        """Assert the invariants of this module (for tests)."""
        parts = self.opened
        assert all(part.opened is not None or not part.index.count for part in self.parts)
        assert self._len == sum([part.queue.len() for part in parts])
        assert self.depth() == sum([part.queue.depth() for part in parts])
        assert self._body_bytes == sum([part.queue.body_bytes() for part in parts])
        assert self._ready == sum([part.bit for part in parts if part.queue.len()])
        self.budget.check()

    # ---- life ----------------------------------------------------------------------------------

    def terminate(self) -> None:
        for part in self.opened:
            part.queue.terminate()

    def delete_and_terminate(self, mode: int) -> int:
        for part in self.opened:
            part.queue.deleted()
        return self._engine.delete_queues(self.indexes(), mode)

    def unlink(self) -> None:
        self.on_opened = _ignore
        for part in self.parts:
            part.unlink()


def _number_of(part: Part) -> int:
    return part.number


def _ignore() -> None:
    pass


# ---- names and parts of queues -------------------------------------------------------------------

SEPARATOR: Final = b"\0"
PRIORITIES_MAX: Final = PARTS_MAX - 1


def open_backing(
    engine: StorageEngine,
    name: bytes,
    *,
    arguments: bytes = b"",
    flags: int = 0,
    priorities: int = 0,
    is_durable: bool = True,
    mode: int = DISK,
    policy: str = "eager",
    on_event: Callable[[str, str], None] | None = None,
    make_queue: Callable[..., BackingQueue] = VariableQueue,
) -> BackingQueue:
    """Return what holds the messages of the queue `name`: the existing one if it is durable (then
    arguments and flags are ignored), else a new one, which is stored once the log's `last_lsn`
    is settled.

    priorities: the highest, 1 to 255; 0 for none. mode: of the records of its delivered marks.
    policy, on_event: of its VariableQueues. make_queue: the class of a queue without priorities
    (backing_choice.py). is_durable=False: always a new one, that only the
    caller knows. Raises OptionError if priorities are out of range or differ from the queue's, or
    if the queue exists as a durable one and is_durable is False.
    """
    if not 0 <= priorities <= PRIORITIES_MAX:
        raise OptionError("priorities", priorities, f"0 (none) to {PRIORITIES_MAX}")
    known = priorities_of(engine, name)
    names = part_names(name, priorities)
    if not is_durable:
        if known is not None:
            raise OptionError("durable", False, f"True, as queue {_text(name)!r} is")
        indexes = [engine.declare_queue(part, is_durable=False) for part in names]
    elif known is None:
        declared = [(part, b"", flags) for part in names]
        declared[0] = (names[0], arguments, flags)
        indexes = engine.declare_queues(declared)
    elif known != priorities:
        raise OptionError("priorities", priorities, f"{known}, as queue {_text(name)!r} has")
    else:
        indexes = [engine.queue(part) for part in names]

    def make(index: QueueIndex) -> VariableQueue:
        return VariableQueue(engine, index, mode=mode, policy=policy, on_event=on_event)

    if priorities:
        return PriorityQueue(engine, indexes, make)
    return make_queue(engine, indexes[0], mode=mode, policy=policy, on_event=on_event)


def part_names(name: bytes, priorities: int) -> list[bytes]:
    """Return the names of a queue's indexes, lowest priority first."""
    if not priorities:
        return [name]
    return [b"%b%b%d" % (name, SEPARATOR, priority) for priority in range(priorities + 1)]


def priorities_of(engine: StorageEngine, name: bytes) -> int | None:
    """Return the highest priority of a durable queue, 0 if it has none; None if there is no such
    queue."""
    queues = engine.routing.queues
    if name in queues:
        return 0
    highest = -1
    while b"%b%b%d" % (name, SEPARATOR, highest + 1) in queues:
        highest += 1
    return highest if highest >= 0 else None


def base_names(engine: StorageEngine) -> list[bytes]:
    """Return the names of all queues, durable or not, oldest first."""
    names = [index.name.partition(SEPARATOR)[0] for index in engine.queues.values()]
    return list(dict.fromkeys(names))


def stored(engine: StorageEngine, name: bytes) -> tuple[bytes, int]:
    """Return arguments and flags of a durable queue. Raises UnknownQueueError."""
    first = _first(engine, name)
    return first.arguments, first.flags


def store_arguments(engine: StorageEngine, name: bytes, arguments: bytes, mode: int = DISK) -> int:
    """Change a durable queue's arguments. Return the LSN. Raises UnknownQueueError."""
    first = _first(engine, name)
    changed = DurableQueue(first.name, first.number, first.flags, arguments)
    return engine.apply_topology(changed.record(), mode)


def store_flags(engine: StorageEngine, name: bytes, flags: int, mode: int = DISK) -> int:
    """Change a durable queue's flags, as `store_arguments` its arguments."""
    first = _first(engine, name)
    changed = DurableQueue(first.name, first.number, flags, first.arguments)
    return engine.apply_topology(changed.record(), mode)


def _first(engine: StorageEngine, name: bytes) -> DurableQueue:
    queues = engine.routing.queues
    first = queues.get(name) or queues.get(part_names(name, 1)[0])
    if first is None:
        raise UnknownQueueError(_text(name))
    return first


def _text(name: bytes) -> str:
    return name.decode("utf-8", "replace")
