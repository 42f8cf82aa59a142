"""The tables of a pipeline: which LakeTable a [[sink]] is, with its options from the file.

A misfit is told with the sink's place in the file. `fitting_table` looks at a table that is there,
for whoever wants to know before anything runs; `lake_table` does not.

Not here: what they do (delta_sink.py, iceberg_sink.py), when (pipeline.py).
"""

from typing import TYPE_CHECKING

from penstock.spark.delta_sink import DeltaSink
from penstock.spark.iceberg_sink import IcebergSink
from penstock.spark.lake_files import absolute
from penstock.spark.lake_schema import MisfitError, arrow_schema
from penstock.spark.lake_table import LakeTable
from penstock.spark.pipeline_file import PipelineFileError, PipelineSpec, SinkSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def lake_table(spec: PipelineSpec, sink: SinkSpec, place: str) -> LakeTable:
    """place: the sink's, for messages. LakeMissingError, PipelineFileError."""
    try:
        if sink.kind == "delta":
            return DeltaSink(
                absolute(sink.target), partition_by=sink.partition_by, storage=spec.storage
            )
        return IcebergSink(sink.target, partition_by=sink.partition_by, catalog=spec.catalog)
    except MisfitError as error:
        raise PipelineFileError(place, str(error)) from None


def fitting_table(spec: PipelineSpec, sink: SinkSpec, rows: "DataFrame", place: str) -> LakeTable:
    """The same, for rows of these columns; it is looked at, and not changed. PipelineFileError."""
    table = lake_table(spec, sink, place)
    try:
        table.check(arrow_schema(rows.schema))
    except MisfitError as error:
        raise PipelineFileError(place, str(error)) from None
    return table
