"""What a ledger's model knows of leases, and the judge of leases after a recovery.

A `ModelLease` is the plain list of seqs that a reader has of one queue, in the order of delivery,
and the ordinal of the first of them. `check_leases` demands that an engine which has just recovered
has the same: the same seqs at the same ordinals, as counts and bits in the index too, with bytes,
numbers of stored bodies and latest times as they are; every other live message is ready.
"""

from penstock.storage.engine import StorageEngine
from penstock.storage.index.leases import Lease
from penstock.storage.index.queue_index import QueueIndex
from tests.helpers.inside import live_seqs
from tests.helpers.uids import Violation

Leases = dict[tuple[int, str], "ModelLease"]
Told = dict[tuple[int, str], tuple[int, tuple[int, ...], bool]]


class ModelLease:
    """Of one queue and reader."""

    def __init__(self) -> None:
        self.committed = 0
        self.seqs: tuple[int, ...] = ()
        self.is_releasing = False

    def copy(self) -> "ModelLease":
        other = ModelLease()
        other.committed, other.seqs = self.committed, self.seqs
        other.is_releasing = self.is_releasing
        return other

    def take_below(self, ordinal: int) -> tuple[int, ...]:
        """The seqs below an ordinal, which are forgotten."""
        n = ordinal - self.committed
        gone, self.seqs = self.seqs[:n], self.seqs[n:]
        self.committed = ordinal
        return gone


def told(leases: Leases) -> Told:
    """What the model says, to be compared."""
    return {key: (x.committed, x.seqs, x.is_releasing) for key, x in leases.items()}


def leases_of(engine: StorageEngine) -> Told:
    """The same of an engine; of queues with one part."""
    found: Told = {}
    for queue, leases in engine.state.leases.by_queue.items():
        for reader, lease in leases.items():
            found[queue, reader] = (lease.committed, tuple(seqs_of(lease)), lease.is_releasing)
    return found


def seqs_of(lease: Lease) -> list[int]:
    """The seqs of a lease, in the order of delivery."""
    runs = [run for one in lease.slices for run in one.runs()]
    return [seq for _, first, n, _, _, _ in runs for seq in range(first, first + n)]


def check_leases(engine: StorageEngine, wanted: Leases) -> None:
    """An engine that has just recovered has these leases; Violation."""
    found = leases_of(engine)
    if found != told(wanted):
        raise Violation(f"leases {found}, should be {told(wanted)}")
    for queue in engine.state.queues.values():
        mine = {s for (number, _), x in wanted.items() if number == queue.number for s in x.seqs}
        live = live_seqs(queue)
        if not mine <= set(live):
            raise Violation(f"queue {queue.number}: leased and dead {sorted(mine - set(live))}")
        bits = {seq for seq in live if queue.leased.has(seq)}
        if bits != mine or queue.leased.count != len(mine):
            raise Violation(f"queue {queue.number}: leased {sorted(bits)}, not {sorted(mine)}")
        slots = queue.slots
        ready = [s for n in queue.segments for s in queue.ready_between(n * slots, (n + 1) * slots)]
        if sorted(ready) != [seq for seq in live if seq not in mine]:
            raise Violation(f"queue {queue.number}: ready {ready}, leased {sorted(mine)}")
    for leases in engine.state.leases.by_queue.values():
        for lease in leases.values():
            _check_slices(engine, lease)


def _check_slices(engine: StorageEngine, lease: Lease) -> None:
    at, size, latest = lease.committed, 0, lease.floor_s
    for one in lease.slices:
        if (one.ordinal, one.floor_s) != (at, latest):
            text = f"a slice at {one.ordinal}, floor {one.floor_s}; should be {at}, {latest}"
            raise Violation(f"reader {lease.reader}: {text}")
        for number, first, n, run_bytes, stores, latest_s in one.runs():
            queue = engine.state.queues[number]
            real = _measures(engine, queue, first, n)
            if (run_bytes, stores) != real[:2] or latest_s < real[2]:
                text = f"seqs {first}+{n} have {real}, the run says {run_bytes, stores, latest_s}"
                raise Violation(f"reader {lease.reader}: {text}")
            at, size, latest = at + n, size + run_bytes, max(latest, latest_s)
    if (at, size, latest) != (lease.next, lease.bytes, lease.last_s):
        text = f"{at, size, latest}, should be {lease.next, lease.bytes, lease.last_s}"
        raise Violation(f"reader {lease.reader}: next, bytes, latest time are {text}")


def _measures(engine: StorageEngine, queue: QueueIndex, first: int, n: int) -> tuple[int, int, int]:
    """Bytes, stored bodies and latest time of a run as its slots or rows have them."""
    messages = engine.read(queue, list(range(first, first + n)))
    return (
        sum(m.size for m in messages),
        sum(1 for m in messages if m.store_file),
        max(m.time for m in messages),
    )
