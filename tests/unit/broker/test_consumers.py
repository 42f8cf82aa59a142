"""Consumers: turns, priorities, and that their number costs nobody else anything."""

import random

from penstock.broker.broker_queue import STALE_RINGS_MAX, Consumer, Consumers
from tests.helpers.steps import cost_of
from tests.helpers.vhost_rig import TakingChannel, VHostRig


class Sharing(TakingChannel):
    """A channel with one prefetch for all its consumers."""

    def __init__(self, left: int) -> None:
        super().__init__()
        self._left = left

    def room(self) -> int:
        return self._left


class Crowd:
    """Consumers of one queue, each with a channel of its own."""

    def __init__(self, *, is_single_active: bool = False) -> None:
        self.rig = VHostRig()
        self.queue = self.rig.queue()
        if is_single_active:
            self.queue.consumers = Consumers(is_single_active=True)
        self.consumers = self.queue.consumers

    def add(self, tag: str, priority: int = 0, *, prefetch: int = 0) -> Consumer:
        consumer = Consumer(
            tag, TakingChannel(), self.queue, no_ack=False, is_exclusive=False, priority=priority,
            prefetch=prefetch, arguments={},
        )  # fmt: skip
        self.consumers.add(consumer)
        return consumer

    def turns(self, n: int) -> str:
        """The tags of those whose turn it is, n times."""
        found = [self.consumers.next_ready() for _ in range(n)]
        return " ".join("-" if consumer is None else consumer.tag for consumer in found)


def block(*consumers: Consumer) -> None:
    for consumer in consumers:
        consumer.channel.can_deliver = False


def free(*consumers: Consumer) -> None:
    """As a channel does it that may be given something again."""
    for consumer in consumers:
        consumer.channel.can_deliver = True
        consumer.wake()


def test_they_take_turns_within_the_highest_priority_that_is_ready() -> None:
    crowd = Crowd()
    a, b = crowd.add("a"), crowd.add("b")
    c, d = crowd.add("c", 5), crowd.add("d", 5)
    assert crowd.turns(5) == "c d c d c"
    block(c, d)
    assert crowd.turns(3) == "a b a"
    free(d)
    assert crowd.turns(2) == "d d"
    block(a, b, d)
    assert crowd.turns(2) == "- -"
    free(a, c)
    assert crowd.turns(2) == "c c"
    assert [each.tag for each in crowd.consumers.all()] == ["c", "d", "a", "b"]


def test_of_many_priorities_the_highest_that_is_ready_is_asked_and_none_stays() -> None:
    rng = random.Random(1)
    crowd = Crowd()
    there: dict[str, Consumer] = {}
    for n in range(5000):
        what = rng.choice(["add", "remove", "block", "free", "pause"])
        some = rng.choice(list(there.values())) if there else None
        if what == "add":
            there[str(n)] = crowd.add(str(n), rng.randrange(1000))
        elif what == "pause":
            crowd.consumers.pause(is_paused=rng.random() < 0.5)
        elif some is not None and what == "remove":
            crowd.consumers.remove(some)
            del there[some.tag]
        elif some is not None:
            (block if what == "block" else free)(some)
        able = [one.priority for one in there.values() if one.is_ready()]
        found = crowd.consumers.next_ready()
        expected = None if crowd.consumers.is_paused or not able else max(able)
        assert (None if found is None else found.priority) == expected
        assert len(crowd.consumers._asked) <= 2 * len(there) + STALE_RINGS_MAX


def test_room_counts_those_that_are_ready_as_far_as_it_is_asked() -> None:
    crowd = Crowd()
    many = [crowd.add(str(i), i % 3, prefetch=10) for i in range(9)]
    many[8].unacked = 7
    assert crowd.consumers.room(100) == 83
    assert crowd.consumers.room(2) == 2
    block(*many[:7])
    assert crowd.consumers.room(100) == 13
    crowd.turns(1)
    assert crowd.consumers.room(100) == 13
    unlimited = crowd.add("unlimited")
    assert crowd.consumers.room(100) == 100
    block(unlimited, *many)
    assert crowd.consumers.room(100) == 0


def test_room_of_one_consumer_is_its_own() -> None:
    crowd = Crowd()
    only = crowd.add("only", prefetch=10)
    assert (crowd.consumers.room(100), crowd.consumers.room(4)) == (10, 4)
    block(only)
    assert crowd.consumers.room(100) == 0


def test_consumers_of_one_channel_share_its_room() -> None:
    crowd = Crowd()
    a, b = crowd.add("a", prefetch=10), crowd.add("b")
    a.channel = b.channel = Sharing(12)
    assert crowd.consumers.room(100) == 12


def test_one_that_was_parked_and_went_is_not_asked_again() -> None:
    crowd = Crowd()
    a, b, c = crowd.add("a"), crowd.add("b"), crowd.add("c")
    block(a, b, c)
    assert crowd.turns(1) == "-"
    crowd.consumers.remove(b)
    crowd.consumers.remove(b)
    free(b)
    assert (crowd.turns(1), crowd.consumers.count) == ("-", 2)
    crowd.consumers.remove(c)
    free(a)
    assert crowd.turns(2) == "a a"


def test_the_next_active_one_is_the_first_of_the_highest_priority() -> None:
    crowd = Crowd(is_single_active=True)
    a, b, _ = crowd.add("a"), crowd.add("b"), crowd.add("c", 7)
    assert crowd.turns(2) == "a a"
    block(a)
    assert crowd.turns(2) == "- -"
    crowd.consumers.remove(a)
    assert crowd.turns(1) == "c"
    assert b.is_ready()


def test_random_lives_agree_with_asking_everybody() -> None:
    crowd, rng = Crowd(), random.Random(7)
    alive: list[Consumer] = []
    for step in range(3000):
        what = rng.random()
        if what < 0.1 or not alive:
            alive.append(crowd.add(str(step), rng.randrange(3), prefetch=1))
        elif what < 0.15:
            crowd.consumers.remove(alive.pop(rng.randrange(len(alive))))
        elif what < 0.5:
            block(rng.choice(alive))
        elif what < 0.7:
            free(rng.choice(alive))
        ready = [consumer for consumer in alive if consumer.is_ready()]
        found = crowd.consumers.next_ready()
        assert (found is None) == (not ready)
        if found is not None:
            assert found in ready
            assert found.priority == max(consumer.priority for consumer in ready)
        assert crowd.consumers.room(10**6) == len(ready)
        assert {*crowd.consumers.all()} == {*alive}
        assert crowd.consumers.count == len(alive)


def per_consumer(n: int, priorities: int) -> list[float]:
    """Lines for each of n: attach, ask them all when they are blocked, one ack and its delivery,
    cancel."""
    crowd = Crowd()
    many: list[Consumer] = []

    def attach() -> None:
        for i in range(n):
            assert not crowd.consumers.has_exclusive()
            many.append(crowd.add(str(i), i % priorities, prefetch=1))

    def ask() -> None:
        for consumer in many:
            consumer.unacked = 1
        for _ in range(n):
            assert crowd.consumers.next_ready() is None

    def ack() -> None:
        for consumer in many:
            consumer.unacked = 0
            consumer.wake()
            assert crowd.consumers.next_ready() is consumer
            consumer.unacked = 1
            assert crowd.consumers.next_ready() is None

    def cancel() -> None:
        for consumer in many[::-1]:
            crowd.consumers.remove(consumer)

    return [cost_of(call).lines / n for call in (attach, ask, ack, cancel)]


def test_many_consumers_cost_the_same_each() -> None:
    for few, many in ((1, 1), (100, 400)):
        short, long = per_consumer(100, few), per_consumer(400, many)
        assert all(b <= a * 1.2 + 1 for a, b in zip(short, long, strict=True)), (short, long)
