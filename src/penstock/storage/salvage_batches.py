"""What can still be known of a damaged store's batches, and carried into the new one.

A batch that was done stays known, so that a commit which is repeated is not a second write. One
that was not is decided again in the new store with the pages that are left, copied as they are, and
goes on where it was: it is rolled forward there. A page that is missing or damaged is told; the new
store then waits for it as the old one would have.

A page that a stream adopted after the last checkpoint may have its records in the staged file alone
(adoption.py), so streams are told where to look.
"""

from dataclasses import dataclass

from penstock.storage import batches
from penstock.storage.batches import Batch, BatchRecord, BatchTable, StagedPage
from penstock.storage.data_directory import sync_dir, write_small
from penstock.storage.durability import DISK
from penstock.storage.engine import StorageEngine
from penstock.storage.filesystem import FileSystem
from penstock.storage.staging import query_directory, query_path, staging_path

COPY_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class AdoptedPage:
    """A page that a stream adopted. path: of the staged file."""

    stream: int
    base: int
    time_us: int
    path: str
    page: StagedPage


class SalvagedBatches:
    """The batches of one damaged vhost, whose directory is `path`."""

    def __init__(self, fs: FileSystem, path: str) -> None:
        self.fs = fs
        self.path = path
        self.table = BatchTable()

    def restore(self, sections: list[bytes]) -> None:
        """What the checkpoint says. ValueError."""
        for data in sections:
            batch = batches.decode_section(data)
            self.table.by_query[batch.query] = batch

    def apply(self, flags: int, found: BatchRecord) -> AdoptedPage | None:
        """Apply a BATCH record. Returns the page, if one is adopted. ValueError: it cannot be
        applied."""
        adopted = self._adopted(found) if flags == batches.ADOPTED else None
        self.table.apply(flags, found)
        return adopted

    def _adopted(self, found: BatchRecord) -> AdoptedPage | None:
        batch = self.table.by_query.get(found.query)
        if batch is None or not batch.page <= found.page < len(batch.pages):
            return None
        page = batch.pages[found.page]
        path = f"{query_path(self.path, found.query)}/{page.name}"
        return AdoptedPage(found.stream, found.base, found.time_us, path, page)

    def copy_into(self, new: StorageEngine) -> tuple[list[str], list[str]]:
        """Decide them in the new store; (paths of pages that are missing, what is worth a note)."""
        missing: list[str] = []
        notes: list[str] = []
        for batch in sorted(self.table.by_query.values(), key=lambda b: b.time_us):
            pages = list(batch.pages[batch.page :])
            for page in pages:
                path = f"{query_path(self.path, batch.query)}/{page.name}"
                if self.fs.exists(path):
                    self._copy(path, page, batch, new)
                else:
                    missing.append(path)
            new.batches.decide(
                batch.query, batch.number, batch.target, pages, facts=batch.facts, is_checked=True
            )
            if pages:
                title = f"batch {batch.number} of query {batch.query!r}"
                notes.append(f"{title} is not done: the new store goes on with {len(pages)} pages")
            if pages and batch.frame:
                transaction = new.begin()
                transaction.progress(batch.query, 0, batch.frame)
                transaction.commit(DISK)
        return missing, notes

    def _copy(self, path: str, page: StagedPage, batch: Batch, new: StorageEngine) -> None:
        directory = query_directory(new.fs, staging_path(new.path), batch.query)
        stem = page.name.removesuffix(".page")
        source = path.removesuffix(".page")
        target = new.fs.open(f"{directory}/{page.name}", create=True)
        file = self.fs.open(path)
        try:
            for at in range(0, file.size(), COPY_BYTES):
                target.pwrite(file.pread(COPY_BYTES, at), at)
            target.sync()
        finally:
            file.close()
            target.close()
        if self.fs.exists(source + ".idx"):
            write_small(new.fs, f"{directory}/{stem}.idx", self.fs.read(source + ".idx"))
        sync_dir(new.fs, directory)
