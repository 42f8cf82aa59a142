"""Leases on a queue that is used in every other way as well, against a dict of its messages.

Every message has a number and is in exactly one place: ready, pending, leased by a reader at an
ordinal, or dead. The model says which and in which order; readers lease, read their pages, commit
and release while consumers fetch, ack and give back, messages expire, limits push out heads,
purges come, the queue is paged out to nearly nothing, checkpoints are made, it is deleted and
declared anew, and everything stops and starts, in order or not.

Asked after every step: what is ready is what the model says, in order; depth and counts are the
sum; readers are where they were. Asked of every lease whenever it is read, and after every start:
the same messages at the same ordinals, with the same times.

Each start is after a sync; what a crash leaves in between is asked by tests/crash/lease_lives.py.
"""

from typing import Any, Final

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.errors import QueueLeasedError
from penstock.queues.backing_queue import Delivery
from penstock.queues.queue_ram import CHECKS
from penstock.storage.files.durability import DISK, NONE, OS
from penstock.storage.pages.stream_view import StreamView
from tests.helpers.amq_world import REFERENCE, VARIABLE, AmqWorld, name_of
from tests.helpers.engine_rig import STORED, EngineRig

READERS: Final = st.sampled_from(("a", "b", "c"))
SIZES: Final = st.sampled_from((0, 0, 0, 70, STORED))
SECONDS: Final = st.sampled_from((0.0, 0.5, 5.0, 100.0))
TTLS_MS: Final = st.sampled_from((None, None, None, 1000, 50_000))
BYTES: Final = 1 << 20


class Message:
    """What the model knows. place: of its priority, then in the order of arrival; expiry_ms: 0 for
    never."""

    def __init__(self, name: str, place: tuple[int, int], expiry_ms: int, transient: bool) -> None:
        self.name = name
        self.place = place
        self.expiry_ms = expiry_ms
        self.is_transient = transient


class Reader:
    """A lease: the messages from `committed` on, and their times as they were first read."""

    def __init__(self) -> None:
        self.committed = 0
        self.messages: list[Message] = []
        self.times: dict[int, int] = {}

    @property
    def next(self) -> int:
        return self.committed + len(self.messages)


class LeaseMachine(RuleBasedStateMachine):
    """One queue with small segments and hardly any room in RAM."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.ready: list[Message] = []
        self.pending: list[tuple[Message, Delivery]] = []
        self.readers: dict[str, Reader] = {}
        CHECKS.is_on = True

    def teardown(self) -> None:
        CHECKS.is_on = False

    @initialize(
        kind=st.sampled_from((VARIABLE, VARIABLE, VARIABLE, REFERENCE)), sections=st.booleans(),
        priorities=st.sampled_from((0, 2)), max_length=st.sampled_from((None, None, 6)),
        lazy=st.booleans(), memory=st.sampled_from((None, 900, 4000)),
    )  # fmt: skip
    def open(
        self, kind: str, sections: bool, priorities: int, max_length: int | None, lazy: bool,
        memory: int | None,
    ) -> None:  # fmt: skip
        self.priorities = priorities if kind == VARIABLE else 0
        self.max_length = max_length
        self.world = AmqWorld(kind, rig=EngineRig(sections=sections))
        self.options: dict[str, Any] = {
            "priorities": self.priorities, "max_length": max_length, "lazy": lazy,
            "max_memory_bytes": memory,
        }  # fmt: skip
        self.world.open(**self.options)

    # ---- the model -----------------------------------------------------------------------------

    def _put_back(self, messages: list[Message]) -> None:
        self.ready = sorted(self.ready + messages, key=lambda m: m.place)

    def _expire(self) -> None:
        """Heads that are expired die."""
        now_ms = self.world.now_ms
        while self.ready and 0 < self.ready[0].expiry_ms <= now_ms:
            del self.ready[0]

    def _trim(self) -> None:
        if self.max_length is not None:
            del self.ready[: max(0, len(self.ready) - self.max_length)]

    def _next_place(self, priority: int) -> tuple[int, int]:
        self.count += 1
        return -min(priority, self.priorities), self.count

    # ---- publishers and consumers --------------------------------------------------------------

    @rule(
        priority=st.integers(0, 3), size=SIZES, ttl_ms=TTLS_MS, n=st.sampled_from((1, 1, 2, 9)),
        mode=st.sampled_from((DISK, OS, OS, NONE)),
    )  # fmt: skip
    def put(self, priority: int, size: int, ttl_ms: int | None, n: int, mode: int) -> None:
        for _ in range(n):
            place = self._next_place(priority)
            name = f"{self.count}".ljust(size, ".")
            self.world.q.publish(b"", name.encode(), mode, priority=priority, ttl_ms=ttl_ms)
            expiry_ms = 0 if ttl_ms is None else self.world.now_ms + ttl_ms
            self._put_back([Message(name, place, expiry_ms, mode == NONE)])
            self._trim()

    @rule(n=st.integers(1, 3))
    def fetch(self, n: int) -> None:
        for _ in range(n):
            delivery = self.world.get()
            self._expire()
            if not self.ready:
                assert delivery is None
                return
            assert delivery is not None
            assert name_of(delivery) == self.ready[0].name
            self.pending.append((self.ready.pop(0), delivery))

    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        for _, delivery in self._some_pending(data):
            assert self.world.q.ack([delivery.tag]) == 1

    @rule(data=st.data(), attempted=st.booleans())
    def give_back(self, data: st.DataObject, attempted: bool) -> None:
        some = self._some_pending(data)
        tags = [delivery.tag for _, delivery in some]
        n = self.world.q.requeue(tags) if attempted else self.world.q.release(tags)
        assert n == len(tags)
        self._put_back([message for message, _ in some])
        self._trim()

    def _some_pending(self, data: st.DataObject) -> list[tuple[Message, Delivery]]:
        if not self.pending:
            return []
        n = data.draw(st.integers(1, len(self.pending)))
        return [
            self.pending.pop(data.draw(st.integers(0, len(self.pending) - 1))) for _ in range(n)
        ]

    @rule(mode=st.sampled_from((DISK, OS)))
    def purge(self, mode: int) -> None:
        assert self.world.q.purge(mode) == len(self.ready)
        self.ready = []

    # ---- readers -------------------------------------------------------------------------------

    @rule(name=READERS, n=st.integers(1, 12))
    def lease(self, name: str, n: int) -> None:
        reader = self.readers.get(name) or Reader()
        at = reader.next
        while n > 0:
            found = self.world.q.lease(name, n, BYTES)
            assert found.first == at
            self._expire()
            taken = self._take(found.next - found.first)
            reader.messages += taken
            assert found.bytes == sum(len(m.name) for m in taken)
            n -= len(taken)
            at = found.next
            if reader.messages:
                self.readers[name] = reader
            if not found.has_more:
                assert not n or not self.ready, "nothing was in the way"
                break

    def _take(self, n: int) -> list[Message]:
        """The next n, all alive; transient ones get a place behind all others."""
        taken, self.ready = self.ready[:n], self.ready[n:]
        assert len(taken) == n
        for message in taken:
            assert not 0 < message.expiry_ms <= self.world.now_ms
            if message.is_transient:
                message.place = self._next_place(-message.place[0])
                message.is_transient = False
        return taken

    @rule(name=READERS, data=st.data())
    def commit(self, name: str, data: st.DataObject) -> None:
        reader = self.readers.get(name)
        if reader is None:
            return
        ordinal = data.draw(st.integers(0, reader.next))
        while self.world.q.commit_lease(name, ordinal):
            pass
        done = max(0, ordinal - reader.committed)
        del reader.messages[:done]
        reader.committed += done

    @rule(name=READERS)
    def release(self, name: str) -> None:
        reader = self.readers.pop(name, None)
        if reader is not None:
            while self.world.q.release_lease(name):
                pass
            self._put_back(reader.messages)
            self._trim()

    @rule(name=READERS, is_whole=st.booleans())
    def read(self, name: str, is_whole: bool) -> None:
        """Its pages have what it has leased, at the same ordinals, with the same times."""
        while self.world.q.materialise(name) and is_whole:
            pass
        reader = self.readers.get(name)
        if reader is None or not is_whole:
            return
        (info,) = [info for info in self.world.q.leases() if info.reader == name]
        view = StreamView(self.world.rig.fs, info.path)
        assert view.head().next_offset == reader.next
        found = view.read(reader.committed, 10_000, 1 << 30)
        assert [r.payload.decode() for r in found] == [m.name for m in reader.messages]
        assert [r.offset for r in found] == list(range(reader.committed, reader.next))
        for record in found:
            assert reader.times.setdefault(record.offset, record.time_us) == record.time_us

    # ---- what else happens ---------------------------------------------------------------------

    @rule(seconds=SECONDS)
    def pass_time(self, seconds: float) -> None:
        self.world.tick(seconds)
        self._expire()
        self._trim()

    @rule()
    def checkpoint(self) -> None:
        self.world.rig.engine.checkpoint()

    @rule()
    def delete(self) -> None:
        """Not while anything is leased; by force with all of it."""
        if any(reader.messages for reader in self.readers.values()):
            with pytest.raises(QueueLeasedError):
                self.world.q.delete()
            return
        self._deleted(force=False)

    @rule(is_meant=st.integers(0, 9))
    def delete_by_force(self, is_meant: int) -> None:
        if is_meant == 0:
            self._deleted(force=True)

    def _deleted(self, *, force: bool) -> None:
        self.world.q.delete(DISK, force=force)
        self.ready, self.pending, self.readers = [], [], {}
        self.world.open(**self.options)

    @rule(is_clean=st.booleans(), mode=st.sampled_from(("lost", "kept")))
    def start_again(self, is_clean: bool, mode: str) -> None:
        self.world.settle()
        if is_clean:
            self.world.restart()
        else:
            self.world.crash(mode)
        back = [message for message, _ in self.pending]
        self.pending = []
        self._put_back(back)
        self.ready = [message for message in self.ready if not message.is_transient]
        for name in self.readers:
            self.read(name, True)

    # ---- what is always so ---------------------------------------------------------------------

    @invariant()
    def everything_is_in_one_place(self) -> None:
        if not hasattr(self, "world"):
            return
        q = self.world.q
        assert self.world.ready() == [message.name for message in self.ready]
        leased = [message for reader in self.readers.values() for message in reader.messages]
        size = sum(len(message.name) for message in leased)
        assert q.len() == len(self.ready)
        assert q.depth() == len(self.ready) + len(self.pending) + len(leased)
        info = q.info()
        assert (info["leased"], info["leased_bytes"]) == (len(leased), size)
        assert not self.world.told("corruption")
        found = {lease.reader: (lease.committed, lease.next) for lease in q.leases()}
        assert found == {n: (r.committed, r.next) for n, r in self.readers.items()}
        assert q.body_bytes() == sum(len(message.name) for message in self.ready)


TestLeases = LeaseMachine.TestCase
