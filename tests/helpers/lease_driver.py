"""LeaseDriver: the traffic of `Driver`, with readers that lease what is in the queues.

Readers take heads and what is behind them, transient messages among them, commit to any ordinal,
also into the middle of what they took at once, and release; beside acks, moves, requeues, purges,
deletions and checkpoints, which leave alone what is leased. All of it is entered in the same
ledger. What is leased leaves RAM at once, as it does in a queue.
"""

from penstock.message import Entry
from penstock.storage.files.durability import DISK
from penstock.storage.files.options import StorageOptions
from penstock.storage.index.queue_index import QueueIndex
from penstock.storage.parts.lease_engine import Taken
from tests.helpers.faulty_filesystem import FaultyFileSystem
from tests.helpers.inside import live_seqs
from tests.helpers.ledger import Change, Ledger, body_of
from tests.helpers.tiny_engine import OPTIONS
from tests.helpers.vhost_driver import MODES, Driver

READERS = ("reader", "another")


class LeaseDriver(Driver):
    """See the head of this module."""

    def __init__(
        self, fs: FaultyFileSystem, seed: int, *, options: StorageOptions = OPTIONS,
        ledger: Ledger | None = None, first_uid: int = 1,
    ) -> None:  # fmt: skip
        super().__init__(fs, seed, options=options, ledger=ledger, first_uid=first_uid)
        self.engine.state.leases.runs_max = 2

    def _free(self, queue: QueueIndex) -> list[int]:
        return [seq for seq in super()._free(queue) if not queue.leased.has(seq)]

    # ---- leasing -------------------------------------------------------------------------------

    def lease(self, transients: int = 0) -> None:
        """A reader takes some messages: mostly the head, sometimes with holes."""
        queue = self.some_queue()
        if queue is None:
            return
        reader = self.rng.choice(READERS)
        known = self.engine.leases.of(queue).get(reader)
        if known is not None and known.is_releasing:
            return
        seqs = [s for s in self._free(queue) if s not in self.unacked[queue.number]]
        if self.rng.random() < 0.3:
            seqs = [seq for seq in seqs if self.rng.random() < 0.7]
        entries = [self.entry(queue, seq) for seq in seqs[: self.rng.randint(1, 9)]]
        bodies = [self.engine.load_body(queue, e.seq, e.message) for e in entries]
        born = self._transients(queue, transients)
        for at, entry in born:
            place = self.rng.randint(0, len(entries))
            entries.insert(place, entry)
            bodies.insert(place, body_of(*at))
        if entries:
            self._lease(queue, reader, entries, bodies, {e.seq: at for at, e in born})

    def lease_transient(self) -> None:
        """A reader takes transient messages too, which are persistent from then on."""
        self.lease(self.rng.randint(1, 3))

    def _transients(self, queue: QueueIndex, n: int) -> list[tuple[tuple[int, int], Entry]]:
        """Transient messages as a queue would hold them: ((uid, size), entry)."""
        found: list[tuple[tuple[int, int], Entry]] = []
        for _ in range(n):
            at = (self.uid, self._size((0, 20), (100, 300), (2000, 3000)))
            self.uid += 1
            message = self.engine.placement.new_message(self._header(), body_of(*at))
            message.persistent = False
            self.ledger.give_id(message.id, at[0])
            found.append((at, Entry(queue.take_seq(), message)))
        return found

    def _lease(
        self, queue: QueueIndex, reader: str, entries: list[Entry], bodies: list[bytes],
        born: dict[int, tuple[int, int]],
    ) -> None:  # fmt: skip
        """Log it, and let what is leased leave RAM."""
        changes: list[Change] = []
        places: list[tuple[int, int]] = []  # (seq from now on, uid)
        next_seq = queue.next_seq
        for entry in entries:
            if entry.message.persistent:
                places.append((entry.seq, 0))
                continue
            uid, size = born[entry.seq]
            content = (uid, size, entry.message.header)
            changes.append(("put", content, ((queue.number, next_seq),)))
            places.append((next_seq, uid))
            next_seq += 1
        mark = 0
        if self.rng.random() < 0.5:
            mark = max(seq for seq, _ in places) + self.rng.randint(1, 5)
            changes.append(("mark", queue.number, mark))
        seqs = tuple(seq for seq, _ in places)
        changes.append(("lease", queue.number, reader, seqs))
        mode = self.rng.choice(MODES)
        taken = [Taken(queue, entries, bodies, mark)]
        self._do(lambda: self.engine.leases.lease(queue, reader, taken, mode), *changes)
        for seq, uid in places:
            if uid:
                self.ledger.give_id(self.entry(queue, seq).message.id, uid)
        held = self.holder(queue)
        for seq in seqs:
            held.pop(seq)

    def commit_lease(self) -> None:
        """A reader acknowledges all below an ordinal, slice by slice."""
        queue, reader = self._some_lease()
        if queue is None:
            return
        lease = self.engine.leases.of(queue)[reader]
        if lease.is_releasing or not lease.count:
            return
        ordinal = self.rng.randint(lease.committed + 1, lease.next)
        if self.rng.random() < 0.3:
            ordinal = lease.next
        while lease.committed < ordinal:
            mode = self.rng.choice(MODES)
            until, _, _ = self.engine.leases.choose(lease, ordinal)
            self._do(
                lambda mode=mode: self.engine.leases.commit(queue, reader, ordinal, mode),  # type: ignore[misc]
                ("commit_lease", queue.number, reader, until),
            )
            if self.rng.random() < 0.3:
                return

    def release_lease(self) -> None:
        """A reader gives back the oldest of what it has: all of it, if it is not much."""
        queue, reader = self._some_lease()
        if queue is None:
            return
        lease = self.engine.leases.of(queue)[reader]
        runs = self.engine.leases.next_release(queue, reader)
        until = lease.committed + sum(run[2] for run in runs)
        mode = self.rng.choice(MODES)
        self._do(
            lambda: self.engine.leases.release(queue, reader, mode),
            ("release_lease", queue.number, reader, until),
        )

    def _some_lease(self) -> tuple[QueueIndex | None, str]:
        found = [(q, reader) for q in self.queues() for reader in self.engine.leases.of(q)]
        return self.rng.choice(found) if found else (None, "")

    # ---- beside it -----------------------------------------------------------------------------

    def purge(self) -> None:
        """Everything but the unacknowledged; what is leased stays by itself."""
        queue = self.some_queue(live=1)
        if queue is None:
            return
        live = live_seqs(queue)
        free = set(self._free(queue)) - self.unacked[queue.number]
        kept = [seq for seq in live if seq not in free]
        entries = [self.entry(queue, seq) for seq in kept if not queue.leased.has(seq)]
        upper = queue.next_seq
        self._do(
            lambda: self.engine.purge(queue, entries, DISK),
            ("purge", queue.number, upper, frozenset(kept)),
        )
        self.unacked[queue.number].intersection_update(kept)
