"""Sinks that a campaign can be about: how a job writes into one, and what has come out of it.

A sink is made twice from the same JSON: in the job, where it starts the query, and in the campaign,
which asks it for what it holds. Whoever has another one (tables of a lake) writes a class like
these and names it, as `module:Class`:

    __init__(arguments)                  a dict of JSON; the campaign adds url and http_url
    prepare()                            in the campaign, before the first job
    start(rows, checkpoint) -> query     in the job: rows has the column `value`; it has to call
                                         kill_points.reached at its four points
    is_settled() -> bool                 in the campaign: whether all that is committed can be seen
    bodies() -> list[bytes]              in the campaign: everything it holds
    is_ordered                           whether that is in the order of the source
"""

import json
import urllib.request
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

import penstock
from penstock.client import connect
from penstock.codec.spec import ExchangeDeclare, QueueBind, QueueDeclare
from penstock.spark.data_source import PenstockDataSource
from penstock.spark.sink import PenstockStreamWriter
from tests.crash_spark.kill_points import reached

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import StreamingQuery

SMALL_PREFETCH = 1000


class Sink(Protocol):
    """See the head of this module."""

    is_ordered: bool

    def __init__(self, arguments: Mapping[str, Any]) -> None: ...

    def prepare(self) -> None:
        """Make the target."""

    def start(self, rows: "DataFrame", checkpoint: Path) -> "StreamingQuery":
        """Of what is there now: trigger(availableNow=True)."""

    def is_settled(self) -> bool:
        """Whether nothing that was committed is still on its way."""

    def bodies(self) -> list[bytes]:
        """All."""


def sink_of(name: str, arguments: Mapping[str, Any]) -> Sink:
    """Of `module:Class`."""
    module, _, kind = name.partition(":")
    made: Sink = getattr(import_module(module), kind)(arguments)
    return made


class PointedWriter(PenstockStreamWriter):
    """The sink's own writer, which tells where it is."""

    def write(self, iterator: "Iterator[RecordBatch]") -> WriterCommitMessage:
        message = super().write(pointed(iterator))
        reached("after_write")
        return message

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        reached("before_commit")
        super().commit(messages, batchId)
        reached("after_commit")


class PointedSource(PenstockDataSource):
    """`penstock` with that writer."""

    @classmethod
    def name(cls) -> str:
        return "penstock_pointed"

    def streamWriter(self, schema: StructType, overwrite: bool) -> PointedWriter:
        return PointedWriter(self.options, schema, overwrite)


def pointed(batches: "Iterator[RecordBatch]") -> "Iterator[RecordBatch]":
    """The same, reaching in_task with each."""
    for batch in batches:
        reached("in_task")
        yield batch


class BrokerSink:
    """A queue (`kind` queue), a stream (`stream`), or a queue behind an exchange (`exchange`).
    options: more options of the sink."""

    is_ordered = True

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self.url = arguments["url"]
        self.http_url = arguments["http_url"]
        self.kind = arguments["kind"]
        self.name = arguments.get("name", "out")
        self.options = dict(arguments.get("options", {}))

    def prepare(self) -> None:
        """The queue or stream, and what is before it."""
        if self.kind == "stream":
            with penstock.open(self.url) as box:
                box.stream(self.name)
            return
        with connect(self.url) as connection:
            channel = connection.channel()
            channel.ask(QueueDeclare(queue=self.name, durable=True)).result(30)
            if self.kind == "exchange":
                made = ExchangeDeclare(exchange="x.out", type="topic", durable=True)
                channel.ask(made).result(30)
                bound = QueueBind(queue=self.name, exchange="x.out", routing_key="k.#")
                channel.ask(bound).result(30)

    def start(self, rows: "DataFrame", checkpoint: Path) -> "StreamingQuery":
        """Through the sink."""
        rows.sparkSession.dataSource.register(PointedSource)
        writing = rows.writeStream.format("penstock_pointed").options(
            url=self.url, httpUrl=self.http_url, timeout="120", **self.options
        )
        if self.kind == "exchange":
            writing = writing.options(exchange="x.out", routing_key="k.1")
        else:
            writing = writing.option("queue", self.name)
        writing = writing.option("checkpointLocation", str(checkpoint))
        return writing.trigger(availableNow=True).start()

    def is_settled(self) -> bool:
        """All batches that the broker knows are moved."""
        return all(batch["is_done"] for batch in ask(self.http_url, "/api/staging/%2F"))

    def bodies(self) -> list[bytes]:
        """Of a stream in its order; of a queue the messages, which are taken out."""
        if self.kind == "stream":
            with penstock.open(self.url) as box:
                return [bytes(record.body) for record in box.stream(self.name).read()]
        found: list[bytes] = []
        with connect(self.url) as connection:
            channel = connection.channel()
            while True:
                asked = [channel.get(self.name, no_ack=True) for _ in range(SMALL_PREFETCH)]
                got = [answer.result(60) for answer in asked]
                found += [message.body for message in got if message is not None]
                if None in got:
                    return found


def ask(http_url: str, address: str) -> Any:
    """A GET of the broker's HTTP port, as guest."""
    request = urllib.request.Request(f"{http_url}{address}")
    request.add_header("Authorization", "Basic Z3Vlc3Q6Z3Vlc3Q=")
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)
