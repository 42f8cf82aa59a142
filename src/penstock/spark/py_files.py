"""py_files: this package as a zip of plain Python, for executors that have no penstock installed.

    penstock spark py-files penstock.zip
    spark-submit --py-files penstock.zip job.py          job.py calls penstock.spark.register(spark)

or both at once, in a running session:

    from penstock.spark import ship
    ship(spark)

The driver still needs penstock installed: the driver's process in which Spark asks a stream for its
offsets does not get the --py-files. `register` is needed too: a source that Spark found by itself
does not carry the zip to the tasks.

The zip has every .py of `penstock` and `pyspark_penstock`. Compiled modules of the driver would not
load on another machine, and their sources do the same. No module reads a data file beside it, so
all of them work from a zip. Executors need pyarrow and numpy, as for any Python source of Spark;
zlib-ng, if installed, makes checksums several times as fast. Equal sources give equal bytes: the
zip has no times in it.

If penstock can be installed on all machines, see docs/guides/clusters.md.
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
EPOCH: Final = (1980, 1, 1, 0, 0, 0)  # the earliest time in a zip
MODE: Final = 0o644


class PyFilesError(PenstockError):
    """The zip cannot be made, or this session cannot send it."""


def write_py_files(path: str) -> int:
    """Write the zip to that path. Return the number of modules in it. Raises PyFilesError if the
    sources are not here, and OSError."""
    root = Path(penstock.__file__).parent.parent
    modules = [file for name in PACKAGES for file in sorted((root / name).rglob("*.py"))]
    missing = [name for name in PACKAGES if not (root / name / "__init__.py").is_file()]
    if missing:
        raise PyFilesError(f"{root} has no sources of {' and '.join(missing)} for the zip")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as zipped:
        for file in modules:
            entry = zipfile.ZipInfo(file.relative_to(root).as_posix(), EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = MODE << 16
            zipped.writestr(entry, file.read_bytes())
    return len(modules)


def ship(spark: "SparkSession") -> None:
    """Send the package to the executors of this session, later ones too, and register the source.
    Call it before the first use of the source. Raises PyFilesError for a session of Spark Connect,
    whose driver is elsewhere."""
    from pyspark.errors import PySparkException

    from penstock.spark.data_source import register

    try:
        context = spark.sparkContext
    except (AttributeError, PySparkException):
        reason = "a session of Spark Connect has its driver elsewhere: install penstock there"
        raise PyFilesError(reason) from None
    # Executors that start later ask for it too: keep it as long as this process.
    directory = tempfile.mkdtemp(prefix="penstock-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    path = f"{directory}/{NAME}"
    write_py_files(path)
    context.addPyFile(path)
    register(spark)
