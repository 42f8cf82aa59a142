"""Arrow streams: the records of a range in Arrow's IPC streaming format.

Columns and their types are those of penstock.arrow_batches, the same that Spark has; pandas,
Polars, DuckDB and any Arrow library can read the answer while it arrives. It needs the package
pyarrow, which is large, so it is imported with the first request. Without it the answer is a 501.

An HTTP client notices that an answer was cut, because the last chunk is missing. Arrow's format
does not show it: a reader of a cut body that was saved as a file takes its end for the end of the
stream.
"""

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Final

from penstock.http.pages import Span
from penstock.http.requests import HttpError

MEDIA_TYPE: Final = "application/vnd.apache.arrow.stream"
NEEDED: Final = ("pyarrow", "numpy")


def available() -> None:
    """Raise HttpError 501 if a package is not installed."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise HttpError(
            501, f"Arrow needs the package {missing[0]} where the broker runs "
            "(pip install pyarrow); /frames is answered without it",
        )  # fmt: skip


class _Pieces:
    """A file for Arrow's writer: holds what was written until `take`."""

    closed = False

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._pieces.append(bytes(data))
        return len(data)

    def flush(self) -> None:
        """Do nothing: writes are not buffered."""

    def take(self) -> bytes:
        data = b"".join(self._pieces)
        self._pieces.clear()
        return data


def encoded(
    spans: Iterator[Span], stream: str, partition: int, columns: Sequence[str] | None
) -> Iterator[bytes]:
    """Yield the bytes of the Arrow stream, a batch or more at a time. Raises HttpError 400 for a
    column that is unknown or given twice, CorruptionError and OSError of reading."""
    import numpy as np
    import pyarrow as pa

    from penstock.arrow_batches import COLUMNS, TYPES, BatchMaker
    from penstock.page_frames import ROW, Frames

    wanted = COLUMNS if columns is None else tuple(columns)
    for name in wanted:
        if name not in TYPES or wanted.count(name) > 1:
            raise HttpError(
                400, f"columns: {name!r} is unknown or twice, known are {', '.join(TYPES)}"
            )
    maker = BatchMaker(stream, partition, wanted)
    pieces = _Pieces()
    with pa.ipc.new_stream(pa.PythonFile(pieces, "w"), maker.schema) as writer:
        for span in spans:
            data = b"".join(span.pieces())
            rows = np.frombuffer(span.rows, ROW)
            frames = Frames(rows, data, span.start, span.end, span.first_offset)
            for batch in maker.batches(frames):
                writer.write_batch(batch)
                yield pieces.take()
    yield pieces.take()
