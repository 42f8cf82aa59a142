"""audit: verifies every checksum of a store with Spark's tasks, and lists what the store holds.

    penstock pipeline run audit -o data=penstock-data

There are two kinds of work units:

    a page     of a stream: all checksums below the head, in one pass; also while its owner runs
    a vhost    checkpoint, log, indexes and bodies of its queues, as `penstock store verify` does.
               Only while nobody has it open; otherwise a note says that its queues were skipped

A page that fails is read again record by record, to count what is lost. The audit writes nothing
but the text in the lock files.
"""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import CorruptionError, LockedError, NotAStoreError, PenstockError
from penstock.options import Option, many, text
from penstock.spark.built_in_pipelines import options_of
from penstock.spark.catalog import stream_paths
from penstock.spark.file_sink import absolute
from penstock.storage.files.filesystem import OsFileSystem
from penstock.storage.pages.stream_view import StreamView
from penstock.storage.tools.verify import verify

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OPTIONS: Final = (
    Option(
        "data", text("a directory"),
        "a data directory, or that of one vhost; every executor must see it; required",
    ),
)  # fmt: skip
TASKS_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """Options of an audit. data: the directory."""

    data: str

    @classmethod
    def of(cls, given: Mapping[str, str]) -> "AuditOptions":
        """Parse the options NAME=VALUE. Raises OptionError."""
        data = str(options_of(given, OPTIONS, ("data",))["data"])
        return cls(absolute(data.rstrip("/") or "/"))


@dataclass(frozen=True, slots=True)
class Unit:
    """A work unit. kind: "vhost" or "page". stream, base, count: the page's stream and records.
    page_bytes: where an unsealed page ends."""

    kind: str
    vhost: str
    path: str
    stream: str = ""
    base: int = 0
    count: int = 0
    page_bytes: int | None = None


@dataclass(slots=True)
class Audited:
    """Contents of a queue or stream, as far as one unit read it. damaged: lost messages."""

    vhost: str
    kind: str
    name: str
    messages: int = 0
    bytes: int = 0
    damaged: int = 0


@dataclass(slots=True)
class AuditReport:
    """Result of an audit. problems: texts with file, position and what is wrong there."""

    found: list[Audited] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    units: int = 0

    @property
    def is_fine(self) -> bool:
        """Return whether no problem was found."""
        return not self.problems

    def add(self, other: "AuditReport") -> None:
        """Add the report of another unit."""
        places = {(one.vhost, one.kind, one.name): one for one in self.found}
        for one in other.found:
            place = places.setdefault((one.vhost, one.kind, one.name), one)
            if place is one:
                self.found.append(one)
                continue
            place.messages += one.messages
            place.bytes += one.bytes
            place.damaged += one.damaged
        self.problems += other.problems
        self.notes += other.notes
        self.units += other.units

    def rows(self) -> list[list[object]]:
        """Return table rows: vhost, kind, name, messages, bytes, damaged."""
        ordered = sorted(self.found, key=lambda one: (one.vhost, one.kind, one.name))
        return [list(asdict(one).values()) for one in ordered]

    def summary(self) -> str:
        """Return a line for each note and one with the totals."""
        messages = sum(one.messages for one in self.found)
        size = sum(one.bytes for one in self.found)
        lines = [f"note: {note}" for note in self.notes]
        lines.append(
            f"{many(len(self.problems), 'problem')}; {many(messages, 'message')} of "
            f"{many(size, 'byte')} in {len(self.found):,} queues and streams, by "
            f"{many(self.units, 'task')}"
        )
        return "\n".join(lines)

    def as_dict(self) -> dict[str, object]:
        """Return the report for JSON."""
        found: dict[str, object] = asdict(self)
        return {**found, "is_fine": self.is_fine}


def audit(spark: "SparkSession", options: AuditOptions) -> AuditReport:
    """Audit a whole store. Raises NotAStoreError."""
    report = AuditReport()
    units = units_of(options.data, report)
    if units:
        tasks = min(len(units), TASKS_MAX)
        for one in spark.sparkContext.parallelize(units, tasks).map(checked).collect():
            report.add(one)
    return report


def units_of(data: str, report: AuditReport) -> list[Unit]:
    """Return the work units, vhosts first because they take longest. Streams that cannot be opened
    are added to the report's problems. Raises NotAStoreError."""
    root = Path(data) / "vhosts"
    if root.is_dir():
        vhosts = [path for path in sorted(root.iterdir()) if path.is_dir()]
    else:
        stream_paths(data, "/")  # NotAStoreError
        vhosts = [Path(data)]
    units, pages = [], []
    for path in vhosts:
        title = _title(path)
        if (path / "CURRENT").exists():
            units.append(Unit("vhost", title, str(path)))
        for name, partitions in stream_paths(str(path), "/").items():
            for partition, directory in partitions.items():
                named = name if len(partitions) == 1 else f"{name}[{partition}]"
                report.found.append(Audited(title, "stream", named))
                pages += _pages(title, named, directory, report)
    return units + pages


def _title(vhost: Path) -> str:
    try:
        return (vhost / ".vhost").read_bytes().removesuffix(b"\n").decode("utf-8", "replace")
    except OSError:
        return vhost.name


def _pages(vhost: str, name: str, directory: str, report: AuditReport) -> list[Unit]:
    fs = OsFileSystem(0)
    try:
        with closing(StreamView(fs, directory)) as view:
            return [
                Unit(
                    "page", vhost, page.page_path, name, page.base, page.count,
                    None if page.is_sealed else page.bytes,
                )
                for page in view.pages()
            ]  # fmt: skip
    except (PenstockError, OSError) as error:
        report.problems.append(str(error))
        return []
    finally:
        fs.close()


# ---- in a task -----------------------------------------------------------------------------------


def checked(unit: Unit) -> AuditReport:
    """Audit one unit. Errors are in the report that it returns."""
    return _checked_vhost(unit) if unit.kind == "vhost" else _checked_page(unit)


def _checked_vhost(unit: Unit) -> AuditReport:
    report = AuditReport(units=1)
    fs = OsFileSystem(0)
    try:
        found = verify(fs, unit.path, has_streams=False)
    except LockedError as error:
        report.notes.append(f"vhost {unit.vhost}: {error}; its queues were not audited")
        return report
    except (NotAStoreError, PenstockError, OSError) as error:
        report.problems.append(f"vhost {unit.vhost}: {error}")
        return report
    finally:
        fs.close()
    report.problems += [str(problem) for problem in found.problems]
    report.notes += found.notes
    for queue in found.queues:
        report.found.append(
            Audited(unit.vhost, "queue", queue.name, queue.count, queue.bytes, queue.damaged)
        )
    return report


def _checked_page(unit: Unit) -> AuditReport:
    from penstock.page_frames import PageMap

    report = AuditReport(units=1)
    found = Audited(unit.vhost, "stream", unit.stream)
    report.found.append(found)
    last = unit.base + unit.count
    try:
        page = PageMap(unit.path, unit.base, unit.count, unit.page_bytes)
    except FileNotFoundError:
        return report  # retention deleted it meanwhile
    except (PenstockError, OSError) as error:
        found.damaged = unit.count
        report.problems.append(str(error))
        return report
    try:
        _count(found, page.frames(unit.base, last))
    except CorruptionError as error:
        report.problems.append(str(error))
        _count_each(found, page, unit.base, last)
    finally:
        page.close()
    return report


def _count(found: Audited, frames: Any) -> None:
    found.messages += frames.count
    found.bytes += int(frames.rows["size"].sum(dtype="u8")) if frames.count else 0


def _count_each(found: Audited, page: Any, first: int, last: int) -> None:
    """Count a damaged page record by record; a damaged block loses all records in it."""
    for offset in range(first, last):
        try:
            _count(found, page.frames(offset, offset + 1))
        except CorruptionError:
            found.damaged += 1
