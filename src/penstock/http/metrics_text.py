"""MetricsText: values of metrics as the text that Prometheus reads.

    # HELP penstock_sync_seconds one sync of the log (fdatasync)
    # TYPE penstock_sync_seconds histogram
    penstock_sync_seconds_bucket{vhost="/",le="0.001"} 3

Prometheus's text format 0.0.4, or OpenMetrics 1.0 if the client accepts that: there a counter's
name in the comments has no "_total", and the end is marked. In a label a backslash, a quote and a
line feed are escaped; a byte that is not UTF-8 is shown as one_line does, so that two names never
become one.
"""

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from penstock.escaping import one_line
from penstock.metric_table import COUNTER, HISTOGRAM, METRICS, VHOST, Metric

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
