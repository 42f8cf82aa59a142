"""A stream that stands alone: a directory and a lock on it, no box; `penstock.open_stream`.

This is rxjava2-extras' PersistentQueue as it is meant: a log in files for one program, without a
box, a broker or a log of its own before it. Each record is written once. It has the methods of a
box's stream (`box.stream`), but for partitions and transactions, and a few of its own.

    with penstock.open_stream("events.d", max_age="7d") as s:
        s.append(b"order 1 came in")

Not here: the same for asyncio (`penstock.aio`), a producer and a consumer in one line (`persist`).
"""

import logging
import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeAlias

from penstock.clock import SystemClock
from penstock.embedded import stream_spellings
from penstock.embedded.alone_calls import AloneCalls
from penstock.embedded.alone_core import AloneCore, AloneSettings
from penstock.embedded.alone_driver import AloneDriver, OpenCore, Tell
from penstock.embedded.spellings import URLS, Size, Time, time_ms
from penstock.embedded.stream import Stream
from penstock.errors import OptionError
from penstock.storage.filesystem import OsFileSystem

ForceEvery: TypeAlias = int | str | timedelta
OnEvent: TypeAlias = Callable[[str, str], None]

LOG: Final = logging.getLogger("penstock")
LEVELS: Final = {
    "stopped": logging.ERROR, "corruption": logging.ERROR, "stream_write": logging.WARNING,
    "cut": logging.WARNING, "healed": logging.WARNING,
}  # fmt: skip
RECORDS_MAX: Final = 1_000_000
EXPECTED_FORCE: Final = (
    f'a number of records from 1 to {RECORDS_MAX}, or a time as "100ms" or a timedelta, above 0'
)


class AloneStream(Stream):
    """See the head of this module. Use it from any number of threads; not from a forked child
    (ForkedError). Errors of all methods after `close`: BoxClosedError; after a failed sync:
    StoppedError, until it is opened again."""

    _driver: AloneDriver

    def __init__(self, driver: AloneDriver, source: AloneCalls) -> None:
        super().__init__(driver, source)
        self._calls = source

    @property
    def path(self) -> str:
        """The directory."""
        return self._driver.path

    def force(self) -> None:
        """Wait until all that was appended is on disk, and may be read. DiskFullError, OSError;
        SyncFailedError stops it."""
        self._driver.run(self._calls.force())

    def close(self) -> None:
        """Put all on disk, and let others have the directory. A second time: nothing. OSError,
        SyncFailedError: what was not on disk may be lost; it is closed all the same."""
        self._driver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()


def open_stream(
    directory: str | Path, *, page_bytes: Size = "64 MiB", force_every: ForceEvery = 1,
    max_age: Time | None = None, max_bytes: Size | None = None, max_records: int | None = None,
    on_event: OnEvent | None = None,
) -> AloneStream:  # fmt: skip
    """Open the stream in a directory of its own, which is made when missing (not its parents):
    rxjava2-extras' PersistentQueue.

    force_every: when appended records are put on disk. 1: before each append returns; those that
    wait at the same time share a sync. 2 to 1,000,000: after so many records; "100ms", a timedelta:
    so long after an append. In these two an append returns at once, a crash may take what was not
    on disk, and that is at the latest after a second (or after the time, if that is longer).
    Whatever it says, only what is on disk is read.
    max_age, max_bytes, max_records: retention, as of `box.stream`; they are those of this opening,
    and may be others the next time. None: no limit.
    page_bytes: of a page file, 4 KiB to 1 GiB; fixed when the stream is made.
    on_event(kind, text): told of what is no error, in the stream's own thread.

    LockedError names who has it open. NotAStoreError: the directory has something else, a box for
    instance. CorruptionError names file and place. OptionError, NetworkFileSystemError,
    SyncFailedError; OSError, FileNotFoundError if the parent directory is missing.
    """
    settings = settings_of(force_every, page_bytes, max_age, max_bytes, max_records)
    path, tell = path_of(directory), teller(directory, on_event)
    driver = AloneDriver(path, opens(directory, settings), tell)
    return AloneStream(driver, AloneCalls(driver))


def settings_of(
    force_every: object, page_bytes: object, max_age: object, max_bytes: object,
    max_records: object,
) -> AloneSettings:  # fmt: skip
    """What was given, checked. OptionError."""
    given = {
        "page_bytes": page_bytes, "max_age": max_age, "max_bytes": max_bytes,
        "max_records": max_records,
    }  # fmt: skip
    options = stream_spellings.stream_options(given)
    records, seconds = _force_every(force_every)
    return AloneSettings(options, records, seconds)


def path_of(directory: object) -> str:
    """The directory's path, absolute, for the program may change its directory. OptionError: it is
    a URL; TypeError for what is no path."""
    if isinstance(directory, str) and directory.startswith(URLS):
        expected = "a directory: a stream of a broker is box.stream of penstock.open(URL)"
        raise OptionError("directory", directory, expected)
    return str(Path(directory).absolute())  # type: ignore[arg-type]  # or a TypeError


def opens(directory: object, settings: AloneSettings) -> OpenCore:
    """What opens it."""
    path = path_of(directory)

    def open_core(tell: Tell, lock: AbstractContextManager[object]) -> AloneCore:
        core = AloneCore(
            OsFileSystem(0), path, settings, SystemClock(), random.Random(), tell, lock
        )
        return checked(core)

    return open_core


def checked(core: AloneCore) -> AloneCore:
    """The core; closed, and an OptionError, if its pages are not as they were asked for."""
    wanted, has = core.settings.options.page_bytes, core.queue.page_bytes
    default = stream_spellings.stream_options({}).page_bytes
    if wanted not in (has, default):
        core.close()
        raise OptionError("page_bytes", wanted, f"{has}, as the stream was made with")
    core.settings = replace(core.settings, options=replace(core.settings.options, page_bytes=has))
    return core


def teller(directory: object, on_event: OnEvent | None) -> Tell:
    """What logs an event, and tells the owner."""

    def tell(kind: str, text: str) -> None:
        if kind == "page_bytes":
            return  # `checked` says so, if it was asked for
        LOG.log(LEVELS.get(kind, logging.INFO), "%s: %s", kind, text)
        if on_event is not None:
            try:
                on_event(kind, text)
            except BaseException:  # not even sys.exit may end the stream's thread
                LOG.exception("%s: on_event has failed", directory)

    return tell


def _force_every(given: object) -> tuple[int | None, float | None]:
    """(records, seconds), one of them None."""
    if type(given) is int and 1 <= given <= RECORDS_MAX:
        return given, None
    is_text = isinstance(given, str) and given.strip()[-1:].isalpha()  # with a unit
    if is_text or isinstance(given, timedelta):
        try:
            ms = time_ms("force_every", given)
        except OptionError:
            ms = 0
        if ms > 0:
            return None, ms / 1000
    raise OptionError("force_every", given, EXPECTED_FORCE)
