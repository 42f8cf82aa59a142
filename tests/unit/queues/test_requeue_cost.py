"""What it costs to give messages back does not depend on how many are ready.

Each test does the same beside a short and a long backlog and counts steps (tests/helpers/steps.py).
"""

from collections.abc import Callable

import pytest

from penstock.queues import paging
from penstock.queues.backing_queue import BackingQueue, Delivery
from penstock.queues.priority_queue import open_backing
from penstock.queues.queue_ram import CHECKS
from penstock.storage.files.durability import OS
from tests.helpers.engine_rig import EngineRig
from tests.helpers.queue_world import Opener, World
from tests.helpers.steps import cost_of
from tests.helpers.variable_queues import info_int, opens, opens_parts, real

SHORT, LONG = 300, 6000
TAKEN = 40
MORE_BYTES = 6000  # than beside the short backlog: the block of a deque, a file buffer
OPENERS = {"plain": opens(read_bytes=1 << 18), "parts": opens_parts()}


@pytest.fixture(autouse=True)
def unchecked() -> object:
    """`QueueRam.check` after each call walks over the queue."""
    was_on, CHECKS.is_on = CHECKS.is_on, False
    yield
    CHECKS.is_on = was_on


def filled(opener: Opener, n: int, limit: int = 0) -> World:
    world = World(EngineRig(segment_slots=64), opener)
    for i in range(n):
        world.q.publish(b"", world.body(i), OS)
    if limit:
        world.q.set_limits(limit, limit // 2)
        world.page()
    return world


def give_back(q: BackingQueue, taken: list[Delivery], *, step: int = 1) -> Callable[[], None]:
    """Each by a call of its own, in this order."""

    def call() -> None:
        for delivery in taken[::step]:
            q.requeue([delivery.tag], OS)

    return call


def same(measure: Callable[[int], Callable[[], object]], allowed: float = 1.3) -> None:
    """The call that `measure` makes for a backlog costs the same beside a short and a long one."""
    short, long = cost_of(measure(SHORT)), cost_of(measure(LONG))
    assert long.lines <= short.lines * allowed + 100, (short.lines, long.lines)
    assert long.bytes <= short.bytes + MORE_BYTES, (short.bytes, long.bytes)


@pytest.mark.parametrize("name", OPENERS)
@pytest.mark.parametrize("step", [1, -1])
def test_messages_given_back_one_by_one(name: str, step: int) -> None:
    def measure(n: int) -> Callable[[], None]:
        world = filled(OPENERS[name], n)
        return give_back(world.q, world.take(TAKEN), step=step)

    same(measure)


@pytest.mark.parametrize("step", [1, -1])
def test_one_by_one_costs_the_same_for_each_of_many(step: int) -> None:
    """Not the square of how many one consumer had."""
    lines = []
    for n in (400, 1600):
        world = filled(OPENERS["plain"], 1700)
        lines.append(cost_of(give_back(world.q, world.take(n), step=step)).lines / n)
    assert lines[1] <= lines[0] * 1.3, lines


@pytest.mark.parametrize("name", OPENERS)
def test_a_consumer_that_rejects_what_it_gets(name: str) -> None:
    """It has some, gives back the first, gets it again, gives back the second ..."""

    def measure(n: int) -> Callable[[], None]:
        world = filled(OPENERS[name], n)
        taken = world.take(TAKEN)

        def call() -> None:
            for delivery in taken:
                world.q.requeue([delivery.tag], OS)
                again = world.fetch()
                assert again.tag == delivery.tag
                assert again.is_redelivered

        return call

    same(measure)


@pytest.mark.parametrize("name", OPENERS)
def test_a_lost_connection(name: str) -> None:
    def measure(n: int) -> Callable[[], object]:
        world = filled(OPENERS[name], n)
        tags = [delivery.tag for delivery in world.take(TAKEN)]
        return lambda: world.q.requeue(tags[::2] + tags[1::2], OS, attempted=False)

    same(measure)


def test_a_lost_connection_costs_what_was_unacked() -> None:
    lines = []
    for n in (400, 1600):
        world = filled(OPENERS["plain"], 3000)
        tags = [delivery.tag for delivery in world.take(n)]
        world.q.requeue(tags[n // 2 :], OS, attempted=False)
        cost = cost_of(lambda w=world, t=tags, k=n // 2: w.q.requeue(t[:k], OS, attempted=False))
        lines.append(cost.lines / n)
    assert lines[1] <= lines[0] * 1.2, lines


def test_what_left_ram_while_it_was_pending_comes_back_without_moving_what_is_ready() -> None:
    """Nothing of the backlog in RAM is written for it, and no body is read."""

    def measure(n: int) -> Callable[[], None]:
        world = filled(OPENERS["plain"], n)
        taken = world.take(TAKEN)
        vq = real(world.q)
        paging.push_pending(vq.state, TAKEN)
        assert info_int(vq, "paged_pending") == TAKEN

        def call() -> None:
            before = info_int(vq, "disk_writes"), info_int(vq, "disk_reads")
            vq.requeue([taken[0].tag], OS)
            vq.requeue([delivery.tag for delivery in taken[1:]], OS)
            assert (info_int(vq, "disk_writes"), info_int(vq, "disk_reads")) == before

        return call

    same(measure)


def test_giving_back_to_a_queue_that_pages_with_each_publish() -> None:
    """A publish that must page something out does not put all in order first."""

    def measure(n: int) -> Callable[[], None]:
        world = filled(OPENERS["plain"], n)
        taken = world.take(TAKEN)
        vq = real(world.q)
        vq.set_limits(vq.ram_bytes(), 0)

        def call() -> None:
            for delivery in taken:
                vq.requeue([delivery.tag], OS)
                vq.publish(b"", b"one more", OS)

        return call

    same(measure)


def test_redelivering_from_a_queue_that_pages_out_pending_messages() -> None:
    """The largest pending seq is found without sorting all of them for each redelivery."""
    lines = []
    for n in (200, 2000):
        world = filled(OPENERS["plain"], n + 50)
        vq = real(world.q)
        taken = world.take(n)
        vq.state.target_bytes = vq.state.ram_bytes() - 1
        vq.paging.step(1, 1)  # it knows their order from now on

        def call(vq=vq, taken=taken) -> None:  # type: ignore[no-untyped-def]
            for delivery in taken[:20]:
                vq.requeue([delivery.tag], OS)
                assert vq.fetch() is not None
                vq.state.target_bytes = vq.state.ram_bytes() - 1
                vq.paging.step(1, 1)

        cost = cost_of(call)
        lines.append(cost.lines)
        assert cost.bytes < 200_000
    assert lines[1] <= lines[0] * 1.3 + 100, lines


def test_priority_queue_of_255() -> None:
    def measure(n: int) -> Callable[[], None]:
        rig = EngineRig(segment_slots=64)
        q = open_backing(rig.engine, b"p", priorities=255)
        for i in range(n):
            q.publish(b"", b"x", OS, priority=i % 256)
        rig.engine.sync()
        taken: list[Delivery] = []
        while len(taken) < TAKEN:
            delivery = q.fetch()
            assert delivery is not None
            taken.append(delivery)
        return give_back(q, taken)

    same(measure)


def test_what_was_taken_for_a_lease_that_came_to_nothing() -> None:
    def measure(n: int) -> Callable[[], None]:
        vq = real(filled(OPENERS["plain"], n).q)
        given = vq.take(TAKEN, 1 << 20, 0)
        first = vq.fetch()
        assert first is not None
        vq.untake(given)

        def call() -> None:
            vq.requeue([first.tag], OS)
            vq.untake(vq.take(TAKEN, 1 << 20, 0))

        return call

    same(measure)
