"""Errors that a Spark user meets, with a real Spark: found at the start, with the reason first, and
with option, given and expected. No case starts a task that writes."""

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pika
import pytest

pytest.importorskip("pyspark")

from pyspark.errors import PySparkException, StreamingQueryException

from tests.helpers.live_broker import LiveBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

Options = dict[str, str]


@pytest.fixture(scope="module")
def another_server() -> Iterator[int]:
    """The port of an HTTP server that is no Penstock."""
    server = HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)  # it answers 501 to all
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def urls(broker: LiveBroker, another_server: int) -> Mapping[str, str]:
    """Right and wrong addresses of a broker with a stream "s" and a user who may do nothing."""
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        connection.channel().queue_declare("s", durable=True, arguments={"x-queue-type": "stream"})
    broker.control("add_user", name="ann", password="ann", tags=[])
    broker.control("set_permissions", "/", user="ann", configure="", write="^x$", read="^x$")
    http = f"127.0.0.1:{broker.http_port}"
    return {
        "ann": f"http://ann:ann@{http}/",
        "amqp ann": broker.url.replace("guest:guest@", "ann:ann@"),
        "amqp vhost": broker.url.replace("%2F", "nowhere"),
        "TLS of HTTP": f"https://guest:guest@{http}/",
        "TLS of AMQP": broker.url.replace("amqp:", "amqps:").replace("guest:guest", "guest:wrong"),
        "another server": f"http://guest:guest@127.0.0.1:{another_server}/",
        "good": f"http://guest:guest@{http}/",
        "password": f"http://guest:wrong@{http}/",
        "vhost": f"http://guest:guest@{http}/nowhere",
        "amqp port": f"http://guest:guest@127.0.0.1:{broker.port}/",
        "amqp": broker.url,
        "amqp password": broker.url.replace("guest:guest@", "guest:wrong@"),
    }


def read(spark: "SparkSession", options: Options, state: Path) -> None:
    spark.read.format("penstock").options(**options).load().rdd.getNumPartitions()


def read_stream(spark: "SparkSession", options: Options, state: Path) -> None:
    rows = spark.readStream.format("penstock").options(**options).load()
    writing = rows.writeStream.format("noop").option("checkpointLocation", str(state))
    writing.trigger(availableNow=True).start().awaitTermination(120)


def write(spark: "SparkSession", options: Options, state: Path) -> None:
    """A task that began would fail with a division by zero instead."""
    rows = spark.sql("select cast(cast(1 / (id - id) as string) as binary) as value from range(3)")
    rows.write.format("penstock").options(**options).mode("append").save()


def write_stream(spark: "SparkSession", options: Options, state: Path) -> None:
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 3).load()
    rows = rows.selectExpr("cast(cast(1 / (value - value) as string) as binary) as value")
    writing = rows.writeStream.format("penstock").options(**options)
    writing = writing.option("checkpointLocation", str(state)).trigger(availableNow=True)
    writing.start().awaitTermination(120)


S = {"subscribe": "s"}
Q = {"queue": "s"}
AMQP = {"delivery": "at-least-once"}
NOT_TLS = "a port with TLS and a trusted certificate, or http:// without TLS"
CASES: list[tuple[Callable[..., None], str, Options, str]] = [
    (read, "good", {"subscribe": "nope"}, "option subscribe: given 'nope', expected what exists"),
    (read, "password", S, "option url: given \"user 'guest'\", expected name and password"),
    (read, "vhost", S, "option url: given \"vhost 'nowhere'\", expected a vhost"),
    (read, "amqp port", S, "option url: given 'http://127.0.0.1:"),
    (
        read,
        "amqp",
        S | {"httpUrl": "http://no-host.invalid:1"},
        "option httpUrl: given 'http://no-",
    ),
    (read, "ann", S, "option subscribe: given 's', expected read permission for user 'ann'"),
    (read, "amqp", S | {"httpUrl": "http://127.0.0.1:1"}, "option httpUrl: given 'http://127"),
    (read, "amqp", S, "option httpUrl: given None, expected httpUrl=http://127.0.0.1:port"),
    (read, "TLS of HTTP", S, f"option url: given 'https://127.0.0.1:{{}}', expected {NOT_TLS}"),
    (read, "TLS of AMQP", S, "option httpUrl: given None, expected httpUrl=http://127.0.0.1:port"),
    (read, "another server", S, "option url: given 'http://127.0.0.1:{}', expected the HTTP port"),
    (read, "good", {"subscribes": "s"}, "unknown option 'subscribes', did you mean 'subscribe'?"),
    (read, "good", S | {"startingOffsets": "latest"}, "option startingOffsets: given 'latest'"),
    (read, "good", S | {"endingOffsets": "earliest"}, "option endingOffsets: given 'earliest'"),
    (read_stream, "good", {"subscribe": "nope"}, "option subscribe: given 'nope'"),
    (read_stream, "good", S | {"endingOffsets": "latest"}, "option endingOffsets: given 'latest'"),
    (write, "good", {"queue": "nope"}, "option queue: given 'nope', expected what exists"),
    (write, "good", {"exchange": "nope"}, "option exchange: given 'nope', expected what exists"),
    (write, "password", Q, "option url: given \"user 'guest'\", expected name and password"),
    (write, "amqp port", Q, "option url: given 'http://127.0.0.1:"),
    (write, "vhost", Q, "option url: given \"vhost 'nowhere'\", expected a vhost"),
    (write, "ann", Q, "option queue: given 's', expected write permission for user 'ann'"),
    (write, "amqp", Q, "option httpUrl: given None, expected httpUrl=http://127.0.0.1:port"),
    (write, "TLS of HTTP", Q, f"option url: given 'https://127.0.0.1:{{}}', expected {NOT_TLS}"),
    (write, "TLS of AMQP", Q, "option httpUrl: given None, expected httpUrl=http://127.0.0.1:port"),
    (write, "another server", Q, "option url: given 'http://127.0.0.1:{}', expected the HTTP port"),
    (
        write,
        "amqp password",
        Q | AMQP,
        "option url: given 'amqp://guest@127.0.0.1:{}/', expected a",
    ),
    (write, "amqp vhost", Q | AMQP, "option url: given 'amqp://guest@127.0.0.1:{}/nowhere', "),
    (write, "amqp ann", Q | AMQP, "option queue: given 's', expected write permission"),
    (write, "amqp ann", {"exchange": "amq.fanout"} | AMQP, "option exchange: given 'amq.fanout', "),
    (write, "amqp", {"queue": "nope"} | AMQP, "option queue: given 'nope', expected what exists"),
    (write, "amqp", {"exchange": "nope"} | AMQP, "option exchange: given 'nope', expected what "),
    (
        write,
        "TLS of AMQP",
        Q | AMQP,
        "option url: given 'amqps://guest@127.0.0.1:{}/', expected a broker that speaks TLS",
    ),
    (write_stream, "amqp", {"queue": "nope"} | AMQP, "option queue: given 'nope', expected what"),
    (write_stream, "good", {"queue": "nope"}, "option queue: given 'nope', expected what exists"),
]


@pytest.mark.parametrize(
    ("act", "url", "options", "reason"), CASES, ids=[f"{c[0].__name__}-{c[3][:30]}" for c in CASES]
)
def test_the_reason_stands_first(
    spark: "SparkSession", urls: Mapping[str, str], tmp_path: Path, act: Callable[..., None],
    url: str, options: Options, reason: str,
) -> None:  # fmt: skip
    kind = StreamingQueryException if act in (read_stream, write_stream) else PySparkException
    with pytest.raises(kind) as caught:
        act(spark, {"url": urls[url], **options}, tmp_path / "state")
    first = str(caught.value).splitlines()[0]
    pattern = re.escape(f"penstock.errors.OptionError: {reason}").replace(r"\{\}", r"\d+")
    assert re.search(pattern, first), first
    assert "wrong@" not in str(caught.value)
