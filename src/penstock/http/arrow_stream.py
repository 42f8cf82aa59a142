"""Arrow streams: the records of a range in Arrow's IPC streaming format, for whoever reads columns.

Columns and their types are those of penstock.arrow_batches, the same that Spark sees; pandas,
Polars, DuckDB and any Arrow library read the answer as it comes. It needs the package pyarrow,
which is large and loaded with the first request; where it is not installed the answer is a 501 that
says so.

An answer that was cut lacks HTTP's own end, and a client of HTTP tells so while it is read. Arrow's
format does not: a reader that is handed a cut body as a file takes its end for the end.
"""

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Final

from penstock.http.http_errors import HttpError
from penstock.http.page_spans import Span

MEDIA_TYPE: Final = "application/vnd.apache.arrow.stream"
NEEDED: Final = ("pyarrow", "numpy")


def available() -> None:
    """HttpError 501 unless what is needed is installed."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise HttpError(
            501, f"Arrow needs the package {missing[0]} where the broker runs "
            "(pip install pyarrow); /frames is answered without it",
        )  # fmt: skip


class _Pieces:
    """What Arrow's writer writes, until it is taken."""

    closed = False

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._pieces.append(bytes(data))
        return len(data)

    def flush(self) -> None:
        """Nothing is held back."""

    def take(self) -> bytes:
        data = b"".join(self._pieces)
        self._pieces.clear()
        return data


def encoded(
    spans: Iterator[Span], stream: str, partition: int, columns: Sequence[str] | None
) -> Iterator[bytes]:
    """The stream's bytes, a batch or more at a time. HttpError 400: there is no such column, or it
    comes twice. CorruptionError, OSError: of reading."""
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
