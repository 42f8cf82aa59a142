"""What every FileSystem must do. A test class inherits ``FileSystemContract`` and gives two
fixtures: ``fs``, the file system, and ``root``, an empty directory of it."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from penstock.errors import LockedError
from penstock.storage.files.filesystem import File, FileSystem


def put(fs: FileSystem, path: str, content: bytes) -> None:
    """A file with this content, in place of what was there; not synced."""
    file = fs.open(path, create=True)
    file.truncate(0)
    file.pwrite(content, 0)
    file.close()


@contextmanager
def fails_with(*codes: int) -> Iterator[pytest.ExceptionInfo[OSError]]:
    """An OSError with one of these numbers, and with a path."""
    with pytest.raises(OSError) as caught:  # noqa: PT011 - asked below
        yield caught
    assert caught.value.errno in codes
    assert caught.value.filename


class FileSystemContract:
    """Behaviours of content, names, locks and submitted operations, without crashes."""

    # ---- Content ------------------------------------------------------------------------

    @pytest.fixture
    def file(self, fs: FileSystem, root: str) -> File:
        return fs.open(f"{root}/f", create=True)

    def test_open_needs_the_file_unless_told_to_create(self, fs: FileSystem, root: str) -> None:
        with pytest.raises(FileNotFoundError):
            fs.open(f"{root}/f")
        assert not fs.exists(f"{root}/f")
        assert fs.open(f"{root}/f", create=True).size() == 0
        assert fs.open(f"{root}/f").path == fs.place(f"{root}/f")

    def test_create_keeps_what_is_there(self, fs: FileSystem, root: str) -> None:
        put(fs, f"{root}/f", b"old")
        assert fs.open(f"{root}/f", create=True).pread(9, 0) == b"old"

    def test_open_of_a_directory_or_below_a_file(self, fs: FileSystem, root: str) -> None:
        fs.mkdir(f"{root}/d")
        put(fs, f"{root}/f", b"")
        with pytest.raises(IsADirectoryError):
            fs.open(f"{root}/d")
        with pytest.raises(NotADirectoryError):
            fs.open(f"{root}/f/x", create=True)
        with pytest.raises(FileNotFoundError):
            fs.open(f"{root}/none/x", create=True)

    def test_write_and_read_anywhere(self, file: File) -> None:
        file.pwrite(b"abcdef", 0)
        file.pwrite(b"XY", 2)
        assert file.pread(6, 0) == b"abXYef"
        assert file.pread(2, 3) == b"Ye"
        file.pwrite(b"", 0)
        assert file.size() == 6

    def test_read_is_short_only_at_the_end(self, file: File) -> None:
        file.pwrite(b"abc", 0)
        assert file.pread(10, 1) == b"bc"
        assert file.pread(10, 3) == b""
        assert file.pread(10, 99) == b""
        assert file.pread(0, 0) == b""
        assert isinstance(file.pread(2, 0), bytes)

    def test_a_hole_reads_as_zeros(self, file: File) -> None:
        file.pwrite(b"z", 5)
        assert file.pread(6, 0) == b"\0\0\0\0\0z"

    def test_truncate_cuts_and_grows(self, file: File) -> None:
        file.pwrite(b"abcdef", 0)
        file.truncate(2)
        assert (file.size(), file.pread(9, 0)) == (2, b"ab")
        file.truncate(4)
        assert (file.size(), file.pread(9, 0)) == (4, b"ab\0\0")

    @pytest.mark.parametrize("size", [0, 1, 1000, (1 << 20) + 7])
    def test_allocate_makes_zeros_of_that_size(self, file: File, size: int) -> None:
        file.pwrite(b"x" * 3000, 0)
        file.allocate(size)
        assert file.size() == size
        assert file.pread(size + 1, 0) == bytes(size)

    def test_two_handles_and_read_see_one_file(self, fs: FileSystem, root: str) -> None:
        one = fs.open(f"{root}/f", create=True)
        two = fs.open(f"{root}/f")
        one.pwrite(b"abc", 0)
        assert two.pread(3, 0) == b"abc"
        assert fs.read(f"{root}/f") == b"abc"
        assert fs.size(f"{root}/f") == two.size() == 3

    def test_read_of_an_empty_and_of_a_missing_file(self, fs: FileSystem, root: str) -> None:
        put(fs, f"{root}/f", b"")
        assert fs.read(f"{root}/f") == b""
        for call in (fs.read, fs.size):
            with pytest.raises(FileNotFoundError):
                call(f"{root}/none")

    def test_sync_and_drop_cache_change_nothing_that_is_seen(self, file: File) -> None:
        file.pwrite(b"abc", 0)
        file.sync()
        file.drop_cache()
        file.pwrite(b"d", 3)
        file.drop_cache()
        assert file.pread(9, 0) == b"abcd"

    def test_a_closed_file_is_closed(self, file: File) -> None:
        file.close()
        file.close()
        for call in (
            lambda: file.pread(1, 0),
            lambda: file.pwrite(b"x", 0),
            lambda: file.truncate(0),
            lambda: file.allocate(1),
            file.size,
            file.sync,
            file.drop_cache,
        ):
            with fails_with(errno.EBADF) as caught:
                call()
            assert caught.value.filename == file.path

    def test_negative_places_are_refused(self, file: File) -> None:
        for call in (
            lambda: file.pread(1, -1),
            lambda: file.pwrite(b"x", -1),
            lambda: file.truncate(-1),
        ):
            with fails_with(errno.EINVAL):
                call()

    # ---- Names --------------------------------------------------------------------------

    def test_exists_and_is_dir(self, fs: FileSystem, root: str) -> None:
        put(fs, f"{root}/f", b"")
        fs.mkdir(f"{root}/d")
        assert fs.exists(f"{root}/f")
        assert fs.exists(f"{root}/d")
        assert fs.exists(root)
        assert fs.is_dir(f"{root}/d")
        assert fs.is_dir(root)
        assert not fs.is_dir(f"{root}/f")
        assert not fs.exists(f"{root}/none")
        assert not fs.is_dir(f"{root}/none")
        assert not fs.exists(f"{root}/f/x")
        assert not fs.is_dir(f"{root}/f/x")

    def test_list_is_sorted_names(self, fs: FileSystem, root: str) -> None:
        assert fs.list(root) == []
        for name in ("b", "a", "10", "9"):
            put(fs, f"{root}/{name}", b"")
        fs.mkdir(f"{root}/dir")
        assert fs.list(root) == ["10", "9", "a", "b", "dir"]
        with pytest.raises(FileNotFoundError):
            fs.list(f"{root}/none")
        with pytest.raises(NotADirectoryError):
            fs.list(f"{root}/a")

    def test_mkdir(self, fs: FileSystem, root: str) -> None:
        fs.mkdir(f"{root}/d")
        put(fs, f"{root}/d/f", b"x")
        fs.mkdir(f"{root}/d")
        assert fs.list(f"{root}/d") == ["f"]
        with pytest.raises(FileNotFoundError):
            fs.mkdir(f"{root}/a/b")
        with pytest.raises(FileExistsError):
            fs.mkdir(f"{root}/d/f")

    def test_rename_replaces(self, fs: FileSystem, root: str) -> None:
        put(fs, f"{root}/a", b"new")
        put(fs, f"{root}/b", b"old")
        handle = fs.open(f"{root}/b")
        fs.rename(f"{root}/a", f"{root}/b")
        assert fs.list(root) == ["b"]
        assert fs.read(f"{root}/b") == b"new"
        assert handle.pread(9, 0) == b"old"
        with pytest.raises(FileNotFoundError):
            fs.rename(f"{root}/a", f"{root}/c")

    def test_rename_moves_between_directories(self, fs: FileSystem, root: str) -> None:
        fs.mkdir(f"{root}/d")
        fs.mkdir(f"{root}/d/sub")
        put(fs, f"{root}/d/sub/f", b"x")
        fs.rename(f"{root}/d/sub", f"{root}/moved")
        assert fs.read(f"{root}/moved/f") == b"x"
        assert fs.list(f"{root}/d") == []

    def test_rename_refuses_to_mix_files_and_directories(self, fs: FileSystem, root: str) -> None:
        put(fs, f"{root}/f", b"")
        fs.mkdir(f"{root}/d")
        fs.mkdir(f"{root}/full")
        put(fs, f"{root}/full/f", b"")
        with pytest.raises(IsADirectoryError):
            fs.rename(f"{root}/f", f"{root}/d")
        with pytest.raises(NotADirectoryError):
            fs.rename(f"{root}/d", f"{root}/f")
        with fails_with(errno.ENOTEMPTY):
            fs.rename(f"{root}/d", f"{root}/full")

    def test_a_link_is_a_second_name(self, fs: FileSystem, root: str) -> None:
        put(fs, f"{root}/a", b"x")
        fs.link(f"{root}/a", f"{root}/b")
        fs.open(f"{root}/b").pwrite(b"y", 1)
        fs.unlink(f"{root}/a")
        assert fs.read(f"{root}/b") == b"xy"
        put(fs, f"{root}/c", b"")
        with pytest.raises(FileExistsError):
            fs.link(f"{root}/b", f"{root}/c")
        with pytest.raises(FileNotFoundError):
            fs.link(f"{root}/none", f"{root}/d")

    def test_rename_onto_a_link_of_itself_does_nothing(self, fs: FileSystem, root: str) -> None:
        put(fs, f"{root}/a", b"x")
        fs.link(f"{root}/a", f"{root}/b")
        fs.rename(f"{root}/a", f"{root}/b")
        assert fs.list(root) == ["a", "b"]

    def test_unlink_leaves_open_files(self, fs: FileSystem, root: str, file: File) -> None:
        file.pwrite(b"abc", 0)
        fs.unlink(file.path)
        assert fs.list(root) == []
        file.pwrite(b"d", 3)
        file.sync()
        assert file.pread(9, 0) == b"abcd"
        with pytest.raises(FileNotFoundError):
            fs.unlink(file.path)

    def test_unlink_and_rmdir_keep_to_their_sort(self, fs: FileSystem, root: str) -> None:
        fs.mkdir(f"{root}/d")
        put(fs, f"{root}/d/f", b"")
        with fails_with(errno.EISDIR, errno.EPERM):
            fs.unlink(f"{root}/d")
        with pytest.raises(NotADirectoryError):
            fs.rmdir(f"{root}/d/f")
        with fails_with(errno.ENOTEMPTY):
            fs.rmdir(f"{root}/d")
        fs.unlink(f"{root}/d/f")
        fs.rmdir(f"{root}/d")
        assert fs.list(root) == []

    def test_sync_dir(self, fs: FileSystem, root: str) -> None:
        put(fs, f"{root}/f", b"x")
        fs.sync_dir(root)
        assert fs.read(f"{root}/f") == b"x"
        with pytest.raises(FileNotFoundError):
            fs.sync_dir(f"{root}/none")
        with pytest.raises(NotADirectoryError):
            fs.sync_dir(f"{root}/f")

    def test_free_bytes_and_kind(self, fs: FileSystem, root: str) -> None:
        assert fs.free_bytes(root) > 0
        assert fs.kind(root) != ""

    # ---- The lock -----------------------------------------------------------------------

    def test_a_lock_is_exclusive_and_names_its_holder(self, fs: FileSystem, root: str) -> None:
        lock = fs.lock(f"{root}/LOCK")
        assert lock.is_held()
        assert lock.path == fs.place(f"{root}/LOCK")
        text = fs.read(f"{root}/LOCK").decode()
        assert text.startswith(f"pid {lock.pid} host ")
        assert text.endswith("\n")
        for _ in range(2):
            with pytest.raises(LockedError) as caught:
                fs.lock(f"{root}/LOCK")
            assert caught.value.path == fs.place(f"{root}/LOCK")
            assert caught.value.holder == text.strip()
        fs.lock(f"{root}/OTHER").release()
        assert lock.is_held()
        lock.release()

    def test_a_released_lock_can_be_taken(self, fs: FileSystem, root: str) -> None:
        first = fs.lock(f"{root}/LOCK")
        first.release()
        assert not first.is_held()
        assert fs.read(f"{root}/LOCK") == b""
        second = fs.lock(f"{root}/LOCK")
        first.release()
        assert second.is_held()
        with pytest.raises(LockedError):
            fs.lock(f"{root}/LOCK")
        second.release()

    def test_what_a_dead_holder_left_is_replaced(self, fs: FileSystem, root: str) -> None:
        put(fs, f"{root}/LOCK", b"pid 99999999 host of-a-very-long-name-of-another-machine\n")
        lock = fs.lock(f"{root}/LOCK")
        assert fs.read(f"{root}/LOCK").startswith(f"pid {lock.pid} ".encode())
        assert b"another" not in fs.read(f"{root}/LOCK")
        lock.release()

    # ---- Submitted operations -----------------------------------------------------------

    def test_each_token_is_answered_once(self, fs: FileSystem, root: str) -> None:
        def work(number: int) -> object:
            put(fs, f"{root}/{number}", b"x")
            return number

        tokens = {fs.submit(partial(work, n)): n for n in range(20)}
        results: dict[int, object] = {}
        while len(results) < 20:
            batch = fs.completed(wait=True)
            assert batch
            for token, result in batch:
                assert token not in results
                results[token] = result
        assert results == tokens
        assert fs.completed(wait=True) == []
        assert len(fs.list(root)) == 20
        fs.close()

    def test_an_exception_is_a_result(self, fs: FileSystem, root: str) -> None:
        token = fs.submit(lambda: fs.read(f"{root}/none"))
        [(found, error)] = fs.completed(wait=True)
        assert found == token
        assert isinstance(error, FileNotFoundError)
        fs.close()

    def test_completed_with_nothing_outstanding(self, fs: FileSystem) -> None:
        assert fs.completed(wait=True) == []
        assert fs.completed(wait=False) == []
        fs.close()

    def test_close_finishes_what_is_outstanding(self, fs: FileSystem, root: str) -> None:
        tokens = [fs.submit(partial(put, fs, f"{root}/{n}", b"x")) for n in range(5)]
        fs.close()
        fs.close()
        assert len(fs.list(root)) == 5
        assert sorted(fs.completed(wait=False)) == [(token, None) for token in tokens]
        with pytest.raises(RuntimeError):
            fs.submit(lambda: None)

    def test_on_complete_follows_each_completion(self, fs: FileSystem) -> None:
        calls: list[int] = []
        fs.on_complete = lambda: calls.append(1)
        for _ in range(3):
            fs.submit(lambda: None)
        fs.close()
        assert len(calls) == 3
