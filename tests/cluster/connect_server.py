"""A server of Spark Connect, from the pip package, for clients and for Declarative Pipelines.

It has a catalog that outlives a session (Hive's, on a Derby database in the directory in which it
runs), for a declarative pipeline's second run must find the tables of the first.
"""

import os
import re
import signal
import subprocess
from pathlib import Path

from penstock.spark.spark_session import SETTINGS, SOCKET_TIMEOUT
from tests.cluster.standalone import die_with_parent, environment, spark_home
from tests.helpers.live_broker import wait_until
from tests.helpers.quick_spark import JAVA_OPTIONS, quick_python

START_S = 120.0
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
READY = re.compile(r"Spark Connect server started at: 127\.0\.0\.1:(\d+)")


class ConnectServer:
    """See the head of this module. Use as a context manager; `remote` is then sc://..."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.remote = ""
        self.log = directory / "server.log"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "ConnectServer":
        self.directory.mkdir(parents=True)
        conf = {
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": "0",
            "spark.sql.catalogImplementation": "hive",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(self.directory / "warehouse"),
            "spark.driver.extraJavaOptions": JAVA_OPTIONS,
            "spark.ui.enabled": "false",
            SOCKET_TIMEOUT: SETTINGS[SOCKET_TIMEOUT],
        }
        command = [str(spark_home() / "bin" / "spark-submit"), "--class", SERVER]
        command += ["--master", "local[2]"]
        for name, value in conf.items():
            command += ["--conf", f"{name}={value}"]
        # By its name: where the path of a Python has a space, Spark looks for no data sources.
        python = quick_python(self.directory / "quick-python")
        path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.directory,
                env=environment(PATH=path, PYSPARK_PYTHON=python.name),
                start_new_session=True, preexec_fn=die_with_parent,
            )  # fmt: skip
        try:
            port = wait_until(self._port, "the Connect server", START_S)
        except BaseException:
            self.close()
            raise
        self.remote = f"sc://127.0.0.1:{port}"
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """SIGKILL to it and its Python workers."""
        process, self._process = self._process, None
        if process is not None:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()

    def _port(self) -> str | None:
        """Where it listens, if it does yet."""
        text = self.log.read_text(errors="replace")
        found = READY.search(text)
        assert self._process is not None
        assert found is not None or self._process.poll() is None, text[-4000:]
        return found[1] if found else None
