"""session(): a SparkSession with the settings that pay for a Python source.

    spark.python.unix.domain.socket.enabled=true     JVM and Python talk over Unix sockets: a scan
                                                     is a fourth to a third faster than over TCP
    spark.sql.session.timeZone=UTC                   as the timestamps are
    spark.sql.python.filterPushdown.enabled=true     or the option pushdown=true is refused
    spark.sql.shuffle.partitions                     on local[...] masters 8, not 200
    spark.ui.showConsoleProgress=false, and the driver bound to 127.0.0.1 on local masters

Whatever is said by `conf` wins. On a cluster these settings can be given to spark-submit as well;
nothing of Penstock needs them.
"""

import logging
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

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
    from penstock.spark.java_home import ensure_java

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
