"""audit: every checksum of a store, verified by tasks of Spark, and what it holds, by name.

    penstock pipeline run audit -o data=penstock-data

    data     a data directory, or one vhost's; on a cluster where all executors see it      needed

Two kinds of work, dealt out to tasks:

    a page     of a stream: every checksum below the head, in one pass; beside a running owner too
    a vhost    checkpoint, log, indexes and bodies of its queues, as `penstock store verify` does.
               Only while nobody has it open; else that is a note, and its streams alone are audited

A page that does not verify is read record by record, so that what is lost is counted. Nothing is
written but the text in the lock files.

Not here: how checksums are computed (penstock.storage.verify, penstock.page_frames).
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import CorruptionError, LockedError, NotAStoreError, PenstockError
from penstock.spark.catalog import stream_paths
from penstock.spark.lake_files import absolute
from penstock.spark.pipelines.option_texts import options_of
from penstock.storage.filesystem import OsFileSystem
from penstock.storage.stream_view import StreamView
from penstock.storage.verify import verify

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OPTIONS: Final[Mapping[str, str | None]] = {"data": None}
TASKS_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """data: the directory."""

    data: str

    @classmethod
    def of(cls, given: Mapping[str, str]) -> "AuditOptions":
        """OptionError."""
        data = str(options_of(given, OPTIONS, ("data",))["data"])
        return cls(absolute(data.rstrip("/") or "/"))


@dataclass(frozen=True, slots=True)
class Unit:
    """A piece of work. kind: "vhost" or "page"; for a page: of which stream, and where it ends."""

    kind: str
    vhost: str
    path: str
    stream: str = ""
    base: int = 0
    count: int = 0
    page_bytes: int | None = None


@dataclass(slots=True)
class Audited:
    """What is in a queue or stream, as far as one unit saw it. damaged: messages that are lost."""

    vhost: str
    kind: str
    name: str
    messages: int = 0
    bytes: int = 0
    damaged: int = 0


@dataclass(slots=True)
class AuditReport:
    """What was found in all of a store. problems: file, byte and what is wrong there."""

    found: list[Audited] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    units: int = 0

    @property
    def is_fine(self) -> bool:
        """Nothing is lost and nothing is wrong."""
        return not self.problems

    def add(self, other: "AuditReport") -> None:
        """What another unit found."""
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
        """For a table: vhost, kind, name, messages, bytes, damaged."""
        ordered = sorted(self.found, key=lambda one: (one.vhost, one.kind, one.name))
        return [list(asdict(one).values()) for one in ordered]

    def summary(self) -> str:
        """One line, and one for each note."""
        messages = sum(one.messages for one in self.found)
        size = sum(one.bytes for one in self.found)
        lines = [f"note: {note}" for note in self.notes]
        lines.append(
            f"{len(self.problems)} problems; {messages:,} messages of {size:,} bytes in "
            f"{len(self.found)} queues and streams, by {self.units} tasks"
        )
        return "\n".join(lines)

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        told: dict[str, object] = asdict(self)
        return {**told, "is_fine": self.is_fine}


def audit(spark: "SparkSession", options: AuditOptions) -> AuditReport:
    """All of a store. NotAStoreError."""
    report = AuditReport()
    units = units_of(options.data, report)
    if units:
        tasks = min(len(units), TASKS_MAX)
        for one in spark.sparkContext.parallelize(units, tasks).map(checked).collect():
            report.add(one)
    return report


def units_of(data: str, report: AuditReport) -> list[Unit]:
    """The work, the vhosts first, for they take longest; streams that cannot be opened are
    problems. NotAStoreError."""
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
        view = StreamView(fs, directory)
        try:
            return [
                Unit(
                    "page", vhost, page.page_path, name, page.base, page.count,
                    None if page.is_sealed else page.bytes,
                )
                for page in view.pages()
            ]  # fmt: skip
        finally:
            view.close()
    except (PenstockError, OSError) as error:
        report.problems.append(str(error))
        return []
    finally:
        fs.close()


# ---- in a task -----------------------------------------------------------------------------------


def checked(unit: Unit) -> AuditReport:
    """What one unit has. Whatever is wrong with it is in the report."""
    return _checked_vhost(unit) if unit.kind == "vhost" else _checked_page(unit)


def _checked_vhost(unit: Unit) -> AuditReport:
    report = AuditReport(units=1)
    fs = OsFileSystem(0)
    try:
        found = verify(fs, unit.path, has_streams=False)
    except LockedError as error:
        report.notes.append(f"vhost {unit.vhost}: {error}; of its queues nothing was audited")
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
        return report  # retention took it meanwhile
    except (PenstockError, OSError) as error:
        found.damaged = unit.count
        report.problems.append(str(error))
        return report
    try:
        if len(page.rows) < unit.count:
            found.damaged = unit.count - len(page.rows)
            text = f"{len(page.rows)} records verify, expected {unit.count}"
            report.problems.append(f"{unit.path}: {text}")
            last = unit.base + len(page.rows)
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
    """Of a page with damage, record by record; a damaged block takes all that touches it."""
    for offset in range(first, last):
        try:
            _count(found, page.frames(offset, offset + 1))
        except CorruptionError:
            found.damaged += 1
