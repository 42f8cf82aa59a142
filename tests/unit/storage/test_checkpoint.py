"""The checkpoint file: what was written comes back, anything else is an error with its place."""

import errno
import struct
from zlib import crc32

import pytest

from penstock.errors import CorruptionError, SyncFailedError, VersionError
from penstock.message import QueuedMessage
from penstock.storage.index.queue_index import IndexSegment, Section, SectionRow
from penstock.storage.journal import checkpoint
from penstock.storage.journal.checkpoint import (
    HEAD,
    QUEUE,
    REAPING,
    STORE,
    TOPOLOGY,
    CheckpointHead,
)
from penstock.storage.pages.stream_meta import Position, ReaderOffset
from penstock.storage.pages.streams import StreamSection
from tests.helpers.faulty_filesystem import CrashNow, FaultyFileSystem
from tests.helpers.golden import golden, hexdump

VHOST = 0x1122334455667788
SLOTS = 8
REAPED = {(7, 1): bytearray(b"\x0f"), (8, 0): bytearray(b"\1")}
HEAD_OF = CheckpointHead(100, 3, 4096, 5, 17, SLOTS, 9, 2)


def segment(number: int, lo: int, hi: int, count: int, bits: bytes | None = None) -> IndexSegment:
    made = IndexSegment(number, lo, hi, 0)
    made.count, made.bytes, made.stores, made.expiry_ms = count, count * 10, 1, 1_800_000_000_000
    made.bitmap = None if bits is None else bytearray(bits)
    return made


def section() -> Section:
    message = QueuedMessage(5 << 40 | 1, b"header", None, 20, 1_700_000_000, 1_800_000_000_000)
    stored = QueuedMessage(5 << 40 | 2, b"", None, 30, 1_700_000_000, 0, 7)
    empty = QueuedMessage(5 << 40 | 3, b"h", None, 0, 1_700_000_000)
    return Section(
        30, 64, 8, 150,
        {0: segment(0, 2, 8, 6), 2: segment(2, 16, 24, 2, b"\x81"), 3: segment(3, 24, 25, 0)},
        {25: SectionRow(message, 9), 26: SectionRow(stored, 0), 27: SectionRow(empty, 0)},
        {25: 3, 26: 1},
    )  # fmt: skip


def sections() -> list[tuple[int, bytes]]:
    return [
        (HEAD, HEAD_OF.encode()),
        (TOPOLOGY, checkpoint.encode_topology([b"one", b"", b"three"])),
        (QUEUE, checkpoint.encode_queue(7, section(), SLOTS)),
        (STORE, b"state one"),
        (STORE, b"state two"),
        (REAPING, checkpoint.encode_reaping(REAPED)),
    ]


def written(*, number: int = 4, is_clean: bool = False) -> FaultyFileSystem:
    fs = FaultyFileSystem()
    fs.mkdir("/v")
    fs.sync_all()
    data = checkpoint.encode_file(VHOST, number, sections(), is_clean=is_clean)
    checkpoint.write(fs, "/v", number, data)
    return fs


def test_golden_file() -> None:
    golden("checkpoint", hexdump(written().read("/v/checkpoint-4")))


def test_what_was_written_comes_back() -> None:
    fs = written()
    assert checkpoint.current(fs, "/v") == 4
    manifest = checkpoint.read(fs, "/v", 4, VHOST)
    assert (manifest.number, manifest.is_clean) == (4, False)
    assert manifest.head == HEAD_OF
    assert manifest.topology == [b"one", b"", b"three"]
    assert manifest.store == [b"state one", b"state two"]
    assert manifest.reaping == REAPED


STREAM_SECTION = StreamSection(
    bytes(range(16)), Position(40, 700, 55, 1_700_000_000_000_001, 8),
    {"reader": ReaderOffset(50, 41, 1_700_000_000_000), "größer": ReaderOffset(9, None, 5)},
)  # fmt: skip


def test_a_streams_section_comes_back_and_has_these_bytes() -> None:
    data = checkpoint.encode_stream(12, STREAM_SECTION)
    golden("checkpoint_stream", hexdump(data))
    manifest = checkpoint.Manifest()
    checkpoint.apply_section(manifest, checkpoint.STREAM, data)
    found = manifest.streams[12]
    assert found.position == STREAM_SECTION.position
    assert found.stream_id == STREAM_SECTION.stream_id
    assert found.readers == STREAM_SECTION.readers


def test_a_streams_section_that_is_cut_off_is_an_error() -> None:
    data = checkpoint.encode_stream(12, STREAM_SECTION)
    for length in range(60):
        with pytest.raises(struct.error):
            checkpoint.apply_section(checkpoint.Manifest(), checkpoint.STREAM, data[:length])


def test_a_queues_section_comes_back() -> None:
    found = checkpoint.read(written(), "/v", 4, VHOST).queues[7]
    assert (found.next_seq, found.mark, found.count, found.bytes) == (30, 64, 8, 150)
    assert found.attempts == {25: 3, 26: 1}
    assert sorted(found.segments) == [0, 2], "an empty one need not be told of"
    assert found.segments[0].seqs(SLOTS) == [2, 3, 4, 5, 6, 7]
    assert found.segments[0].bitmap is None
    assert found.segments[2].seqs(SLOTS) == [16, 23]
    assert (found.segments[2].bytes, found.segments[2].stores) == (20, 1)
    assert found.segments[2].expiry_ms == 1_800_000_000_000


def test_the_rows_of_a_small_queue_come_back_without_their_bodies() -> None:
    rows = checkpoint.read(written(), "/v", 4, VHOST).queues[7].rows
    assert [(seq, row.body_file) for seq, row in rows.items()] == [(25, 9), (26, 0), (27, 0)]
    first, stored, empty = (row.message for row in rows.values())
    assert (first.id, first.header, first.body, first.size) == (5 << 40 | 1, b"header", None, 20)
    assert (first.expiry_ms, first.store_file) == (1_800_000_000_000, 0)
    assert (stored.body, stored.store_file) == (None, 7)
    assert empty.body == b"", "no file has a body of no bytes"


def test_a_bitmap_of_which_all_is_alive_is_left_out() -> None:
    full = Section(8, 0, 8, 80, {0: segment(0, 0, 8, 8, b"\xff")}, {}, {})
    data = checkpoint.encode_queue(7, full, SLOTS)
    manifest = checkpoint.Manifest()
    manifest.head.segment_slots = SLOTS
    checkpoint.apply_section(manifest, QUEUE, data)
    assert manifest.queues[7].segments[0].bitmap is None
    assert manifest.queues[7].segments[0].seqs(SLOTS) == list(range(8))


def test_the_last_segment_of_4096_slots_fits() -> None:
    top = Section(8192, 0, 4096, 1, {1: segment(1, 4096, 8192, 4096)}, {}, {})
    manifest = checkpoint.Manifest()
    checkpoint.apply_section(manifest, QUEUE, checkpoint.encode_queue(7, top, 4096))
    assert manifest.queues[7].segments[1].seqs(4096) == list(range(4096, 8192))


def test_a_clean_stop_is_marked() -> None:
    assert checkpoint.read(written(is_clean=True), "/v", 4, VHOST).is_clean


def test_no_current_is_number_0() -> None:
    fs = FaultyFileSystem()
    fs.mkdir("/v")
    assert checkpoint.current(fs, "/v") == 0


def test_what_write_has_written_survives_a_power_cut() -> None:
    after = written().crash("lost")
    assert checkpoint.current(after, "/v") == 4
    checkpoint.read(after, "/v", 4, VHOST)


@pytest.mark.parametrize("mode", ["lost", "kept", "subset", "zeros"])
def test_a_crash_at_any_operation_leaves_the_old_one_or_the_new_one_whole(mode: str) -> None:
    data = checkpoint.encode_file(VHOST, 5, sections(), is_clean=False)
    seen = set()
    point = 0
    while True:
        point += 1
        fs = written().crash("kept")
        fs.crash_at = fs.operations + point
        try:
            checkpoint.write(fs, "/v", 5, data)
        except CrashNow:
            pass
        else:
            break
        after = fs.crash(mode)
        number = checkpoint.current(after, "/v")
        checkpoint.read(after, "/v", number, VHOST)
        seen.add(number)
    assert point > 8
    assert 4 in seen


@pytest.mark.parametrize("kind", ["sync", "sync_dir"])
@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_failed_sync_is_told_from_a_full_disk(kind: str, nth: int, code: int) -> None:
    """After the rename it is not known which one is CURRENT: that is no disk to go on with."""
    fs = written()
    fs.fail(code, kinds={kind}, nth=nth)
    data = checkpoint.encode_file(VHOST, 5, sections(), is_clean=False)
    with pytest.raises(SyncFailedError):
        checkpoint.write(fs, "/v", 5, data)


def test_a_full_disk_leaves_the_old_one() -> None:
    for nth in range(1, 4):
        fs = written()
        fs.fail(errno.ENOSPC, kinds={"pwrite", "create"}, nth=nth)
        data = checkpoint.encode_file(VHOST, 5, sections(), is_clean=False)
        with pytest.raises(OSError, match="No space"):
            checkpoint.write(fs, "/v", 5, data)
        assert checkpoint.current(fs, "/v") == 4


# ---- damage ------------------------------------------------------------------------------------


def test_every_byte_of_it_is_checked() -> None:
    fs = written()
    data = fs.read("/v/checkpoint-4")
    for position in range(len(data)):
        fs.damage_flip("/v/checkpoint-4", position, position % 8)
        with pytest.raises((CorruptionError, VersionError)) as caught:
            checkpoint.read(fs, "/v", 4, VHOST)
        assert str(caught.value).startswith("/v/checkpoint-4: ")
        fs.damage_flip("/v/checkpoint-4", position, position % 8)
    checkpoint.read(fs, "/v", 4, VHOST)


def test_cut_off_anywhere_it_is_damage() -> None:
    fs = written()
    whole = fs.read("/v/checkpoint-4")
    for size in range(len(whole)):
        fs.damage("/v/checkpoint-4", lambda _, size=size: whole[:size])  # type: ignore[misc]
        with pytest.raises(CorruptionError):
            checkpoint.read(fs, "/v", 4, VHOST)


def test_the_place_of_damage_is_named() -> None:
    fs = written()
    position = fs.read("/v/checkpoint-4").index(b"state one")
    fs.damage_flip("/v/checkpoint-4", position)
    with pytest.raises(CorruptionError, match="section 3 of the checkpoint") as caught:
        checkpoint.read(fs, "/v", 4, VHOST)
    assert caught.value.position == position - 12


def test_a_missing_checkpoint_is_damage() -> None:
    fs = written()
    fs.damage_delete("/v/checkpoint-4")
    with pytest.raises(CorruptionError, match="it is missing"):
        checkpoint.read(fs, "/v", 4, VHOST)


@pytest.mark.parametrize(
    "text", [b"", b"checkpoint-4", b"checkpoint-4 00000000\n", b"checkpoint-x 1", b"\xff\xff"]
)
def test_a_damaged_current_is_damage(text: bytes) -> None:
    fs = written()
    fs.damage("/v/CURRENT", lambda _: text)
    with pytest.raises(CorruptionError, match="expected the name of a checkpoint"):
        checkpoint.current(fs, "/v")


def test_a_checkpoint_of_another_number_or_vhost_is_refused() -> None:
    fs = written()
    data = fs.read("/v/checkpoint-4")
    file = fs.open("/v/checkpoint-5", create=True)
    file.pwrite(data, 0)
    with pytest.raises(CorruptionError, match="it is checkpoint 4 of vhost 1122334455667788"):
        checkpoint.read(fs, "/v", 5, VHOST)
    with pytest.raises(CorruptionError, match="expected 4 of 1122334455667789"):
        checkpoint.read(fs, "/v", 4, VHOST + 1)


def test_sections_that_changed_places_do_not_verify() -> None:
    data = checkpoint.encode_file(VHOST, 4, [(STORE, b"aa"), (STORE, b"bb")], is_clean=False)
    first, second = data.index(b"aa") - 12, data.index(b"bb") - 12
    swapped = data[:first] + data[second : second + 14] + data[first:second] + data[second + 14 :]
    fs = written()
    fs.damage("/v/checkpoint-4", lambda _: swapped)
    with pytest.raises(CorruptionError, match="section 0 of the checkpoint does not verify"):
        checkpoint.read(fs, "/v", 4, VHOST)


@pytest.mark.parametrize(
    ("kind", "data"),
    [(HEAD, b"short"), (TOPOLOGY, b"\0\0\0\2"), (QUEUE, b"short"), (REAPING, b"short"), (99, b"")],
)
def test_a_section_that_verifies_and_means_nothing_is_damage(kind: int, data: bytes) -> None:
    fs = written()
    whole = checkpoint.encode_file(VHOST, 4, [(kind, data)], is_clean=False)
    fs.damage("/v/checkpoint-4", lambda _: whole)
    with pytest.raises(CorruptionError, match=f"section of kind {kind}"):
        checkpoint.read(fs, "/v", 4, VHOST)


def test_a_later_version_is_refused_by_name() -> None:
    fs = written()
    header = checkpoint.FILE.pack(b"PCKP", 2, 0, VHOST, 4, 0)[:-4]
    whole = fs.read("/v/checkpoint-4")
    crc = checkpoint._U32.pack(crc32(header))
    fs.damage("/v/checkpoint-4", lambda _: header + crc + whole[len(header) + 4 :])
    with pytest.raises(VersionError, match="expected version 1, found 2"):
        checkpoint.read(fs, "/v", 4, VHOST)
