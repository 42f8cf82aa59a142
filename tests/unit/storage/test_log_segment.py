"""Preparing a segment: whole or not at all, durable before it has its name. Rule [7]."""

import errno
import random

import pytest

from penstock.errors import DescriptorsError, DiskFullError, SyncFailedError
from penstock.storage.log import log_file
from penstock.storage.log.transaction_log import Segment, prepare_segment
from tests.helpers.faulty_filesystem import CrashNow, FaultyFileSystem
from tests.helpers.logs import KIB, VHOST, WAL

SALT = 0x0123_4567_89AB_CDEF
PATH = f"{WAL}/0000000007.wal"
OLD = f"{WAL}/0000000002.wal"


def disk(old_bytes: int = 0) -> FaultyFileSystem:
    fs = FaultyFileSystem()
    fs.mkdir(WAL)
    if old_bytes:
        fs.open(OLD, create=True).pwrite(b"o" * old_bytes, 0)
    fs.sync_all()
    return fs


def made(fs: FaultyFileSystem, recycled: str | None = None, size: int = KIB) -> Segment:
    return prepare_segment(fs, WAL, VHOST, 7, size, SALT, recycled)


def test_a_new_segment() -> None:
    fs = disk()
    segment = made(fs, size=KIB - 1)
    assert (segment.number, segment.path, segment.size, segment.end) == (7, PATH, KIB, 128)
    assert (segment.prev_segment, segment.file.path) == (0, PATH)
    after = fs.crash("lost")
    assert after.list(WAL) == ["0000000007.wal"]
    data = after.read(PATH)
    assert (len(data), data[64:]) == (KIB, bytes(KIB - 64))
    assert log_file.decode_segment_header(data, PATH, VHOST, 7) == (KIB, segment.seed)
    assert segment.seed == log_file.segment_seed(VHOST, 7, SALT)


def test_a_recycled_segment_keeps_its_size_and_old_bytes() -> None:
    fs = disk(2 * KIB)
    segment = made(fs, OLD)
    assert segment.size == 2 * KIB
    after = fs.crash("lost")
    assert after.list(WAL) == ["0000000007.wal"]
    data = after.read(PATH)
    assert (data[64:128], data[128:]) == (bytes(64), b"o" * (2 * KIB - 128))


def test_a_recycled_file_that_is_too_small_is_made_anew() -> None:
    fs = disk(100)
    assert made(fs, OLD).size == KIB
    assert fs.read(PATH)[128:] == bytes(KIB - 128)


@pytest.mark.parametrize("recycled", [None, OLD])
@pytest.mark.parametrize("mode", ["lost", "kept", "subset", "torn", "zeros", "killed"])
def test_a_name_means_a_good_header_whenever_it_crashes(recycled: str | None, mode: str) -> None:
    for crash_at in range(1, 12):
        for seed in range(10):
            fs = disk(2 * KIB)
            fs.crash_at = fs.operations + crash_at
            try:
                made(fs, recycled)
            except CrashNow:
                pass
            after = fs.crash(mode, random.Random(seed))
            if after.exists(PATH):
                log_file.decode_segment_header(after.read(PATH), PATH, VHOST, 7)


@pytest.mark.parametrize("kind", ["allocate", "pwrite"])
@pytest.mark.parametrize("effect", [errno.ENOSPC, errno.EDQUOT, "short"])
def test_a_full_disk_leaves_nothing(kind: str, effect: int | str) -> None:
    fs = disk()
    fs.fail(effect, kinds=[kind])
    with pytest.raises(DiskFullError) as caught:
        made(fs)
    assert caught.value.needed_bytes == KIB
    assert fs.list(WAL) == []
    assert not any(fs.handles.values())


@pytest.mark.parametrize("kind", ["create", "allocate", "pwrite", "sync", "rename", "sync_dir"])
def test_any_other_failure_is_one_of_the_log(kind: str) -> None:
    fs = disk()
    fs.fail(errno.EIO, kinds=[kind])
    with pytest.raises(SyncFailedError):
        made(fs)
    assert not any(fs.handles.values())


@pytest.mark.parametrize("nth", [1, 2])  # the file, the directory
@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE])
def test_without_a_descriptor_nothing_is_left_and_nothing_has_failed(nth: int, code: int) -> None:
    fs = disk()
    fs.fail(code, kinds=["open"], nth=nth)
    with pytest.raises(DescriptorsError):
        made(fs)
    assert fs.list(WAL) == []
    assert not any(fs.handles.values())
    made(fs)


def test_a_full_disk_that_a_sync_tells_of_is_a_failed_sync() -> None:
    fs = disk()
    fs.fail(errno.ENOSPC, kinds=["sync"])
    with pytest.raises(SyncFailedError):
        made(fs)


def test_chain_and_vouch() -> None:
    for is_end_marker in (False, True):
        block = log_file.encode_chain(5, 6, 640, 99, 98, is_end_marker)
        chain = log_file.decode_chain(block, 5)
        assert chain is not None
        assert (chain.prev_segment, chain.prev_end, chain.prev_lsn) == (6, 640, 99)
        assert (chain.durable_lsn, chain.is_end_marker) == (98, is_end_marker)
        assert log_file.decode_chain(block, 4) is None
    assert log_file.decode_chain(bytes(64), 5) is None


def test_group_header() -> None:
    data = b"....." + log_file.encode_group_header(5, 300, 42, 40, 3)
    group = log_file.decode_group_header(data, 5, 5)
    assert group is not None
    assert (group.length, group.first_lsn, group.durable_lsn, group.count) == (300, 42, 40, 3)
    assert log_file.decode_group_header(data, 5, 4) is None
    assert log_file.decode_group_header(data, 6, 5) is None
    assert log_file.decode_group_header(data[:-1], 5, 5) is None
