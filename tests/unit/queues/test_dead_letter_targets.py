"""Dead letters that go to several queues at once: one record, whatever the queues are."""

from collections.abc import Callable

import pytest

from penstock.errors import DiskFullError
from penstock.queues.dead_letter import DeadLetterRoute, Target
from penstock.queues.queue_options import QueueOptions
from penstock.storage.files.durability import DISK, NONE
from tests.helpers.amq_world import REFERENCE, VARIABLE, AmqWorld, name_of
from tests.helpers.engine_rig import STORED

LARGE = "x" * STORED


class ManyRoute(DeadLetterRoute):
    """To all queues of these names that are there."""

    def __init__(self, world: AmqWorld, names: tuple[str, ...]) -> None:
        super().__init__(world.headers)
        self._world = world
        self._names = list(names)

    def find(self, header: bytes) -> tuple[bytes, list[str], str]:
        is_whole = set(self._names) <= set(self._world.queues)
        return header, self._names, "" if is_whole else "some are missing"

    def target(self, name: str) -> Target | None:
        return self._world.queues.get(name)


def many(world: AmqWorld, *names: str) -> Callable[[QueueOptions], DeadLetterRoute | None]:
    return lambda options: ManyRoute(world, names)


@pytest.fixture(params=[VARIABLE, REFERENCE])
def world(request: pytest.FixtureRequest) -> AmqWorld:
    """The dead letters of q go to a, b and c, as far as these are opened."""
    made = AmqWorld(request.param)
    made.routes["q"] = many(made, "a", "b", "c")
    return made


def test_all_targets_get_it_in_one_record(world: AmqWorld) -> None:
    q = world.open()
    for name in "abc":
        world.open(name)
    world.put("m", LARGE)
    tags = [world.take().tag, world.take().tag]
    before = world.rig.engine.log.last_lsn
    assert q.reject(tags[0], DISK) == before + 1
    assert q.reject(tags[1], DISK) == before + 2 == world.rig.engine.log.last_lsn
    assert q.depth() == 0
    for name in "abc":
        assert world.queues[name].fetch() is None, "it is held until it is settled"
    assert [world.drain(name) for name in "abc"] == [["m", LARGE]] * 3
    assert set(world.woken) == {b"a", b"b", b"c"}
    assert q.info()["rejected"] == 2


@pytest.mark.parametrize("mode", [DISK, NONE])
def test_targets_with_times_to_live_of_their_own(world: AmqWorld, mode: int) -> None:
    q = world.open()
    world.open("a", ttl_ms=1000)
    world.open("b", ttl_ms=60_000)
    world.open("c", ttl_ms=60_000)
    world.put("m", LARGE, mode=mode)
    for _ in range(2):
        tag = world.take().tag
        before = world.rig.engine.log.last_lsn
        q.reject(tag)
        assert world.rig.engine.log.last_lsn <= before + 1
    world.tick(1.001)
    assert world.ready("a") == []
    assert world.ready("b") == world.ready("c") == ["m", LARGE]
    world.tick(59)
    assert world.ready("b") == world.ready("c") == []
    assert sum(world.everywhere().values()) == 0


@pytest.mark.parametrize("mode", [DISK, NONE])
@pytest.mark.parametrize("ttl_ms", [None, 60_000])
def test_some_targets_are_durable(world: AmqWorld, mode: int, ttl_ms: int | None) -> None:
    q = world.open()
    world.open("a", is_durable=False)
    world.open("b", ttl_ms=ttl_ms)
    world.open("c")
    world.put("m", LARGE, mode=mode)
    q.reject(world.take().tag)
    q.reject(world.take().tag)
    assert q.depth() == 0
    assert [world.ready(name) for name in "abc"] == [["m", LARGE]] * 3
    world.settle()
    world.crash()
    left = {"m": 2, LARGE: 2} if mode == DISK else {}
    assert world.everywhere() == left


def test_no_target_is_durable(world: AmqWorld) -> None:
    q = world.open()
    for name in "abc":
        world.open(name, is_durable=False)
    world.put("m", LARGE)
    q.reject(world.take().tag)
    q.reject(world.take().tag)
    assert q.depth() == 0
    assert [world.drain(name) for name in "abc"] == [["m", LARGE]] * 3


def test_the_queue_itself_is_among_them(world: AmqWorld) -> None:
    world.routes["q"] = many(world, "q", "a")
    q = world.open()
    world.open("a", ttl_ms=60_000)
    world.put("m", LARGE, "n")
    q.reject(world.take().tag)
    q.reject(world.take().tag)
    world.settle()
    assert world.ready() == ["n", "m", LARGE]
    assert world.ready("a") == ["m", LARGE]


def test_priorities_of_the_targets(world: AmqWorld) -> None:
    if world.kind != VARIABLE:
        pytest.skip("has no priorities")
    q = world.open(priorities=9)
    world.open("a", priorities=2)
    world.open("b", priorities=9)
    world.open("c")
    for i in (1, 7, 4):
        world.put(f"p{i}", priority=i)
    while (delivery := world.get()) is not None:
        q.reject(delivery.tag)
    assert world.drain("a") == ["p7", "p4", "p1"]
    assert world.drain("b") == ["p7", "p4", "p1"]
    priorities = [q.headers.priority(world.take("c").message.header) for _ in range(3)]
    assert priorities == [7, 4, 1]


def test_what_is_refused_goes_to_all(world: AmqWorld) -> None:
    world.open(max_length=1, overflow="reject-publish-dlx")
    world.open("a", ttl_ms=60_000)
    world.open("b", is_durable=False)
    world.open("c")
    world.put("m")
    world.refused("n")
    assert [world.drain(name) for name in "abc"] == [["n"]] * 3
    assert world.ready() == ["m"]


def test_fewer_targets_are_an_event_once_in_a_row(world: AmqWorld) -> None:
    q = world.open()
    world.open("a")
    world.put("1", "2", "3")
    q.reject(world.take().tag)
    q.reject(world.take().tag)
    assert world.told("dead_letter_missing") == ["queue 'q': some are missing"]
    world.open("b")
    world.open("c")
    q.reject(world.take().tag)
    assert q.info()["dead_letters_dropped"] == 0
    assert world.ready("a") == ["1", "2", "3"]


def test_none_is_there(world: AmqWorld) -> None:
    q = world.open()
    world.put("m")
    q.reject(world.take().tag)
    assert (q.depth(), q.info()["dead_letters_dropped"]) == (0, 1)


def test_a_route_that_is_none_drops(world: AmqWorld) -> None:
    world.routes["q"] = lambda options: None
    q = world.open(dead_letter_to="a")
    world.open("a")
    world.put("m", "n")
    q.reject(world.take().tag)
    assert q.discard([world.take().tag]) == 1
    assert (q.depth(), world.queues["a"].depth()) == (0, 0)
    assert (q.info()["rejected"], q.info()["dead_letters_dropped"]) == (2, 0)


def test_a_route_follows_new_options(world: AmqWorld) -> None:
    world.routes["q"] = lambda options: (
        ManyRoute(world, ("a",)) if options.dead_letter_to == "a" else None
    )
    q = world.open()
    world.open("a")
    world.put("m", "n")
    q.reject(world.take().tag)
    q.set_options(QueueOptions(dead_letter_to="a"))
    q.reject(world.take().tag)
    assert world.drain("a") == ["n"]


@pytest.mark.parametrize("ttl_ms", [None, 60_000])
@pytest.mark.parametrize("is_settled", [False, True])
def test_a_crash_leaves_it_in_the_source_or_in_all(
    world: AmqWorld, ttl_ms: int | None, is_settled: bool
) -> None:
    q = world.open()
    world.open("a", ttl_ms=ttl_ms)
    world.open("b")
    world.open("c")
    world.put("m", LARGE)
    q.reject(world.take().tag)
    q.reject(world.take().tag)
    if is_settled:
        world.settle()
    world.crash()
    times = 3 if is_settled else 1
    assert world.everywhere() == {"m": times, LARGE: times}
    assert world.queues["q"].depth() == (0 if is_settled else 2)
    world.restart()
    assert world.everywhere() == {"m": times, LARGE: times}


@pytest.mark.parametrize("ttl_ms", [None, 60_000])
def test_a_full_disk_leaves_it_pending(world: AmqWorld, ttl_ms: int | None) -> None:
    q = world.open()
    world.open("a", ttl_ms=ttl_ms)
    world.open("b")
    world.put(LARGE)
    tag = world.take().tag
    engine = world.rig.engine
    engine.journal.blocked = True
    try:
        q.reject(tag)
    except DiskFullError:
        assert ttl_ms is not None, "a move needs no more room than it gives back"
        assert q.attempts(tag) == 0
        engine.journal.blocked = False
        q.reject(tag)
    engine.journal.blocked = False
    world.settle()
    assert world.everywhere() == {LARGE: 2}


def test_bodies_that_left_ram(world: AmqWorld) -> None:
    q = world.open(max_memory_bytes=0)
    world.open("a", ttl_ms=60_000)
    world.open("b", is_durable=False)
    world.open("c")
    names = [f"{i}".ljust(STORED, ".") for i in range(9)]
    world.put(*names)
    tags = [world.take().tag for _ in names]
    world.tick()
    assert q.discard([*tags, 12345]) == len(names)
    for name in "abc":
        assert [name_of(d) for d in world.queues[name].browse(None, 99)] == names
