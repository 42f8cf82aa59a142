"""Built-in pipelines: what many want, run by its name: `penstock pipeline run archive -o ...`.

    archive        a stream into a table or partitioned files, by day or hour   archive.py
    replay         files into a queue, an exchange, or where they came from     replay.py
    dead-letters   what died, why, when and where, as a table                   dead_letter_table.py
    audit          every checksum of a store, verified by Spark's tasks         audit.py

All but audit are pipelines as any: their options become the text of a pipeline file, which
`text_of` gives, and which `penstock pipeline check` explains as it does others. audit reads a store
and writes nothing, so it is a job of its own.

Not here: pyspark; it is imported by what runs.
"""

from collections.abc import Mapping

from penstock.spark.pipelines import archive, dead_letter_table, replay


def built_in(name: str, given: Mapping[str, str]) -> str:
    """The pipeline file of one of them with these options. OptionError."""
    texts = {
        "archive": archive.text_of,
        "replay": replay.text_of,
        "dead-letters": dead_letter_table.text_of,
    }
    return texts[name](given)
