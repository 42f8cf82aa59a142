"""FileSink: the files of a batch appear in a directory exactly once, despite crashes.

Spark replays a batch that has no commit: the same batch of the same query, with the same rows, but
maybe in other files. So a batch is written beside the data and decided before it becomes visible:

    <directory>/.penstock/<query>/batch-<n>-<run>/   1  Spark writes the batch's files here
    <directory>/.penstock/<query>/<n>.json           2  the manifest lists the files and their final
                                                        names. It exists whole or not at all, and
                                                        decides the batch
    <directory>/month=1/<query>-<n>-<i>.parquet      3  each file is renamed to its final name

A replay without a manifest starts again at 1. A replay with one writes nothing and does the missing
renames. Either way each row is in one file of that batch, and no reader sees a file of a failed
attempt; Spark's own file sink promises that only to Spark.

Each run writes into a directory of its own: when a driver is killed, its JVM may continue for a
moment, and what it still writes is ignored. The query is the id in Spark's checkpoint: a new
checkpoint is a new query, whose batches are new, and whose rows are written again.

**File systems.** A path without a scheme is a directory of this machine, and renames there are
synced: after a power cut the files of a batch are as whole as the checkpoint that names them. A
path with a scheme (hdfs://, s3a://) goes through Hadoop's FileSystem in Spark's JVM. Readers of
such directories skip names that begin with "." or "_", and so does `data_files`.
"""

import json
import os
import shutil
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HIDDEN: Final = ".penstock"
MANIFESTS_KEPT: Final = 10
QUERY_LETTERS: Final = 8  # of its id, in the names of files


class FileSink:
    """One directory, for one query, in one run. run: a word that no other run of the query has."""

    def __init__(self, files: "LakeFiles", directory: str, query_id: str, run: str) -> None:
        self._files = files
        self._directory = directory.rstrip("/")
        self._query = query_id[:QUERY_LETTERS]
        self._run = run
        self._hidden = f"{self._directory}/{HIDDEN}/{query_id}"

    def begin(self, batch_id: int) -> str | None:
        """Return where Spark shall write the batch, or None if the batch was decided before."""
        if self._files.exists(self._manifest(batch_id)):
            self._finish(batch_id)
            return None
        return self._staged(batch_id)

    def commit(self, batch_id: int) -> int:
        """Make the files that Spark wrote there the batch. Return the number of files."""
        staged = self._staged(batch_id)
        names = self._files.data_files(staged)
        self._files.sync(staged, names)
        moves = {name: self._final(name, batch_id, number) for number, name in enumerate(names)}
        text = json.dumps({"batch": batch_id, "run": self._run, "files": moves})
        self._files.write(self._manifest(batch_id), text)
        self._finish(batch_id)
        return len(names)

    def _finish(self, batch_id: int) -> None:
        """Do the renames that a manifest lists, then clean up. A missing file was renamed
        before."""
        manifest = json.loads(self._files.read(self._manifest(batch_id)))
        staged = self._staged(batch_id, manifest["run"])
        moves: dict[str, str] = manifest["files"]
        waiting = set(self._files.data_files(staged)) & moves.keys()
        self._files.move(
            [(f"{staged}/{name}", f"{self._directory}/{moves[name]}") for name in sorted(waiting)]
        )
        self._clean_up(batch_id)

    def _clean_up(self, batch_id: int) -> None:
        """Delete what runs left of this batch and earlier ones, and manifests too old to be
        needed."""
        for name in self._files.names(self._hidden):
            kind, _, rest = name.partition("-")
            number = rest.partition("-")[0] if kind == "batch" else name.removesuffix(".json")
            kept = 0 if kind == "batch" else MANIFESTS_KEPT
            if number.isdecimal() and int(number) <= batch_id - kept:
                self._files.delete(f"{self._hidden}/{name}")

    def _staged(self, batch_id: int, run: str | None = None) -> str:
        return f"{self._hidden}/batch-{batch_id:08d}-{run or self._run}"

    def _manifest(self, batch_id: int) -> str:
        return f"{self._hidden}/{batch_id:08d}.json"

    def _final(self, name: str, batch_id: int, number: int) -> str:
        """Return a file's final name: its partition's directory, and a name unique to the batch."""
        directory, _, file = name.rpartition("/")
        suffix = file.partition(".")[2]
        suffix = suffix.partition(".")[2] if suffix.startswith("c0") else suffix
        fresh = f"{self._query}-{batch_id:08d}-{number:05d}.{suffix}"
        return f"{directory}/{fresh}" if directory else fresh


# ---- file systems --------------------------------------------------------------------------------


class LakeFiles(Protocol):
    """Calls on a file system. Paths are absolute or relative to the working directory, with "/"."""

    def data_files(self, directory: str) -> list[str]:
        """Return the data files below a directory, as relative paths, sorted; none if it is
        missing."""

    def exists(self, path: str) -> bool:
        """Return whether the path exists."""

    def read(self, path: str) -> str:
        """Return a small text file."""

    def write(self, path: str, text: str) -> None:
        """Write a small text file, whole or not at all; durable on return."""

    def sync(self, directory: str, names: list[str]) -> None:
        """Make these files durable, where the file system can."""

    def move(self, moves: list[tuple[str, str]]) -> None:
        """Rename files to new paths, making directories; durable on return."""

    def names(self, directory: str) -> list[str]:
        """Return the names in a directory, sorted; none if it is missing."""

    def delete(self, path: str) -> None:
        """Delete a path with all below it, as far as nobody writes there. A missing path is
        fine."""


def lake_files(path: str, spark: "SparkSession | None") -> LakeFiles:
    """Return the file system of a path."""
    if "://" not in path:
        return LocalFiles()
    assert spark is not None, "a remote path without Spark"
    return HadoopFiles(spark, path)


def absolute(path: str) -> str:
    """Return an absolute path: the JVM's working directory may be another one. URLs stay as they
    are."""
    return path if "://" in path else str(Path(path).absolute())


def is_data(name: str) -> bool:
    """Return whether a file is data: no part of its path begins with "." or "_"."""
    return not any(part.startswith((".", "_")) for part in name.split("/"))


class LocalFiles(LakeFiles):
    """The file system of this machine."""

    def data_files(self, directory: str) -> list[str]:
        root = Path(directory)
        found = [path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()]
        return sorted(name for name in found if is_data(name))

    def exists(self, path: str) -> bool:
        return Path(path).exists()

    def read(self, path: str) -> str:
        return Path(path).read_text(encoding="utf-8")

    def write(self, path: str, text: str) -> None:
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = target.with_name(f".{target.name}.tmp")
        with fresh.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(target)
        sync_path(target.parent)

    def sync(self, directory: str, names: list[str]) -> None:
        for name in names:
            sync_path(Path(directory, name))

    def move(self, moves: list[tuple[str, str]]) -> None:
        touched: set[Path] = set()
        for old, new in moves:
            parent = Path(new).parent
            if parent not in touched:
                parent.mkdir(parents=True, exist_ok=True)
                touched.update((parent, parent.parent))
            Path(old).rename(new)
        for directory in touched:
            sync_path(directory)

    def names(self, directory: str) -> list[str]:
        root = Path(directory)
        return sorted(path.name for path in root.iterdir()) if root.is_dir() else []

    def delete(self, path: str) -> None:
        target = Path(path)
        if target.is_dir():
            shutil.rmtree(target, ignore_errors=True)  # a killed run may still write there
        else:
            target.unlink(missing_ok=True)


def sync_path(path: str | Path) -> None:
    """Sync one file or directory to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class HadoopFiles(LakeFiles):
    """Hadoop's FileSystem for a path, in Spark's JVM. It decides what is durable when."""

    def __init__(self, spark: "SparkSession", path: str) -> None:
        gateway: Any = spark
        self._path = gateway._jvm.org.apache.hadoop.fs.Path
        self._utf8 = gateway._jvm.java.nio.charset.StandardCharsets.UTF_8
        self._io = gateway._jvm.org.apache.hadoop.io.IOUtils
        self._buffer = gateway._jvm.java.io.ByteArrayOutputStream
        configuration = gateway._jsc.hadoopConfiguration()
        self._fs = self._path(path).getFileSystem(configuration)

    def data_files(self, directory: str) -> list[str]:
        if not self.exists(directory):
            return []
        root = self._fs.makeQualified(self._path(directory)).toString().rstrip("/") + "/"
        files, found = self._fs.listFiles(self._path(directory), True), []
        while files.hasNext():
            found.append(files.next().getPath().toString().removeprefix(root))
        return sorted(name for name in found if is_data(name))

    def exists(self, path: str) -> bool:
        return bool(self._fs.exists(self._path(path)))

    def read(self, path: str) -> str:
        stream, buffer = self._fs.open(self._path(path)), self._buffer()
        self._io.copyBytes(stream, buffer, 65536, True)
        return str(buffer.toString(self._utf8))

    def write(self, path: str, text: str) -> None:
        fresh = f"{path}.tmp"
        with closing(self._fs.create(self._path(fresh), True)) as out:
            out.write(bytearray(text.encode()))
            out.hsync()
        self.delete(path)
        self._rename(fresh, path)

    def sync(self, directory: str, names: list[str]) -> None:
        """Do nothing: `write` and Spark have closed the files, and Hadoop decides the rest."""

    def move(self, moves: list[tuple[str, str]]) -> None:
        made: set[str] = set()
        for old, new in moves:
            parent = new.rpartition("/")[0]
            if parent not in made:
                self._fs.mkdirs(self._path(parent))
                made.add(parent)
            self._rename(old, new)

    def _rename(self, old: str, new: str) -> None:
        if not self._fs.rename(self._path(old), self._path(new)):
            raise OSError(f"{old}: the file system did not rename the file to {new}")

    def names(self, directory: str) -> list[str]:
        if not self.exists(directory):
            return []
        return sorted(s.getPath().getName() for s in self._fs.listStatus(self._path(directory)))

    def delete(self, path: str) -> None:
        self._fs.delete(self._path(path), True)
