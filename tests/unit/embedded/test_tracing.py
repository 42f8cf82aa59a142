"""Spans of OpenTelemetry: of puts and jobs in a directory, for threads and for asyncio."""

import asyncio
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode

import penstock
from penstock import aio
from tests.contracts.box import Opens, QueueContract
from tests.helpers.spans import Spans

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"


@pytest.fixture
def spans() -> Spans:
    return Spans()


@pytest.fixture
def box(tmp_path: Path, spans: Spans) -> Iterator[penstock.Box]:
    with penstock.open(tmp_path / "traced.d", tracing=spans.provider) as box:
        yield box


class TestQueues(QueueContract):
    """Queues with tracing keep the contract of all queues. Spans that are not recorded have no
    context, so the headers are those that the contract expects."""

    @pytest.fixture
    def opens(self, opens: Opens) -> Opens:
        return lambda **options: opens(tracing=trace.NoOpTracerProvider(), **options)


def is_child(child: ReadableSpan, parent: ReadableSpan) -> bool:
    return child.parent is not None and child.parent.span_id == parent.context.span_id


def test_a_message_is_one_trace_from_its_put_to_its_ack(box: penstock.Box, spans: Spans) -> None:
    q = box.queue("work")
    q.put(b"12345")
    with q.get() as job:
        assert job.body == b"12345"
        assert set(job.headers) == {"traceparent"}
        with spans.tracer.start_as_current_span("inner"):
            pass
        assert spans.names() == ["publish work", "inner"]  # not before the message is settled
    assert not trace.get_current_span().get_span_context().is_valid
    publish, inner, process = spans.ended()
    assert (publish.kind, process.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert publish.parent is None
    assert is_child(process, publish)
    assert is_child(inner, process)
    common = {
        "messaging.system": "penstock",
        "messaging.destination.name": "work",
        "messaging.message.body.size": 5,
    }
    assert dict(publish.attributes or {}) == {
        **common, "messaging.operation.name": "publish", "messaging.operation.type": "send",
    }  # fmt: skip
    assert dict(process.attributes or {}) == {
        **common, "messaging.operation.name": "process", "messaging.operation.type": "process",
    }  # fmt: skip
    assert process.name == "process work"
    assert process.status.status_code is StatusCode.UNSET


def test_a_put_is_part_of_what_is_current(box: penstock.Box, spans: Spans) -> None:
    q = box.queue("work")
    with spans.tracer.start_as_current_span("request"):
        q.put(b"one", headers={"a": 1, "traceparent": PARENT}, ttl=0, delay=0)
    publish, request = spans.ended()
    assert is_child(publish, request)
    q.put(b"two", headers={"b": "x"}, ttl="1h")
    assert q.get().headers["b"] == "x"


def test_a_batch_has_one_span_and_each_job_its_own(box: penstock.Box, spans: Spans) -> None:
    q = box.queue("work")
    q.put_many([b"a", (b"b", {"headers": {"n": 1}})])
    (publish,) = spans.ended()
    assert publish.attributes
    assert publish.attributes["messaging.batch.message_count"] == 2
    q.ack(q.get_many(2))
    assert spans.names() == ["publish work", "process work", "process work"]
    assert all(is_child(one, publish) for one in spans.ended()[1:])


def test_what_fails_has_the_status_of_an_error(box: penstock.Box, spans: Spans) -> None:
    q = box.queue("work", max_length=1, overflow="reject-publish", retry_delay=0)
    q.put(b"a")
    with pytest.raises(penstock.QueueFullError):
        q.put_nowait(b"b")
    with pytest.raises(ZeroDivisionError), q.get():
        raise ZeroDivisionError("of the work")
    q.get().nack(0)
    for _ in q.consume():
        break
    q.get().reject()
    _, full, raised, nacked, left, rejected = spans.ended()
    found = [
        (one.attributes or {}).get("error.type") for one in (full, raised, nacked, left, rejected)
    ]
    assert found == ["QueueFullError", "ZeroDivisionError", "nack", "nack", "reject"]
    assert raised.status.description == "of the work"
    assert raised.events[0].name == "exception"
    assert {one.status.status_code for one in spans.ended()[1:]} == {StatusCode.ERROR}


def test_a_job_of_a_closed_box_ends_its_span_once(
    tmp_path: Path, spans: Spans, caplog: pytest.LogCaptureFixture
) -> None:
    box = penstock.open(tmp_path / "box.d", tracing=spans.provider)
    q = box.queue("work")
    q.put(b"a")
    job = q.get()
    box.close()
    for _ in range(2):
        with pytest.raises(penstock.BoxClosedError):
            job.ack()
    assert spans.names() == ["publish work", "process work"]
    assert spans.ended()[1].status.status_code is StatusCode.ERROR
    assert not caplog.records


def test_a_job_that_is_settled_in_its_block(
    box: penstock.Box, spans: Spans, caplog: pytest.LogCaptureFixture
) -> None:
    q = box.queue("work")
    q.put_many([b"a", b"b"])
    with q.get() as job:
        job.ack()
        with pytest.raises(penstock.SettledError):
            job.ack()
    for job in q.consume(timeout=0):
        with job, job:
            pass
    assert {one.status.status_code for one in spans.ended()} == {StatusCode.UNSET}
    assert not trace.get_current_span().get_span_context().is_valid
    assert not caplog.records


@pytest.mark.parametrize("given", ["not a context", b"\0", 7, "00-" + "0" * 32 + "-1-01", ""])
def test_headers_of_others_that_are_no_context(tmp_path: Path, spans: Spans, given: Any) -> None:
    with penstock.open(tmp_path / "box.d") as plain:
        plain.queue("work").put(b"a", headers={"traceparent": given, "tracestate": given})
    box = penstock.open(tmp_path / "box.d", tracing=spans.provider)
    with box, box.queue("work").get() as job:
        assert job.headers["traceparent"] == given
    (process,) = spans.ended()
    assert process.parent is None


def test_the_context_of_others(tmp_path: Path, spans: Spans) -> None:
    with penstock.open(tmp_path / "box.d") as plain:
        plain.queue("work").put(b"a", headers={"traceparent": PARENT, "tracestate": "a=b"})
    with penstock.open(tmp_path / "box.d", tracing=spans.provider) as box:
        q = box.queue("work")
        with q.get():
            q.put(b"next")
        assert q.get().headers["tracestate"] == "a=b"
    publish, process = spans.ended()
    assert f"{process.context.trace_id:032x}" == TRACE
    assert process.context.trace_state["a"] == "b"
    assert is_child(publish, process)


def test_asyncio(tmp_path: Path, spans: Spans) -> None:
    async def main() -> None:
        async with aio.open(tmp_path / "box.d", tracing=spans.provider) as box:
            q = await box.queue("work", retry_delay=0)
            with spans.tracer.start_as_current_span("request"):
                await q.put(b"a")
            async with q.get():
                with spans.tracer.start_as_current_span("inner"):
                    await asyncio.sleep(0)
            await q.put_many([b"b", b"c"])
            for job in await q.get_many(2):
                with pytest.raises(ZeroDivisionError):
                    async with job:
                        raise ZeroDivisionError

    asyncio.run(main())
    publish, _, inner, process, _, *failed = spans.ended()
    assert is_child(process, publish)
    assert is_child(inner, process)
    assert [(one.attributes or {})["error.type"] for one in failed] == ["ZeroDivisionError"] * 2


def test_what_is_given_as_tracing(tmp_path: Path) -> None:
    with pytest.raises(penstock.OptionError, match="TracerProvider"):
        penstock.open(tmp_path / "box.d", tracing="yes")
    assert not (tmp_path / "box.d").exists()
    # Without an SDK nothing is recorded, and no headers are added.
    with penstock.open(tmp_path / "box.d", tracing=True) as box:
        q = box.queue("work")
        q.put(b"a")
        with q.get() as job:
            assert job.headers == {}


def run(program: str, path: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), str(path)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.strip()


def test_nothing_is_loaded_without_tracing(tmp_path: Path) -> None:
    program = """
        import sys, penstock
        with penstock.open(sys.argv[1]) as box:
            q = box.queue("work")
            q.put(b"a")
            with q.get():
                pass
        print([name for name in sys.modules if "opentelemetry" in name or "tracing" in name])
    """
    assert run(program, tmp_path / "box.d") == "[]"


def test_without_the_package_an_error_says_what_to_install(tmp_path: Path) -> None:
    program = """
        import sys, penstock
        sys.modules["opentelemetry"] = None
        try:
            penstock.open(sys.argv[1], tracing=True)
        except penstock.MissingPackageError as error:
            print(error)
    """
    said = run(program, tmp_path / "box.d")
    assert "opentelemetry-api" in said
    assert "pip install" in said
    assert "[otel]" in said
