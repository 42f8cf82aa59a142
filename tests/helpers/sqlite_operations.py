"""What SQLite does with its files, done to a ``FaultyFileSystem`` too, which can be crashed.

SQLite does its own I/O. ``mirrored(root, fs)`` puts itself before the VFS of the library that the
module `sqlite3` uses, so that each create, write, truncate, sync and delete of a file in the
directory `root` is also done in `/` of `fs`, before SQLite does it. A directory is synced when
SQLite opens it: it does that for nothing else.
"""

import _sqlite3
import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.helpers.faulty_filesystem import FaultyFileSystem

_Pointer = ctypes.c_void_p
# The name is an address: SQLite keeps it.
_OPEN = ctypes.CFUNCTYPE(ctypes.c_int, _Pointer, _Pointer, _Pointer, ctypes.c_int, _Pointer)
_DELETE = ctypes.CFUNCTYPE(ctypes.c_int, _Pointer, ctypes.c_char_p, ctypes.c_int)
_WRITE = ctypes.CFUNCTYPE(ctypes.c_int, _Pointer, _Pointer, ctypes.c_int, ctypes.c_int64)
_TRUNCATE = ctypes.CFUNCTYPE(ctypes.c_int, _Pointer, ctypes.c_int64)
_SYNC = ctypes.CFUNCTYPE(ctypes.c_int, _Pointer, ctypes.c_int)
_SET_CALL = ctypes.CFUNCTYPE(ctypes.c_int, _Pointer, ctypes.c_char_p, _Pointer)
_GET_CALL = ctypes.CFUNCTYPE(_Pointer, _Pointer, ctypes.c_char_p)
_OPEN_DIRECTORY = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, _Pointer)


class _Methods(ctypes.Structure):
    """sqlite3_io_methods, version 3."""

    _fields_ = (
        ("version", ctypes.c_int), ("close", _Pointer), ("read", _Pointer), ("write", _WRITE),
        ("truncate", _TRUNCATE), ("sync", _SYNC), ("rest", _Pointer * 13),
    )  # fmt: skip


class _Vfs(ctypes.Structure):
    """sqlite3_vfs, version 3."""

    _fields_ = (
        ("version", ctypes.c_int), ("file_bytes", ctypes.c_int), ("path_bytes_max", ctypes.c_int),
        ("next", _Pointer), ("name", ctypes.c_char_p), ("data", _Pointer), ("open", _OPEN),
        ("delete", _DELETE), ("others", _Pointer * 11), ("set_call", _SET_CALL),
        ("get_call", _GET_CALL),
    )  # fmt: skip


@contextmanager
def mirrored(root: Path, fs: FaultyFileSystem) -> Iterator[None]:
    """Inside, what SQLite does with files in root is done in fs too. Their content is the same at
    the beginning; they are opened and closed inside. Raises what fs has raised."""
    library = ctypes.CDLL(_sqlite3.__file__)  # finds what it is linked with
    library.sqlite3_vfs_find.restype = ctypes.POINTER(_Vfs)
    vfs = library.sqlite3_vfs_find(None).contents
    # Of a copy: the fields of `vfs` itself change below.
    was = _Vfs.from_buffer_copy(vfs)
    kept: list[Any] = []  # tables and functions that SQLite has
    errors: list[Exception] = []
    own = _Methods()
    paths: dict[int, str] = {}  # address of sqlite3_file -> path in fs

    def told(do: Callable[[], None]) -> None:
        try:
            do()
        except Exception as error:
            errors.append(error)

    def changed(path: str, change: Callable[[Any], None]) -> None:
        file = fs.open(path, create=True)
        told(lambda: change(file))
        file.close()

    def write(at: int, data: int, count: int, place: int) -> int:
        content = ctypes.string_at(data, count)
        changed(paths[at], lambda file: file.pwrite(content, place))
        return int(own.write(at, data, count, place))

    def truncate(at: int, size: int) -> int:
        changed(paths[at], lambda file: file.truncate(size))
        return int(own.truncate(at, size))

    def sync(at: int, flags: int) -> int:
        changed(paths[at], lambda file: file.sync())
        return int(own.sync(at, flags))

    def opened(this: int, name: int | None, at: int, flags: int, out: int) -> int:
        nonlocal own
        answer = int(was.open(this, name, at, flags, out))
        path = Path(ctypes.string_at(name).decode() if name else "")
        table = _Pointer.from_address(at)
        if answer == 0 and path.parent == root and table.value is not None:
            paths[at] = f"/{path.name}"
            told(lambda: fs.open(paths[at], create=True).close())
            # All files here have the same functions, but each its table, as nothing says so.
            own = _Methods.from_buffer_copy(_Methods.from_address(table.value))
            copy = _Methods.from_buffer_copy(own)
            copy.write, copy.truncate, copy.sync = functions
            kept.append(copy)
            table.value = ctypes.addressof(copy)
        return answer

    def delete(this: int, name: bytes, is_synced: int) -> int:
        path = Path(name.decode())
        if path.parent == root and fs.exists(f"/{path.name}"):
            told(lambda: fs.unlink(f"/{path.name}"))
        return int(was.delete(this, name, is_synced))

    def open_directory(name: bytes, out: int) -> int:
        if Path(name.decode()).parent == root:
            told(lambda: fs.sync_dir("/"))
        return int(real_open_directory(name, out))

    functions = _WRITE(write), _TRUNCATE(truncate), _SYNC(sync)
    real = was.get_call(ctypes.addressof(vfs), b"openDirectory")
    real_open_directory = _OPEN_DIRECTORY(real)
    directory_call = _OPEN_DIRECTORY(open_directory)
    vfs.open, vfs.delete = _OPEN(opened), _DELETE(delete)
    was.set_call(ctypes.addressof(vfs), b"openDirectory", ctypes.cast(directory_call, _Pointer))
    try:
        yield
    finally:
        vfs.open, vfs.delete = was.open, was.delete
        was.set_call(ctypes.addressof(vfs), b"openDirectory", None)
    if errors:
        raise errors[0]
