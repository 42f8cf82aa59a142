"""penstock store move: what is moved, what is refused, what a failure leaves.

Crashes at every operation are in tests/crash/test_two_disks.py.
"""

import errno
import random

import pytest

from penstock.errors import DiskFullError, LockedError, OptionError, SyncFailedError
from penstock.storage.files.data_directory import LOG, SPILL, DataDirectory
from penstock.storage.files.move import SPARE_BYTES, move
from penstock.storage.tools.verify import verify
from tests.crash.two_disks import DATA, ROOTS, PlacedDriver, check_moved, make
from tests.helpers.two_disks import SizedDisks

LOG_AT, SPILL_AT = ROOTS[LOG], ROOTS[SPILL]


def lived(roots: dict[str, str] | None = None) -> SizedDisks:
    """A store with messages of all kinds, closed in order."""
    fs = SizedDisks(seed=1)
    make(fs, roots or {})
    driver = PlacedDriver(fs, 1)
    driver.declare(b"a")
    for _ in range(20):
        driver.publish(driver.rng.randint(0, 1400))
    for name in ("spool", "page_out", "checkpoint", "ack", "publish_transient", "sync"):
        driver.step(name)
    driver.close()
    return fs


def content(fs: SizedDisks) -> tuple[int, int]:
    report = verify(fs, DATA)
    assert report.is_fine, report.problems
    return sum(queue.count for queue in report.queues), report.body_bytes


def test_both_are_moved_and_back() -> None:
    fs = lived()
    before = content(fs)
    told: list[tuple[int, int]] = []
    moved = move(
        fs, DATA, log_directory=LOG_AT, spill_directory=SPILL_AT + "/",
        progress=lambda what, done, total: told.append((done, total)),
    )  # fmt: skip
    assert moved.roots == ROOTS
    assert moved.files > 5
    assert told[-1] == (moved.bytes, moved.bytes)
    assert content(fs) == before
    check_moved(fs.fork(), ROOTS)
    moved = move(fs, DATA, log_directory=DATA)
    assert moved.roots == {LOG: DATA}
    check_moved(fs.fork(), {SPILL: SPILL_AT})
    move(fs, DATA, spill_directory=DATA)
    check_moved(fs.fork(), {})
    assert content(fs) == before
    assert fs.read(f"{DATA}/VERSION") == b"penstock 1\n"


def test_nothing_to_do_is_no_error() -> None:
    fs = lived(ROOTS)
    for log, spill in (("", ""), (LOG_AT, SPILL_AT), (LOG_AT, "")):
        moved = move(fs, DATA, log_directory=log, spill_directory=spill)
        assert (moved.roots, moved.files) == ({}, 0)


def test_what_each_start_empties_is_not_copied() -> None:
    fs = lived()
    path = PlacedDriver.path + "/msg_store_transient"
    fs.open(f"{path}/1.rdq", create=True).pwrite(b"x" * 5000, 0)
    move(fs, DATA, spill_directory=SPILL_AT)
    placed = DataDirectory(fs, DATA)
    assert placed.fs.list(path) == []
    placed.close()


def test_a_store_in_use_is_refused() -> None:
    fs = lived()
    data = DataDirectory(fs, DATA)
    with pytest.raises(LockedError):
        move(fs, DATA, log_directory=LOG_AT)
    data.close()
    lock = fs.lock(f"{PlacedDriver.path}/LOCK")  # a vhost that is still closing
    with pytest.raises(LockedError):
        move(fs, DATA, log_directory=LOG_AT)
    lock.release()
    move(fs, DATA, log_directory=LOG_AT)


@pytest.mark.parametrize(
    ("log", "spill", "option"),
    [
        ("/none/log", "", "log_directory"),
        ("", f"{DATA}/spill", "spill_directory"),
        ("/fast/x", "/fast/x/y", "spill_directory"),
        ("/foreign", "", "log_directory"),
        ("", "/other-spill", "spill_directory"),
    ],
)
def test_a_place_that_cannot_be_taken_is_refused_and_nothing_moves(
    log: str, spill: str, option: str
) -> None:
    fs = lived()
    fs.mkdir("/foreign")
    fs.open("/foreign/file", create=True).close()
    DataDirectory(fs, "/other", spill_directory="/other-spill").close()
    before = fs.names()
    given = log if option == "log_directory" else spill
    with pytest.raises(OptionError, match=f"option {option}: given '{given}', expected"):
        move(fs, DATA, log_directory=log, spill_directory=spill)
    assert fs.names() == before
    check_moved(fs, {})


def test_too_little_room_is_told_before_anything_is_copied() -> None:
    fs = lived()
    fs.sizes = {"fast": SPARE_BYTES + 1000}
    before = fs.names()
    with pytest.raises(DiskFullError, match=f"/fast: {SPARE_BYTES + 1000} bytes free, "):
        move(fs, DATA, log_directory=LOG_AT)
    assert fs.names() == before


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("kind", ["pwrite", "create", "sync", "sync_dir"])
@pytest.mark.parametrize("nth", [2, 5, 20])
def test_a_disk_that_fails_leaves_the_store_where_it_was(code: int, kind: str, nth: int) -> None:
    fs = lived()
    names = fs.names()
    before = content(fs)
    fault = fs.fail(code, kinds=[kind], path="/big/spill", nth=nth)
    try:
        move(fs, DATA, log_directory=LOG_AT, spill_directory=SPILL_AT, rng=random.Random(1))
    except (OSError, SyncFailedError, OptionError):
        assert set(fs.names()) - set(names) <= {f"{DATA}/PLACES", "/fast/", "/big/"}
        check_moved(fs.fork(), {})
        assert content(fs) == before
        fs.clear_faults()
        move(fs, DATA, log_directory=LOG_AT, spill_directory=SPILL_AT)
    else:
        assert nth == 20, "there are not so many of them"
    assert fault
    check_moved(fs.fork(), ROOTS)
    assert content(fs) == before


def test_old_files_on_a_disk_that_went_are_told() -> None:
    """The move was interrupted after it was decided, and the old disk is gone for good."""
    fs = lived(ROOTS)
    journal = fs.start_journal()
    move(fs, DATA, log_directory="/third")
    image = next(
        image for _, image in journal.images()
        if b"log /third" in image.read(f"{DATA}/PLACES") and b"left" in image.read(f"{DATA}/PLACES")
    ).crash("kept")  # fmt: skip
    image.rename(LOG_AT, "/gone")
    moved = move(image, DATA)
    assert moved.notes == [
        f"{LOG_AT}: the store has left it, and it is not there or another's: nothing is deleted"
    ]
    assert b"left" not in image.read(f"{DATA}/PLACES")
    content(image)
