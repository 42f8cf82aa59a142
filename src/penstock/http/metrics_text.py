"""MetricsText: values of metrics as the text that Prometheus reads.

    # HELP penstock_sync_seconds one sync of the log (fdatasync)
    # TYPE penstock_sync_seconds histogram
    penstock_sync_seconds_bucket{vhost="/",le="0.001"} 3

Prometheus's text format 0.0.4, or OpenMetrics 1.0 if the client accepts that: there a counter's
name in the comments has no "_total", and the end is marked. In a label a backslash, a quote and a
line feed are escaped; a byte that is not UTF-8 is shown as one_line does, so that two names never
become one.

**Kept texts** (ObjectTexts): the lines of what each queue, exchange or reader has. 10,000 queues
have 240,000 lines, 14 MB. So lines are kept between two scrapes in pieces, each of one number of
CHUNK objects, and only pieces in which a number has changed are made, and compressed, again: the
vhost tells which queues have changed. Pieces are whole lines, as UTF-8. A compressed piece is
deflated by itself, up to a byte, so a body of gzip is a header, the pieces and the checksum of all.
"""

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from penstock.escaping import one_line
from penstock.metric_table import (
    AGE,
    COUNTER,
    GAUGE,
    HISTOGRAM,
    METRICS,
    VHOST,
    Metric,
    ObjectFamily,
)

PLAIN: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
PREFIX: Final = "penstock_"
INFINITE: Final = "+Inf"
GZIP_LEVEL: Final = 4
GZIP_BEGIN: Final = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"  # deflate, no name, no time
DEFLATE_END: Final = b"\x03\0"  # an empty block, which is the last

Values = Mapping[str, Any]  # name of a row -> its value, see penstock.metric_table


def is_openmetrics(accept: str) -> bool:
    """Return whether the client takes OpenMetrics."""
    return "application/openmetrics-text" in accept


def quoted(value: str) -> str:
    """Return a label's value in quotes."""
    if not value.isprintable():
        value = "\n".join(one_line(line) for line in value.split("\n"))
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


@dataclass(slots=True, eq=False)
class Piece:
    """Some whole lines. They are compressed once, by themselves."""

    text: bytes
    _packed: bytes | None = None

    def packed(self) -> bytes:
        """Return the text as blocks of deflate, up to a byte, of which none is the last."""
        if self._packed is None:
            packer = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
            self._packed = packer.compress(self.text) + packer.flush(zlib.Z_FULL_FLUSH)
        return self._packed


class MetricsText:
    """Collects lines. prefix: before each name."""

    def __init__(self, *, is_openmetrics: bool, prefix: str = PREFIX) -> None:
        self._is_openmetrics = is_openmetrics
        self._prefix = prefix
        self._pieces: list[Piece] = []
        self._lines: list[str] = []  # after them
        self._has_end = False
        self._heads: set[str] = set()

    def head(self, name: str, kind: str, meaning: str) -> None:
        """Begin a family. name: with its prefix."""
        self._heads.add(name)
        if self._is_openmetrics and kind == COUNTER:
            name = name.removesuffix("_total")
        meaning = meaning.replace("\\", "\\\\").replace("\n", "\\n")
        if self._is_openmetrics:
            meaning = meaning.replace('"', '\\"')
        self._lines.append(f"# HELP {name} {meaning}\n# TYPE {name} {kind}")

    def sample(self, name: str, labels: str, value: float | str) -> None:
        """Add a line. labels: as written between braces, "" for none."""
        at = f"{name}{{{labels}}}" if labels else name
        self._lines.append(f"{at} {value}")

    def family(self, row: Metric, of: Iterable[tuple[str, Any]]) -> None:
        """Add a family. of: for each vhost its name and value; ("", value) for the node's."""
        found = list(of)
        if not found:
            return
        name = self._prefix + row.name
        self.head(name, row.kind, row.meaning)
        for vhost, value in found:
            first = f"vhost={quoted(vhost)}" if row.labels[:1] == (VHOST,) and vhost else ""
            if row.kind == HISTOGRAM:
                self._histogram(row, name, first, value)
                continue
            for labels, one in _series(value):
                names = row.labels if len(labels) == len(row.labels) else row.own_labels
                parts = [
                    f"{label}={quoted(str(text))}"
                    for label, text in zip(names, labels, strict=True) if text != ""
                ]  # fmt: skip
                self.sample(name, ",".join([first, *parts] if first else parts), one)

    def has(self, name: str) -> bool:
        """Return whether a family of this name was begun."""
        return name in self._heads

    def add(self, pieces: Iterable[Piece]) -> None:
        """Add whole lines of the family that was begun last."""
        self._end_piece()
        self._pieces += pieces

    def _histogram(self, row: Metric, name: str, first: str, value: list[float]) -> None:
        total, *counts = value
        comma = "," if first else ""
        n = 0
        for bound, count in zip((*map(repr, row.bounds), INFINITE), counts, strict=True):
            n += int(count)
            self.sample(f"{name}_bucket", f'{first}{comma}le="{bound}"', n)
        self.sample(f"{name}_sum", first, total)
        self.sample(f"{name}_count", first, n)

    def _end_piece(self) -> None:
        if self._lines:
            text = "\n".join(self._lines) + "\n"
            self._pieces.append(Piece(text.encode("utf-8", "backslashreplace")))
            self._lines.clear()

    def _all(self) -> list[Piece]:
        if self._is_openmetrics and not self._has_end:
            self._has_end = True
            self._lines.append("# EOF")
        self._end_piece()
        return self._pieces

    def text(self) -> bytes:
        """Return all that was added; nothing is added afterwards."""
        return b"".join([one.text for one in self._all()])

    def size(self) -> int:
        """Return the bytes of all that was added; nothing is added afterwards."""
        return sum([len(one.text) for one in self._all()])

    def runs(self, size: int) -> Iterator[bytes]:
        """Yield the text in runs of some `size` bytes or, at the end, less: as a whole it would be
        copied to new memory."""
        run: list[bytes] = []
        length = 0
        for one in self._all():
            run.append(one.text)
            length += len(one.text)
            if length >= size:
                yield b"".join(run)
                run, length = [], 0
        yield b"".join(run)

    def gzipped(self) -> bytes:
        """Return the text compressed."""
        crc = size = 0
        pieces = self._all()
        for one in pieces:
            crc = zlib.crc32(one.text, crc)
            size += len(one.text)
        end = crc.to_bytes(4, "little") + (size & 0xFFFFFFFF).to_bytes(4, "little")
        return b"".join([GZIP_BEGIN, *[one.packed() for one in pieces], DEFLATE_END, end])


def _series(value: Any) -> list[tuple[list[object], float | str]]:
    """Return (values of its own labels, value) of each series of a row's value."""
    if isinstance(value, dict):
        return [([label], one) for label, one in value.items()]
    if isinstance(value, list):
        return [(row[:-1], row[-1]) for row in value]
    return [([], value)]


def penstock_text(text: MetricsText, node: Values, vhosts: Mapping[str, Values]) -> None:
    """Add the rows of Penstock's own table. node: the node's values; vhosts: those of each."""
    for row in METRICS:
        if row.name in node:
            text.family(row, [("", node[row.name])])
        else:
            text.family(
                row, [(name, one[row.name]) for name, one in vhosts.items() if row.name in one]
            )


# ---- kept texts ----------------------------------------------------------------------------------


CHUNK: Final = 128
Row = Sequence[Any]  # its labels and numbers


class FamilyTexts:
    """The lines of one family of one vhost. start: of the names of its metrics."""

    def __init__(self, family: ObjectFamily, vhost: str, start: str) -> None:
        self._labels = family.labels
        self._first = f"{{vhost={quoted(vhost)}"
        self._names = [start + name for name, _, _ in family.columns]
        self._ages = [kind == AGE for _, kind, _ in family.columns]
        self._at: dict[tuple[str, ...], int] = {}  # by labels
        self._rows: list[tuple[str, Row] | None] = []  # (labels as text, numbers); None: it is gone
        # By column and chunk; None: to be made.
        self._pieces: list[list[Piece | None]] = [[] for _ in family.columns]

    @property
    def has_rows(self) -> bool:
        """Return whether there is any object."""
        return bool(self._at)

    def update(self, parts: Iterable[Iterable[Row]], gone: Iterable[str] | None) -> None:
        """Take rows. gone: the queues that are not there any more; None: what has no row is not."""
        n = len(self._labels)
        fresh = set()
        for part in parts:
            for row in part:
                key = tuple(row[:n])
                fresh.add(key)
                self._put(key, row[n:])
        keys = [one for one in self._at if one not in fresh] if gone is None else [
            (name,) for name in gone
        ]  # fmt: skip
        for key in keys:
            at = self._at.pop(key, None)
            if at is not None:
                self._rows[at] = None
                for pieces in self._pieces:
                    pieces[at // CHUNK] = None
        if len(self._rows) > 2 * len(self._at) + CHUNK:
            self._close_up()

    def _put(self, key: tuple[str, ...], numbers: Row) -> None:
        at = self._at.get(key)
        if at is None:
            self._at[key] = at = len(self._rows)
            pairs = zip(self._labels, key, strict=True)
            labels = "".join([f",{name}={quoted(value)}" for name, value in pairs])
            self._rows.append((f"{self._first}{labels}}}", numbers))
            for pieces in self._pieces:
                if at % CHUNK == 0:
                    pieces.append(None)
                pieces[at // CHUNK] = None
            return
        found = self._rows[at]
        assert found is not None, "it is there"
        text, before = found
        if before != numbers:
            self._rows[at] = text, numbers
            for pieces, old, new in zip(self._pieces, before, numbers, strict=True):
                if old != new:
                    pieces[at // CHUNK] = None

    def _close_up(self) -> None:
        """Give the places of what is gone to others."""
        self._rows = [row for row in self._rows if row is not None]
        self._at = {key: n for n, key in enumerate(self._at)}
        chunks = -(-len(self._rows) // CHUNK)
        self._pieces = [[None] * chunks for _ in self._pieces]

    def column(self, n: int, now_s: float) -> Iterable[Piece]:
        """Return the lines of a number."""
        pieces = self._pieces[n]
        for chunk, piece in enumerate(pieces):
            if piece is None or self._ages[n]:
                rows = self._rows[chunk * CHUNK : (chunk + 1) * CHUNK]
                piece = pieces[chunk] = self._made(rows, n, now_s)
            yield piece

    def _made(self, rows: Iterable[tuple[str, Row] | None], n: int, now_s: float) -> Piece:
        name = self._names[n]
        found = [(one[0], one[1][n]) for one in rows if one is not None]
        if self._ages[n]:
            found = [
                (labels, max(round(now_s - since, 3), 0) if since else 0) for labels, since in found
            ]
        return Piece("".join([f"{name}{labels} {value}\n" for labels, value in found]).encode(
            "utf-8", "backslashreplace"
        ))  # fmt: skip


class ObjectTexts:
    """The lines of these families of all vhosts. starts: of the names of their metrics."""

    def __init__(self, families: Sequence[ObjectFamily], starts: Sequence[str]) -> None:
        self._families = [*zip(families, starts, strict=True)]
        self._stamps: dict[str, str] = {}
        self._now_s: dict[str, float] = {}  # when the last answer of a vhost was made
        self._vhosts: dict[str, list[FamilyTexts]] = {}

    def stamp(self, vhost: str) -> str:
        """Return the stamp of the last answer of a vhost, "" without one."""
        return self._stamps.get(vhost, "")

    def update(self, vhost: str, answer: Mapping[str, Any]) -> None:
        """Take an answer of object_metrics."""
        if not answer["is_part"] or vhost not in self._vhosts:
            self._vhosts[vhost] = [FamilyTexts(one, vhost, start) for one, start in self._families]
        for (family, _), texts in zip(self._families, self._vhosts[vhost], strict=True):
            gone = answer["gone"] if family.is_of_queues and answer["is_part"] else None
            texts.update(answer.get(family.name, ()), gone)
        self._stamps[vhost] = answer["stamp"]
        self._now_s[vhost] = answer["now_s"]

    def write(self, text: MetricsText, vhosts: Iterable[str]) -> None:
        """Add what these vhosts have, but names that were added before."""
        there = {name: self._vhosts[name] for name in vhosts}
        for k, (family, start) in enumerate(self._families):
            if not any(of[k].has_rows for of in there.values()):
                continue
            columns = [n for n, one in enumerate(family.columns) if not text.has(start + one[0])]
            for n in columns:
                name, kind, meaning = family.columns[n]
                text.head(start + name, GAUGE if kind == AGE else kind, meaning)
                for vhost, of in there.items():
                    text.add(of[k].column(n, self._now_s[vhost]))
