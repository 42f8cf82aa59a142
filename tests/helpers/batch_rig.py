"""BatchRig: an engine with a stream, on which tests decide batches and roll them forward."""

from penstock.storage.files.durability import DISK
from penstock.storage.pages.batches import StagedPage
from penstock.storage.pages.streams import StoredStream
from tests.helpers.engine_rig import EngineRig
from tests.helpers.tiny_batches import TARGET, Row, read_all, stage
from tests.helpers.tiny_engine import PATH

LARGE = 300  # bytes of a page from which on these tests adopt it


class BatchRig(EngineRig):
    """An engine with a stream "s"."""

    def __init__(self, names: tuple[bytes, ...] = (b"s",)) -> None:
        super().__init__()
        self.engine.streams.declare([(name, b"", 0) for name in names], page_bytes=400)
        self.engine.sync()

    def stream(self, name: bytes = b"s") -> StoredStream:
        return self.engine.streams.get(name)

    def stage(self, rows: list[Row], batch: int = 0, query: str = "q", partition: int = 0) -> (
        StagedPage
    ):  # fmt: skip
        return stage(self.fs, PATH, query, batch, rows, partition=partition)

    def decide(self, *pages: list[Row], batch: int = 0, query: str = "q") -> list[StagedPage]:
        """Staged, decided and durable."""
        found = [self.stage(rows, batch, query, n) for n, rows in enumerate(pages)]
        assert self.engine.batches.decide(query, batch, TARGET, found)
        self.engine.sync()
        return found

    def append(self, *bodies: bytes) -> None:
        for body in bodies:
            self.engine.streams.append(self.stream(), b"", body, DISK)
        self.engine.sync()

    def payloads(self) -> list[bytes]:
        return [payload for _, _, payload, _ in read_all(self.engine)]


def payloads(*pages: list[Row]) -> list[bytes]:
    return [payload for page in pages for payload, _ in page]
