"""Built-in pipelines: what many want, run by its name: `penstock pipeline run archive -o ...`.

    archive   a stream into partitioned Parquet, by day or hour        archive.py
    replay    Parquet into a queue or an exchange                      replay.py
    audit     every checksum of a store, verified by Spark's tasks     audit.py

archive and replay are pipelines as any: their options become the text of a pipeline file, which
`text_of` gives, and which `penstock pipeline check` explains as it does others. audit reads a store
and writes nothing, so it is a job of its own.

Not here: pyspark; it is imported by what runs.
"""

from collections.abc import Mapping

from penstock.spark.pipelines import archive, replay


def built_in(name: str, given: Mapping[str, str]) -> str:
    """The pipeline file of archive or replay with these options. OptionError."""
    return {"archive": archive.text_of, "replay": replay.text_of}[name](given)
