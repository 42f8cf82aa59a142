"""NewBody: a message to be put, checked and in the form that the core takes.

A body is bytes. The caller encodes text and serialises objects: a library that guessed would have
to guess again when it reads them, and pickles run the code that they contain. Headers become
one small byte string (`penstock.queues.headers`), empty if there are none.
"""

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from penstock.embedded.box_headers import BoxHeaders
from penstock.embedded.option_parsing import time_ms
from penstock.errors import OptionError
from penstock.queues.headers import HeaderError, HeaderValue

Body: TypeAlias = bytes | bytearray | memoryview
Headers: TypeAlias = Mapping[str, HeaderValue]

HEADERS = BoxHeaders()
_OPTIONS = ("priority", "ttl", "delay", "headers")


class NewBody:
    """A message to be put. ttl_ms, delay_ms: None for the queue's own. OptionError, TypeError."""

    __slots__ = ("body", "delay_ms", "header", "priority", "ttl_ms")

    def __init__(
        self,
        body: object,
        priority: int = 0,
        ttl: object = None,
        delay: object = None,
        headers: Headers | None = None,
    ) -> None:
        if type(priority) is not int or not 0 <= priority <= 255:
            raise OptionError("priority", priority, "a whole number from 0 to 255")
        self.body: bytes = body_of(body)
        self.priority: int = priority
        self.ttl_ms: int | None = None if ttl is None else time_ms("ttl", ttl)
        self.delay_ms: int | None = None if delay is None else time_ms("delay", delay)
        self.header: bytes = header_of(headers) if headers else b""
        if self.ttl_ms == 0:  # it expires when it is requeued, as in a broker
            self.header = HEADERS.for_now(self.header)


def body_of(body: object) -> bytes:
    """Return the bytes of a body. TypeError says what to do with anything else."""
    if type(body) is bytes:
        return body
    if isinstance(body, str):
        raise TypeError("a body is bytes, not str: encode it first, as put(text.encode())")
    try:
        return bytes(memoryview(body))  # type: ignore[arg-type]  # or a TypeError
    except TypeError:
        pass
    raise TypeError(
        f"a body is bytes, not {type(body).__name__}: serialise it first, "
        "as put(json.dumps(value).encode())"
    )


def header_of(headers: Headers) -> bytes:
    """Return the encoded header with these values. OptionError for values that it cannot have."""
    try:
        return HEADERS.with_values(b"", headers)
    except (HeaderError, AttributeError, ValueError, TypeError) as error:
        raise not_headers(headers, error) from None


def not_headers(headers: object, error: Exception) -> OptionError:
    """Return the error for what was given as headers."""
    return OptionError("headers", headers, f"a dict of str to plain values: {error}")


def bodies_of(items: Iterable[object]) -> list[NewBody] | list[bytes]:
    """Return the messages that `put_many` was given: bodies, or pairs (body, options). If all are
    plain bodies, as usual, they are returned as bytes, to save an object for each."""
    if isinstance(items, bytes | str | bytearray | memoryview):
        raise TypeError("put_many takes many bodies, as a list; for one there is put")
    given = list(items)
    bodies = [item for item in given if type(item) is bytes]
    if len(bodies) == len(given):
        return bodies
    news: list[NewBody] = []
    for item in given:
        if isinstance(item, tuple):
            if len(item) != 2 or not isinstance(item[1], Mapping):
                raise TypeError("a message of put_many is its body, or a pair: (body, options)")
            for name in item[1]:
                if name not in _OPTIONS:
                    raise OptionError(str(name), item[1][name], _OPTIONS)
            news.append(NewBody(item[0], **item[1]))
        else:
            news.append(NewBody(item))
    return news
