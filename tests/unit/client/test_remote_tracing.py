"""Spans of OpenTelemetry over AMQP: a box on a real broker, and pika beside it."""

import pika
import pytest
from opentelemetry import propagate, trace

import penstock
from tests.contracts.box import Opens, QueueContract
from tests.helpers.live_broker import LiveBroker
from tests.helpers.spans import Spans

pytestmark = pytest.mark.real


class TestQueues(QueueContract):
    """Queues with tracing keep the contract of all queues."""

    @pytest.fixture
    def opens(self, opens: Opens) -> Opens:
        return lambda **options: opens(tracing=trace.NoOpTracerProvider(), **options)


def test_one_trace_through_boxes_and_pika(broker: LiveBroker) -> None:
    """pika stands for any client that uses OpenTelemetry's propagator for headers."""
    spans = Spans()
    with (
        penstock.open(broker.url, tracing=spans.provider) as box,
        pika.BlockingConnection(pika.URLParameters(broker.url)) as connection,
    ):
        first, second = box.queue("first"), box.queue("second")
        first.put(b"a", headers={"n": 1})
        channel = connection.channel()
        _, properties, body = channel.basic_get("first", auto_ack=True)
        assert body == b"a"
        assert properties.headers["n"] == 1
        context = propagate.extract(properties.headers)
        with spans.tracer.start_as_current_span("pika", context):
            headers: dict[str, str] = {}
            propagate.inject(headers)
            channel.basic_publish("", "second", b"b", pika.BasicProperties(headers=headers))
        with second.get(timeout=60):
            assert trace.get_current_span().get_span_context().is_valid
    publish, between, process = spans.ended()
    assert [publish.name, process.name] == ["publish first", "process second"]
    assert between.parent is not None
    assert process.parent is not None
    assert between.parent.span_id == publish.context.span_id
    assert process.parent.span_id == between.context.span_id
