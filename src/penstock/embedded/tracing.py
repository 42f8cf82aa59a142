"""Tracing: OpenTelemetry spans of puts and of jobs, for `open(..., tracing=True)`.

    put, put_many    a PRODUCER span "publish <queue>"; its context goes into the headers
    get ... settled  a CONSUMER span "process <queue>", a child of the context in the headers

The headers are what the program's propagator writes: `traceparent` and `tracestate` of W3C Trace
Context, unless it was set otherwise. Attributes are those of OpenTelemetry's semantic conventions
for messaging. A `TracedQueue` stands between a queue and its source, a `TracedDelivery` between a
job and its delivery. This module alone imports OpenTelemetry, and is loaded when a box is opened
with tracing.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from opentelemetry import context, propagate, trace
from opentelemetry.trace import Span, SpanKind, StatusCode

from penstock.embedded.messages import Message, SpanDelivery
from penstock.embedded.option_parsing import HEADERS, NewBody
from penstock.embedded.sources import Call, QueueCounts, QueueSource
from penstock.errors import OptionError
from penstock.native import VERSION

SYSTEM: Final = "penstock"
ERROR_TYPE: Final = "error.type"


class Tracing:
    """Of one box. given: True for the program's TracerProvider, or another one. OptionError."""

    def __init__(self, given: object) -> None:
        provider = trace.get_tracer_provider() if given is True else given
        if not isinstance(provider, trace.TracerProvider):
            raise OptionError("tracing", given, "True, False, or a TracerProvider of OpenTelemetry")
        self._tracer: trace.Tracer = provider.get_tracer(SYSTEM, VERSION)

    def queue(self, source: QueueSource) -> QueueSource:
        """Return the source of a queue, with spans."""
        return TracedQueue(self._tracer, source)


class TracedDelivery(SpanDelivery):
    """A delivery and the span of its processing. inner: as the queue's source knows it."""

    __slots__ = ("_context", "_has_failed", "_message", "_span", "_tokens", "inner")

    def __init__(self, tracer: trace.Tracer, queue: str, inner: Any) -> None:
        message = Message(inner)
        super().__init__(inner.tag, message.body, message.is_redelivered)
        self.inner = inner
        self._message = message
        self._has_failed = False
        self._tokens: list[Any] = []  # of each time that the job was entered
        texts = {name: value for name, value in message.headers.items() if isinstance(value, str)}
        parent = propagate.extract(texts)
        self._span: Span = tracer.start_span(
            f"process {queue}", parent, SpanKind.CONSUMER,
            {
                **_attributes(queue, "process", "process"),
                "messaging.message.body.size": len(message.body),
            },
        )  # fmt: skip
        self._context = trace.set_span_in_context(self._span, parent)

    # ---- of the message ------------------------------------------------------------------------

    id: Any = property(lambda self: self._message.id)
    attempts: Any = property(lambda self: self._message.attempts)
    headers: Any = property(lambda self: self._message.headers)
    priority: Any = property(lambda self: self._message.priority)
    time: Any = property(lambda self: self._message.time)
    deaths: Any = property(lambda self: self._message.deaths)
    properties: Any = property(lambda self: self._message.properties)

    # ---- of the span ---------------------------------------------------------------------------

    def enter(self) -> None:
        self._tokens.append(context.attach(self._context))

    def leave(self, error: BaseException | None) -> None:
        context.detach(self._tokens.pop())
        if error is not None:
            self.fail(error)

    def fail(self, why: BaseException | str) -> None:
        """Give the span the status of an error, if it has not ended. Only the first reason
        counts."""
        if self._has_failed or not self._span.is_recording():
            return
        self._has_failed = True
        if isinstance(why, BaseException):
            self._span.record_exception(why)
            self._span.set_attribute(ERROR_TYPE, type(why).__qualname__)
        else:
            self._span.set_attribute(ERROR_TYPE, why)
        self._span.set_status(StatusCode.ERROR, str(why))

    def end(self) -> None:
        """End the span; a second time does nothing."""
        if self._span.is_recording():
            self._span.end()


class TracedQueue(QueueSource):
    """See the head of this module. What is only looked at, as by `peek`, has no spans."""

    is_traced = True

    def __init__(self, tracer: trace.Tracer, inner: QueueSource) -> None:
        self.name = inner.name
        self.key = inner.key
        self._tracer = tracer
        self._inner = inner

    # ---- put -----------------------------------------------------------------------------------

    @contextmanager
    def _publishing(self, attribute: str, value: int) -> Iterator[dict[str, str]]:
        """Enter a span of a put, and return the headers that carry its context."""
        with self._tracer.start_as_current_span(
            f"publish {self.name}", kind=SpanKind.PRODUCER,
            attributes={**_attributes(self.name, "publish", "send"), attribute: value},
        ) as span:  # fmt: skip
            carrier: dict[str, str] = {}
            propagate.inject(carrier)
            try:
                yield carrier
            except Exception as error:
                span.set_attribute(ERROR_TYPE, type(error).__qualname__)
                raise

    def put(
        self, new: NewBody, durability: object, *, block: bool, timeout_s: float | None
    ) -> Call[None]:
        with self._publishing("messaging.message.body.size", len(new.body)) as carrier:
            _add_headers(new, carrier)
            yield from self._inner.put(new, durability, block=block, timeout_s=timeout_s)

    def put_many(
        self, news: list[NewBody] | list[bytes], durability: object, *, block: bool,
        timeout_s: float | None,
    ) -> Call[None]:  # fmt: skip
        whole = [NewBody(new) if isinstance(new, bytes) else new for new in news]
        with self._publishing("messaging.batch.message_count", len(whole)) as carrier:
            for new in whole:
                _add_headers(new, carrier)
            yield from self._inner.put_many(whole, durability, block=block, timeout_s=timeout_s)

    # ---- get -----------------------------------------------------------------------------------

    def get(self, *, block: bool, timeout_s: float | None) -> Call[TracedDelivery]:
        found = yield from self._inner.get(block=block, timeout_s=timeout_s)
        return TracedDelivery(self._tracer, self.name, found)

    def get_many(self, n: int, *, timeout_s: float | None) -> Call[list[TracedDelivery]]:
        found = yield from self._inner.get_many(n, timeout_s=timeout_s)
        return [TracedDelivery(self._tracer, self.name, one) for one in found]

    # ---- settle --------------------------------------------------------------------------------

    def ack(self, deliveries: list[TracedDelivery]) -> Call[None]:
        return _settled(self._inner.ack([one.inner for one in deliveries]), deliveries)

    def nack(self, delivery: TracedDelivery, delay_ms: int | None) -> Call[None]:
        delivery.fail("nack")
        return _settled(self._inner.nack(delivery.inner, delay_ms), [delivery])

    def nack_soon(self, delivery: TracedDelivery) -> None:
        delivery.fail("nack")
        delivery.end()
        self._inner.nack_soon(delivery.inner)

    def reject(self, delivery: TracedDelivery) -> Call[None]:
        delivery.fail("reject")
        return _settled(self._inner.reject(delivery.inner), [delivery])

    # ---- the rest ------------------------------------------------------------------------------

    def peek(self) -> Call[Any]:
        return self._inner.peek()

    def browse(self, after: Any) -> Call[tuple[list[Any], Any]]:
        return self._inner.browse(after)

    def counts(self) -> Call[QueueCounts]:
        return self._inner.counts()

    def has_room(self) -> Call[bool]:
        return self._inner.has_room()

    def info(self) -> Call[dict[str, int | float | str]]:
        return self._inner.info()

    def purge(self, *, with_delayed: bool) -> Call[int]:
        return self._inner.purge(with_delayed=with_delayed)

    def delete(self) -> Call[None]:
        return self._inner.delete()

    def join(self, *, timeout_s: float | None) -> Call[bool]:
        return self._inner.join(timeout_s=timeout_s)


def _attributes(queue: str, name: str, kind: str) -> dict[str, str | int]:
    return {
        "messaging.system": SYSTEM,
        "messaging.destination.name": queue,
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
    }


def _add_headers(new: NewBody, carrier: Mapping[str, str]) -> None:
    if carrier:
        new.header = HEADERS.with_values(new.header, {**HEADERS.values(new.header), **carrier})


def _settled(call: Call[None], deliveries: list[TracedDelivery]) -> Call[None]:
    """Run a call that settles deliveries, and end their spans."""
    try:
        yield from call
    except Exception as error:
        for one in deliveries:
            one.fail(error)
        raise
    finally:
        for one in deliveries:
            one.end()
