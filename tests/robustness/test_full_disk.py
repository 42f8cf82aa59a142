"""A full disk is no failure: nothing is lost, nothing stops, and space that is freed ends it.

A vhost lives on a simulated disk of a limited size. Its queues page out, expire, overflow,
dead-letter and deliver while nothing more can be written; it is killed there and started again.
Then there is space, and within two seconds of its clock publishers go on.
"""

import errno
import random
from dataclasses import replace

import pytest

from penstock.broker.broker_queue import BrokerQueue
from penstock.errors import DiskFullError
from penstock.storage.files.durability import OS
from penstock.storage.files.options import StorageOptions
from penstock.storage.tools.verify import verify
from tests.helpers.faulty_filesystem import FaultyFileSystem
from tests.helpers.tiny_engine import OPTIONS, PATH
from tests.helpers.vhost_rig import TakingChannel, VHostRig, classic

MEMORY_BYTES = 1 << 20
FREED_BYTES = 200_000
SIZES = (5, 70, 100, 200, 300, 1000)


class Life:
    """A vhost whose disk is about to be full. kept: the confirmed bodies of `q`, oldest first."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.kept: list[bytes] = []
        self.is_full = False
        self.rig = VHostRig(
            FaultyFileSystem(seed=seed), storage=self._options(), memory_bytes=MEMORY_BYTES
        )
        self.queue = self.rig.queue("q")
        dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        self.others = [
            self.rig.queue("dead"),
            self.rig.queue("ttl", arguments={"x-message-ttl": 2000, **dead}),
            self.rig.queue("max", arguments={"x-max-length": 3}),
            self.rig.queue("lazy", arguments={"x-queue-mode": "lazy"}),
            self.rig.queue("priorities", arguments={"x-max-priority": 3}),
            self.rig.queue("transient", durable=False),
        ]
        self.rig.tick(0.1)

    def _options(self) -> StorageOptions:
        rng = self.rng
        return replace(
            OPTIONS,
            disk_free_limit=rng.choice([0, 0, 4000]),
            replay_ram_bytes=rng.choice([0, 600]),
            small_queue_entries=rng.choice([0, 4]),
            checkpoint_log_bytes=8192,
            checkpoint_store_bytes=8192,
            wal_segment_bytes_max=rng.choice([2048, 8192]),
        )

    def live(self, steps: int) -> None:
        """Publish as long as it is possible, consume, let time pass and memory shrink."""
        rng, rig = self.rng, self.rig
        for _ in range(steps):
            chance = rng.random()
            if chance < 0.5:
                self.publish()
            elif chance < 0.6:
                self.take()
            elif chance < 0.7:
                self.consume(rng.choice(self.others))
            elif chance < 0.75:
                rig.vhost.set_memory(rng.choice([5000, 20_000, 200_000]))
                rig.tick(3)
            else:
                rig.tick(rng.choice([0.05, 0.3, 1.2]))
            rig.turn()
            assert rig.vhost.engine.failed is None
        assert not rig.told("queue_restarted")
        assert not rig.told("queue_crashed")
        assert not rig.told("internal_error")

    def publish(self) -> None:
        for _ in range(self.rng.randrange(1, 6)):
            body = self.rng.randbytes(self.rng.choice(SIZES))
            try:
                if self.rng.random() < 0.4:
                    self.rig.put(self.queue, body)
                    self.kept.append(body)
                else:
                    self.rig.put(self.rng.choice(self.others), body)
            except DiskFullError:
                self.is_full = True
                return

    def take(self) -> None:
        amq = self.queue.amq
        got = [amq.fetch() for _ in range(self.rng.randrange(1, 5))]
        tags = [delivery.tag for delivery in got if delivery is not None]
        if not tags:
            return
        try:
            amq.ack(tags)
        except DiskFullError:
            amq.release(tags)
        else:
            del self.kept[: len(tags)]
            self.rig.vhost.engine.sync()

    def consume(self, queue: BrokerQueue) -> None:
        channel = TakingChannel()
        channel.can_deliver = True
        consumer = self.rig.consume(queue, channel, no_ack=True)
        self.rig.turn()
        self.rig.leave(consumer)

    def heal(self) -> None:
        """There is space: two seconds later publishers go on."""
        self.rig.fs.capacity = self.rig.fs.used_bytes() + FREED_BYTES
        for _ in range(4):
            self.rig.tick(0.5)
            self.rig.vhost.engine.poll(wait=True)
        for _ in range(2):
            self.rig.tick(0.5)
        assert not self.rig.vhost.engine.blocked
        self.rig.put(self.queue, b"goes on")
        self.kept.append(b"goes on")

    def check(self) -> None:
        """Everything confirmed is there, in order, and the files are right."""
        assert self.rig.bodies(self.queue) == self.kept
        fs = self.rig.fs.crash("killed")
        report = verify(fs, PATH)
        assert report.is_fine, report.problems


def fill(life: Life) -> None:
    fs = life.rig.fs
    fs.capacity = fs.used_bytes() + life.rng.choice([100, 1000, 3000, 8000, 20_000])
    life.live(150)
    assert life.is_full


@pytest.mark.parametrize("seed", range(6))
def test_it_lives_through_a_full_disk(seed: int) -> None:
    life = Life(seed)
    fill(life)
    life.heal()
    life.check()


@pytest.mark.parametrize("seed", range(6))
def test_killed_on_a_full_disk_it_starts_or_waits_and_heals(seed: int) -> None:
    """A start that finds no room says so, leaves nothing behind that would take the room of the
    next one, and succeeds when there is space."""
    life = Life(seed)
    fill(life)
    rig = life.rig
    capacity = rig.fs.capacity
    rig.fs = rig.fs.crash("killed" if seed % 2 else "lost", random.Random(seed))
    rig.fs.capacity = capacity
    rig.events = []
    used: list[int] = []
    for _ in range(4):
        try:
            rig.vhost = rig._open()
        except DiskFullError:
            used.append(rig.fs.used_bytes())
        else:
            break
    assert len(set(used[1:])) <= 1, "a start that was given up takes room from the next"
    rig.fs.capacity = None
    if len(used) == 4:
        rig.vhost = rig._open()
    life.queue = classic(rig.vhost.table.usable("q"))
    life.heal()
    life.check()


def full_log(**arguments: object) -> tuple[VHostRig, BrokerQueue]:
    """A vhost with a hundred messages in `q` whose log has no room for another record."""
    rig = VHostRig(storage=replace(OPTIONS, disk_free_limit=0, small_queue_entries=0))
    queue = rig.queue("q", arguments={name.replace("_", "-"): v for name, v in arguments.items()})
    rig.tick(0.1)
    rig.put(queue, *[b"%d" % i for i in range(100)])
    rig.fs.fail(errno.ENOSPC, kinds=["create", "allocate"], path=in_log, times=None)
    with pytest.raises(DiskFullError):
        log_for_ever(rig)
    return rig, queue


def log_for_ever(rig: VHostRig) -> None:
    engine = rig.vhost.engine
    while True:
        engine.requeue(engine.queue(b"q"), [(0, 1)], OS)
        engine.sync()


def in_log(path: str) -> bool:
    return "/wal/" in path


def test_consumers_wait_at_a_full_log_and_get_each_message_once() -> None:
    """What was delivered and needs no acknowledgement stays owed; the queue is not restarted."""
    rig, queue = full_log()
    channel = TakingChannel()
    rig.consume(queue, channel, no_ack=True)
    rig.turn()
    rig.tick(1.1)
    assert rig.vhost.engine.failed is None
    assert queue.amq.depth() == 100, "they are not acknowledged yet"
    rig.fs.clear_faults()
    rig.tick(1.1)
    assert channel.bodies() == [b"%d" % i for i in range(100)]
    assert queue.amq.depth() == 0
    assert queue.counts.deliver_no_ack == 100
    assert not rig.told("queue_restarted")


def test_what_is_due_on_a_full_log_does_not_spin() -> None:
    """Messages expire and cannot be logged as dead: that is tried a few times a second."""
    rig, queue = full_log(x_message_ttl=1000)
    tries: list[str] = []
    rig.clock.advance(5)
    rig.fs.before_operation = lambda n, kind, path: tries.append(kind) if in_log(path) else None
    rig.tick(0.1)
    assert 0 < len(tries) < 20
    rig.fs.clear_faults()
    for _ in range(3):
        rig.tick(0.3)
    assert queue.len() == 0


def test_a_start_reads_a_log_that_is_larger_than_its_memory_without_space() -> None:
    """Messages that it would write to their slots stay in RAM; then it waits for space."""
    options = replace(OPTIONS, disk_free_limit=0, small_queue_entries=0, replay_ram_bytes=600)
    rig = VHostRig(storage=options)
    queue = rig.queue("q")
    rig.put(queue, *[b"%d" % i * 30 for i in range(30)])
    wanted = rig.bodies(queue)
    for free in (0, 100, 2500, 4000):
        rig.fs = rig.fs.crash("killed")
        rig.fs.capacity = rig.fs.used_bytes() + free
        for _ in range(2):
            with pytest.raises(DiskFullError):
                rig._open()
    rig.fs.capacity = None
    rig.vhost = rig._open()
    assert rig.bodies(classic(rig.vhost.table.usable("q"))) == wanted


def test_publishers_go_on_when_the_last_checkpoint_was_given_up() -> None:
    """Nobody consumes or publishes any more, so nothing but the space that is freed can make the
    checkpoint due that the reserve waits for."""
    rig = VHostRig(storage=replace(OPTIONS, disk_free_limit=1000, small_queue_entries=0))
    queue = rig.queue("q")
    rig.tick(0.1)
    for _ in range(30):
        rig.put(queue, b"x" * 120)
    queue.amq.ack([queue.amq.fetch().tag for _ in range(28)])  # type: ignore[union-attr]
    engine = rig.vhost.engine
    engine.sync()
    for _ in range(2):
        rig.tick(1.1)
        engine.poll(wait=True)
    assert engine.journal.reserve.bytes > 3000
    rig.fs.fail(errno.ENOSPC, kinds=["create", "allocate", "pwrite"], times=None)
    rig.fs.capacity = rig.fs.used_bytes()
    assert not engine.checkpoint()
    rig.fs.capacity = rig.fs.used_bytes()  # somebody else has taken what the reserve had
    assert engine.blocked
    assert engine.journal.reserve.bytes == 0
    rig.tick(2)
    assert engine.blocked
    rig.fs.clear_faults()
    freed = 3000
    assert freed < 1000 + engine.log.appended_bytes, "too little for the limit and a reserve of all"
    rig.fs.capacity = rig.fs.used_bytes() + freed
    for _ in range(6):
        rig.tick(1)
        engine.poll(wait=True)
    assert not engine.blocked
    rig.put(queue, b"goes on")


def goes_on(rig: VHostRig, queue: BrokerQueue, seconds: float) -> None:
    """So much later, by the clock, clients' publishers are not blocked any more, and may publish.
    Time passes as the vhost itself asks for it."""
    left = seconds
    while left > 0:
        step = min(rig.vhost.tick(), left)
        rig.clock.advance(max(step, 0.001))
        left -= max(step, 0.001)
        rig.vhost.engine.poll(wait=True)
        rig.turn()
    rig.vhost.tick()
    assert not rig.vhost.engine.blocked
    assert rig.vhost.blocked_reason == ""
    assert not rig.vhost.monitor.is_disk_full
    rig.put(queue, b"goes on")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_publishers_go_on_after_the_reserve_could_not_be_made(number: int) -> None:
    """The file cannot be opened or made; there is more space than the limit all the time."""
    rig = VHostRig(storage=replace(OPTIONS, disk_free_limit=1000))
    queue = rig.queue("q")
    rig.fs.fail(number, kinds=["create", "allocate"], path="/reserve", times=2)
    rig.put(queue, b"x" * 100)
    rig.tick(1.1)
    rig.vhost.engine.poll(wait=True)
    assert bool(rig.vhost.blocked_reason) == rig.vhost.engine.blocked
    goes_on(rig, queue, 1)
    goes_on(rig, queue, 12)  # it is tried again after five seconds
    assert rig.vhost.engine.journal.reserve.bytes


def test_a_blocked_vhost_looks_at_the_disk_once_a_second() -> None:
    rig = VHostRig(storage=replace(OPTIONS, disk_free_limit=5000))
    queue = rig.queue("q")
    rig.fs.capacity = rig.fs.used_bytes()
    rig.tick(5)
    rig.tick(5)
    assert rig.vhost.blocked_reason == "disk"
    for _ in range(20):  # nothing is going on any more
        rig.clock.advance(rig.vhost.tick())
        rig.vhost.engine.poll(wait=True)
    assert rig.vhost.tick() <= 1
    rig.fs.capacity = rig.fs.used_bytes() + 20_000
    goes_on(rig, queue, 1.1)
