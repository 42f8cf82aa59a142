"""Frames of a pipeline: from the rows of a source to those of each sink, as Spark's plans.

    source    columns of messages, or of files
    staged    + parsed by the schema; + a column with the reason why a row fails, or null
    good      staged rows without a reason, through sql or python
    rows      for a sink: through where; for a queue value, routing_key, headers
    dead      staged rows with a reason: value, headers {reason, stream, partition, offset}

A transform sees one batch at a time: `sql` aggregates within a batch. Everything here is lazy and
works on an empty frame with the same columns, which is how a file is checked before it runs.

Spark is in ANSI mode: a cast in `sql` that fails ends the pipeline; try_cast does not. Parsing
never raises: a row that cannot be parsed has a reason.
"""

import importlib
import sys
from collections.abc import Iterable
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from penstock.spark.file_sink import absolute
from penstock.spark.lake_table import MisfitError, divisions_of
from penstock.spark.pipeline_file import (
    ANY_EXCHANGE,
    MESSAGE_COLUMNS,
    PipelineFileError,
    PipelineSpec,
    SinkSpec,
    SourceSpec,
)

HIDDEN: Final = "__penstock_"
REASON: Final = f"{HIDDEN}reason"
PARSED: Final = f"{HIDDEN}parsed"
CORRUPT: Final = f"{HIDDEN}corrupt"
BYTES: Final = f"{HIDDEN}bytes"
WHERE_FROM: Final = ("queue", "partition", "offset", "value")  # kept for dead letters
MESSAGE_SCHEMA: Final = (
    "queue STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, exchange STRING, "
    "routing_key STRING, message_id STRING, value BINARY"
)
PASSED_ON: Final = ("message_id", "headers", "properties")  # of messages that go on as they are
BODY_AND_KEY: Final = "value or routing_key"
TEXT_MAX: Final = 300


def source_options(source: SourceSpec, reader: str) -> dict[str, str]:
    """Return the options of Spark's source for a queue. reader: the name under which it keeps
    offsets."""
    options = {"subscribe": source.name, "readerId": reader}
    for name, value in (
        ("url", None if source.path else source.url),
        ("httpUrl", None if source.path else source.http_url),
        ("path", absolute(source.path) if source.path else None),
        ("maxOffsetsPerTrigger", source.records_max),
        ("maxBytesPerTrigger", source.bytes_max),
    ):
        if value is not None:
            options[name] = str(value)
    for name in source.columns:
        options[f"include{name.capitalize()}"] = "true"
    if isinstance(source.start, str):
        options["startingOffsets"] = {"first": "earliest", "next": "latest"}[source.start]
    else:
        options["startingTimestamp"] = str(round(source.start.timestamp() * 1000))
    return options


def read_stream(spark: SparkSession, spec: PipelineSpec) -> DataFrame:
    """Return the source as a stream."""
    source = spec.source
    if source.is_queue:
        options = source_options(source, spec.name)
        return spark.readStream.format("penstock").options(**options).load()
    reader = spark.readStream.schema(files_schema(spark, spec))
    if source.records_max is not None:
        reader = reader.option("maxFilesPerTrigger", source.records_max)
    return reader.format(source.kind).load(absolute(source.name))


def files_schema(spark: SparkSession, spec: PipelineSpec) -> StructType:
    """Return the schema of the files that exist now. Raises PipelineFileError if there are none."""
    source = spec.source
    try:
        return spark.read.format(source.kind).load(absolute(source.name)).schema
    except PySparkException as error:
        raise PipelineFileError(
            f"{spec.place}: [source]", f"{source.kind}: {source.name}: {one_line(error)}"
        ) from None


def message_schema(spec: PipelineSpec) -> str:
    """Return the columns of a queue's messages, as the source gives them."""
    more = "".join(f", {name} MAP<STRING, STRING>" for name in spec.source.columns)
    return MESSAGE_SCHEMA + more


def empty_source(spark: SparkSession, spec: PipelineSpec) -> DataFrame:
    """Return a frame with the source's columns and no rows."""
    schema: Any = message_schema(spec) if spec.source.is_queue else files_schema(spark, spec)
    return spark.createDataFrame([], schema)


# ---- staged --------------------------------------------------------------------------------------


def data_schema(spec: PipelineSpec) -> StructType | None:
    """Return the schema for parsing values, or None. Raises PipelineFileError if it is invalid."""
    text = spec.transform.schema
    if text is None:
        return None
    try:
        schema = StructType.fromDDL(text)
    except PySparkException as error:
        raise PipelineFileError(
            f"{spec.place}: [transform]", f"schema: {one_line(error)}"
        ) from None
    if not isinstance(schema, StructType):
        kind = schema.simpleString()
        raise PipelineFileError(
            f"{spec.place}: [transform]", f"schema: it is {kind}, expected columns: name TYPE, ..."
        )
    return schema


def staged(source: DataFrame, spec: PipelineSpec) -> DataFrame:
    """Return the source's rows parsed, with the reason of each failure. Raises PipelineFileError if
    `expect` names a missing column."""
    schema = data_schema(spec)
    reasons: list[Any] = []
    rows = source
    hidden = []
    if spec.source.is_queue:
        rows = rows.withColumn(BYTES, F.octet_length("value"))
        hidden = [BYTES]
    if schema is None:
        names = source.columns
    else:
        rows, reason = _parsed(rows, schema)
        reasons.append(reason)
        kept = [name for name in spec.transform.keep if name not in schema.names]
        names = [*schema.names, *kept]
    if spec.source.is_queue:
        for name in WHERE_FROM:
            rows = rows.withColumn(HIDDEN + name, F.col(name))
        hidden += [HIDDEN + name for name in WHERE_FROM]
    if schema is not None:
        fields = [F.col(PARSED)[name].alias(name) for name in schema.names]
        rows = rows.select(*fields, *kept, *hidden, *(r.alias(REASON) for r in reasons))
        reasons = [F.col(REASON)]
    try:
        for condition in spec.transform.expect:
            holds = F.coalesce(F.expr(condition), F.lit(False))
            reasons.append(F.when(~holds, F.lit(f"does not hold: {condition}")))
        rows = rows.select(*names, *hidden, F.coalesce(F.lit(None), *reasons).alias(REASON))
    except PySparkException as error:
        raise _unknown(f"{spec.place}: [transform]", "expect", error, names) from None
    if spec.source.is_queue:  # only failed rows need the whole value
        value = F.when(F.col(REASON).isNotNull(), F.col(HIDDEN + "value"))
        rows = rows.withColumn(HIDDEN + "value", value)
    return rows


def _parsed(rows: DataFrame, schema: StructType) -> tuple[DataFrame, Any]:
    """Return the rows with the column PARSED, and the reason why a row could not be parsed."""
    with_corrupt = StructType([*schema.fields, StructField(CORRUPT, StringType())])
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
    text = F.col("value").cast("string")
    rows = rows.withColumn(PARSED, F.from_json(text, with_corrupt, options))
    parsed = F.col(PARSED)
    wrong = [
        F.when(
            F.get_json_object(text, f"$['{field.name}']").isNotNull() & parsed[field.name].isNull(),
            F.lit(f"{field.name} is not {field.dataType.simpleString().upper()}"),
        )
        for field in schema.fields
        if "'" not in field.name
    ]
    misfit = F.concat_ws(", ", *wrong)
    reason = F.when(
        parsed.isNull() | parsed[CORRUPT].isNotNull(),
        F.when(F.col("value").isNull() | (F.octet_length("value") == 0), F.lit("it is empty"))
        .when(F.try_parse_json(text).isNull(), F.lit("it is not JSON"))
        .when(misfit != "", F.concat(F.lit("it does not fit the schema: "), misfit))
        .otherwise(F.lit("it does not fit the schema")),
    )
    return rows, reason


def dead(rows: DataFrame, pipeline: str) -> DataFrame:
    """Return the failed rows of a staged frame as messages."""
    headers: list[Any] = [
        F.lit("reason"), F.col(REASON),
        F.lit("stream"), F.col(HIDDEN + "queue"),
        F.lit("partition"), F.col(HIDDEN + "partition").cast("string"),
        F.lit("offset"), F.col(HIDDEN + "offset").cast("string"),
        F.lit("pipeline"), F.lit(pipeline),
    ]  # fmt: skip
    value = F.coalesce(F.col(HIDDEN + "value"), F.lit(b""))
    failing = rows.where(F.col(REASON).isNotNull())
    return failing.select(value.alias("value"), F.create_map(*headers).alias("headers"))


# ---- good ----------------------------------------------------------------------------------------


def good(rows: DataFrame, spec: PipelineSpec) -> DataFrame:
    """Return the good rows of a staged frame, through the transform. Raises PipelineFileError."""
    names = [name for name in rows.columns if not name.startswith(HIDDEN)]
    data = rows.where(F.col(REASON).isNull()).select(*(F.col(f"`{name}`") for name in names))
    transform = spec.transform
    if transform.sql is not None:
        data.createOrReplaceTempView("source")
        try:
            return data.sparkSession.sql(transform.sql)
        except PySparkException as error:
            raise _unknown(f"{spec.place}: [transform]", "sql", error, names) from None
    if transform.python is not None:
        return _by_python(data, spec)
    return data


def _by_python(data: DataFrame, spec: PipelineSpec) -> DataFrame:
    """Return the frame that the user's function makes. Raises PipelineFileError."""
    place, name = f"{spec.place}: [transform]", spec.transform.python
    assert name is not None
    module, _, function = name.partition(":")
    beside = spec.place.rpartition("/")[0] or "."
    sys.path.insert(0, beside)
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise PipelineFileError(place, f"python: {name}: {error}") from None
    finally:
        sys.path.remove(beside)
    try:
        made = found(data)
    except PySparkException as error:
        raise _unknown(place, f"python: {name}", error, data.columns) from None
    if not isinstance(made, DataFrame):
        raise PipelineFileError(place, f"python: {name} returned {made!r}, expected a DataFrame")
    return made


# ---- rows of a sink ------------------------------------------------------------------------------


def sink_rows(data: DataFrame, sink: SinkSpec, place: str) -> DataFrame:
    """Return the rows for a sink. place: the sink's, for messages. Raises PipelineFileError."""
    try:
        rows = data if sink.where is None else data.where(sink.where)
    except PySparkException as error:
        raise _unknown(place, "where", error, data.columns) from None
    if not sink.is_queue:
        for name in _divided_by(sink, place):
            if name not in data.columns:
                raise _missing(place, "partition_by", name, data.columns)
        if (
            sink.kind != "iceberg"
            and sink.partition_by
            and len(sink.partition_by) == len(data.columns)
        ):
            raise PipelineFileError(place, "partition_by: names all columns, so no data is left")
        return rows
    return _messages(rows, sink, place)


def _divided_by(sink: SinkSpec, place: str) -> list[str]:
    """Return the columns of partition_by."""
    if not sink.is_table:
        return list(sink.partition_by)
    try:
        divisions = divisions_of(sink.partition_by, has_transforms=sink.kind == "iceberg")
        return [one.column.partition(".")[0] for one in divisions]
    except MisfitError as error:
        raise PipelineFileError(place, str(error)) from None


def _messages(rows: DataFrame, sink: SinkSpec, place: str) -> DataFrame:
    types = {field.name: field.dataType for field in rows.schema.fields}
    if sink.value is not None:
        value = F.expr(sink.value)
    elif isinstance(types.get("value"), BinaryType):
        value = F.col("value")
    else:
        value = F.to_json(F.struct(*(F.col(f"`{name}`") for name in rows.columns)))
    columns = [value.alias("value")]
    try:
        if sink.target == ANY_EXCHANGE:
            columns.append(F.col("exchange").cast("string"))
        if sink.kind == "exchange" and sink.routing_key is not None:
            columns.append(F.expr(sink.routing_key).cast("string").alias("routing_key"))
        elif sink.kind == "exchange" and isinstance(types.get("routing_key"), StringType):
            columns.append(F.col("routing_key"))
        if isinstance(types.get("value"), BinaryType):
            columns += [F.col(name) for name in PASSED_ON if name in types]
        made = rows.select(*columns)
    except PySparkException as error:
        names = "exchange, value or routing_key" if sink.target == ANY_EXCHANGE else BODY_AND_KEY
        raise _unknown(place, names, error, rows.columns) from None
    if made.schema["value"].dataType.typeName() not in ("string", "binary"):
        kind = made.schema["value"].dataType.simpleString()
        raise PipelineFileError(place, f"value: it is {kind}, expected a string or binary")
    return made


# ---- errors --------------------------------------------------------------------------------------


def one_line(error: PySparkException) -> str:
    """Return Spark's error in one line."""
    text = " ".join((error.getMessage() or str(error)).split())
    text = text.partition(" SQLSTATE: ")[0]
    return text if len(text) <= TEXT_MAX else text[: TEXT_MAX - 4] + " ..."


def _unknown(
    place: str, key: str, error: PySparkException, columns: Iterable[str]
) -> PipelineFileError:
    """Return the error of an analysis; for a missing column with the existing ones."""
    parameters = error.getMessageParameters() or {}
    if "objectName" in parameters and "UNRESOLVED_COLUMN" in (error.getCondition() or ""):
        return _missing(place, key, parameters["objectName"].replace("`", ""), columns)
    return PipelineFileError(place, f"{key}: {one_line(error)}")


def _missing(place: str, key: str, name: str, columns: Iterable[str]) -> PipelineFileError:
    return PipelineFileError(
        place, f"{key}: there is no column {name!r}; there are {', '.join(columns)}"
    )


assert set(WHERE_FROM) <= set(MESSAGE_COLUMNS)
