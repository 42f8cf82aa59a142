"""VariableQueues that share bodies: what each counts, on every way out of RAM and back."""

import random
from typing import Any

import pytest

from penstock.message import SharedMessage
from penstock.queues.queue_ram import ALPHA_BYTES
from penstock.queues.variable_queue import VariableQueue
from penstock.storage.files.durability import DISK, NONE, OS
from penstock.storage.parts.lease_engine import Taken
from tests.helpers.engine_rig import EngineRig
from tests.helpers.monitored import MIB, Monitored
from tests.helpers.monitored import queue as fake_queue
from tests.helpers.ram_count import counted_bytes, held_bytes

BIG = 600  # a body
ROOMY: dict[str, Any] = {
    "segment_slots": 64, "queue_index_embed_msgs_below": 1 << 20, "wal_inline_below": 1 << 20,
    "wal_segment_bytes_min": 1 << 20, "wal_segment_bytes_max": 1 << 20,
}  # fmt: skip


class Bench:
    """Some queues and one engine; `judge` is called after all that a test does."""

    def __init__(self, n: int, *, durable: bool = True) -> None:
        self.rig = EngineRig(**ROOMY)
        self.engine = self.rig.engine
        self.queues = [self.open(b"q%d" % i, durable=durable) for i in range(n)]

    def open(self, name: bytes, *, durable: bool = True) -> VariableQueue:
        """One more queue."""
        engine = self.engine
        index = self.rig.queue(name) if durable else engine.declare_queue(name, is_durable=False)
        return VariableQueue(engine, index, mode=DISK)

    def put(self, body: bytes, mode: int = OS, to: list[VariableQueue] | None = None) -> None:
        """To all of them, or to these, as one message, whose body nothing else has."""
        body = bytes(bytearray(body))
        queues = self.queues if to is None else to
        self.engine.publish([queue.index() for queue in queues], b"", body, mode)
        self.engine.sync()
        self.judge()

    def judge(self) -> None:
        """The counters are right, one by one and together."""
        for queue in self.queues:
            queue.state.check()
        assert counted_bytes(self.queues) == held_bytes(self.queues)

    def body_parts(self) -> list[int]:
        """What each counts of bodies."""
        found = []
        for queue in self.queues:
            heads = sum(ALPHA_BYTES + len(e.message.header) for e in queue.state.in_ram())
            found.append(queue.state.ram_bytes() - heads)
        return found


def fetched(queue: VariableQueue) -> int:
    """The tag of its head, which is pending now."""
    delivery = queue.fetch()
    assert delivery is not None
    return delivery.tag


def test_ten_queues_count_one_body_once() -> None:
    bench = Bench(10)
    for _ in range(3):
        bench.put(b"x" * 1000)
    assert bench.body_parts() == [300] * 10
    info = bench.queues[0].info()
    assert info["ram_bytes"] == info["alpha_bytes"] == 3 * (ALPHA_BYTES + 100)
    assert info["elsewhere_bytes"] == 3 * 900
    assert info["bytes"] == 3000, "bodies of ready messages, as for every queue"


def test_a_message_of_one_queue_shares_nothing() -> None:
    bench = Bench(1)
    bench.put(b"x" * 1000)
    (queue,) = bench.queues
    assert queue.elsewhere_bytes() == queue.state.shared.count == 0
    assert not isinstance(queue.state.q4[0].message, SharedMessage)


@pytest.mark.parametrize("mode", [OS, NONE])
def test_what_one_queue_has_done_with_the_others_count(mode: int) -> None:
    bench = Bench(4)
    bench.put(b"x" * BIG, mode)
    one, two, three, four = bench.queues
    tag = fetched(one)
    bench.judge()
    assert bench.body_parts() == [150] * 4, "it is in RAM until it is acknowledged"
    one.ack([tag], OS)
    bench.judge()
    assert bench.body_parts() == [0, 200, 200, 200]
    two.fetch(ack_required=False)
    bench.judge()
    assert bench.body_parts() == [0, 0, 300, 300]
    three.drop(ack_required=False)
    bench.judge()
    assert bench.body_parts() == [0, 0, 0, BIG]
    four.purge(OS)
    bench.judge()
    assert bench.body_parts() == [0] * 4


@pytest.mark.parametrize("mode", [OS, NONE])
def test_what_one_queue_pages_out_the_others_count(mode: int) -> None:
    bench = Bench(3)
    for _ in range(8):
        bench.put(b"x" * BIG, mode)
    one = bench.queues[0]
    one.set_limits(0, 0)
    while one.resume():
        bench.judge()
    assert bench.body_parts()[1:] == [8 * BIG // 2] * 2
    assert one.ram_bytes() < 8 * 32 + 1
    assert one.elsewhere_bytes() == 0
    one.set_limits(1 << 30, 1 << 29)
    while one.inhale():
        bench.engine.poll(wait=True)
    bench.judge()
    assert one.state.ram_messages() == 8
    assert bench.body_parts() == [8 * BIG, 8 * BIG // 2, 8 * BIG // 2], "it has its own now"


def test_what_is_requeued_is_shared_as_before() -> None:
    bench = Bench(2)
    bench.put(b"x" * BIG)
    one = bench.queues[0]
    one.requeue([fetched(one)], OS)
    bench.judge()
    assert bench.body_parts() == [300, 300]


def test_what_is_requeued_behind_what_is_out_leaves_ram() -> None:
    bench = Bench(2)
    for _ in range(12):
        bench.put(b"x" * BIG)
    one = bench.queues[0]
    tags = [fetched(one) for _ in range(10)]
    one.set_limits(2000, 1000)
    while one.resume():
        bench.judge()
    one.requeue(tags[5:], OS)
    bench.judge()
    one.requeue(tags[:5], OS)
    bench.judge()
    assert one.len() == 12


def test_a_queue_that_is_deleted_counts_no_more() -> None:
    bench = Bench(3)
    for _ in range(4):
        bench.put(b"x" * BIG)
        bench.put(b"y" * BIG, NONE)
    gone = bench.queues.pop(1)
    for _ in range(3):
        fetched(gone)
    bench.engine.wait(gone.delete_and_terminate(OS), OS)
    bench.judge()
    assert bench.body_parts() == [8 * BIG // 2] * 2


def test_leased_messages_leave_and_may_come_back() -> None:
    bench = Bench(3)
    for _ in range(4):
        bench.put(b"x" * BIG)
    one = bench.queues[0]
    taken = one.take(2, 1 << 20, 0)
    bench.judge()
    assert bench.body_parts() == [400, 400 + 600, 400 + 600]
    one.untake(taken)
    bench.judge()
    assert bench.body_parts() == [4 * 200] * 3


def test_a_transaction_shares_as_a_publish_does() -> None:
    bench = Bench(4)
    transaction = bench.engine.begin()
    transaction.publish([queue.index() for queue in bench.queues], b"", b"x" * 402)
    bench.judge()
    bench.engine.wait(transaction.commit(OS), OS)
    bench.judge()
    assert bench.body_parts() == [102, 100, 100, 100]


def test_a_transaction_that_spooled_the_body_shares_nothing() -> None:
    bench = Bench(2)
    transaction = bench.engine.begin()
    transaction.body_bytes = bench.engine.options.tx_spool_bytes
    transaction.publish([queue.index() for queue in bench.queues], b"", b"x" * 400)
    bench.engine.wait(transaction.commit(OS), OS)
    bench.judge()
    assert bench.body_parts() == [0, 0]


def test_one_body_in_two_messages_counts_once() -> None:
    bench = Bench(4)
    body = b"x" * 400
    with bench.engine.share(bench.engine.placement.share_of(body, 4)):
        bench.engine.publish([q.index() for q in bench.queues[:2]], b"", body, OS)
        bench.engine.publish([bench.queues[2].index()], b"other", body, OS, 1 << 50)
        bench.engine.publish([bench.queues[3].index()], b"", body, NONE)
    bench.judge()
    assert bench.body_parts() == [100] * 4


def test_a_message_that_moves_is_still_shared() -> None:
    """A dead letter has the body that other queues hold, too."""
    bench = Bench(3)
    dead = [bench.open(b"dead"), bench.open(b"brief", durable=False)]
    bench.put(b"x" * BIG)
    one, two, _ = bench.queues
    bench.queues += dead
    one.move(fetched(one), [queue.index() for queue in dead], b"header", OS)
    bench.judge()
    assert bench.body_parts() == [0, 150, 150, 150, 150]
    two.move(fetched(two), [dead[1].index()], b"header", OS)
    bench.judge()
    assert bench.body_parts() == [0, 0, 150, 150, 300]


def test_a_message_of_one_queue_that_moves_to_two_is_shared_there() -> None:
    bench = Bench(3)
    one, two, three = bench.queues
    bench.put(b"x" * BIG, to=[one])
    one.move(fetched(one), [two.index(), three.index()], b"", OS)
    bench.judge()
    assert bench.body_parts() == [0, 300, 300]


def test_a_limit_is_of_what_the_queue_counts() -> None:
    """Four queues of one MiB each hold four times as many messages if they share them."""
    bench = Bench(4)
    for queue in bench.queues:
        queue.set_limits(8 * (ALPHA_BYTES + BIG // 4), 0)
    for _ in range(8):
        bench.put(b"x" * BIG)
    assert not any(queue.info()["is_flowed"] for queue in bench.queues)
    bench.put(b"x" * BIG)
    assert any(queue.info()["is_flowed"] for queue in bench.queues)


def test_rows_of_unacknowledged_messages_count_towards_the_limit() -> None:
    bench = Bench(1)
    (queue,) = bench.queues
    for _ in range(40):
        bench.put(b"x" * 100)
    for _ in range(40):
        fetched(queue)
    limit = 8 * 32 - 1  # of the rows that are left
    queue.set_limits(limit, 0)
    while queue.resume():
        bench.judge()
    assert queue.info()["paged_pending"] == 40
    assert queue.ram_bytes() == queue.info()["row_bytes"]
    assert queue.ram_bytes() > limit, "so it is over its limit"
    bench.put(b"x" * 100)
    assert queue.state.ram_messages() == 0, "there is no room for one that is ready"
    assert queue.info()["is_flowed"]


def test_the_monitor_gives_no_share_for_what_others_count() -> None:
    """Two queues of the same messages; what one shares with others it needs no room for."""
    alone, sharing = fake_queue(ram=20 * MIB, depth=100 * MIB), fake_queue(depth=100 * MIB)
    sharing.ram, sharing.elsewhere = 20 * MIB, 80 * MIB
    bench = Monitored(alone, sharing)
    bench.round()
    assert sharing.share < alone.share / 2


@pytest.mark.parametrize("seed", range(10))
def test_random_lives(seed: int) -> None:
    """The ways of VariableQueues that no client of a broker takes are among them."""
    rng = random.Random(seed)
    bench = Bench(5)
    pending: list[list[int]] = [[] for _ in bench.queues]
    leased: list[tuple[VariableQueue, list[Taken]]] = []
    for queue in bench.queues[:3]:
        queue.set_limits(rng.choice([1000, 4000]), 500)
    bench.queues[3].set_queue_mode("lazy")
    for _ in range(200):
        at = rng.randrange(5)
        queue = bench.queues[at]
        act = rng.randrange(10)
        if act < 4:
            some = rng.sample(bench.queues, rng.randint(1, 5))
            bench.put(b"x" * rng.randint(1, 900), rng.choice([OS, NONE]), some)
        elif act == 4:
            delivery = queue.fetch(ack_required=rng.random() < 0.7)
            if delivery is not None and queue.pending(delivery.tag) is not None:
                pending[at].append(delivery.tag)
        elif act == 5:
            head = queue.drop(ack_required=rng.random() < 0.5)
            if head is not None and queue.pending(head.tag) is not None:
                pending[at].append(head.tag)
        elif act == 6 and pending[at]:
            tags = [pending[at].pop(rng.randrange(len(pending[at])))]
            if rng.random() < 0.5:
                queue.ack(tags, OS)
            else:
                queue.requeue(tags, OS)
        elif act == 7:
            leased.append((queue, queue.take(rng.randint(1, 3), 1 << 20, 0)))
            if rng.random() < 0.5:
                bench.judge()
            queue, taken = leased.pop()
            queue.untake(taken)
        elif act == 8:
            while queue.resume():
                bench.judge()
            queue.inhale(at_rest=True)
            bench.engine.poll(wait=True)
        elif rng.random() < 0.2:
            queue.purge(OS)
        bench.engine.sync()
        bench.judge()
    for queue, tags in zip(bench.queues, pending, strict=True):
        queue.purge(OS)
        queue.ack(tags, OS)
        bench.judge()
    assert all(queue.state.shared.count == 0 for queue in bench.queues)
    assert counted_bytes(bench.queues) == 0
