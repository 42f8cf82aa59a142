"""`penstock spark`: what a Spark cluster wants from the machine that starts its jobs.

    penstock spark py-files penstock.zip
    spark-submit --py-files penstock.zip job.py

Needs no Spark. Not here: the zip (penstock.spark.py_files), pipelines (pipeline_verbs.py).
"""

import click


@click.group("spark")
def spark() -> None:
    """What a Spark cluster wants: the package as a zip for --py-files."""


@spark.command("py-files")
@click.argument("path", metavar="OUT.zip", type=click.Path(dir_okay=False))
def py_files(path: str) -> None:
    """Write the package as a zip of plain Python, for spark-submit --py-files.

    For executors that have no penstock installed. The driver has it installed, and its job calls
    penstock.spark.register(spark).
    """
    from penstock.spark.py_files import write_py_files

    count = write_py_files(path)
    click.echo(f"{path}: {count} modules")
