"""QueueRestarts: an error in one queue's own code ends that queue's life in RAM, and nothing else.

What a queue holds is known twice: by its backing queue, which the error may have interrupted
anywhere, and by its QueueIndex, which the engine keeps and which says of every seq whether it is
alive. So a durable queue starts anew from its index, as it would after a restart of the vhost:

    consumers are cancelled and their clients told; whoever waits is woken
    everything so far is synced: nothing that comes now has to be held
    live entries that are in RAM and log alone are taken from the old Holder
    every other one must be in the checkpoint's section or on its slot: this is looked up, for what
    came after the last cut (what was before it the checkpoint has put there), in `.qi` files
    a new AMQQueue takes the indexes over: all is ready, and comes again as redelivered

If an entry is nowhere (the error caught it in the queue's hands), or a checkpoint is under way and
the queue still owes it something, the queue's RAM cannot be trusted: the engine stops, and the
vhost is opened again from disk, where everything is. What a queue has that is transient ends with
this life of it, as it does in RabbitMQ; a queue that is not durable starts empty.

The old ServedQueue is `is_deleted` from then on: a channel that settles one of its deliveries finds
nothing to settle. Five failures within ten seconds, and the new one is `is_crashed`: it can be
deleted, and then declared again.

Not here: failures of the engine, which end the vhost; who notices an error (dispatch.py,
queue_clock.py, publish.py).
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from penstock.broker.dispatch import Dispatch
from penstock.broker.queue_opening import QueueOpener
from penstock.broker.queue_table import QueueTable, indexes_of
from penstock.broker.roles import Source
from penstock.broker.served_queue import ServedQueue
from penstock.errors import CorruptionError, StoppedError
from penstock.message import Entry
from penstock.queues.amq_queue import AMQQueue
from penstock.queues.delays import MARK
from penstock.queues.memory_monitor import MemoryMonitor
from penstock.storage.engine import StorageEngine
from penstock.storage.holder import DictHolder
from penstock.storage.queue_index import QueueIndex

FAILURES_MAX: Final = 5
WINDOW_S: Final = 10.0


class UntrustedError(Exception):
    """What a queue had in RAM alone cannot be had from it."""


class QueueRestarts:
    """Of one vhost. on_event: queue_restarted, queue_crashed."""

    def __init__(
        self, engine: StorageEngine, table: QueueTable, opener: QueueOpener, dispatch: Dispatch,
        monitor: MemoryMonitor, on_event: Callable[[str, str], None],
    ) -> None:  # fmt: skip
        self._engine = engine
        self._table = table
        self._opener = opener
        self._dispatch = dispatch
        self._monitor = monitor
        self._on_event = on_event
        self._failures: dict[str, deque[float]] = {}

    def failed(self, queue: Source, error: Exception) -> None:
        """A queue's own code has raised this. The queue is another one afterwards, or crashed.
        StoppedError: it could not be restarted alone, and the engine has stopped."""
        assert isinstance(queue, ServedQueue), "readings of streams deal with theirs themselves"
        if queue.is_deleted or queue.is_crashed:
            return
        what = self._table.called(queue.name)
        now_s = self._engine.clock.monotonic()
        failures = self._failures.setdefault(queue.name, deque())
        failures.append(now_s)
        while failures[0] < now_s - WINDOW_S:
            failures.popleft()
        self._let_go(queue)
        if len(failures) >= FAILURES_MAX:
            del self._failures[queue.name]
            why = f"failed {FAILURES_MAX} times in {WINDOW_S:.0f} s: {error!r}"
            self._crash(queue, queue.amq, why)
            self._on_event("queue_crashed", f"{what} has {why}")
            return
        try:
            amq, lost = self._reopened(queue.amq)
        except Exception as failure:
            self._engine.stop(failure)
            text = f"{what} has failed with {error!r} and cannot restart alone: {failure}"
            raise StoppedError(text) from failure
        fresh = self._table.replace(queue, amq)
        self._on_event(
            "queue_restarted",
            f"{what} has failed with {error!r}; restarted with {amq.len()} messages, without "
            f"{lost} transient ones",
        )
        self._dispatch.mark(fresh)

    def _let_go(self, queue: ServedQueue) -> None:
        """Nobody has to do with its old life any more."""
        queue.is_deleted = True
        for part in (queue.amq.backing, *queue.amq.delays.parts()):
            self._monitor.unregister(part)
            part.unshare()
        queue.consumers.cancel_all()
        queue.wake_waiters()

    def _crash(self, queue: ServedQueue, amq: AMQQueue, why: str) -> None:
        """Its messages stay on disk until it is deleted. A checkpoint must not ask its RAM again:
        what can be had of it is taken; if that is not all, only the vhost's restart helps."""
        if amq.is_durable:
            try:
                for index in indexes_of(self._engine, amq.name):
                    self._rescue(index)
            except Exception as failure:
                self._engine.stop(failure)
                raise StoppedError(f"queue {queue.name!r} has crashed: {failure}") from failure
        crashed = self._table.replace(queue, amq)
        crashed.is_crashed = True
        crashed.why = why

    def _reopened(self, old: AMQQueue) -> tuple[AMQQueue, int]:
        """A new AMQQueue over the same indexes, and how many transient messages it is without."""
        engine = self._engine
        if engine.gathering is not None:
            raise UntrustedError("the error came in the middle of one record")
        if not old.is_durable:
            lost = old.backing.depth()
            engine.delete_queues(indexes_of(engine, old.name))
            return self._opener.open(old.name, old.options, is_durable=False), lost
        engine.sync()
        indexes = indexes_of(engine, old.name)
        lost = old.backing.depth() + sum(part.depth() for part in old.delays.parts())
        for index in indexes:
            self._rescue(index)
        parts = [index.name for index in indexes if index.name.startswith(old.name + MARK)]
        amq = self._opener.reopen(old.name, old.options, parts)
        return amq, max(lost - amq.depth() - amq.delayed(), 0)

    def _rescue(self, index: QueueIndex) -> None:
        """From here on the index needs no RAM of the queue that had it. UntrustedError."""
        if index.limbo is not None:
            raise UntrustedError("a checkpoint is under way, and it owes a part of it")
        holder = DictHolder()
        held: dict[int, Entry] = {
            entry.seq: entry
            for entry in index.holder.materialise(index.next_seq)
            if index.is_live(entry.seq)
        }
        first = max(index.cut_seq, self._opener.opened_seq.get(index.number, 0))
        for number in sorted(index.segments):
            start = max(number * index.slots, first)
            seqs = [
                seq
                for seq in index.live_between(start, (number + 1) * index.slots)
                if seq not in held and seq not in index.section
            ] if start < (number + 1) * index.slots else []  # fmt: skip
            if seqs:
                try:
                    index.files(number).slots(seqs)
                except (CorruptionError, OSError) as error:
                    raise UntrustedError(f"not all its messages are to be had: {error}") from error
        for seq in sorted(held):
            holder.entries[seq] = held[seq]
        index.holder = holder
        for number, n in list(index.transients.items()):
            if n:
                index.keep_transients(number, -n)
