"""Spans: a TracerProvider of OpenTelemetry's SDK, which keeps in memory the spans that ended."""

from collections.abc import Sequence

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


class Spans:
    """provider: for `open(tracing=...)`. tracer: for spans of the program itself."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("tests")

    def ended(self) -> Sequence[ReadableSpan]:
        """Return the spans that ended, in that order."""
        return self._exporter.get_finished_spans()

    def names(self) -> list[str]:
        return [span.name for span in self.ended()]
