"""StorageEngine and its messages: acks, purges, moves, placement, spooling and reading."""

import errno
from contextlib import suppress

import pytest

from penstock.errors import CorruptionError, DiskFullError
from penstock.message import QueuedMessage
from penstock.storage.engine import StorageEngine
from penstock.storage.files.durability import DISK, OS
from penstock.storage.store.store_file import OWN_FILE
from tests.helpers.engine_rig import STORED, EngineRig
from tests.helpers.inside import live_seqs

BIG = b"B" * STORED
STOPS = ["restart", "lost", "kept", "killed"]


def stop(rig: EngineRig, how: str) -> StorageEngine:
    """In order, or by a crash of that mode."""
    return rig.restart() if how == "restart" else rig.crash(how)


# ---- dequeue, purge, requeue -------------------------------------------------------------------


def test_what_is_not_alive_cannot_be_acknowledged() -> None:
    rig = EngineRig()
    queue = rig.queue()
    rig.put(queue, *[b"%d" % n for n in range(6)])
    entries = rig.entries(queue, 0, 1, 2)
    rig.engine.dequeue(queue, entries[:1], OS)
    lsn = rig.engine.log.last_lsn
    for wrong in (entries[:1], entries, [entries[1], entries[1]], [entries[2], entries[1]]):
        with pytest.raises(ValueError, match=r"not alive|must ascend"):
            rig.engine.dequeue(queue, wrong, OS)
    assert (rig.engine.log.last_lsn, queue.count) == (lsn, 5)


def test_many_runs_in_one_ack() -> None:
    rig = EngineRig()
    queue = rig.queue()
    rig.put(queue, *[b"%d" % n for n in range(30)])
    rig.ack(queue, *range(0, 30, 2))
    rig.engine.sync()
    rig.crash("lost")
    assert live_seqs(rig.queue()) == list(range(1, 30, 2))


@pytest.mark.parametrize("how", STOPS)
@pytest.mark.parametrize("is_materialised", [False, True])
@pytest.mark.parametrize("sections", [False, True])
def test_a_purge_leaves_what_is_unacknowledged(
    how: str, is_materialised: bool, sections: bool
) -> None:
    rig = EngineRig(sections=sections)
    a, b = rig.declare(b"a", b"b")
    for n in range(6):
        rig.engine.publish([a, b] if n == 5 else [a], b"", b"%d" % n + BIG, DISK)
    rig.engine.sync()
    if is_materialised:
        rig.engine.checkpoint()
    kept = rig.entries(a, 1, 4)
    lsn, died = rig.engine.purge(a, kept, DISK)
    assert (died, a.count, live_seqs(a)) == (4, 2, [1, 4])
    rig.put(a, b"new")
    rig.engine.wait(lsn, DISK)
    stop(rig, how)
    a = rig.queue(b"a")
    assert list(rig.bodies(a).values()) == [b"1" + BIG, b"4" + BIG, b"new"]
    rig.settle()
    small = len(a.section) and 1  # the body of "new", on behalf of the section
    assert rig.engine.state.store.live_count == 3 + small
    assert rig.engine.state.store.refs(*_address(rig, b"b")) == 1


def _address(rig: EngineRig, name: bytes) -> tuple[int, int]:
    """Of the first message of a queue."""
    queue = rig.queue(name)
    message = rig.engine.entry(queue, live_seqs(queue)[0]).message
    return message.store_file, message.id


# ---- move --------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", STOPS)
@pytest.mark.parametrize("body", [b"", b"inline", BIG])
@pytest.mark.parametrize("is_materialised", [False, True])
def test_a_move_is_all_or_nothing_whatever_its_placement(
    how: str, body: bytes, is_materialised: bool
) -> None:
    rig = EngineRig()
    a, b, c = rig.declare(b"a", b"b", b"c")
    rig.put(a, b"first", body)
    if is_materialised:
        rig.engine.checkpoint()
    (entry,) = rig.entries(a, 1)
    lsn, moved = rig.engine.move(a, entry, [b, c], b"x-death", DISK, 1_900_000_000_000)
    assert moved.id == entry.message.id
    rig.engine.wait(lsn, DISK)
    stop(rig, how)
    a, b, c = rig.queue(b"a"), rig.queue(b"b"), rig.queue(b"c")
    assert list(rig.bodies(a).values()) == [b"first"]
    for queue in (b, c):
        message = rig.engine.entry(queue, 0).message
        assert (message.body, message.header) == (body, b"x-death")
        assert message.expiry_ms == 1_900_000_000_000
    assert rig.engine.state.store.live_count == (1 if body == BIG else 0)
    if body == BIG:
        assert rig.engine.state.store.refs(*_address(rig, b"b")) == 2


def test_a_large_body_is_moved_by_reference() -> None:
    rig = EngineRig()
    a, b = rig.declare(b"a", b"b")
    rig.put(a, b"L" * 3000)
    written = rig.engine.state.store.written_bytes
    before = rig.engine.log.appended_bytes
    rig.engine.move(a, rig.entries(a, 0)[0], [b], b"", DISK)
    assert rig.engine.state.store.written_bytes == written
    assert rig.engine.log.appended_bytes - before < 200


def test_a_move_to_nowhere_is_a_dequeue_and_to_itself_a_requeue() -> None:
    rig = EngineRig()
    queue = rig.queue()
    rig.put(queue, b"0", BIG, b"2")
    rig.engine.move(queue, rig.entries(queue, 0)[0], [], b"", DISK)
    rig.engine.move(queue, rig.entries(queue, 1)[0], [queue], b"again", DISK)
    assert live_seqs(queue) == [2, 3]
    rig.engine.sync()
    rig.crash("lost")
    assert list(rig.bodies(rig.queue()).values()) == [b"2", BIG]
    assert rig.engine.state.store.live_count == 1


def test_what_is_not_alive_cannot_be_moved() -> None:
    rig = EngineRig()
    a, b = rig.declare(b"a", b"b")
    rig.put(a, b"x")
    (entry,) = rig.entries(a, 0)
    rig.ack(a, 0)
    with pytest.raises(ValueError, match="not alive"):
        rig.engine.move(a, entry, [b], b"", DISK)
    assert b.count == 0


# ---- placement and spooling --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "copies", "in_store"),
    [(0, 1, False), (127, 1, False), (128, 1, True), (31, 2, False), (32, 2, True), (16, 4, True),
     (0, 100, False)],
)  # fmt: skip
def test_the_placement_is_of_size_and_copies(size: int, copies: int, in_store: bool) -> None:
    assert EngineRig().engine.placement.is_in_store(size, copies) == in_store


def spooled(rig: EngineRig, *pieces: bytes) -> QueuedMessage:
    message = rig.engine.placement.new_message(b"", b"")
    spool = rig.engine.state.store.spool(message.id)
    for piece in pieces:
        spool.write(piece)
    message.store_file = spool.finish()
    message.size, message.body = len(b"".join(pieces)), None
    return message


@pytest.mark.parametrize("how", STOPS)
def test_a_spooled_body_is_published_without_being_copied(how: str) -> None:
    rig = EngineRig()
    a, b = rig.declare(b"a", b"b")
    message = spooled(rig, b"one ", b"two ", b"three")
    assert message.store_file & OWN_FILE
    rig.engine.publish_spooled([a, b], b"header", message, DISK)
    rig.engine.sync()
    stop(rig, how)
    for name in (b"a", b"b"):
        found = rig.engine.entry(rig.queue(name), 0).message
        assert (found.body, found.header) == (b"one two three", b"header")
    rig.ack(rig.queue(b"a"), 0)
    rig.ack(rig.queue(b"b"), 0)
    rig.engine.sync()
    assert rig.engine.state.store.live_count == 0


@pytest.mark.parametrize("how", ["lost", "kept", "restart"])
def test_a_spooled_body_that_was_never_published_is_deleted(how: str) -> None:
    rig = EngineRig()
    rig.queue()
    spooled(rig, b"orphan")
    spool = rig.engine.state.store.spool(rig.engine.placement.new_message(b"", b"").id)
    spool.write(b"unfinished")
    stop(rig, how)
    rig.engine.checkpoint()
    names = [n for n in rig.fs.names() if n.endswith(".msg")]
    assert names == []


@pytest.mark.parametrize("how", STOPS)
def test_a_very_large_body_has_a_file_of_its_own_which_goes_with_it(how: str) -> None:
    rig = EngineRig(own_file_from=1000)
    queue = rig.queue()
    rig.put(queue, b"V" * 1500)
    stop(rig, how)
    queue = rig.queue()
    assert rig.bodies(queue) == {0: b"V" * 1500}
    assert len([n for n in rig.fs.names() if n.endswith(".msg")]) == 1
    rig.ack(queue, 0)
    rig.engine.sync()
    rig.engine.checkpoint()
    assert not [n for n in rig.fs.names() if n.endswith(".msg")]


def test_a_body_that_the_disk_has_no_room_for_is_refused_whole() -> None:
    rig = EngineRig()
    queue = rig.queue()
    rig.fs.fail(errno.ENOSPC, kinds={"pwrite", "create"}, path="msg_store_persistent")
    with pytest.raises(DiskFullError):
        rig.engine.publish([queue], b"", BIG, DISK)
    assert (queue.count, queue.next_seq, rig.engine.blocked) == (0, 0, True)
    with pytest.raises(DiskFullError):
        rig.engine.publish([queue], b"", b"small", DISK)
    assert rig.told("disk_full")


KINDS = ((b"a", b"h1", 0), (b"b", b"h1", 0), (b"c", b"h2", 10**13))


@pytest.mark.parametrize("how", STOPS)
@pytest.mark.parametrize("size", [1, STORED])
@pytest.mark.parametrize("is_spooled", [False, True])
def test_kinds_of_queues_have_a_message_in_one_record(
    how: str, size: int, is_spooled: bool
) -> None:
    rig = EngineRig()
    a, b, c = rig.declare(b"a", b"b", b"c")
    body = b"B" * size
    lsn = rig.engine.log.last_lsn
    rig.engine.publish_kinds(
        [([a, b], b"h1", 0), ([c], b"h2", 10**13)], b"" if is_spooled else body, DISK,
        spooled(rig, body) if is_spooled else None,
    )  # fmt: skip
    assert rig.engine.log.last_lsn == lsn + 1
    rig.engine.sync()
    stop(rig, how)
    for name, header, expiry_ms in KINDS:
        found = rig.engine.entry(rig.queue(name), 0).message
        assert (found.body, found.header, found.expiry_ms) == (body, header, expiry_ms)
        rig.ack(rig.queue(name), 0)
    rig.engine.sync()
    assert rig.engine.state.store.live_count == 0


@pytest.mark.parametrize("size", [1, STORED])
@pytest.mark.parametrize("room", [4000, 5000, 6000, 7000])
def test_on_a_full_disk_no_kind_of_queue_has_it(size: int, room: int) -> None:
    rig = EngineRig()
    a, b = rig.declare(b"a", b"b")
    rig.fs.capacity = rig.fs.used_bytes() + room
    kinds = [([a], b"h1", 0), ([b], b"h2", 10**13)]
    with suppress(DiskFullError):
        while True:
            rig.engine.publish_kinds(kinds, b"B" * size, DISK)
    rig.fs.capacity = None
    assert a.count == b.count
    rig.engine.sync()
    rig.crash("kept")
    n = rig.queue(b"a").count
    assert (n, rig.queue(b"b").count) == (a.count, a.count)
    for name in (b"a", b"b"):
        rig.ack(rig.queue(name), *range(n))
    rig.engine.sync()
    assert rig.engine.state.store.live_count == 0


# ---- reading -----------------------------------------------------------------------------------


def test_entries_are_read_from_ram_slots_and_store() -> None:
    rig = EngineRig()
    queue = rig.queue()
    rig.put(queue, b"0", BIG)
    rig.engine.checkpoint()
    rig.put(queue, b"2")
    assert rig.engine.entry(queue, 0).on_slot
    assert not rig.engine.entry(queue, 2).on_slot
    assert list(rig.bodies(queue).values()) == [b"0", BIG, b"2"]
    assert [m.body for m in rig.engine.read(queue, [0, 1])] == [b"0", None]


def test_a_dead_entry_is_not_read() -> None:
    rig = EngineRig()
    queue = rig.queue()
    rig.put(queue, b"0")
    rig.ack(queue, 0)
    for seq in (0, 1, 99):
        with pytest.raises(KeyError):
            rig.engine.entry(queue, seq)


@pytest.mark.parametrize("part", [".qi", ".qs", ".rdq"])
def test_damage_names_file_and_position_and_spares_the_rest(part: str) -> None:
    rig = EngineRig()
    queue = rig.queue()
    rig.put(queue, b"body zero", b"1" + BIG, b"body two")
    rig.restart()
    queue = rig.queue()
    path = next(n for n in rig.fs.names() if n.endswith(part))
    data = rig.fs.read(path)
    at = 64 + 32 if part == ".qi" else data.index(b"1BB" if part == ".rdq" else b"body zero")
    rig.fs.damage_flip(path, at + 8)
    seq = 0 if part == ".qs" else 1
    rig.engine.state.close()
    with pytest.raises(CorruptionError) as caught:
        rig.engine.entry(queue, seq)
    assert caught.value.path == path
    assert rig.engine.entry(queue, 2).message.body == b"body two"
