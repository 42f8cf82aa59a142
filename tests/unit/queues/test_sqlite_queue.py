"""The SqliteQueue keeps the contract of BackingQueue, and what only it does."""

import errno

import pytest

from penstock.queues.backing_queue import BackingQueue
from penstock.queues.sqlite_queue import SqliteQueue
from penstock.storage.files.durability import DISK, NONE
from tests.contracts.backing_queue import BackingQueueContract
from tests.helpers.engine_rig import STORED, EngineRig
from tests.helpers.queue_world import Opener


def open_one(rig: EngineRig, name: bytes, is_durable: bool) -> BackingQueue:
    """An Opener of SqliteQueues in RAM: the disk of the rig is no real one."""
    index = rig.queue(name) if is_durable else rig.engine.declare_queue(name, is_durable=False)
    return SqliteQueue(
        rig.engine, index, database=":memory:",
        on_event=lambda kind, text: rig.events.append((kind, text)),
    )  # fmt: skip


@pytest.mark.parametrize("sections", [True, False], ids=["sections", "files"])
@pytest.mark.parametrize("body_bytes", [0, STORED], ids=["small", "stored"])
class TestSqliteQueue(BackingQueueContract):
    @pytest.fixture
    def rig(self, sections: bool) -> EngineRig:
        return EngineRig(sections=sections)

    @pytest.fixture
    def opens(self) -> Opener:
        return open_one


def opened(rig: EngineRig) -> SqliteQueue:
    """A queue in SQLite with three messages: persistent, transient, persistent."""
    queue = open_one(rig, b"q", True)
    assert isinstance(queue, SqliteQueue)
    for body, mode in ((b"one", DISK), (b"two", NONE), (b"three", DISK)):
        queue.publish(b"h", body, mode)
    rig.engine.sync()
    queue.resume()
    return queue


def bodies(queue: SqliteQueue) -> list[bytes | None]:
    """All that a consumer gets."""
    found = []
    while (delivery := queue.fetch(ack_required=False)) is not None:
        found.append(delivery.message.body)
    return found


def test_a_damaged_row_is_read_from_its_slot_and_a_transient_one_is_set_aside() -> None:
    rig = EngineRig()
    queue = opened(rig)
    queue.sql("UPDATE messages SET body = CAST('other' AS BLOB)")
    assert bodies(queue) == [b"one", b"three"]
    assert [text.partition(": ")[2] for text in rig.told("corruption")] == [
        "a message is set aside: :memory:: at byte 0: message 1: wrong CRC-32"
    ]
    assert (queue.len(), queue.info()["set_aside"]) == (0, 1)


def test_a_write_that_fails_leaves_messages_in_ram_and_in_order() -> None:
    rig = EngineRig()
    queue = opened(rig)
    rig.fs.fail(errno.EIO, kinds=["pwrite"], path="/queues/", times=None)
    for n in range(200):
        queue.publish(b"", b"%d" % n, DISK)
    assert queue.len() == 203
    assert len(rig.told("page_out_failed")) == 1, "it is reported once"
    with pytest.raises(OSError, match="Input/output error"):
        queue.fetch()
    rig.fs.clear_faults()
    rig.engine.sync()
    assert bodies(queue) == [b"one", b"two", b"three", *(b"%d" % n for n in range(200))]


def test_an_error_of_sqlite_is_an_os_error() -> None:
    rig = EngineRig()
    queue = opened(rig)
    queue.sql("DROP TABLE messages")
    with pytest.raises(OSError, match="SQLite: no such table: messages"):
        queue.fetch()
