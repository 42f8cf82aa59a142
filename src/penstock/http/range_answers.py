"""RangeAnswers: the records of a range of some place, as frames or for Arrow; and its pages.

What is read is a place (places): a partition of a stream, or what a reader has leased of a queue.
Both are pages with a head, and are read by the same code. Ranges: range_query.

Long answers are made by threads, ANSWERS_MAX at a time; one more waits for its turn.

A place may have gone since the vhost told of it, or be there no longer as it was: then the vhost is
asked once more, and what is found then is the answer.
"""

import asyncio
import functools
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from penstock.errors import CorruptionError, NotAStoreError
from penstock.http import arrow_stream
from penstock.http.answers import JsonAnswer, LongAnswer
from penstock.http.frame_chunks import MEDIA_TYPE, encode_chunk
from penstock.http.http_errors import HttpError
from penstock.http.places import Place, Places
from penstock.http.range_query import given, range_query
from penstock.http.stream_pages import Range, StreamPages

ANSWERS_MAX: Final = 32
RANGE_NOT_SATISFIABLE: Final = 416

Maker = Callable[[Range, dict[str, str]], Iterator[bytes]]


class RangeAnswers:
    """reading: the threads that read files. On the loop."""

    def __init__(self, places: Places, pages: StreamPages, reading: Executor) -> None:
        self._places = places
        self._pages = pages
        self._reading = reading
        self._turns = asyncio.Semaphore(ANSWERS_MAX)

    async def offset(self, place: Place, time_us: int) -> Response:
        """Where what came then or later begins. HttpError 404, 409; ControlError."""
        return JsonAnswer(await self._in_files(place, lambda path: self._pages.find(path, time_us)))

    async def page_table(self, place: Place) -> Response:
        """The pages of the place. HttpError 404, 409; ControlError."""
        return JsonAnswer(await self._in_files(place, self._pages.table))

    async def frames(self, request: Request, place: Place, names: tuple[str, ...]) -> Response:
        """The range that the request asks for, as pages have it. names: of the parameters that it
        may have. HttpError 400, 404, 409, 416; ControlError."""

        def chunks(wanted: Range, _query: dict[str, str]) -> Iterator[bytes]:
            for span in self._pages.spans(wanted):
                yield from encode_chunk(span)

        return await self._long(request, place, names, chunks, MEDIA_TYPE)

    async def arrow(self, request: Request, place: Place, names: tuple[str, ...]) -> Response:
        """The same for Arrow. HttpError 501 too."""
        arrow_stream.available()

        def batches(wanted: Range, query: dict[str, str]) -> Iterator[bytes]:
            columns = query["columns"].split(",") if "columns" in query else None
            spans = self._pages.spans(wanted)
            return arrow_stream.encoded(spans, place.queue, place.partition, columns)

        return await self._long(
            request, place, (*names, "columns"), batches, arrow_stream.MEDIA_TYPE
        )

    async def _long(
        self, request: Request, place: Place, names: tuple[str, ...], make: Maker, media_type: str
    ) -> Response:
        query = given(request.query_params, names)
        asked = range_query(query)

        def begin(path: str) -> tuple[Iterator[bytes], bytes | None, Range]:
            wanted = self._pages.range(path, asked)
            body = make(wanted, query)
            try:
                return body, next(body, None), wanted
            except FileNotFoundError as error:
                raise self._pages.missing(wanted) from error

        await self._turns.acquire()
        try:
            body, first, wanted = await self._in_files(place, begin)
        except BaseException:
            self._turns.release()
            raise
        what = f"{place.what}: {wanted.first} to {wanted.last}"
        headers = {"X-Penstock-First": str(wanted.first), "X-Penstock-Last": str(wanted.last)}
        return LongAnswer(body, first, media_type, what, self._reading, self._turns, headers)

    async def _in_files(self, place: Place, work: Callable[[str], Any]) -> Any:
        """The result of `work` with the place's directory, in a thread."""
        loop = asyncio.get_running_loop()
        for is_last in (False, True):
            path, is_new = await self._places.path(place)
            try:
                return await loop.run_in_executor(self._reading, functools.partial(work, path))
            except (NotAStoreError, FileNotFoundError) as error:
                # It was deleted, perhaps made again, since it was asked for.
                if is_last:
                    raise HttpError(404, place.gone) from error
            except (HttpError, CorruptionError) as error:
                # It may be made again just now, and not be whole yet.
                is_half = isinstance(error, CorruptionError)
                is_half = is_half or getattr(error, "status", 0) == RANGE_NOT_SATISFIABLE
                if is_last or is_new or not (place.is_derived and is_half):
                    raise
            self._places.forget(place)
        raise AssertionError
