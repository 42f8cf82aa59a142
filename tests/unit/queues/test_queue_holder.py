"""QueueHolder: a checkpoint gets what it must write, piece by piece, and not everything."""

import pytest

from penstock.message import Entry
from penstock.queues.variable_queue import QueueHolder
from penstock.storage.files.durability import DISK
from penstock.storage.index.queue_index import DictHolder
from tests.helpers.engine_rig import STORED, EngineRig
from tests.helpers.queue_world import World
from tests.helpers.variable_queues import LIMIT, opens, real

MANY = 300


def holder_of(world: World) -> QueueHolder:
    holder = real(world.q).state.index.holder
    assert isinstance(holder, QueueHolder)
    return holder


def seqs(entries: list[Entry]) -> list[int]:
    return [entry.seq for entry in entries]


def world_of(n: int) -> World:
    world = World(EngineRig(), opens())
    world.put(*range(n))
    return world


def pieces(world: World, below: int, n: int) -> list[list[int]]:
    """All pieces, of n each but the last."""
    found: list[list[int]] = []
    while True:
        found.append(seqs(holder_of(world).candidates(below, n)))
        if len(found[-1]) < n:
            return found
        below = found[-1][-1]


def checkpoint(world: World) -> None:
    world.rig.engine.sync()
    world.rig.engine.upkeep.begin_checkpoint()
    world.rig.finish_checkpoint()


def test_pieces_descend_from_the_cut() -> None:
    assert pieces(world_of(10), 8, 3) == [[7, 6, 5], [4, 3, 2], [1, 0]]
    assert pieces(world_of(10), 100, 5) == [[9, 8, 7, 6, 5], [4, 3, 2, 1, 0], []]
    assert pieces(world_of(0), 5, 3) == [[]]


def test_a_piece_goes_on_from_q1_to_q4() -> None:
    world = world_of(4)
    vq = real(world.q)
    vq.set_limits(LIMIT, LIMIT // 2)
    world.put(*range(4, 30))  # paged out, so that what comes now is q1
    vq.set_limits(LIMIT * 100, LIMIT * 50)
    world.put(30, 31)
    q4, _, _, _, q1 = vq.state.ids()
    assert q4
    assert q1
    in_line = [*reversed(q1), *reversed(q4)]
    assert [seq for piece in pieces(world, 100, 1) for seq in piece] == in_line
    assert [seq for piece in pieces(world, 100, 3) for seq in piece] == in_line


def test_the_delivered_are_not_in_line() -> None:
    world = world_of(6)
    held = world.take(4)
    world.q.ack([held[1].tag], DISK)
    world.q.requeue([held[3].tag], DISK)
    assert seqs(holder_of(world).unsettled()) == [0, 2]
    assert pieces(world, 100, 9) == [[5, 4, 3]]
    assert seqs(holder_of(world).materialise(5)) == [0, 2, 3, 4]


def test_what_earlier_checkpoints_wrote_is_hardly_listed() -> None:
    world = world_of(MANY)
    checkpoint(world)
    world.put(*range(MANY, MANY + 5))
    (piece,) = pieces(world, MANY + 4, MANY * 2)
    assert piece[:4] == [MANY + 3, MANY + 2, MANY + 1, MANY]
    assert len(piece) <= 10
    assert seqs(holder_of(world).materialise(MANY + 4)) == list(range(MANY, MANY + 4))
    world.put(*range(MANY + 5, MANY * 2))
    (piece,) = pieces(world, MANY * 2, MANY * 2)
    assert piece[:MANY] == list(reversed(range(MANY, MANY * 2)))
    assert len(piece) < MANY * 2


class Noting(DictHolder):
    """Stands before another holder, and notes what was asked for."""

    def __init__(self, inner: QueueHolder) -> None:
        super().__init__()
        self.inner = inner
        self.asked: list[int] = []

    def wants_drops(self) -> bool:
        return self.inner.wants_drops()

    def candidates(self, below: int, n: int) -> list[Entry]:
        self.asked.append(below)
        return self.inner.candidates(below, n)

    def materialise(self, below: int) -> list[Entry]:
        self.asked.append(below)
        return self.inner.materialise(below)


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("end", ["purge", "delete"])
def test_who_is_gone_is_asked_for_only_where_a_body_is_in_the_store(end: str, stored: bool) -> None:
    world = World(EngineRig(), opens(), body_bytes=STORED if stored else 0)
    world.put(*range(5))
    noting = Noting(holder_of(world))
    real(world.q).state.index.holder = noting
    if end == "purge":
        assert world.q.purge(DISK) == 5
    else:
        world.q.delete_and_terminate(DISK)
    assert bool(noting.asked) == stored
    world.rig.restart()
