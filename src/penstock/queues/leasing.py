"""Leasing: what an AMQQueue does for readers that lease its messages, and for the pages they read.

The order of a lease: heads are taken out of the backing queue, what must not be delivered any more
is buried, the engine makes the record, the backing queue lets go, and the pages get the frames. All
of that is one slice of at most 1,024 messages and 1 MiB, or one message; whoever wants more calls
again.

Pages are made by `materialise`, in slices too: at the first lease of a reader, and after a start,
which wipes them. While they are behind, leases go on; only who is to read must wait until
`materialise` says that all is there. Pages that could not be written (a full disk) are thrown away
and made again when they are asked for.

A release that was begun is gone on with by the queue's `tick`, also after a restart.

Not here: who may lease, waiting for records, HTTP (the broker's), the record (lease_engine.py).
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from penstock.errors import NotLeasableError, StoppedError, UnknownLeaseError, deleted_error
from penstock.message import Entry, Message
from penstock.queues.backing_queue import BackingQueue
from penstock.queues.rows import Row
from penstock.storage import lease_engine
from penstock.storage.engine import StorageEngine
from penstock.storage.lease_engine import Taken
from penstock.storage.lease_pages import PAGE_BYTES, LeasePages, pages_path
from penstock.storage.leases import Lease
from penstock.storage.queue_index import QueueIndex
from penstock.storage.record import LeaseRun

SLICE_MESSAGES: Final = 1024
SLICE_BYTES: Final = 1 << 20

Bytes = bytes  # named because inside a LeaseInfo "bytes" is how many


class LeaseSlice(NamedTuple):
    """What one call leased: messages with the ordinals [first, next), and the bytes of their
    bodies. has_more: another call would lease more at once."""

    first: int
    next: int
    bytes: int
    has_more: bool


class LeaseInfo(NamedTuple):
    """A reader's lease: it has committed all below `committed` and leased all below `next`; bytes:
    of the bodies of what it has. since_ms: when the oldest of that was leased, ms since 1970, 0 if
    it has nothing. path: the directory of its pages, "" while there are none: see `materialise`.
    stream_id: 16 bytes, the same as long as the reader has this lease, restarts or not.
    last_time_us: of the last record in the pages. is_releasing: it is being given back."""

    reader: str
    committed: int
    next: int
    bytes: int
    since_ms: int
    path: str
    stream_id: Bytes
    last_time_us: int
    is_releasing: bool


class Leasing:
    """Of one queue; backing: what holds its messages. on_event(kind, text): lease_pages."""

    def __init__(
        self, engine: StorageEngine, name: bytes, backing: BackingQueue,
        on_event: Callable[[str, str], None],
    ) -> None:  # fmt: skip
        self._engine = engine
        self._name: bytes = name
        self._text_name: str = name.decode("utf-8", "surrogateescape")
        self._backing: BackingQueue = backing
        self._main: QueueIndex = backing.index(0)
        self._on_event: Callable[[str, str], None] = on_event
        self._pages: dict[str, LeasePages] = {}  # by reader
        self.page_bytes: int = PAGE_BYTES

    def check(self) -> None:
        """NotLeasableError: not of this queue. UnknownQueueError: it is deleted."""
        if self._main.is_deleted:
            raise deleted_error(self._name)
        if not self._main.is_durable:
            raise NotLeasableError(self._text_name, "it is not durable")

    def _all(self) -> dict[str, Lease]:
        return self._engine.leases(self._main)

    # ---- leasing -------------------------------------------------------------------------------

    def take(self, messages_max: int, bytes_max: int, now_ms: int) -> list[Taken]:
        """Heads for one slice. DiskFullError: nothing is leased on a full disk."""
        if messages_max < 1 or bytes_max < 1:
            raise ValueError(f"a lease of {messages_max} messages and {bytes_max} bytes at most")
        engine = self._engine
        if engine.failed is not None or engine.blocked or engine.is_closed:
            engine.refuse()
        return self._backing.take(
            min(messages_max, SLICE_MESSAGES), min(bytes_max, SLICE_BYTES), now_ms
        )

    def lease(self, reader: str, taken: list[Taken], mode: int) -> LeaseSlice:
        """What was taken is the reader's. Errors: it is ready again."""
        engine, backing = self._engine, self._backing
        if not taken:
            lease = self._all().get(reader)
            next_ = 0 if lease is None else lease.next
            return LeaseSlice(next_, next_, 0, False)
        try:
            first, next_ = engine.lease(self._main, reader, taken, mode)
        except BaseException:
            if engine.failed is None:
                backing.untake(taken)
            raise
        backing.leased(taken, engine.last_lsn)
        size = 0
        for one in taken:
            for body in one.bodies:
                size += len(body)
        self._append(reader, first, taken)
        return LeaseSlice(first, next_, size, backing.may_take())

    def find(self, reader: str) -> Lease | None:
        """The reader's lease. UnknownLeaseError: it is being released."""
        lease = self._all().get(reader)
        if lease is not None and lease.is_releasing:
            raise UnknownLeaseError(self._text_name, reader)
        return lease

    def commit(self, reader: str, ordinal: int, mode: int) -> bool:
        """A slice of what is below `ordinal` is done with; True if there is more."""
        has_more = self._engine.commit_lease(self._main, reader, ordinal, mode)
        pages = self._pages.get(reader)
        if pages is not None:
            self._drop_pages(pages, self._all()[reader].committed)
        return has_more

    # ---- releasing -----------------------------------------------------------------------------

    def release(self, reader: str, mode: int) -> bool:
        """A slice of what the reader has is ready again; True if there is more."""
        engine = self._engine
        back: dict[int, tuple[QueueIndex, list[int], list[Row]]] = {}
        for run in sorted(lease_engine.next_release(engine, self._main, reader)):
            part = self._part(run)
            _, seqs, rows = back.setdefault(part.number, (part, [], []))
            found = list(range(run[1], run[1] + run[2]))
            seqs += found
            rows += self._backing.returning(part, found)
        has_more = engine.release_lease(self._main, reader, mode)
        for part, seqs, rows in back.values():
            self._backing.readmit(part, seqs, rows)
        self._forget_pages(reader)
        return has_more

    def has_expiring(self, reader: str) -> bool:
        """Whether anything of a reader's may expire once it is ready again."""
        lease = self._all().get(reader)
        if lease is None:
            return False
        numbers = {run[0] for one in lease.slices for run in one.runs()}
        queues = self._engine.state.queues
        return any(s.expiry_ms for n in numbers for s in queues[n].segments.values())

    def _part(self, run: LeaseRun) -> QueueIndex:
        return self._engine.state.queues[run[0]]

    # ---- pages ---------------------------------------------------------------------------------

    def _append(self, reader: str, first: int, taken: list[Taken]) -> None:
        """Frames of what was just leased, if the pages have all before it. An error is no error of
        the lease."""
        pages = self._pages.get(reader)
        try:
            if pages is None and self._all()[reader].committed == first:
                pages = self._new_pages(reader)
            if pages is None or pages.next_ordinal != first:
                return
            for one in taken:
                append_all(pages, one.entries, one.bodies)
            pages.publish()
        except OSError as error:
            self._throw_away(reader, error)

    def materialise(self, reader: str) -> bool:
        """A slice of the pages of what a reader has leased, from its slots; True: call again.
        OSError; CorruptionError: a leased message is damaged, and these pages cannot be made."""
        lease = self._all().get(reader)
        if lease is None or lease.is_releasing:
            return False
        pages = self._pages.get(reader)
        if pages is None:
            pages = self._new_pages(reader)
        if pages.next_ordinal >= lease.next:
            return False
        try:
            if pages.next_ordinal < lease.committed:  # committed before they were made
                self._forget_pages(reader)
                return True
            self._materialise(pages, lease)
        except OSError as error:
            self._throw_away(reader, error)
            raise
        return pages.next_ordinal < lease.next

    def _new_pages(self, reader: str) -> LeasePages:
        path = pages_path(self._engine.path, self._name, self._main.number, reader)
        pages = LeasePages(self._engine.fs, path, self._all()[reader], self.page_bytes)
        self._pages[reader] = pages
        return pages

    def _materialise(self, pages: LeasePages, lease: Lease) -> None:
        """Go on in the slice of the lease that has the next ordinal."""
        one = lease.slice_of(pages.next_ordinal)
        skip = pages.next_ordinal - one.ordinal
        size = 0
        for run in one.runs():
            if skip >= run[2]:
                skip -= run[2]
                continue
            part = self._part(run)
            seqs = list(range(run[1] + skip, run[1] + run[2]))
            skip = 0
            messages = part.read(seqs)
            for i in range(len(seqs)):
                body = self._body(part, seqs[i], messages[i])
                pages.append(messages[i], body)
                size += len(body)
        pages.publish()

    def _body(self, part: QueueIndex, seq: int, message: Message) -> bytes:
        if message.body is not None:
            return message.body
        return self._engine.load_body(part, seq, message)

    def _drop_pages(self, pages: LeasePages, committed: int) -> None:
        try:
            gone = pages.drop_below(committed)
        except OSError as error:
            self._tell(error)
            return
        if gone:
            self._engine.submit(lambda: pages.unlink(gone), _nothing, self._tell)

    def rest(self) -> None:
        """Called now and then: files of pages that nobody leases to are closed."""
        for pages in self._pages.values():
            pages.rest()

    def _forget_pages(self, reader: str) -> None:
        pages = self._pages.pop(reader, None)
        if pages is not None:
            try:
                pages.delete()
            except OSError as error:
                self._tell(error)

    def _throw_away(self, reader: str, error: OSError) -> None:
        self._tell(error)
        self._forget_pages(reader)

    def _tell(self, error: BaseException) -> None:
        text = f"queue {self._text_name!r}: pages of a lease are made again later: {error}"
        self._on_event("lease_pages", text)

    # ---- looking -------------------------------------------------------------------------------

    def infos(self) -> list[LeaseInfo]:
        """What readers have leased, one each."""
        return [self._info(lease) for lease in self._all().values()]

    def _info(self, lease: Lease) -> LeaseInfo:
        pages = self._pages.get(lease.reader)
        path = "" if pages is None else self._engine.fs.place(pages.path)
        last_us = lease.floor_s * 1_000_000 if pages is None else pages.last_time_us
        return LeaseInfo(
            lease.reader, lease.committed, lease.next, lease.bytes, lease.since_ms, path, lease.id,
            last_us, lease.is_releasing,
        )  # fmt: skip

    def open_leases(self) -> tuple[int, list[str]]:
        """(messages that are leased, the readers that have them)."""
        having = [lease for lease in self._all().values() if lease.count]
        return sum([lease.count for lease in having]), [lease.reader for lease in having]

    # ---- the end -------------------------------------------------------------------------------

    def delete(self) -> None:
        """The queue is deleted: the pages go."""
        for reader in list(self._pages):
            self._forget_pages(reader)

    def close(self) -> None:
        """Close the files of the pages."""
        for pages in self._pages.values():
            pages.close()
        self._pages = {}


def append_all(pages: LeasePages, entries: list[Entry], bodies: list[bytes]) -> None:
    """Frames of entries, in the order of delivery."""
    for i in range(len(entries)):
        pages.append(entries[i].message, bodies[i])


def _nothing(result: object) -> None:
    if isinstance(result, StoppedError):
        raise result
