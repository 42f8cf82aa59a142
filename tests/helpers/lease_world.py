"""What tests of leases do with the queue "q" of an AmqWorld: lease, read pages, commit, release.

Messages are named m0, m1 ...; each of these goes on until it is done, and then all is durable.
"""

from penstock.queues.amq_queue import LeaseInfo, LeaseSlice
from penstock.storage.pages.stream_view import StreamView
from tests.helpers.amq_world import AmqWorld

MANY = 10_000
BYTES = 1 << 30


def names(n: int, start: int = 0) -> list[str]:
    return [f"m{i}" for i in range(start, start + n)]


def lease(world: AmqWorld, n: int = MANY, *, reader: str = "r") -> list[LeaseSlice]:
    """Lease up to n messages, in as many slices as that takes."""
    found: list[LeaseSlice] = []
    while n > 0:
        one = world.q.lease(reader, n, BYTES)
        n -= one.next - one.first
        if one.next > one.first:
            found.append(one)
        if not one.has_more:
            break
    world.settle()
    return found


def info(world: AmqWorld, reader: str = "r") -> LeaseInfo:
    (found,) = [lease for lease in world.q.leases() if lease.reader == reader]
    return found


def pages(world: AmqWorld, reader: str = "r") -> list[tuple[int, str]]:
    """(ordinal, name) of what the reader reads, from what it has committed on."""
    while world.q.materialise(reader):
        pass
    lease = info(world, reader)
    view = StreamView(world.rig.fs, lease.path)
    assert view.stream_id == lease.stream_id
    assert view.head().next_offset == lease.next
    found = view.read(lease.committed, MANY, BYTES)
    return [(record.offset, record.payload.decode()) for record in found]


def commit(world: AmqWorld, ordinal: int, reader: str = "r") -> None:
    while world.q.commit_lease(reader, ordinal):
        pass
    world.settle()


def release(world: AmqWorld, reader: str = "r") -> None:
    while world.q.release_lease(reader):
        pass
    world.settle()
