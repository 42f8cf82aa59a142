"""Slots and .qs entries: what was written comes back, and nothing else ever does."""

import errno

import pytest
from librt.strings import BytesWriter

from penstock.errors import CorruptionError, SyncFailedError
from penstock.message import Entry, QueuedMessage
from penstock.storage.files.filesystem import OsFileSystem
from penstock.storage.index.queue_segment import (
    HAS_ENTRY,
    HEADER_BYTES,
    READ_BYTES,
    SLOT_BYTES,
    USED,
    Handles,
    SegmentFiles,
    Slot,
    decode_slot,
    put_slot,
    queue_seed,
)
from tests.helpers.faulty_file import FaultyFile
from tests.helpers.faulty_filesystem import FaultyFileSystem
from tests.helpers.golden import golden, hexdump

VHOST = 0x1122334455667788
QUEUE = 9
SLOTS = 8
SEED = queue_seed(VHOST, QUEUE)


def message(
    body: bytes = b"", header: bytes = b"", *, id: int = 1, store: int = 0, expiry: int = 0
) -> QueuedMessage:
    in_ram = None if store else body
    return QueuedMessage(id, header, in_ram, len(body), 1_700_000_000, expiry, store)


def files(fs: FaultyFileSystem, segment: int = 3, queue: int = QUEUE) -> SegmentFiles:
    return SegmentFiles(fs, f"/{segment}", VHOST, queue, segment, SLOTS, Handles())


def written(*entries: Entry, segment: int = 3) -> tuple[FaultyFileSystem, SegmentFiles]:
    fs = FaultyFileSystem()
    segments = files(fs, segment)
    segments.write(list(entries))
    segments.close()
    return fs, segments


def slot_of(one: QueuedMessage) -> bytes:
    """The slot of seq 24, whose entry is at 64."""
    out = BytesWriter()
    put_slot(out, BytesWriter(), SEED, 24, one, 0, 64, len(one.header))
    return out.getvalue()


def same(found: QueuedMessage, wanted: QueuedMessage) -> None:
    for name in ("id", "header", "body", "size", "time", "expiry_ms", "store_file"):
        assert getattr(found, name) == getattr(wanted, name), name


KINDS = {
    "body alone": message(b"body"),
    "empty, default header": message(),
    "header alone": message(b"", b"header"),
    "header and body": message(b"body", b"header"),
    "in the store": message(b"x" * 50, store=77),
    "in the store with a header": message(b"x" * 50, b"header", store=77),
    "expiry": message(b"body", expiry=(1 << 48) - 1),
    "header of 254": message(b"body", b"h" * 254),
    "header of 255": message(b"body", b"h" * 255),
    "header of 256": message(b"body", b"h" * 256),
    "long header in the store": message(b"x", b"h" * 5000, store=5),
    "large id and file": message(b"body", id=(1 << 64) - 1, store=(1 << 32) - 1),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_message_comes_back_as_it_was(kind: str) -> None:
    _, segments = written(Entry(25, KINDS[kind]))
    (found,) = segments.messages([25])
    same(found, KINDS[kind])


def test_a_whole_segment_comes_back_in_any_selection() -> None:
    kinds = list(KINDS.values())[:SLOTS]
    entries = [Entry(24 + i, kinds[i]) for i in range(SLOTS)]
    _, segments = written(*entries)
    for seqs in ([24, 25, 26, 27, 28, 29, 30, 31], [24, 26, 31], [30], [25, 31]):
        for seq, found in zip(seqs, segments.messages(seqs), strict=True):
            same(found, kinds[seq - 24])


def test_entries_that_do_not_lie_in_order_are_found() -> None:
    fs = FaultyFileSystem()
    segments = files(fs)
    segments.write([Entry(27, message(b"d")), Entry(30, message(b"g"))])
    segments.write([Entry(24, message(b"a")), Entry(28, message(b"e"))])
    found = segments.messages([24, 27, 28, 30])
    assert [m.body for m in found] == [b"a", b"d", b"e", b"g"]


def test_bodies_larger_than_a_run_of_reading_or_writing() -> None:
    bodies = [bytes([65 + i]) * 200_000 for i in range(5)]
    entries = [Entry(24 + i, message(body)) for i, body in enumerate(bodies)]
    _, segments = written(*entries)
    assert [m.body for m in segments.messages([24, 25, 26, 27, 28])] == bodies


def test_a_seq_written_twice_has_its_latest_content() -> None:
    fs, segments = written(Entry(24, message(b"old")))
    segments.write([Entry(24, message(b"new"))])
    assert segments.messages([24])[0].body == b"new"
    assert fs.exists("/3.qs")


def test_golden_files() -> None:
    fs, _ = written(
        Entry(24, message(b"body", b"header", id=5 << 40 | 1)),
        Entry(25, message(b"b" * 20, id=5 << 40 | 2, store=7)),
        Entry(27, message(b"b" * 20, b"head", id=5 << 40 | 3, store=8, expiry=1_800_000_000_000)),
        Entry(31, message(id=5 << 40 | 4)),
    )
    golden("queue_segment_qi", hexdump(fs.read("/3.qi")))
    golden("queue_segment_qs", hexdump(fs.read("/3.qs")))


def test_a_seq_has_its_slot_by_arithmetic() -> None:
    fs, _ = written(Entry(29, message(b"x")))
    data = fs.read("/3.qi")
    at = HEADER_BYTES + 29 % SLOTS * SLOT_BYTES
    assert len(data) == at + SLOT_BYTES
    assert data[at] & USED
    assert not any(data[HEADER_BYTES:at])


def test_no_qs_while_no_entry_needs_one() -> None:
    fs, _ = written(Entry(24, message()), Entry(25, message(b"x" * 9, store=4)))
    assert not fs.exists("/3.qs")


def test_zeros_are_no_slot() -> None:
    assert decode_slot(SEED, 0, bytes(SLOT_BYTES), 0) is None
    assert decode_slot(SEED, 0, b"", 0) is None


def test_a_slot_verifies_for_its_own_seq_queue_and_vhost_alone() -> None:
    data = slot_of(message(b"x"))
    assert decode_slot(SEED, 24, data, 0) is not None
    assert decode_slot(SEED, 25, data, 0) is None
    assert decode_slot(queue_seed(VHOST, QUEUE + 1), 24, data, 0) is None
    assert decode_slot(queue_seed(VHOST + 1, QUEUE), 24, data, 0) is None
    assert decode_slot(SEED, 24 + (1 << 32), data, 0) is None


def test_every_bit_of_a_slot_is_checked() -> None:
    data = slot_of(message(b"x", b"h", expiry=5))
    for bit in range(SLOT_BYTES * 8):
        spoilt = bytearray(data)
        spoilt[bit // 8] ^= 1 << bit % 8
        assert decode_slot(SEED, 24, bytes(spoilt), 0) is None, bit


def test_a_damaged_slot_names_file_and_position() -> None:
    fs, _ = written(Entry(24, message(b"a")), Entry(25, message(b"b")))
    at = HEADER_BYTES + SLOT_BYTES
    fs.damage_flip("/3.qi", at + 12)
    with pytest.raises(CorruptionError, match="slot of seq 25 of queue 9") as caught:
        files(fs).messages([24, 25])
    assert (caught.value.path, caught.value.position) == ("/3.qi", at)
    assert files(fs).messages([24])[0].body == b"a"


@pytest.mark.parametrize("offset", [0, 4, 8, 12, 13])
def test_a_damaged_entry_names_file_and_position_and_spares_its_neighbours(offset: int) -> None:
    fs, _ = written(Entry(24, message(b"aa")), Entry(25, message(b"bb")), Entry(26, message(b"cc")))
    at = HEADER_BYTES + 14
    fs.damage_flip("/3.qs", at + offset)
    with pytest.raises(CorruptionError, match="entry of seq 25") as caught:
        files(fs).messages([25])
    assert (caught.value.path, caught.value.position) == ("/3.qs", at)
    assert [m.body for m in files(fs).messages([24, 26])] == [b"aa", b"cc"]


@pytest.mark.parametrize(("header_len", "size"), [(1, 0), (0, 1)])
def test_a_slot_without_the_entry_that_its_message_needs_is_damage(
    header_len: int, size: int
) -> None:
    """It is not a message without header and body."""
    _, segments = written(Entry(24, message(b"")))
    with pytest.raises(CorruptionError, match="seq 24 has no known position"):
        segments.entries_of([Slot(24, USED, header_len, size, 1, 0, 0, 0)])


def test_a_file_that_is_cut_off_is_damage() -> None:
    fs, _ = written(Entry(24, message(b"aa")), Entry(25, message(b"bb")))
    fs.damage_cut("/3.qs", HEADER_BYTES + 20)
    assert files(fs).messages([24])[0].body == b"aa"
    with pytest.raises(CorruptionError, match="seq 25"):
        files(fs).messages([25])
    fs.damage_cut("/3.qi", HEADER_BYTES + 40)
    with pytest.raises(CorruptionError, match="slot of seq 25"):
        files(fs).slots([25])


@pytest.mark.parametrize("ending", [".qi", ".qs"])
def test_a_missing_file_is_damage(ending: str) -> None:
    fs, _ = written(Entry(24, message(b"aa")))
    fs.damage_delete("/3" + ending)
    with pytest.raises(CorruptionError, match="the file is missing") as caught:
        files(fs).messages([24])
    assert caught.value.path == "/3" + ending


@pytest.mark.parametrize(
    ("position", "field"),
    [(0, "magic"), (4, "version"), (6, "flags"), (8, "vhost"), (16, "queue"), (20, "segment"),
     (24, "slots"), (28, "checksum"), (60, "checksum")],
)  # fmt: skip
def test_a_wrong_header_says_which_field(position: int, field: str) -> None:
    for ending in (".qi", ".qs"):
        fs, _ = written(Entry(24, message(b"aa")))
        fs.damage_flip("/3" + ending, position)
        with pytest.raises(CorruptionError, match=field):
            files(fs).messages([24])


def test_a_file_of_another_queue_or_segment_is_refused() -> None:
    fs, _ = written(Entry(24, message(b"aa")))
    other = files(fs, queue=QUEUE + 1, segment=4)
    other.write([Entry(32, message(b"bb"))])
    other.close()
    fs.damage_swap("/3.qi", "/4.qi")
    with pytest.raises(CorruptionError, match="the header's queue is 10, expected 9"):
        files(fs).messages([24])


def test_a_failed_write_leaves_what_was_there_readable() -> None:
    fs, segments = written(Entry(24, message(b"aa")))
    fs.fail(errno.ENOSPC, kinds={"pwrite"}, path=".qs")
    with pytest.raises(OSError, match="No space"):
        segments.write([Entry(25, message(b"bb"))])
    assert segments.messages([24])[0].body == b"aa"
    segments.write([Entry(25, message(b"bb"))])
    assert [m.body for m in segments.messages([24, 25])] == [b"aa", b"bb"]


def test_a_good_header_is_never_written_again() -> None:
    """A checkpoint may name what is behind it: torn, it would take all of that with it [6]."""
    fs, segments = written(Entry(24, message(b"aa")))
    segments.sync()
    fs.sync_dir("/")
    again = fs.crash("killed")
    again.start_journal()
    files(again).write([Entry(25, message(b"bb"))])
    assert again.journal is not None
    kinds = [entry.kind for entry in again.journal.entries]
    assert kinds.count("pwrite") == 2  # a slot and an entry


def test_a_header_that_a_failed_sync_left_in_the_cache_alone_is_written_again() -> None:
    fs, segments = written(Entry(24, message(b"aa")))
    fs.sync_dir("/")
    fs.fail(errno.EIO, kinds={"sync"}, times=2)
    with pytest.raises(OSError, match="Input/output"):
        segments.sync()
    segments.close()
    fs.clear_faults()
    later = files(fs)
    later.write([Entry(25, message(b"bb"))])
    later.sync()
    after = fs.crash("lost")
    assert files(after).messages([25])[0].body == b"bb"


@pytest.mark.parametrize("ending", [".qi", ".qs"])
def test_a_header_that_was_written_in_part_is_written_whole_by_the_next_write(ending: str) -> None:
    fs = FaultyFileSystem()
    segments = files(fs)
    fs.fail("short", kinds={"pwrite"}, path=ending)
    with pytest.raises(OSError, match="short"):
        segments.write([Entry(24, message(b"aa"))])
    segments.write([Entry(24, message(b"aa"))])
    segments.close()
    assert files(fs).messages([24])[0].body == b"aa"


def test_a_file_of_before_that_cannot_be_synced_stops_the_write() -> None:
    fs, segments = written(Entry(24, message(b"aa")))
    segments.close()
    fs.fail(errno.EIO, kinds={"sync"})
    with pytest.raises(SyncFailedError, match=r"3\.qi"):
        files(fs).write([Entry(25, message(b"bb"))])


def test_what_is_synced_survives_a_power_cut() -> None:
    fs, segments = written(Entry(24, message(b"aa")))
    segments.write([Entry(25, message(b"bb"))])
    assert segments.is_dirty
    segments.sync()
    fs.sync_dir("/")
    after = fs.crash("lost")
    assert [m.body for m in files(after).messages([24, 25])] == [b"aa", b"bb"]


def test_files_that_were_closed_while_dirty_are_synced_all_the_same() -> None:
    fs, segments = written(Entry(24, message(b"aa")))
    segments.sync()
    fs.sync_dir("/")
    after = fs.crash("lost")
    assert files(after).messages([24])[0].body == b"aa"


def test_handles_keep_the_latest_used_open() -> None:
    fs = FaultyFileSystem()
    handles = Handles(2)
    many = [SegmentFiles(fs, f"/{n}", VHOST, QUEUE, n, SLOTS, handles) for n in range(5)]
    for n, segments in enumerate(many):
        segments.write([Entry(n * SLOTS, message(b"body"))])
    assert sum(fs.handles.values()) == 4
    for n, segments in enumerate(many):
        assert segments.messages([n * SLOTS])[0].body == b"body"
    for segments in many:
        segments.close()
        handles.forget(segments)
    assert sum(fs.handles.values()) == 0


def test_handles_spare_what_is_being_synced() -> None:
    fs = FaultyFileSystem()
    handles = Handles(1)
    a, b, c = (SegmentFiles(fs, f"/{n}", VHOST, QUEUE, n, SLOTS, handles) for n in range(3))
    a.write([Entry(0, message())])
    a.is_syncing = True
    b.write([Entry(SLOTS, message())])
    c.write([Entry(2 * SLOTS, message())])
    assert [f.path for f in (a, b, c) if f._qi is not None] == ["/0", "/2"]


def test_the_real_file_system_gives_the_same(tmp_path: object) -> None:
    fs = OsFileSystem(workers=0)
    segments = SegmentFiles(fs, f"{tmp_path}/3", VHOST, QUEUE, 3, SLOTS, Handles())
    segments.write([Entry(24 + i, m) for i, m in enumerate(list(KINDS.values())[:SLOTS])])
    segments.sync()
    segments.close()
    for found, wanted in zip(segments.messages(list(range(24, 32))), KINDS.values(), strict=False):
        same(found, wanted)
    segments.close()
    fs.close()


def test_bodies_are_written_alone_and_slots_later() -> None:
    fs = FaultyFileSystem(seed=1)
    fs.mkdir("/q")
    files = SegmentFiles(fs, "/q/0", 1, 2, 0, 16, Handles())
    entries = [Entry(seq, QueuedMessage(seq, b"h" * seq, b"b" * seq, seq, 5)) for seq in range(4)]
    places = files.write_bodies(entries)
    assert places[0] == 0, "neither header nor body: no entry"
    assert not fs.exists("/q/0.qi")
    found = files.entries_of(
        [Slot(3, USED | HAS_ENTRY, 3, 3, 3, 0, places[3], 5)]
    )  # a row knows all that
    assert (found[0].header, found[0].body) == (b"hhh", b"bbb")
    slots = [
        Slot(seq, HAS_ENTRY if places[seq] else 0, seq, seq, seq + 100, 9 * seq, places[seq], 5)
        for seq in (0, 1, 3)
    ]
    assert files.write_slots(slots) == 3 * SLOT_BYTES
    read = files.messages([0, 1, 3])
    assert [m.body for m in read] == [b"", b"b", b"bbb"]
    assert [(m.id, m.expiry_ms, m.time) for m in read] == [(100, 0, 5), (101, 9, 5), (103, 27, 5)]
    with pytest.raises(CorruptionError):
        files.messages([2])


class Reads:
    """Counts the reads of entries."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        pread = FaultyFile.pread

        def counted(file: FaultyFile, length: int, offset: int) -> bytes:
            if file.path.endswith(".qs"):
                self.sizes.append(length)
            return pread(file, length, offset)

        monkeypatch.setattr(FaultyFile, "pread", counted)


def test_entries_that_lie_behind_one_another_are_read_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also with one between them that has no entry, and one that is not asked for."""
    kinds = [message(b"x" * 100) for _ in range(SLOTS)]
    kinds[2] = message()
    _, segments = written(*(Entry(24 + i, one) for i, one in enumerate(kinds)))
    slots = segments.slots([24, 25, 26, 28, 29, 31])
    segments.entries_of(slots[:1])  # reads the file's header as well
    reads = Reads(monkeypatch)
    found = segments.entries_of(slots)
    assert [m.body for m in found] == [kinds[i].body for i in (0, 1, 2, 4, 5, 7)]
    assert len(reads.sizes) == 1
    assert 5 * 100 < reads.sizes[0] < 8 * 120


def test_a_large_entry_is_read_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = [message(b"x" * (READ_BYTES // 8)) for _ in range(SLOTS)]
    _, segments = written(*(Entry(24 + i, one) for i, one in enumerate(kinds)))
    slots = segments.slots(list(range(24, 32)))
    segments.entries_of(slots[:1])
    reads = Reads(monkeypatch)
    assert len(segments.entries_of(slots)) == SLOTS
    assert len(reads.sizes) == SLOTS
    assert max(reads.sizes) < READ_BYTES // 8 + 64
