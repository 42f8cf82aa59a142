"""Verify batches: is every row that was decided and not moved yet really staged?

What a batch still has to move, and a page that a stream adopted since the checkpoint, is looked at
frame by frame, by the id that its decision names; headers say nothing (adoption.py). A page that is
missing or damaged is a problem: those rows are lost. What nobody decided is no promise, and is not
looked at.
"""

from collections.abc import Callable

from penstock.errors import CorruptionError
from penstock.storage.batches import Batch, StagedPage
from penstock.storage.filesystem import FileSystem
from penstock.storage.staged_reader import StagedReader
from penstock.storage.staging import query_path
from penstock.storage.state import StorageState

READ_RECORDS = 1024
READ_BYTES = 1 << 20


def check_batches(
    fs: FileSystem, state: StorageState, add: Callable[[BaseException], None], notes: list[str]
) -> None:
    """The batches of a vhost; `add` is told of problems. OSError."""
    problems: list[CorruptionError] = []
    for batch in state.batches.by_query.values():
        if not batch.is_done:
            notes.append(_note(batch))
            first = batch.frame
            for page in batch.pages[batch.page :]:
                path = f"{query_path(state.path, batch.query)}/{page.name}"
                problems += _check_page(fs, path, page, first)
                first = 0
    for stream, adoption in state.streams.adopting:
        placed = f"{adoption.writer.stem}.page"
        path = adoption.staged if fs.exists(adoption.staged) else placed
        if not stream.is_deleted:
            problems += _check_page(fs, path, adoption.page, 0)
    for problem in problems:
        add(problem)


def _note(batch: Batch) -> str:
    return (
        f"batch {batch.number} of query {batch.query!r} is decided, and moved up to page "
        f"{batch.page} of {batch.page_count}, frame {batch.frame}"
    )


def _check_page(fs: FileSystem, path: str, page: StagedPage, frame: int) -> list[CorruptionError]:
    reader = StagedReader(fs, path, page)
    try:
        while frame < page.rows:
            frame += len(reader.read(frame, READ_RECORDS, READ_BYTES))
    except CorruptionError as error:
        return [error]
    finally:
        reader.close()
    return []
