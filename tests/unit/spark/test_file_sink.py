"""FileSink: the rows of a batch are in the directory once, wherever the driver dies.

Spark's writing is played by the test. A crash at each call of the file system is tried: the call
does not happen, nor does anything after it, and then the batch is replayed, as Spark does, with the
same rows in other files.
"""

from itertools import count
from pathlib import Path
from typing import Any

import pytest

from penstock.spark.file_sink import FileSink, LocalFiles

QUERY = "0123456789-abc"
CALLS = ("exists", "data_files", "sync", "write", "read", "move", "names", "delete")


_runs = count()


def sink_of(files: LocalFiles, directory: Path | str, query: str = QUERY) -> FileSink:
    """As a run of its own makes it."""
    return FileSink(files, str(directory), query, f"run{next(_runs)}")


class CrashError(Exception):
    """The driver died."""


class DyingFiles(LocalFiles):
    """Dies at its n-th call; with `half`, a move does half of its work first."""

    def __init__(self, left: int, half: bool) -> None:
        self.left = left
        self.half = half

    def _called(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise CrashError


def dying(name: str) -> Any:
    def method(self: DyingFiles, *given: Any) -> Any:
        if name == "move" and self.left == 0 and self.half:
            LocalFiles.move(self, given[0][: len(given[0]) // 2])
        self._called()
        return getattr(LocalFiles, name)(self, *given)

    return method


for _name in CALLS:
    setattr(DyingFiles, _name, dying(_name))


def spark_writes(staged: str, batch: int, attempt: int) -> None:
    """Rows `batch-0` to `batch-5`, in two partitions, spread over files by the attempt."""
    files: dict[str, list[str]] = {}
    for row in range(6):
        name = f"month={row % 2}/part-{(row + attempt) % (2 + attempt):05d}-x.c000.snappy.parquet"
        files.setdefault(name, []).append(f"{batch}-{row}")
    for name, rows in files.items():
        path = Path(staged, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(rows) + "\n")
        path.with_name(f".{path.name}.crc").write_text("sum")
    Path(staged, "_SUCCESS").touch()


def rows_in(directory: Path) -> list[str]:
    files = LocalFiles().data_files(str(directory))
    return sorted(row for name in files for row in (directory / name).read_text().split())


def run_batch(sink: FileSink, batch: int, attempt: int) -> None:
    staged = sink.begin(batch)
    if staged is not None:
        spark_writes(staged, batch, attempt)
        sink.commit(batch)


def expected(batches: int) -> list[str]:
    return sorted(f"{batch}-{row}" for batch in range(batches) for row in range(6))


def test_batches_become_files_named_after_them(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    sink = sink_of(LocalFiles(), f"{lake}/")
    for batch in range(3):
        run_batch(sink, batch, 0)
    assert rows_in(lake) == expected(3)
    names = sorted(path.name for path in (lake / "month=0").iterdir())
    assert names == [f"01234567-{batch:08d}-00000.snappy.parquet" for batch in range(3)]
    assert not list(lake.rglob("batch-*"))


def test_a_replay_of_what_is_there_writes_nothing(tmp_path: Path) -> None:
    sink = sink_of(LocalFiles(), tmp_path)
    run_batch(sink, 0, 0)
    before = LocalFiles().data_files(str(tmp_path))
    assert sink.begin(0) is None
    assert LocalFiles().data_files(str(tmp_path)) == before


def test_another_query_has_batches_of_its_own(tmp_path: Path) -> None:
    run_batch(sink_of(LocalFiles(), tmp_path), 0, 0)
    run_batch(sink_of(LocalFiles(), tmp_path, "fresh-id"), 0, 0)
    assert rows_in(tmp_path) == sorted(expected(1) * 2)


def test_old_manifests_go(tmp_path: Path) -> None:
    sink = sink_of(LocalFiles(), tmp_path)
    for batch in range(25):
        run_batch(sink, batch, 0)
    kept = sorted(path.name for path in (tmp_path / ".penstock" / QUERY).iterdir())
    assert kept == [f"{batch:08d}.json" for batch in range(15, 25)]
    assert rows_in(tmp_path) == expected(25)


@pytest.mark.parametrize("half", [False, True])
def test_a_crash_anywhere_loses_and_repeats_nothing(tmp_path: Path, half: bool) -> None:
    calls = 0
    is_over = False
    while not is_over:
        lake = tmp_path / str(calls)
        run_batch(sink_of(LocalFiles(), lake), 0, 0)
        dies = DyingFiles(calls, half)
        try:
            run_batch(sink_of(dies, lake), 1, 0)
            is_over = True
        except CrashError:
            seen = set(rows_in(lake))
            assert seen >= set(expected(1))
            assert len(rows_in(lake)) == len(seen), "a row stands twice before the replay"
        run_batch(sink_of(LocalFiles(), lake), 1, 1)
        assert rows_in(lake) == expected(2), f"died at call {calls}"
        run_batch(sink_of(LocalFiles(), lake), 2, 1)
        assert rows_in(lake) == expected(3)
        calls += 1
    assert calls > 8


def test_what_a_dead_run_still_writes_is_nobodys(tmp_path: Path) -> None:
    """The JVM of a killed driver goes on for a moment, while the next run does the batch."""
    dead, alive = sink_of(LocalFiles(), tmp_path), sink_of(LocalFiles(), tmp_path)
    theirs, ours = dead.begin(0), alive.begin(0)
    assert theirs is not None
    assert ours is not None
    spark_writes(ours, 0, 0)
    spark_writes(theirs, 0, 1)
    alive.commit(0)
    assert rows_in(tmp_path) == expected(1)
    spark_writes(theirs, 0, 1)
    run_batch(sink_of(LocalFiles(), tmp_path), 1, 0)
    assert rows_in(tmp_path) == expected(2)
    assert not list(tmp_path.rglob("batch-*"))


def test_a_crash_in_the_replay_too(tmp_path: Path) -> None:
    for first in range(9):
        for second in range(9):
            lake = tmp_path / f"{first}-{second}"
            for attempt, left in enumerate((first, second)):
                try:
                    run_batch(sink_of(DyingFiles(left, True), lake), 0, attempt)
                except CrashError:
                    pass
            run_batch(sink_of(LocalFiles(), lake), 0, 2)
            assert rows_in(lake) == expected(1), (first, second)
