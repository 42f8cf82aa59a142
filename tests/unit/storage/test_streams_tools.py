"""The tools of `penstock store` know streams: verify, dump, stats, backup, salvage."""

import random

import pytest

from penstock.clock import ManualClock
from penstock.storage.engine import StorageEngine
from penstock.storage.files.data_directory import FreshDirectory
from penstock.storage.files.durability import DISK
from penstock.storage.pages.stream_meta import (
    READ_META,
    WRITE_META,
    ReaderOffset,
    decode_head,
    read_tail,
)
from penstock.storage.tools.backup import Backup, backup
from penstock.storage.tools.dump import dump, dump_tree
from penstock.storage.tools.salvage import salvage
from penstock.storage.tools.stats import stats
from penstock.storage.tools.verify import verify
from tests.helpers.faulty_filesystem import FaultyFileSystem
from tests.helpers.tool_stores import DATA, image, open_vhost, running, stopped, vhost_path

COPY = "/copy"
Records = list[tuple[int, int, bytes, bytes]]


def fill(engine: StorageEngine) -> None:
    """Two streams of several pages, half before a checkpoint, the oldest page of one taken away."""
    events, parts = (
        engine.streams.declare([(b"events", b"args", 0)], page_bytes=400)
        + engine.streams.declare([(b"parts\0p0", b"", 0)], page_bytes=400)
    )  # fmt: skip
    clock = engine.clock
    assert isinstance(clock, ManualClock)
    for i in range(12):
        clock.advance(1)
        engine.streams.append(events, b"meta %d" % i, b"event %d " % i * 8, DISK)
        engine.streams.append(parts, b"", b"part %d" % i, DISK)
        engine.sync()
    engine.streams.set_reader(events, "reader", 7, DISK, 4)
    engine.streams.retain(events, max_records=9)
    engine.poll()
    engine.checkpoint()
    for i in range(12, 17):
        engine.streams.append(events, b"meta %d" % i, b"event %d " % i * 8, DISK)
    engine.streams.set_reader(events, "other", 12, DISK)
    queue = engine.declare_queue(b"q")
    tx = engine.begin()
    tx.append_stream(parts, b"tx", b"in a transaction")
    tx.publish([queue], b"", b"beside it")
    tx.commit(DISK)
    engine.sync()


def records_of(engine: StorageEngine) -> dict[bytes, Records]:
    found: dict[bytes, Records] = {}
    for stream in engine.streams.by_number.values():
        assert stream.head_offset == stream.next_offset
        read = stream.queue.read(0, 1000, 1 << 20)
        found[stream.name] = [(r.offset, r.time_us, r.meta, r.payload) for r in read]
    return found


def opened(fs: FaultyFileSystem, data: str = DATA) -> StorageEngine:
    return open_vhost(fs, vhost_path(fs, data))


@pytest.mark.parametrize("is_clean", [True, False])
def test_verify_finds_all_of_it_and_changes_nothing(is_clean: bool) -> None:
    fs = stopped(fill, is_clean=is_clean)
    before = image(fs)
    report = verify(fs, DATA)
    assert image(fs) == before
    assert report.is_fine, report.problems
    named = {s.name: s for s in report.streams}
    assert set(named) == {"events", "parts (part p0)"}
    assert named["events"].records == (14 if is_clean else 9)  # the rest is in the log
    assert named["events"].damaged == 0
    assert named["events"].pages >= 3
    assert not report.notes


def test_verify_names_a_damaged_record() -> None:
    fs = stopped(fill, is_clean=True)
    (path,) = [at for at in image(fs) if at.endswith("00000000000000000006.page")]
    fs.damage_flip(path, 200)
    report = verify(fs, DATA)
    assert [(p.path, p.position > 60) for p in report.problems] == [(path, True)]
    assert next(s for s in report.streams if s.name == "events").damaged >= 1


@pytest.mark.parametrize("is_clean", [True, False])
def test_dump_shows_every_file_and_no_damage(is_clean: bool) -> None:
    fs = stopped(fill, is_clean=is_clean)
    lines = list(dump_tree(fs, DATA))
    assert not [line for line in lines if "DAMAGED" in line or "not ours" in line]
    text = "\n".join(lines)
    assert "STREAM" in text
    for path in image(fs):
        if "/streams/" in path:
            assert list(dump(fs, path)), path


def test_dump_shows_records_and_sections_of_streams() -> None:
    fs = stopped(fill, is_clean=False)
    path = vhost_path(fs)
    number = fs.read(path + "/CURRENT").split()[0].decode()
    of_checkpoint = [line[12:] for line in dump(fs, f"{path}/{number}")]
    assert any("reader 'reader' offset 7 keeps from 4" in line for line in of_checkpoint)
    assert any(line.strip().startswith("stream 1 id ") for line in of_checkpoint)
    of_log = "\n".join(dump_tree(fs, path + "/wal"))
    assert "STREAM stream 1 offset 12 time " in of_log
    assert "READER_OFFSET stream 1 reader b'other' offset 12 time " in of_log
    assert "STREAM stream 2 offset 12 time " in of_log


@pytest.mark.parametrize("is_clean", [True, False])
def test_stats_has_the_figures(is_clean: bool) -> None:
    fs = stopped(fill, is_clean=is_clean)
    found = stats(fs, DATA)
    named = {s.name: s for s in found.streams}
    events = named["events"]
    assert (events.first, events.next, events.readers) == (3, 17, 2)
    assert events.bytes > 14 * 100
    pages = [at for at in image(fs) if at.endswith(".page")]
    assert found.files["stream pages"] == (len(pages), sum(fs.size(at) for at in pages))
    assert "stream indexes" in found.files


def test_a_backup_has_the_streams_as_of_its_cut() -> None:
    engine = running(fill)
    wanted = records_of(engine)
    readers = {s.name: dict(s.readers) for s in engine.streams.by_number.values()}
    (part,) = backup([engine], COPY)
    assert part.linked > 3
    engine.streams.append(engine.streams.get(b"events"), b"", b"too late", DISK)
    engine.sync()
    engine.streams.retain(engine.streams.get(b"events"), max_records=1)
    engine.poll()
    fs = engine.fs
    assert isinstance(fs, FaultyFileSystem)
    for mode in ("killed", "lost"):
        copy = fs.crash(mode)
        report = verify(copy, COPY)
        assert report.is_fine, report.problems
        assert not report.notes
        for stream in engine.streams.by_number.values():
            directory = f"{vhost_path(copy, COPY)}/streams/{stream.path.rpartition('/')[2]}"
            head = decode_head("", copy.read(f"{directory}/{WRITE_META}"))
            assert head.next_offset == wanted[stream.name][-1][0] + 1
            assert read_tail(copy, directory) == wanted[stream.name][0][0]
            assert copy.exists(f"{directory}/{READ_META}")
        again = opened(copy, COPY)
        assert records_of(again) == wanted
        assert {s.name: s.readers for s in again.streams.by_number.values()} == readers
        again.streams.append(again.streams.get(b"events"), b"", b"goes on", DISK)
        again.sync()
        original = opened(copy)
        assert original.streams.get(b"events").queue.read(17, 1, 99)[0].payload == b"too late"


def test_a_backup_in_steps_with_appends_and_retention_between() -> None:
    """What is copied is the stream as of the cut, whatever is done to it meanwhile."""
    engine = running(fill)
    fs = engine.fs
    assert isinstance(fs, FaultyFileSystem)
    events = engine.streams.get(b"events")
    engine.streams.delete_reader(events, "reader", DISK)
    engine.sync()
    fresh = FreshDirectory(fs.with_disk(fs.disk), COPY, "a backup")
    part = Backup(engine, fresh)
    n = 0
    while part.step():
        engine.streams.append(events, b"", b"meanwhile %d" % n * 9, DISK)
        engine.streams.retain(events, max_records=2)
        engine.flush()
        engine.poll(wait=True)
        n += 1
    fresh.finish()
    copy = fs.crash("lost")
    report = verify(copy, COPY)
    assert report.is_fine, report.problems
    found = records_of(opened(copy, COPY))[b"events"]
    assert [one[0] for one in found] == list(range(found[0][0], found[-1][0] + 1))
    assert found[-1][0] >= 16
    engine.poll()
    assert events.first_offset > 6
    assert not fs.exists(f"{events.path}/{3:020}.page"), "what was pinned goes in the end"


@pytest.mark.parametrize("is_clean", [True, False])
def test_salvage_of_an_undamaged_store_takes_everything(is_clean: bool) -> None:
    fs = stopped(fill, is_clean=is_clean)
    wanted = records_of(opened(fs.fork()))
    report = salvage(fs, DATA, "/new", clock=ManualClock(), rng=random.Random(1))
    assert not report.losses, report.losses
    assert {s.name: s.taken for s in report.streams} == {"events": 14, "parts (part p0)": 13}
    engine = opened(fs, "/new")
    found = records_of(engine)
    first = wanted[b"events"][0][0]
    assert first == 3
    assert found[b"events"] == [(o - first, t, m, p) for o, t, m, p in wanted[b"events"]]
    assert found[b"parts\0p0"] == wanted[b"parts\0p0"]
    events = engine.streams.get(b"events")
    assert engine.state.routing.queues[b"events"].arguments == b"args"
    assert events.queue.page_bytes == 400
    readers = {name: (r.offset, r.kept_from) for name, r in events.readers.items()}
    assert readers == {"reader": (4, 1), "other": (9, None)}
    assert isinstance(events.readers["other"], ReaderOffset)


def test_salvage_of_a_stream_that_has_lost_all_its_pages() -> None:
    """Also without its name: the other streams and the queues are taken, and it is told."""
    fs = stopped(fill, is_clean=True)
    streams, log = vhost_path(fs) + "/streams", vhost_path(fs) + "/wal"
    for name in fs.list(log):  # which has its records still
        fs.damage_delete(f"{log}/{name}")
    for directory in fs.list(streams):
        if directory.endswith(".2"):
            for name in fs.list(f"{streams}/{directory}"):
                if name.endswith(".page") or name == ".queue_name":
                    fs.damage_delete(f"{streams}/{directory}/{name}")
    report = salvage(fs, DATA, "/new", clock=ManualClock(), rng=random.Random(1))
    assert [loss.text for loss in report.losses if "lost" in loss.text]
    assert {s.name: s.taken for s in report.streams}["events"] == 14
    assert [(q.name, q.taken) for q in report.queues] == [("q", 1)]


def test_salvage_of_a_store_without_its_checkpoint() -> None:
    fs = stopped(fill, is_clean=True)
    path = vhost_path(fs)
    for name in fs.list(path):
        if name.startswith("checkpoint-"):
            fs.damage_delete(f"{path}/{name}")
    report = salvage(fs, DATA, "/new", clock=ManualClock(), rng=random.Random(1))
    assert report.losses
    found = records_of(opened(fs, "/new"))
    assert len(found[b"events"]) == 14
    assert len(found[b"parts\0p0"]) == 13
