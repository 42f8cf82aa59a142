"""LakeFiles: what a pipeline does with the files of a sink: a few calls, on a disk or anywhere.

A path without a scheme is a directory of this machine, and what is renamed there is synced: after a
power cut the files of a batch are whole, as the checkpoint that names it is. A path with one
(hdfs://, s3a://) goes through Hadoop's FileSystem in Spark's JVM.

Names that begin with "." or "_" are not data to any reader of such directories; `data_files` leaves
them out too.

Not here: what is renamed when (file_sink.py).
"""

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class LakeFiles(Protocol):
    """Paths are absolute, or relative to the working directory; with "/" between the parts."""

    def data_files(self, directory: str) -> list[str]:
        """The files below it, by their paths from it, sorted. None if it is not there."""
        ...

    def exists(self, path: str) -> bool:
        """Whether there is something."""
        ...

    def read(self, path: str) -> str:
        """A small text."""
        ...

    def write(self, path: str, text: str) -> None:
        """A small text, whole or not at all, and safe when this returns."""
        ...

    def sync(self, directory: str, names: list[str]) -> None:
        """These files are safe when this returns, where the file system can say so."""
        ...

    def move(self, moves: list[tuple[str, str]]) -> None:
        """Rename files to where none is; directories are made. Safe when this returns."""
        ...

    def names(self, directory: str) -> list[str]:
        """What stands in a directory, sorted; nothing if it is not there."""
        ...

    def delete(self, path: str) -> None:
        """With all below it, as far as nobody writes there; nothing if it is not there."""
        ...


def lake_files(path: str, spark: "SparkSession | None") -> LakeFiles:
    """Those for a path."""
    if "://" not in path:
        return LocalFiles()
    assert spark is not None, "a remote path without Spark"
    return HadoopFiles(spark, path)


def absolute(path: str) -> str:
    """A path of this machine from its root: the JVM's working directory may be another one."""
    return path if "://" in path else str(Path(path).absolute())


def is_data(name: str) -> bool:
    """Whether a file is data: neither its name nor a directory's begins with "." or "_"."""
    return not any(part.startswith((".", "_")) for part in name.split("/"))


class LocalFiles:
    """On this machine."""

    def data_files(self, directory: str) -> list[str]:
        """See LakeFiles."""
        root = Path(directory)
        found = [path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()]
        return sorted(name for name in found if is_data(name))

    def exists(self, path: str) -> bool:
        """See LakeFiles."""
        return Path(path).exists()

    def read(self, path: str) -> str:
        """See LakeFiles."""
        return Path(path).read_text(encoding="utf-8")

    def write(self, path: str, text: str) -> None:
        """See LakeFiles."""
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = target.with_name(f".{target.name}.tmp")
        with fresh.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(target)
        _sync_directory(target.parent)

    def sync(self, directory: str, names: list[str]) -> None:
        """See LakeFiles."""
        for name in names:
            _sync(Path(directory, name))

    def move(self, moves: list[tuple[str, str]]) -> None:
        """See LakeFiles."""
        touched: set[Path] = set()
        for old, new in moves:
            parent = Path(new).parent
            if parent not in touched:
                parent.mkdir(parents=True, exist_ok=True)
                touched.update((parent, parent.parent))
            Path(old).rename(new)
        for directory in touched:
            _sync_directory(directory)

    def names(self, directory: str) -> list[str]:
        """See LakeFiles."""
        root = Path(directory)
        return sorted(path.name for path in root.iterdir()) if root.is_dir() else []

    def delete(self, path: str) -> None:
        """See LakeFiles."""
        target = Path(path)
        if target.is_dir():
            shutil.rmtree(target, ignore_errors=True)  # somebody may write there still
        else:
            target.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_sync_directory = _sync


class HadoopFiles:
    """By Hadoop's FileSystem of a path, in Spark's JVM; it decides what is safe when."""

    def __init__(self, spark: "SparkSession", path: str) -> None:
        gateway: Any = spark
        self._path = gateway._jvm.org.apache.hadoop.fs.Path
        self._utf8 = gateway._jvm.java.nio.charset.StandardCharsets.UTF_8
        self._io = gateway._jvm.org.apache.hadoop.io.IOUtils
        self._buffer = gateway._jvm.java.io.ByteArrayOutputStream
        configuration = gateway._jsc.hadoopConfiguration()
        self._fs = self._path(path).getFileSystem(configuration)

    def data_files(self, directory: str) -> list[str]:
        """See LakeFiles."""
        if not self.exists(directory):
            return []
        root = self._fs.makeQualified(self._path(directory)).toString().rstrip("/") + "/"
        files, found = self._fs.listFiles(self._path(directory), True), []
        while files.hasNext():
            found.append(files.next().getPath().toString().removeprefix(root))
        return sorted(name for name in found if is_data(name))

    def exists(self, path: str) -> bool:
        """See LakeFiles."""
        return bool(self._fs.exists(self._path(path)))

    def read(self, path: str) -> str:
        """See LakeFiles."""
        stream, buffer = self._fs.open(self._path(path)), self._buffer()
        self._io.copyBytes(stream, buffer, 65536, True)
        return str(buffer.toString(self._utf8))

    def write(self, path: str, text: str) -> None:
        """See LakeFiles."""
        fresh = f"{path}.tmp"
        out = self._fs.create(self._path(fresh), True)
        try:
            out.write(bytearray(text.encode()))
            out.hsync()
        finally:
            out.close()
        self.delete(path)
        self._rename(fresh, path)

    def sync(self, directory: str, names: list[str]) -> None:
        """See LakeFiles."""

    def move(self, moves: list[tuple[str, str]]) -> None:
        """See LakeFiles."""
        made: set[str] = set()
        for old, new in moves:
            parent = new.rpartition("/")[0]
            if parent not in made:
                self._fs.mkdirs(self._path(parent))
                made.add(parent)
            self._rename(old, new)

    def _rename(self, old: str, new: str) -> None:
        if not self._fs.rename(self._path(old), self._path(new)):
            raise OSError(f"{old}: the file system did not rename it to {new}")

    def names(self, directory: str) -> list[str]:
        """See LakeFiles."""
        if not self.exists(directory):
            return []
        return sorted(s.getPath().getName() for s in self._fs.listStatus(self._path(directory)))

    def delete(self, path: str) -> None:
        """See LakeFiles."""
        self._fs.delete(self._path(path), True)
