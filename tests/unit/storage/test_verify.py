"""verify: what it finds, where it says that it is, and that it changes nothing."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from penstock.errors import LockedError
from penstock.storage.files.data_directory import DataDirectory, queue_name, vhost_number
from penstock.storage.files.durability import DISK
from penstock.storage.journal import checkpoint
from penstock.storage.journal.checkpoint import Manifest
from penstock.storage.store.store_file import FileState
from penstock.storage.tools.verify import Bodies, Problem, Report, verify
from tests.helpers.faulty_filesystem import FaultyFileSystem
from tests.helpers.tool_stores import (
    DATA,
    VHOST,
    engine_content,
    entries,
    image,
    make,
    open_vhost,
    vhost_path,
)


@pytest.fixture(scope="module", params=[True, False], ids=["clean", "killed"])
def whole(request: pytest.FixtureRequest) -> FaultyFileSystem:
    return make(is_clean=request.param)


def check(fs: FaultyFileSystem, path: str = DATA) -> Report:
    """Verify, and see that nothing is changed by it."""
    before = image(fs)
    report = verify(fs, path)
    assert image(fs) == before
    return report


def only(report: Report) -> Problem:
    assert len(report.problems) == 1, report.problems
    return report.problems[0]


def forge(fs: FaultyFileSystem, change: Callable[[Manifest], None]) -> None:
    """Write the checkpoint again with a change, all its checksums right."""
    path, vhost = vhost_path(fs), vhost_number(VHOST)
    number = checkpoint.current(fs, path)
    manifest = checkpoint.read(fs, path, number, vhost)
    change(manifest)
    sections = [
        (checkpoint.HEAD, manifest.head.encode()),
        (checkpoint.TOPOLOGY, checkpoint.encode_topology(manifest.topology)),
        *(
            (checkpoint.QUEUE, checkpoint.encode_queue(n, s, manifest.head.segment_slots))
            for n, s in manifest.queues.items()
        ),
        *((checkpoint.STORE, data) for data in manifest.store),
        (checkpoint.REAPING, checkpoint.encode_reaping(manifest.reaping)),
    ]
    data = checkpoint.encode_file(vhost, number, sections, is_clean=manifest.is_clean)
    fs.damage(f"{path}/checkpoint-{number}", lambda _: data)


def test_a_whole_store_is_fine(whole: FaultyFileSystem) -> None:
    report = check(whole.fork())
    assert report.is_fine
    assert (report.vhosts, len(report.queues)) == (1, 3)
    assert sum(queue.count for queue in report.queues) == 17
    assert report.body_bytes > 1350
    assert not any(queue.damaged for queue in report.queues)


def test_one_vhost_alone(whole: FaultyFileSystem) -> None:
    assert check(whole.fork(), vhost_path(whole)).queues == check(whole.fork()).queues


def test_progress_is_told(whole: FaultyFileSystem) -> None:
    told: list[tuple[str, int, int]] = []
    verify(whole.fork(), DATA, progress=lambda *step: told.append(step))
    assert {what for what, _, _ in told} == {"checkpoint and log", "messages", "bodies"}
    assert all(done <= total for _, done, total in told)


def test_a_damaged_slot_is_named_with_its_position(whole: FaultyFileSystem) -> None:
    fs = whole.fork()
    path = f"{vhost_path(fs)}/queues/" + next(
        d for d in fs.list(vhost_path(fs) + "/queues") if d.endswith(".1")
    )
    fs.damage_flip(path + "/1.qi", 64 + 32 + 7)  # seq 5
    problem = only(check(fs))
    assert (problem.path, problem.position) == (path + "/1.qi", 96)
    assert "seq 5" in problem.text
    assert str(problem) == f"{path}/1.qi: at byte 96: {problem.text}"


def test_a_damaged_body_in_the_store(whole: FaultyFileSystem) -> None:
    fs = whole.fork()
    path = vhost_path(fs) + "/msg_store_persistent/00/0.msg"
    fs.damage_flip(path, 500)
    assert path in {problem.path for problem in check(fs).problems}


def test_a_damaged_name_of_a_queue(whole: FaultyFileSystem) -> None:
    fs = whole.fork()
    queues = vhost_path(fs) + "/queues"
    path = f"{queues}/{fs.list(queues)[0]}/.queue_name"
    fs.damage_flip(path, 0)
    assert only(check(fs)).path == path


def test_a_name_of_a_queue_as_older_versions_wrote_it(whole: FaultyFileSystem) -> None:
    fs = whole.fork()
    queues = vhost_path(fs) + "/queues"
    for directory in fs.list(queues):
        path = f"{queues}/{directory}"
        old = queue_name(fs, path) + b"\n"
        file = fs.open(path + "/.queue_name")
        file.truncate(0)
        file.pwrite(old, 0)
        assert queue_name(fs, path) + b"\n" == old != b"\n"
    report, before = check(fs), check(whole.fork())
    assert (report.problems, report.notes) == (before.problems, before.notes)


@pytest.mark.parametrize("name", ["VERSION", "vhosts/{}/.vhost"])
def test_damage_around_the_vhosts_does_not_stop_it(whole: FaultyFileSystem, name: str) -> None:
    fs = whole.fork()
    path = f"{DATA}/{name.format(fs.list(DATA + '/vhosts')[0])}"
    fs.damage_flip(path, 0)
    report = check(fs)
    assert only(report).path == path
    assert len(report.queues) == 3


def test_a_store_that_recovery_refuses(whole: FaultyFileSystem) -> None:
    fs = whole.fork()
    fs.damage_cut(vhost_path(fs) + "/CURRENT", 3)
    assert only(check(fs)).path.endswith("/CURRENT")


def test_wrong_counts_of_a_queue(whole: FaultyFileSystem) -> None:
    fs = whole.fork()

    def change(manifest: Manifest) -> None:
        manifest.queues[1].count += 1

    forge(fs, change)
    assert "counts" in only(check(fs)).text


def test_wrong_counts_of_a_segment(whole: FaultyFileSystem) -> None:
    fs = whole.fork()

    def change(manifest: Manifest) -> None:
        manifest.queues[1].segments[2].bytes += 1
        manifest.queues[1].segments[1].bytes -= 1

    forge(fs, change)
    assert [p.text.startswith("segment") for p in check(fs).problems] == [True, True]


def test_a_reference_too_many_and_one_too_few(whole: FaultyFileSystem) -> None:
    def change(manifest: Manifest, by: int) -> None:
        for i, data in enumerate(manifest.store):
            state = FileState.decode(data)
            if state.own is not None:
                number = state.own.numbers()[0]
                state.own.set_refs(number, state.own.refs(number) + by, 1350)
                manifest.store[i] = state.encode()

    for by, text in ((1, "counted 2 times"), (-1, "counted 0 times")):
        fs = make(is_clean=True)
        forge(fs, lambda manifest, by=by: change(manifest, by))  # type: ignore[misc]
        assert text in only(check(fs)).text


def test_a_body_that_nothing_names(whole: FaultyFileSystem) -> None:
    """A queue is gone from the checkpoint, and nobody gave its references back."""
    fs = make(is_clean=True)

    def change(manifest: Manifest) -> None:
        section = manifest.queues[2]
        section.count = section.bytes = 0
        section.segments, section.rows = {}, {}

    forge(fs, change)
    texts = [problem.text for problem in check(fs).problems]
    assert texts
    assert all("nothing names it" in text or "counted" in text for text in texts)


def test_orphans_are_notes(whole: FaultyFileSystem) -> None:
    fs = whole.fork()
    vhost = vhost_path(fs)
    fs.open(vhost + "/checkpoint-99", create=True).pwrite(b"torn", 0)
    fs.mkdir(vhost + "/queues/0123456789abcdef.77")
    report = check(fs)
    assert report.is_fine
    assert any("checkpoint-99" in note for note in report.notes)
    assert any("abcdef.77" in note for note in report.notes)


def test_an_id_with_two_bodies_is_found() -> None:
    bodies = Bodies()
    for id in (1, 257, 3):
        bodies.add(id, b"body %d" % id)
        bodies.add(id, b"body %d" % id)
    assert bodies.with_two() == []
    bodies.add(257, b"another")
    assert bodies.with_two() == [257]


def test_a_store_in_use_is_not_looked_at(whole: FaultyFileSystem) -> None:
    for path in (DATA + "/LOCK", vhost_path(whole) + "/LOCK"):
        fs = whole.fork()
        lock = fs.lock(path)
        with pytest.raises(LockedError, match="pid"):
            verify(fs, DATA)
        lock.release()
        assert verify(fs, DATA).is_fine


def test_locks_are_given_back_when_it_fails(whole: FaultyFileSystem) -> None:
    fs = whole.fork()
    fs.fail(5, kinds=["read"], path="checkpoint", times=None)
    with pytest.raises(OSError, match="put/output"):
        verify(fs, DATA)
    fs.clear_faults()
    assert verify(fs, DATA).is_fine


def test_a_report_takes_any_error() -> None:
    report = Report("/x")
    report.add(ValueError("what"))
    assert only(report) == Problem("/x", 0, "what")
    assert replace(only(report), position=3).position == 3


@pytest.mark.parametrize("body_dies", [True, False])
def test_a_store_file_whose_end_is_gone_is_damaged_only_if_something_there_is_alive(
    body_dies: bool,
) -> None:
    """After a failed sync a start seals what the kernel shows; a power cut takes it still."""
    fs = FaultyFileSystem()
    engine = open_vhost(fs, DataDirectory(fs, DATA).vhost_path(VHOST))
    queue = engine.declare_queue(b"q")
    for body in (b"first " * 30, b"second " * 30):
        engine.publish([queue], b"", body, DISK)
    engine.sync()
    if body_dies:
        engine.dequeue(queue, entries(engine, queue, 1), DISK)
        engine.sync()
    fs = fs.crash("killed")
    open_vhost(fs, vhost_path(fs)).close()
    parent = vhost_path(fs) + "/msg_store_persistent"
    (path,) = [f"{parent}/{name}" for name in fs.list(parent) if name.endswith(".rdq")]
    fs.damage_cut(path, fs.size(path) - 20)
    report = verify(fs, DATA)
    if body_dies:
        assert report.is_fine, report.problems
        assert [note for note in report.notes if "nothing after it is alive" in note]
        engine = open_vhost(fs, vhost_path(fs))
        assert [body for _, body, *_ in engine_content(engine)[b"q"]] == [b"first " * 30]
    else:
        assert "1 bodies that are alive are after the end" in str(report.problems[0])
