"""py_files: this package as a zip of plain Python, for executors that have no penstock installed.

    penstock spark py-files penstock.zip
    spark-submit --py-files penstock.zip job.py          job.py calls penstock.spark.register(spark)

or in a session that runs already, both at once:

    from penstock.spark import ship
    ship(spark)

The driver must have penstock installed all the same: the process at the driver in which Spark asks
a stream for its offsets does not get what --py-files names. And `register` is needed: a source that
Spark found by itself does not carry the zip to the tasks.

The zip holds every .py of `penstock` and `pyspark_penstock`, and nothing else: what is compiled at
the driver would not load on another machine, and its sources do the same there. No module of ours
reads a data file beside it, so all of it works from a zip. What tasks import besides has to be
there: pyarrow and numpy, as any source in Python for Spark wants; zlib-ng, if it is there, makes
checksums several times as fast. Same sources, same bytes: the zip has no times in it.

Not here: pyspark; what is installed everywhere (docs/clusters.md).
"""

import atexit
import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import penstock
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PACKAGES: Final = ("penstock", "pyspark_penstock")
NAME: Final = f"penstock-{penstock.__version__}.zip"
EPOCH: Final = (1980, 1, 1, 0, 0, 0)  # the least that a zip can say
MODE: Final = 0o644


class PyFilesError(PenstockError):
    """The zip cannot be made, or cannot be sent with this session."""


def write_py_files(path: str) -> int:
    """Write the zip to that path; how many modules it holds. PyFilesError: the sources are not
    here. OSError."""
    root = Path(penstock.__file__).parent.parent
    modules = [file for name in PACKAGES for file in sorted((root / name).rglob("*.py"))]
    missing = [name for name in PACKAGES if not (root / name / "__init__.py").is_file()]
    if missing:
        raise PyFilesError(f"{root} has no sources of {' and '.join(missing)} to make a zip of")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as zipped:
        for file in modules:
            entry = zipfile.ZipInfo(file.relative_to(root).as_posix(), EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = MODE << 16
            zipped.writestr(entry, file.read_bytes())
    return len(modules)


def ship(spark: "SparkSession") -> None:
    """Send the package to the executors of this session, those that come later too, and register
    the source. Before any use of it. PyFilesError: a session of Spark Connect, which has no driver
    here to send anything from."""
    from pyspark.errors import PySparkException

    from penstock.spark.data_source import register

    try:
        context = spark.sparkContext
    except (AttributeError, PySparkException):
        reason = "a session of Spark Connect has its driver elsewhere: install penstock there"
        raise PyFilesError(reason) from None
    # Executors that come later ask for it too: it stays as long as this process.
    directory = tempfile.mkdtemp(prefix="penstock-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    path = f"{directory}/{NAME}"
    write_py_files(path)
    context.addPyFile(path)
    register(spark)
