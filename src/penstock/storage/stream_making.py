"""StreamMaking: the directories of streams that are about to be declared, made in a worker.

A stream of 256 partitions is 256 directories, with three syncs each. Nobody may wait for these
where everybody is served, so the file system's worker does them, one directory for each call, and
what else is submitted (the sync of the log) has its turn in between.

    numbers are taken -> directories, one by one -> their names synced -> done -> declare_streams

Until the TOPOLOGY record that `StorageEngine.declare_streams` appends, nothing names them: a crash
before leaves orphans, which the next start deletes.
"""

import random
from collections.abc import Callable

from penstock.errors import SyncFailedError
from penstock.storage.data_directory import sync_dir
from penstock.storage.journal import Journal
from penstock.storage.streams import Stream, remove_tree


class StreamMaking:
    """Makes streams of these names. rng: the engine's. `done()` or `failed(error)` is called when
    the worker's result is taken; after that `made` has all of them, or none. A failed sync stops
    the engine."""

    def __init__(
        self, journal: Journal, rng: random.Random, names: list[bytes], page_bytes: int,
        done: Callable[[], None], failed: Callable[[Exception], None],
    ) -> None:  # fmt: skip
        journal.check()
        self.made: list[Stream] = []
        self._journal = journal
        self._names = names
        self._page_bytes = page_bytes
        self._done = done
        self._failed = failed
        self._is_cancelled = False
        # Of its own: the engine's generator belongs to the engine's thread.
        self._rng = random.Random(rng.getrandbits(64))
        self._first: int = journal.state.next_queue
        journal.state.next_queue += len(names)

    def start(self) -> None:
        """Begin, or go on with the next directory."""
        op = self._make_next if len(self.made) < len(self._names) else self._sync_names
        self._journal.submit(op, self._step_done, self._step_failed)

    def discard(self) -> None:
        """What was made is not declared: its directories go."""
        journal, made = self._journal, self.made
        self.made = []
        self._is_cancelled = True
        table = journal.state.streams
        table.forget_made(made)
        paths = [
            table.directory(name, self._first + i)
            for i, name in enumerate(self._names[: len(made) + 1])
        ]
        fs = journal.fs

        def delete() -> None:
            for path in paths:
                remove_tree(fs, path)

        journal.submit(delete, _nothing, self._not_deleted)

    def cancel(self) -> None:
        """The engine is about to be closed: go no further. The next start deletes what there is."""
        self._is_cancelled = True

    # ---- in the worker -------------------------------------------------------------------------

    def _make_next(self) -> Stream:
        i = len(self.made)
        journal = self._journal
        return journal.state.streams.make(
            self._names[i], self._first + i, self._page_bytes, journal.clock, self._rng
        )

    def _sync_names(self) -> None:
        sync_dir(self._journal.fs, self._journal.state.streams.path)

    # ---- at the engine -------------------------------------------------------------------------

    def _step_done(self, result: object) -> None:
        if isinstance(result, Stream):
            self._journal.state.streams.keep_made(result)
            self.made.append(result)
        if self._is_cancelled:
            return
        if isinstance(result, Stream):
            self.start()
        else:
            self._done()

    def _step_failed(self, error: BaseException) -> None:
        journal = self._journal
        if isinstance(error, SyncFailedError):
            journal.stop(error)
            return
        if not isinstance(error, OSError):
            raise error
        if self._is_cancelled:
            return
        self.discard()
        self._failed(journal.disk_full(error, self._page_bytes))

    def _not_deleted(self, error: BaseException) -> None:
        self._journal.event("clean", f"directories of no stream could not be deleted: {error}")


def _nothing(_: object) -> None:
    pass
