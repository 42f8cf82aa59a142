"""A vhost as a whole: turns, alarms, stopping, and a directory that the library shares with it."""

import random

import pytest

from penstock.broker.dispatch import Peer
from penstock.broker.vhost import VHost
from penstock.errors import LockedError, StorageError
from penstock.queues import priority_queue, queue_set
from penstock.queues.queue_options import QueueOptions
from penstock.storage.files.durability import DISK, OS
from tests.helpers.builds import pure_only
from tests.helpers.tiny_engine import PATH
from tests.helpers.vhost_rig import TakingChannel, VHostRig, classic


class Told(Peer):
    """A client's connection that is told of alarms."""

    def __init__(self, seen: list[str]) -> None:
        self._seen = seen
        self.name = "told"

    def flush(self) -> None:
        """It has no output."""

    def blocked(self, reason: str) -> None:
        self._seen.append(reason)

    def held(self) -> tuple[int, str]:
        return 0, "nobody"

    def free_memory(self, reason: str) -> None:
        raise AssertionError(reason)

    def check_timeouts(self, now_s: float) -> None:
        pass

    def look_at_room(self, user: str) -> None:
        raise AssertionError(user)

    def check_stalled(self, now_s: float, most_s: float) -> None:
        """It has nothing unfinished."""

    def octets(self) -> dict[str, int]:
        return {}

    def changed_channels(self, now_s: float) -> list[tuple[str, dict[str, int]]]:
        return []


@pytest.fixture
def rig() -> VHostRig:
    return VHostRig()


# --- turns ---


def test_a_declare_is_answered_once_it_is_durable(rig: VHostRig) -> None:
    answered: list[str] = []
    _, lsn = rig.vhost.declare_queue("q", durable=True)
    rig.vhost.dispatch.when_settled(lsn, DISK, lambda: answered.append("disk"))
    assert not answered
    rig.turn()
    syncs = rig.vhost.engine.log.syncs
    rig.vhost.engine.poll(wait=True)
    rig.turn()
    assert answered == ["disk"]
    assert rig.vhost.engine.log.syncs == syncs + 1
    assert rig.vhost.engine.log.settled(DISK) >= lsn


def test_wake_is_called_when_a_turn_is_wanted(rig: VHostRig) -> None:
    woken: list[int] = []
    queue = rig.queue()
    rig.vhost.wake = lambda: woken.append(1)
    rig.vhost.dispatch.mark(queue)
    rig.vhost.dispatch.mark(queue)
    assert woken == [1]
    rig.turn()
    rig.vhost.dispatch.when_settled(rig.vhost.engine.log.last_lsn, OS, lambda: None)
    assert woken == [1, 1]


def test_messages_go_to_consumers(rig: VHostRig) -> None:
    queue = rig.queue()
    channel = TakingChannel()
    rig.consume(queue, channel)
    rig.put(queue, b"a", b"b")
    rig.answered(rig.vhost.engine.log.last_lsn)
    assert channel.bodies() == [b"a", b"b"]


def test_tokens_are_names(rig: VHostRig) -> None:
    tokens = {rig.vhost.token(16) for _ in range(50)}
    assert len(tokens) == 50
    assert all(len(token) == 22 and not set(token) & set("+/=") for token in tokens)


def test_queues_are_touched_in_slices_after_a_round_of_the_monitor(
    rig: VHostRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_set, "SLICE", 2)
    queues = [rig.queue(f"q{n}") for n in range(5)]
    for queue in queues:
        rig.put(queue, b"x")
    rig.tick(3)
    seen: list[int] = []
    rounds = rig.vhost.monitor.rounds
    rig.clock.advance(3)
    while rig.vhost.tick() <= 0.001:
        seen.append(sum(queue.is_touched for queue in queues))
    assert rig.vhost.monitor.rounds == rounds + 1
    assert seen, "it goes on in further ticks"
    assert max(seen) <= 2
    rig.tick()
    assert not any(queue.is_touched for queue in queues)


# --- alarms ---


def test_memory_alarm(rig: VHostRig) -> None:
    rig = VHostRig(memory_bytes=100_000)
    seen: list[str] = []
    rig.vhost.handlers.add(Told(seen))
    rig.vhost.add_other(100_000)
    rig.tick(3)
    assert seen == ["memory"]
    rig.vhost.event("disk_full", "no space")
    assert seen == ["memory", "memory and disk"]
    rig.vhost.add_other(-100_000)
    rig.tick(3)
    assert seen[-1] == "disk"
    rig.vhost.event("disk_free", "space again")
    assert rig.vhost.blocked_reason == ""
    assert seen == ["memory", "memory and disk", "disk", ""]


def test_another_budget(rig: VHostRig) -> None:
    rig.vhost.add_other(1 << 20)
    rig.tick(3)
    assert rig.vhost.blocked_reason == ""
    rig.vhost.set_memory(1 << 20)
    rig.tick(3)
    assert rig.vhost.blocked_reason == "memory"
    rig.vhost.set_memory(64 << 20)
    rig.tick(3)
    assert rig.vhost.blocked_reason == ""


def test_queues_in_ram_page_out_when_their_share_shrinks(rig: VHostRig) -> None:
    queue = rig.queue()
    for n in range(100):
        rig.put(queue, b"%d" % n * 20)
    assert queue.amq.backing.ram_bytes() > 20_000
    rig.vhost.set_memory(10_000)
    for _ in range(5):
        rig.tick(3)
    assert queue.amq.backing.ram_bytes() < 10_000
    assert rig.vhost.depth_bytes >= 2000


# --- the end ---


def test_close_and_open(rig: VHostRig) -> None:
    rig.put(rig.queue("kept"), b"x")
    rig.put(rig.queue("passing", durable=False), b"y")
    rig.put(rig.queue("prio", arguments={"x-max-priority": 2}), b"z", priority=1)
    assert classic(rig.vhost.table.find_queue("kept")).amq.fetch() is not None
    vhost = rig.restart()
    assert vhost.engine.recovered.is_clean
    assert rig.bodies(vhost.table.find_queue("kept")) == [b"x"]
    delivery = classic(vhost.table.find_queue("kept")).amq.fetch()
    assert delivery is not None
    assert delivery.is_redelivered
    assert rig.bodies(vhost.table.find_queue("prio")) == [b"z"]


@pure_only
def test_a_queue_that_cannot_stop_in_order_loses_nothing(rig: VHostRig) -> None:
    queue = rig.queue()
    rig.put(queue, b"a", b"b")
    queue.amq.delays.terminate = None  # type: ignore[method-assign, assignment]
    with pytest.raises(TypeError):
        rig.vhost.close()
    rig.vhost = rig._open()
    assert not rig.vhost.engine.recovered.is_clean
    assert rig.bodies(rig.vhost.table.find_queue("q")) == [b"a", b"b"]


def test_one_vhost_at_a_time(rig: VHostRig) -> None:
    with pytest.raises(LockedError):
        VHost(
            rig.fs, PATH, "test", rig.settings, clock=rig.clock, rng=random.Random(1),
            on_event=lambda kind, text: None,
        )  # fmt: skip
    rig.vhost.abandon()
    rig.vhost = rig.restart()


def test_abandon_is_a_crash_that_gives_everything_back(rig: VHostRig) -> None:
    rig.put(rig.queue(), b"x")
    rig.vhost.declare_queue("lost", durable=True)
    rig.vhost.abandon()
    with pytest.raises(StorageError):
        rig.vhost.tick()
    with pytest.raises(StorageError):
        rig.vhost.turn()
    rig.vhost = rig._open()
    assert not rig.vhost.engine.recovered.is_clean
    assert rig.bodies(rig.vhost.table.find_queue("q")) == [b"x"]


def test_a_failed_sync_ends_the_vhost_and_nothing_is_answered(rig: VHostRig) -> None:
    rig.queue()
    answered: list[int] = []
    rig.fs.fail(5, kinds=["sync"])  # EIO
    _, lsn = rig.vhost.declare_queue("r", durable=True)
    rig.vhost.dispatch.when_settled(lsn, DISK, lambda: answered.append(lsn))

    def go_on() -> None:
        for _ in range(10):
            rig.vhost.turn()
            rig.vhost.engine.poll(wait=True)

    with pytest.raises(StorageError):
        go_on()
    assert not answered
    for call in (rig.vhost.turn, rig.vhost.tick, rig.vhost.completed):
        with pytest.raises(StorageError):
            call()
    rig.vhost.close()
    rig.fs.clear_faults()
    rig.crash()
    assert rig.vhost.table.has("q")


def test_what_cannot_be_opened_gives_the_lock_back(
    rig: VHostRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.vhost.close()

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no table")

    with monkeypatch.context() as patched:
        patched.setattr("penstock.broker.vhost.QueueTable", broken)
        with pytest.raises(RuntimeError):
            rig._open()
    rig.vhost = rig._open()


# --- the library's directory ---


def test_a_directory_of_the_library_is_served(rig: VHostRig) -> None:
    engine = rig.vhost.engine
    options = QueueOptions(priorities=2, ttl_ms=60_000, dead_letter_to="dead", max_attempts=3)
    for name, of in ((b"jobs", options), (b"dead", QueueOptions())):
        priority_queue.open_backing(engine, name, arguments=of.encode(), priorities=of.priorities)
    vhost = rig.restart()
    queue = vhost.table.find_queue("jobs")
    assert classic(queue).amq.options == options
    arguments = {
        "x-max-priority": 2, "x-message-ttl": 60_000, "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "dead", "x-delivery-limit": 2,
    }  # fmt: skip
    assert vhost.declare_queue("jobs", durable=True, arguments=arguments)[0] is queue
    rig.put(queue, b"x", priority=1)
    rig.tick(60)
    assert rig.bodies(vhost.table.find_queue("dead")) == [b"x"]


def test_what_the_broker_stores_the_library_reads(rig: VHostRig) -> None:
    rig.queue(arguments={"x-max-length": 3, "x-expires": 1000, "x-mine": b"\xff"})
    data, _ = priority_queue.stored(rig.vhost.engine, b"q")
    assert QueueOptions.decode(data).max_length == 3
