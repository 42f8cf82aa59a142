"""persist: the items of an iterable by way of the disk, so that a loop goes on after a crash.

This is the operator that rxjava2-extras' PersistentQueue was made for. A thread takes items from an
iterable and appends them to a stream of their own on the disk; the loop reads them from there.

    for event in penstock.persist(events(), "events.d"):
        handle(event)

    producer   one thread: next(iterable) -> append, on disk before the next one is asked for (or as
               `force_every` says)
    consumer   the loop: what is on disk, in order; an item is acknowledged when the loop asks for
               the next one
    after a    the same call on the same directory yields first what was not acknowledged, then the
    crash      items of the new iterable

**Promise.** At least once, in order: an item that is on disk is yielded until it is acknowledged.
Acknowledgements are on disk within some 50 ms, so after a crash the items of that time, and the one
that the loop was at, are yielded again. What the iterable has given and is not on disk is lost in a
crash: with force_every=1 that is at most one item, the one that the producer is appending. So an
iterable that acknowledges to its own source when it is asked for the next item loses nothing. The
iterable begins again with each call: what it gives again is yielded again.

**Back-pressure** is the disk: the producer never waits for the consumer, and RAM holds a few
hundred items of either. What is acknowledged is deleted, a page at a time; the last page when all
of it has been acknowledged for a minute.

**Ends.** When the iterable ends, the loop ends after the last item. An exception of the iterable
(or of `encode`) is raised in the loop, after all items that came before it. Closing stops the
producer: it takes no more items. The item that it is waiting for was asked for, and is still
put on disk: closing waits for it for CLOSE_S seconds, and then leaves the producer to finish alone.

The stream is `alone_stream`; async iterables are in `penstock.aio.alone`.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Generic, Self, TypeVar

from penstock.embedded.alone_stream import (
    AloneDriver,
    AloneSettings,
    AloneStream,
    AloneStreamSource,
    ForceEvery,
    driver_of,
    settings_of,
)
from penstock.embedded.events import OnEvent
from penstock.embedded.option_parsing import Size
from penstock.embedded.sources import Call, Feed
from penstock.embedded.stream_record import StreamRecord
from penstock.options import check_callable

T = TypeVar("T")

CONSUMER: Final = "consumer"  # the name of the reader
KEPT_S: Final = 60  # how long all is acknowledged before the last page is deleted
CLOSE_S: Final = 5.0

Encode = Callable[[T], bytes]
Decode = Callable[[bytes], T]


def persist_settings(force_every: object, page_bytes: object) -> AloneSettings:
    """Return the settings of the stream that items go through. OptionError."""
    settings = settings_of(force_every, page_bytes, None, None, None)
    options = replace(settings.options, max_records=0, max_age_s=KEPT_S)
    return replace(settings, options=options, keeps=CONSUMER)


class PersistedConsumer:
    """The consumer's side, in calls. is_over: there are no more items."""

    def __init__(self, source: AloneStreamSource) -> None:
        self._source = source
        self._feed: Feed | None = None
        self._records: list[StreamRecord] = []
        self._given: int | None = None
        self.is_over: bool = False

    def next(self) -> Call[bytes | None]:
        """Acknowledge the last item, wait for the next and return it; None at the end."""
        source = self._source
        if self._feed is None:
            self._feed = yield from self._begin()
        if self._given is not None:
            yield from source.commit(CONSUMER, {0: self._given + 1}, is_safe=False)
            self._given = None
        while not self._records:
            is_ended = source.is_ended  # asked before reading: the last record may come in between
            self._records = list((yield from self._feed.chunk()))[::-1]
            if not self._records:
                if is_ended:
                    self.is_over = True
                    return None
                yield from source.wait([self._feed], None)
        record = self._records.pop()
        self._given = record.offset
        return record.body

    def _begin(self) -> Call[Feed]:
        source = self._source
        info = yield from source.info(CONSUMER)
        offset = info.offsets.get(0, info.partitions[0].first)
        if not info.offsets:
            yield from source.commit(CONSUMER, {0: offset}, is_safe=True)
        return source.feed(0, offset)


class Producer:
    """The producer's side: a thread that takes from the iterable. It has no reference to the loop's
    iterator, so that one which is dropped is collected."""

    def __init__(
        self, iterable: Iterable[Any], stream: AloneStream, source: AloneStreamSource,
        encode: Callable[[Any], Any],
    ) -> None:  # fmt: skip
        self._iterable: Iterable[Any] | None = iterable
        self._stream = stream
        self._source = source
        self._encode = encode
        self._lock = threading.Lock()
        self._is_stopping: bool = False  # it takes no more items
        self._has_ended: bool = False
        self._is_left: bool = False  # it is to close the stream itself
        self._thread: threading.Thread | None = None
        self.error: BaseException | None = None

    def start(self) -> None:
        """Start the thread. A second time does nothing."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="penstock-persist", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        iterable, self._iterable = self._iterable, None
        try:
            assert iterable is not None, "it starts once"
            for item in iterable:
                self._stream.append(self._encode(item))
                if self._is_stopping:
                    break
            self._stream.force()
        except BaseException as error:  # noqa: BLE001  # the consumer raises it
            self.error = error
        del iterable
        self._source.end()
        with self._lock:
            self._has_ended = True
            is_left = self._is_left
        if is_left:
            self._stream.close()

    def stop(self) -> bool:
        """Stop taking items, and wait for the one being appended. False: that takes too long, and
        the producer will close the stream afterwards."""
        self._is_stopping = True
        if self._thread is None:
            return True
        if self._thread is not threading.current_thread():
            self._thread.join(CLOSE_S)
        with self._lock:
            self._is_left = not self._has_ended
            return self._has_ended


class Persisted(Iterator[T], Generic[T]):
    """The iterator that `persist` returns. Close it when a loop is left early; a `with` block and
    the garbage collector do so, too. One thread at a time may take items from it."""

    def __init__(
        self, iterable: Iterable[T], driver: AloneDriver, encode: Encode[T] | None,
        decode: Decode[T] | None,
    ) -> None:  # fmt: skip
        self._is_closed: bool = False
        self._driver = driver
        source = AloneStreamSource(driver)
        self._stream = AloneStream(driver, source)
        encode = _same if encode is None else encode
        self._producer = Producer(iterable, self._stream, source, encode)
        self._consumer = PersistedConsumer(source)
        self._decode: Callable[[bytes], Any] = _same if decode is None else decode

    @property
    def path(self) -> str:
        """The directory."""
        return self._driver.path

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        if self._is_closed:
            raise StopIteration
        self._producer.start()
        try:
            body = self._driver.run(self._consumer.next())
            if body is not None:
                item: T = self._decode(body)
                return item
        except Exception:
            self.close()
            raise
        error = self._producer.error
        try:
            self.close()
        except Exception as second:
            if error is None:
                raise
            error.add_note(f"the stream could not be closed in order: {second}")
        if error is not None:
            raise error
        raise StopIteration

    def close(self) -> None:
        """Stop the producer and release the directory. The last item is not acknowledged, unless
        the next one was asked for. A second time does nothing. OSError, SyncFailedError: as in
        `AloneStream.close`."""
        if not self._is_closed:
            self._is_closed = True
            if self._producer.stop():
                self._stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_is_closed", True):  # unless __init__ has failed
            self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path}>"


def _same(item: Any) -> Any:
    return item


def persist(
    iterable: Iterable[T], directory: str | Path, *, encode: Encode[T] | None = None,
    decode: Decode[T] | None = None, force_every: ForceEvery = 1, page_bytes: Size = "64 MiB",
    on_event: OnEvent | None = None,
) -> Persisted[T]:  # fmt: skip
    """Return an iterator over the items of an iterable that go by way of the disk: at least once,
    in order, across crashes. docs/guides/persist.md says what is promised.

    directory: used for this alone; made if it is missing. encode, decode: turn an item into bytes
    and back; without them items are bytes. force_every, page_bytes, on_event: see `open_stream`.

    A thread takes from the iterable, from the first item on that the loop asks for. Raises the
    errors of `open_stream` at once. In the loop: what the iterable raised, after all items that
    came before; DiskFullError, SyncFailedError, CorruptionError.
    """
    check_callable("encode", encode)
    check_callable("decode", decode)
    settings = persist_settings(force_every, page_bytes)
    driver = driver_of(AloneDriver, directory, settings, on_event)
    return Persisted(iterable, driver, encode, decode)
