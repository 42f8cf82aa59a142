"""The VariableQueue put through the worked example of variable_queue.md, and beside its model.

The sessions and the model are in tests/helpers/queue_trace.py. No limit is set, so nothing is paged
but by the test; the engine's segments have as many slots as the session wants."""

import random
from collections import deque
from collections.abc import Callable
from typing import Final

import pytest

from penstock.message import seq_of
from penstock.queues import paging
from penstock.queues.backing_queue import UNLIMITED
from penstock.queues.rows import ROW_BYTES
from penstock.queues.variable_queue import VariableQueue
from penstock.storage.files.durability import DISK, NONE, OS
from tests.helpers.engine_rig import EngineRig
from tests.helpers.queue_trace import (
    EXAMPLE,
    SEGMENT,
    SHIPPED,
    Driver,
    Model,
    State,
    Step,
    ids,
    permitted_betas,
)
from tests.helpers.queue_world import World
from tests.helpers.variable_queues import opens, real


class Real:
    """A VariableQueue as a Driver. `checks` after every call, so invariants hold all the time."""

    def __init__(
        self, segment: int = SEGMENT, first_seq: int = 1, mode: int = DISK, policy: str = "ratio"
    ) -> None:
        self.rig = EngineRig()
        self.rig.engine.state.slots = segment
        self.vq = VariableQueue(
            self.rig.engine, self.rig.queue(), mode=OS, policy=policy, read_bytes=0
        )
        self._mode = mode
        for _ in range(first_seq):
            self._publish()
            self.vq.drop(ack_required=False)

    def _publish(self) -> int:
        seq = self.vq.index().next_seq
        return self.vq.publish(b"", b"body of %d" % seq, self._mode)

    def publish(self, n: int) -> list[int]:
        return [self._publish() for _ in range(n)]

    def fetch(self, n: int, *, ack_required: bool = False) -> list[int]:
        seqs: list[int] = []
        self.rig.engine.flush()  # the delivered mark is settled
        while len(seqs) < n:
            delivery = self.vq.fetch(ack_required=ack_required)
            if delivery is None:
                break
            assert delivery.message.body == b"body of %d" % delivery.tag
            seqs.append(delivery.tag)
        self.vq.state.check()
        return seqs

    def push_q1(self, quota: int) -> None:
        paging.push_q1(self.vq.state, quota)
        self.vq.state.check()

    def _merge_back(self) -> None:
        """Merge what came back into q4, as the model's requeue does, so that both page out the same
        messages. The queue itself brings each to q4's head when its turn has come."""
        state = self.vq.state
        state.q4 = deque(sorted([*state.q4, *state.back.values()], key=seq_of))
        state.back.clear()
        state.back_order.clear()

    def push_q4(self, quota: int) -> None:
        self._merge_back()
        paging.push_q4(self.vq.state, quota)
        self.vq.state.check()

    def push_alphas_to_betas(self, quota: int) -> None:
        self._merge_back()
        paging.push_alphas_to_betas(self.vq.state, quota)
        self.vq.state.check()

    def push_betas_to_deltas(self, quota: int) -> None:
        paging.push_betas_to_deltas(self.vq.state, quota)
        self.vq.state.check()

    def requeue(self, seqs: list[int]) -> None:
        self.vq.requeue(seqs, OS)

    def ack(self, seqs: list[int]) -> None:
        self.vq.ack(seqs, OS)

    def state(self) -> State:
        q4, q3, delta, q2, q1 = self.vq.state.ids()
        return list(q4), list(q3), list(delta), list(q2), list(q1)


def replay(driver: Driver, steps: list[Step]) -> None:
    for number, (method, arguments, expected) in enumerate(steps, 1):
        getattr(driver, method)(*arguments)
        assert driver.state() == expected, f"after step {number}, {method}{arguments}"


@pytest.mark.parametrize("steps", [EXAMPLE, SHIPPED], ids=["example", "shipped"])
@pytest.mark.parametrize("driver", [Model, Real], ids=["model", "real"])
def test_the_worked_example(driver: Callable[[], Driver], steps: list[Step]) -> None:
    one = driver()
    replay(one, steps)
    left = [seq for part in one.state() for seq in part]
    assert one.fetch(100) == left


@pytest.mark.parametrize("driver", [Model, Real], ids=["model", "real"])
@pytest.mark.parametrize("segment", [*range(1, 20), 4096])
def test_which_segments_give_the_example(driver: Callable[[int], Driver], segment: int) -> None:
    fits = segment in (5, 7, 8, 9, 10)  # border after 5 at most 10, and 10 to 13 in one
    try:
        replay(driver(segment), EXAMPLE)
    except AssertionError:
        assert not fits
    else:
        assert fits


def test_transient_messages_take_the_same_way() -> None:
    replay(Real(mode=NONE), EXAMPLE)
    replay(Real(mode=NONE), SHIPPED)


def test_one_quota_takes_from_q1_first() -> None:
    for driver in (Model(), Real()):
        driver.publish(10)
        driver.push_alphas_to_betas(3)
        driver.publish(5)
        driver.push_alphas_to_betas(6)
        assert driver.state() == (ids(1, 6), ids(7, 15), [], [], [])


def test_permitted_betas() -> None:
    for d, target in ((100_000, 50_000), (1_000_000, 100_000), (2_000_000, 2_000_000)):
        betas = permitted_betas(d, target, 1)
        assert abs((d - betas) / d - d / (target + d)) < 1e-5
    assert permitted_betas(1_000_000, 100_000, 16384) == 90_910
    assert permitted_betas(20_000, 100, 16384) == 16384, "never less than a segment"


SEGMENTS: Final = [1, 2, 3, 5, 8, 64]


@pytest.mark.parametrize("segment", SEGMENTS)
@pytest.mark.parametrize("policy", ["ratio", "eager"])
@pytest.mark.parametrize("first_seq", [0, 1, 7])
def test_model_and_queue_agree(segment: int, policy: str, first_seq: int) -> None:
    for seed in range(8):
        rng = random.Random(f"{seed}/{segment}/{policy}/{first_seq}")
        pair = (
            Model(segment, first_seq),
            Real(segment, first_seq, mode=rng.choice([OS, NONE]), policy=policy),
        )
        for step in range(rng.randint(20, 120)):
            _random_step(rng, *pair)
            pair[0].check()
            assert pair[1].state() == pair[0].state(), f"seed {seed}, step {step}"
        left = [seq for part in pair[0].state() for seq in part]
        assert pair[1].fetch(10**6) == pair[0].fetch(10**6) == left


def _random_step(rng: random.Random, model: Model, real: Real) -> None:
    choice = rng.random()
    n = rng.randint(1, 12)
    pending = sorted(model.pending)
    if choice < 0.35:
        assert model.publish(n) == real.publish(n)
    elif choice < 0.6:
        ack_required = rng.random() < 0.6
        want = model.fetch(n, ack_required=ack_required)
        assert real.fetch(n, ack_required=ack_required) == want
    elif choice < 0.7 and pending:
        some = rng.sample(pending, rng.randint(1, len(pending)))
        model.requeue(some)
        real.requeue(some)
    elif choice < 0.78 and pending:
        some = rng.sample(pending, rng.randint(1, len(pending)))
        model.ack(some)
        real.ack(some)
    else:
        method = rng.choice(["push_q1", "push_q4", "push_alphas_to_betas", "push_betas_to_deltas"])
        getattr(model, method)(n)
        getattr(real, method)(n)


# ---- the same by publishing and fetching alone ---------------------------------------------------


class Limited:
    """A queue with room for seven messages, one read at a time."""

    def __init__(self, policy: str, mode: int) -> None:
        rig = EngineRig(segment_slots=8)
        self.world = World(rig, opens(policy=policy, read_bytes=0), body_bytes=10)
        self.mode = mode
        self.next = 0
        self.publish()
        self.world.q.set_limits(7 * self.world.q.ram_bytes(), 0)
        self.fetch()

    def publish(self) -> State:
        """One more; where all are then."""
        self.world.q.publish(b"", self.world.body(self.next), self.mode)
        self.next += 1
        return self.state()

    def fetch(self) -> State:
        """The next one; where the others are then."""
        self.world.fetch(ack_required=False)
        return self.state()

    def state(self) -> State:
        """q4, q3, delta, q2, q1."""
        vq = real(self.world.q)
        vq.state.check()
        return vq.state.ids()


def test_messages_pass_all_five_parts_by_publishing_and_fetching_alone() -> None:
    queue = Limited("ratio", OS)
    for _ in range(10):
        state = queue.publish()
    assert state == (ids(1, 4), ids(5, 8), [], [], [9, 10]), "q4 from its rear; then q1"
    for _ in range(20):
        state = queue.publish()
    assert state == (ids(1, 4), ids(5, 7), ids(8, 24), ids(25, 29), [30])
    for _ in range(4):
        state = queue.fetch()
    assert state == ([], ids(5, 7), ids(8, 24), ids(25, 29), [30])
    for _ in range(3):
        state = queue.fetch()
    assert state == ([], ids(8, 15), ids(16, 24), ids(25, 29), [30]), "delta's next segment"
    for _ in range(16):
        state = queue.fetch()
    assert state == ([], ids(24, 29), [], [], [30]), "delta is empty: q2 joins q3"
    for _ in range(6):
        state = queue.fetch()
    assert state == ([30], [], [], [], []), "q3 is empty: q1 becomes q4"
    assert queue.fetch() == ([], [], [], [], [])


@pytest.mark.parametrize("policy", ["ratio", "eager"])
def test_transient_messages_pass_all_five_parts_too(policy: str) -> None:
    queue = Limited(policy, NONE)
    for _ in range(30):
        state = queue.publish()
    assert all(state)
    joined = False
    for left in range(29, -1, -1):
        before, state = state, queue.fetch()
        assert [seq for part in state for seq in part] == ids(31 - left, 30)
        joined = joined or (bool(before[3]) and not state[3] and bool(state[1]))
    assert joined, "q2 has joined q3"


def test_the_policy_of_2011_keeps_no_gammas_behind_delta() -> None:
    queue = Limited("eager", OS)
    for _ in range(30):
        state = queue.publish()
    assert state == (ids(1, 4), ids(5, 7), ids(8, 29), [], [30])


@pytest.mark.parametrize("policy", ["ratio", "eager"])
def test_betas_that_are_fetched_in_time_never_get_a_slot(policy: str) -> None:
    """What the ratio is for: no position is written for what is read soon."""
    queue = Limited(policy, NONE)
    for _ in range(13):
        queue.publish()
    bodies = real(queue.world.q).state.disk_writes
    assert bodies == len(queue.state()[1]), "rows without slots"
    for _ in range(13):
        queue.fetch()
    assert real(queue.world.q).state.disk_writes == bodies


# ---- the document's states by publishing, fetching and a limit alone -----------------------------

# The session, beside the states of EXAMPLE: there two calls of paging are one change of a limit.
# room: for so many alphas and so many rows.
LIMITED_EXAMPLE: Final = [
    ("publish", 9), ("publish", 1), ("room", (7, 3)), ("publish", 5), ("room", (6, 9)),
    ("room", (6, 5)), ("publish", 5), ("room", (4, 12)), ("fetch", 3), ("fetch", 5), ("fetch", 1),
    ("publish", 5), ("fetch", 8), ("fetch", 1),
]  # fmt: skip
BETWEEN: Final = ("push_q1",)  # of EXAMPLE: followed by push_q4, within one change of the limit


@pytest.mark.parametrize("mode", [OS, NONE])
def test_the_worked_example_results_from_publish_fetch_and_a_limit(mode: int) -> None:
    world = World(EngineRig(segment_slots=8), opens(policy="even"), body_bytes=1000)
    queue = real(world.q)
    world.put(0, mode=mode)
    alpha = queue.ram_bytes()
    world.fetch(ack_required=False)  # the document's first message is 1
    limit = UNLIMITED
    seen = []
    for method, given in LIMITED_EXAMPLE:
        if isinstance(given, tuple):
            limit = given[0] * alpha + given[1] * ROW_BYTES
            queue.set_limits(limit, 0)
            world.page()
        for _ in range(given if isinstance(given, int) else 0):
            if method == "fetch":
                world.fetch(ack_required=False)
                continue
            if limit < UNLIMITED:  # it makes room for the message and the one that is delivered
                queue.set_limits(queue.ram_bytes() + 2 * alpha, 0)
            seq = queue.index().next_seq
            queue.publish(b"h%d" % (seq % 10), world.body(seq), mode)
            world.page()
            world.inhale()
        queue.state.check()
        seen.append(tuple(list(part) for part in queue.state.ids()))
    assert seen == [state for method, _, state in EXAMPLE if method not in BETWEEN]
    assert len(seen) == 14


def test_even_rolls_rows_when_less_than_a_message_is_over() -> None:
    world = World(EngineRig(segment_slots=8), opens(policy="even"), body_bytes=1000)
    queue = real(world.q)
    world.put(*range(10, 26), mode=OS)
    alpha = queue.ram_bytes() // 16
    queue.set_limits(2 * alpha + 14 * ROW_BYTES, 0)
    assert queue.state.ids() == ([0, 1], ids(2, 15), [], [], [])
    queue.set_limits(2 * alpha + 12 * ROW_BYTES, 0)
    assert queue.state.ids() == ([0, 1], ids(2, 13), [14, 15], [], [])
    queue.set_limits(alpha + 13 * ROW_BYTES, 0)
    assert queue.state.ids() == ([0], ids(1, 13), [14, 15], [], []), "a message's bytes were over"
