"""A volume of 200 MiB: filled until publishers wait, consumed, and filled again, ten times.

Once with a real broker on a file system of that size in memory (where this user may mount one), and
always on a simulated disk, a thousand times smaller in all, with the vhost of a broker and with the
engine alone. While publishers wait acknowledgements always go on, and once the messages are
consumed publishers go on without a restart.
"""

import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pika
import pika.exceptions
import pytest

from penstock.errors import DiskFullError
from penstock.storage.files.options import StorageOptions
from tests.helpers.faulty_filesystem import FaultyFileSystem
from tests.helpers.live_broker import LiveBroker, wait_until
from tests.helpers.vhost_rig import TakingChannel, VHostRig

KIB, MIB = 1 << 10, 1 << 20
VOLUME_BYTES = 200 * MIB
ROUNDS = 10
REAL_ROUNDS = 5
LONG_S = 300.0  # that a busy machine may take for one of them
HEALS_S = 15.0  # a checkpoint every 5 s while publishers wait, a look at the disk every second

# What the defaults are in MiB, in KiB.
SCALED = StorageOptions(
    segment_slots=64,
    wal_segment_bytes_min=1 * KIB,
    wal_segment_bytes_max=64 * KIB,
    group_bytes_max=8 * KIB,
    msg_store_file_size_limit=16 * KIB,
    own_file_from=4 * KIB,
    checkpoint_log_bytes=64 * KIB,
    checkpoint_store_bytes=256 * KIB,
    small_queues_bytes_max=16 * KIB,
    small_queue_bytes=1 * KIB,
    wal_inline_below=1 * KIB,
    queue_index_embed_msgs_below=256,
    disk_free_limit=50 * KIB,
)


def advance(rig: VHostRig, seconds: float) -> None:
    """Time passes as the vhost asks for it."""
    while seconds > 0:
        step = max(min(rig.vhost.tick(), seconds), 0.01)
        rig.clock.advance(step)
        seconds -= step
        rig.vhost.engine.poll(wait=True)
        rig.turn()


@pytest.mark.parametrize("size", [200, 700, 1500, 5000])
@pytest.mark.parametrize("is_taken_all", [True, False])
def test_a_vhost_on_a_simulated_one_never_stays_blocked(size: int, is_taken_all: bool) -> None:
    fs = FaultyFileSystem(seed=size, capacity=200 * KIB)
    rig = VHostRig(fs, memory_bytes=1 << 20, storage=SCALED)
    queue = rig.queue("q")
    rig.tick(0.1)
    for _ in range(ROUNDS):
        published = 0
        while not rig.vhost.blocked_reason:
            try:
                rig.put(queue, b"x" * size)
            except DiskFullError:
                break
            published += 1
            if published * size % (4 * KIB) < size:
                advance(rig, 0.05)
            assert published * size < 400 * KIB, "the disk is never full"
        assert published > 0, "it goes on, and at once it does not any more"
        advance(rig, 3)
        left = 0 if is_taken_all else min(10, published // 4)
        while queue.len() > left:  # acknowledgements always go on
            got = queue.amq.fetch()
            assert got is not None
            queue.amq.ack([got.tag])
            if queue.len() % 20 == 0:
                advance(rig, 0.05)
        advance(rig, HEALS_S)
        assert rig.vhost.blocked_reason == "", f"{rig.vhost.engine.fs.free_bytes('/')} are free"
        rig.put(queue, b"goes on")
    assert rig.vhost.engine.failed is None
    assert not rig.told("internal_error")
    assert not rig.told("queue_restarted")


def test_a_consumer_is_served_on_a_simulated_one_that_is_full() -> None:
    fs = FaultyFileSystem(seed=1, capacity=200 * KIB)
    rig = VHostRig(fs, memory_bytes=1 << 20, storage=SCALED)
    queue = rig.queue("q")
    rig.tick(0.1)
    n = 0
    while not rig.vhost.blocked_reason:
        rig.put(queue, b"%d" % n + b"x" * 500)
        n += 1
        advance(rig, 0.05)
    rig.fs.capacity = rig.fs.used_bytes()  # and somebody else has taken all the rest
    channel = TakingChannel()
    rig.consume(queue, channel, no_ack=True)
    advance(rig, 2)
    assert len(channel.bodies()) == n
    rig.fs.capacity = 200 * KIB
    advance(rig, HEALS_S)
    assert rig.vhost.blocked_reason == ""


# ---- a real one ----------------------------------------------------------------------------------


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Path]:
    """A file system of 200 MiB."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a file system")
    path = tmp_path / "volume"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={VOLUME_BYTES}", "none", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


class Publisher(threading.Thread):
    """Publishes on a connection of its own, with confirms, until it is told to stop."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.url = url
        self.confirmed = 0
        self.moved_s = time.monotonic()
        self.is_over = False
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            parameters = pika.URLParameters(self.url)
            parameters.blocked_connection_timeout = None
            connection = pika.BlockingConnection(parameters)
            channel = connection.channel()
            channel.confirm_delivery()
            durable = pika.BasicProperties(delivery_mode=2)
            while not self.is_over:
                channel.basic_publish("", "q", b"x" * (100 * KIB), durable)
                self.confirmed += 1
                self.moved_s = time.monotonic()
            connection.close()
        except BaseException as error:
            self.error = error


def is_blocked(broker: LiveBroker, publisher: Publisher) -> bool:
    """Whether nothing was confirmed for a second, for want of space; or it has failed."""
    if publisher.error is not None:
        return True
    if time.monotonic() - publisher.moved_s < 1:
        return False
    return bool(broker.control("status")["vhosts"][0]["blocked_reason"] == "disk")


@pytest.mark.timeout(3000)
def test_a_broker_on_a_real_one_goes_on_again_and_again(volume: Path) -> None:
    with LiveBroker(volume / "data") as broker:
        connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        publisher = Publisher(broker.url)
        publisher.start()
        before = 0
        for n in range(REAL_ROUNDS):
            wait_until(lambda: is_blocked(broker, publisher), f"round {n}: blocked", LONG_S)
            assert publisher.error is None
            assert publisher.confirmed > before, f"round {n}: nothing was published"
            before = seen = publisher.confirmed
            time_s = time.monotonic()
            while time.monotonic() - time_s < LONG_S:
                method, _, _ = channel.basic_get("q", auto_ack=False)
                if method is None:
                    if publisher.confirmed > seen + 1:
                        break
                    connection.process_data_events(0.1)
                else:
                    channel.basic_ack(method.delivery_tag)
            assert publisher.confirmed > seen + 1, (
                f"round {n}: publishers stay blocked with "
                f"{broker.control('status')['disk_free_bytes']} bytes free"
            )
        publisher.is_over = True
        channel.queue_purge("q")
        wait_until(lambda: channel.queue_purge("q") or not publisher.is_alive(), "the end", LONG_S)
        assert publisher.error is None
        connection.close()
