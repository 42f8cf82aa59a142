"""Bodies of JSON: read within a budget, and checked before what they say is built.

A short text can build much: `[[],[],...` needs twenty times its own size, and the parser of the
standard library lets nobody else run while it builds. So three things are limited:

    BodyMemory     bytes of all bodies that are in memory, and three quarters of them of one user. A
                   request whose body has no room is not read until there is some
    size           each kind of request has a maximum that fits what it can have to say
    JsonMembers    what may be long, a commit, is read in a thread, member by member and of its
                   lists element by element. An element is decoded alone, has at most
                   ELEMENT_BYTES_MAX, and is checked before the next one is decoded: a wrong body
                   is refused at its first wrong element, and other threads run between two

A body must say that it is JSON: a page of another site cannot do that without a preflight request.
It must arrive within BODY_S. Its text must be valid Unicode: JSON can write half of a surrogate
pair, "\\ud800", which no name, file or log can have. Anything invalid is a 400 that says what was
expected.
"""

import asyncio
import codecs
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

from starlette.requests import Request

from penstock.counts import UserSums
from penstock.http.requests import USER, HttpError
from penstock.operation_json import texts_in

SMALL_BYTES_MAX: Final = 64 << 10  # decoded at once, in a few milliseconds whatever it says
BODY_BYTES_MAX: Final = 48 << 20  # of all bodies in memory
BODY_S: Final = 30.0
ELEMENT_BYTES_MAX: Final = 256 << 10
MEMBERS_MAX: Final = 64
JSON: Final = "application/json"

_WINDOW_BYTES: Final = 4 << 10  # most elements are shorter; a longer one is tried again with more
_WINDOW_GROWTH: Final = 4
_SPACE: Final = re.compile(rb"[ \t\n\r]*")
_DECODER: Final = json.JSONDecoder()

T = TypeVar("T")


class BodyMemory:
    """Limits the bytes of bodies in memory: of all users, and three quarters of it of one user. A
    larger body is held alone. Used on the loop only."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._user_limit_bytes = limit_bytes * 3 // 4
        self.held = UserSums()
        self._waiting: list[asyncio.Future[None]] = []

    async def take(self, user: str, size: int) -> int:
        """Wait until there is room, and reserve it. Returns the bytes to give back."""
        size = min(size, self._limit_bytes)
        while not self._has_room(user, size):
            freed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(freed)
            await freed
        self.held.add(user, size)
        return size

    def _has_room(self, user: str, size: int) -> bool:
        held = self.held.of(user)
        is_users = not held or held + size <= self._user_limit_bytes
        return is_users and self.held.total + size <= self._limit_bytes

    def give_back(self, user: str, size: int) -> None:
        """Release what `take` returned."""
        self.held.add(user, -size)
        for freed in self._waiting:
            if not freed.done():
                freed.set_result(None)
        self._waiting.clear()


class JsonBodies:
    """Reads bodies for all endpoints. parsing: the threads in which long ones are decoded."""

    def __init__(self, parsing: Executor) -> None:
        self.memory: Final = BodyMemory(BODY_BYTES_MAX)
        self._parsing = parsing
        self._turns: dict[str, asyncio.Lock] = {}  # of users whose bodies are parsed or wait
        self._asking = UserSums()  # how many these are

    async def small(self, request: Request, bytes_max: int = SMALL_BYTES_MAX) -> dict[str, Any]:
        """Return the body, a JSON object of at most SMALL_BYTES_MAX. Raises HttpError 400 if it is
        not one, 413 if it is too large, 415 without the right Content-Type, 408 if it takes longer
        than BODY_S, 503 if there is no room for it that long."""
        assert bytes_max <= SMALL_BYTES_MAX
        async with self._read(request, bytes_max) as data:
            body = from_json(data)
        if not isinstance(body, dict):
            raise HttpError(400, "expected a JSON object")
        return body

    async def untyped(self, request: Request, bytes_max: int = SMALL_BYTES_MAX) -> object:
        """Return the value of a body of any Content-Type, {} if it is empty, as clients of
        RabbitMQ send it; Admission has checked that no page of another site sends it. Raises as
        `small`, but 415."""
        assert bytes_max <= SMALL_BYTES_MAX
        async with self._read(request, bytes_max, is_typed=False) as data:
            return from_json(data, "not_json") if data.strip() else {}

    @asynccontextmanager
    async def long(
        self, request: Request, bytes_max: int, parse: Callable[[bytes], T], *,
        is_typed: bool = True,
    ) -> AsyncIterator[T]:  # fmt: skip
        """Yield what `parse` makes of the body, in a thread; its bytes count as in memory until
        the end of the with block. One body of each user is parsed at a time. Errors as `small`."""
        user = request.scope[USER]
        async with self._read(request, bytes_max, is_typed=is_typed) as data:
            async with self._turn(user):
                loop = asyncio.get_running_loop()
                found = await loop.run_in_executor(self._parsing, parse, data)
            del data
            yield found

    @asynccontextmanager
    async def _turn(self, user: str) -> AsyncIterator[None]:
        """Let one body of the user be parsed at a time."""
        turn = self._turns.setdefault(user, asyncio.Lock())
        self._asking.add(user)
        try:
            async with turn:
                yield
        finally:
            self._asking.add(user, -1)
            if not self._asking.of(user):
                del self._turns[user]

    @asynccontextmanager
    async def _read(
        self, request: Request, bytes_max: int, *, is_typed: bool = True
    ) -> AsyncIterator[bytes]:
        """Yield the whole body, which counts as in memory until the end of the with block."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if is_typed and kind != JSON:
            raise HttpError(415, f"expected Content-Type: {JSON}, found {kind or 'none'}")
        size = _announced_bytes(request, bytes_max)
        user = request.scope.get(USER, "")  # all who log in share the room of one user
        held = await self._room(user, size)
        try:
            try:
                async with asyncio.timeout(BODY_S):
                    data = await _whole_body(request, bytes_max)
            except TimeoutError:
                error = HttpError(408, f"the body was not sent within {BODY_S:g} s")
                error.headers["Connection"] = "close"
                raise error from None
            yield data
        finally:
            self.memory.give_back(user, held)

    async def _room(self, user: str, size: int) -> int:
        try:
            async with asyncio.timeout(BODY_S):
                return await self.memory.take(user, size)
        except TimeoutError:
            error = HttpError(503, f"no room for a body of {size} bytes: others are being read")
            error.headers["Retry-After"] = "1"
            raise error from None


def _announced_bytes(request: Request, bytes_max: int) -> int:
    """Return how large the body is at most. Raises HttpError 413."""
    text = request.headers.get("content-length", "")
    if not text.isascii() or not text.isdigit():
        return bytes_max
    if len(text) > 19 or int(text) > bytes_max:
        raise HttpError(413, f"more than {bytes_max} bytes")
    return int(text)


async def _whole_body(request: Request, bytes_max: int) -> bytes:
    """Return the body. Raises HttpError 413."""
    pieces: list[bytes] = []
    size = 0
    async for piece in request.stream():
        pieces.append(piece)
        size += len(piece)
        if size > bytes_max:
            raise HttpError(413, f"more than {bytes_max} bytes")
    return b"".join(pieces)


# ---- the text of a body --------------------------------------------------------------------------


def from_json(data: bytes, what: str = "expected JSON") -> Any:
    """Return the value of a short JSON text. Raises HttpError 400, which `what` begins."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise HttpError(400, f"{what}: {error}") from None
    _check_texts(data, value, what)
    return value


def _check_texts(data: bytes, value: object, what: str = "expected JSON") -> None:
    """Raise HttpError 400 if a text in the value, which was decoded from the data, has a lone
    surrogate."""
    if b"\\u" not in data:
        return  # without an escape they cannot be written
    for text in texts_in(value):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            half = f"\\u{ord(text[error.start]):04x}"
            reason = f"{what}: a text has {half}, half of a surrogate pair"
            raise HttpError(400, reason) from None


def members_of(data: bytes) -> dict[str, Any]:
    """Return the members of a JSON object, {} of no text. A text may be as long as the body, others
    have at most ELEMENT_BYTES_MAX. Raises HttpError 400."""
    if not data.strip():
        return {}
    return {name: value for name, value, _ in JsonMembers(data, {}).read()}


class JsonMembers:
    """Reads a JSON object member by member; a text may have any length. lists: names of the members
    that are read element by element, and how many elements each may have."""

    def __init__(self, data: bytes, lists: Mapping[str, int]) -> None:
        self._data = data
        self._lists = lists
        self._at = 0
        self._window = ""  # decoded text, of one byte for each character
        self._window_at = 0
        self._taken: object = None

    def read(self) -> Iterator[tuple[str, object, bool]]:
        """Yield (name, value, whether it is an element) of each member, or of each element of a
        member in `lists` that is a list. Raises HttpError 400, 413 if it is too long."""
        if self._next() != b"{":
            raise HttpError(400, "expected a JSON object")
        self._at += 1
        seen: set[str] = set()
        while self._has_more(b"}", is_first=not seen):
            name = self._value("a name")
            if not isinstance(name, str):
                raise self._wrong("a name in double quotes")
            if len(seen) == MEMBERS_MAX:
                raise HttpError(400, f"a JSON object of more than {MEMBERS_MAX} members")
            if name in seen:
                raise HttpError(400, f"expected JSON: {name[:40]!r} is there twice")
            seen.add(name)
            self._take(b":")
            if name in self._lists and self._next() == b"[":
                yield name, [], False
                yield from self._elements(name, self._lists[name])
            else:
                yield name, self._value(name), False
        if self._next():
            raise self._wrong("the end")

    def _elements(self, name: str, most: int) -> Iterator[tuple[str, object, bool]]:
        self._at += 1
        count = 0
        while self._has_more(b"]", is_first=not count):
            if count == most:
                raise HttpError(413, f"{name}: more than {most} elements")
            yield name, self._value(f"element {count} of {name}"), True
            count += 1

    def _has_more(self, end: bytes, *, is_first: bool) -> bool:
        """Go to the next member or element. Returns False, after the end, if there is none."""
        if self._next() == end:
            self._at += 1
            return False
        if not is_first:
            self._take(b",")
        return True

    def _take(self, byte: bytes) -> None:
        if self._next() != byte:
            raise self._wrong(repr(byte.decode()))
        self._at += 1

    def _next(self) -> bytes:
        """Return the next byte that is not a space, which is not taken; b"" at the end."""
        space = _SPACE.match(self._data, self._at)
        assert space is not None
        self._at = space.end()
        return self._data[self._at : self._at + 1]

    def _wrong(self, expected: str) -> HttpError:
        return HttpError(400, f"expected JSON: at byte {self._at}: expected {expected}")

    def _value(self, what: str) -> object:
        """Decode the value that begins here. what: names it in errors."""
        self._next()
        if self._is_in_window():
            return self._taken
        size = _WINDOW_BYTES
        while True:
            piece = self._data[self._at : self._at + size]
            is_all = self._at + len(piece) == len(self._data)
            try:
                # A character that the window cuts is left out.
                text, _ = codecs.utf_8_decode(piece, "strict", is_all)
                value, end = _DECODER.raw_decode(text)
            except json.JSONDecodeError as error:
                if is_all:
                    raise self._invalid(what, error) from None
            except (ValueError, RecursionError) as error:
                raise self._invalid(what, error) from None
            else:
                if is_all or _is_whole(text, end):
                    _check_texts(piece, value)
                    if text.isascii():
                        self._window, self._window_at = text, self._at
                        self._at += end
                    else:
                        self._at += len(text[:end].encode())
                    return value
            if size >= ELEMENT_BYTES_MAX and not piece.startswith(b'"'):
                raise HttpError(
                    400, f"expected JSON: {what}, at byte {self._at}: it is invalid, or has more "
                    f"than {ELEMENT_BYTES_MAX} bytes",
                )  # fmt: skip
            size *= _WINDOW_GROWTH

    def _is_in_window(self) -> bool:
        """Decode the value that begins here, if the last window has all of it: most are short."""
        start = self._at - self._window_at
        if start >= len(self._window):
            return False
        try:
            self._taken, end = _DECODER.raw_decode(self._window, start)
        except (ValueError, RecursionError):
            return False
        if not _is_whole(self._window, end):
            return False
        if self._window.find("\\u", start, end) >= 0:
            _check_texts(b"\\u", self._taken)
        self._at = self._window_at + end
        return True

    def _invalid(self, what: str, error: Exception) -> HttpError:
        return HttpError(400, f"expected JSON: {what}, at byte {self._at}: {error}")


def _is_whole(text: str, end: int) -> bool:
    """Return whether a value that was found to end here does so in any case: of a number that is
    cut, the beginning is one, too."""
    return end < len(text) and text[end] not in ".eE+-0123456789"
