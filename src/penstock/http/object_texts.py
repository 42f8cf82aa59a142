"""ObjectTexts: the lines of what each queue, exchange or reader has, kept between two scrapes.

10,000 queues have 240,000 lines, 14 MB. So lines are kept in pieces, each of one number of CHUNK
objects, and only pieces in which a number has changed are made, and compressed, again: the vhost
tells which queues have changed. Pieces are whole lines, as UTF-8. A compressed piece is deflated
by itself, up to a byte, so a body of gzip is a header, the pieces and the checksum of all.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from penstock.http.metrics_text import MetricsText, Piece, quoted
from penstock.metric_table import AGE, GAUGE, ObjectFamily

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
