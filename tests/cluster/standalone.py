"""A Spark cluster of its own: a master and workers from the pip package, that share no disk.

Each worker is started in a mount namespace of its own, where the directory `root` is an empty file
system in memory: what the test, the broker and the driver keep there is not there for the worker,
nor for the executors that it starts, nor is what another worker writes. So "on another machine" is
shown on one. Where the kernel does not let us (`is_isolated` is false), workers have directories
beside each other, and whoever tests tells the source access=network.

`path` is a directory of commands that the workers have first in their PATH, and so the executors. A
driver that says PYSPARK_PYTHON=name gets the Python of that name there, and at the driver the one
that its own PATH has, as with `python3` on machines that are set up differently.

Not here: what runs on it (cluster_job.py).
"""

import ctypes
import os
import re
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from penstock.spark.spark_session import ensure_java
from tests.helpers.live_broker import wait_until
from tests.helpers.quick_spark import JAVA_OPTIONS, quick_python

START_S = 90.0
OWN_MOUNTS = ("unshare", "--mount", "--propagation", "private")
AS_ROOT = ("unshare", "--map-root-user", "--mount", "--propagation", "private")
PR_SET_PDEATHSIG = 1
EMPTY = 'mount -t tmpfs none "$0"'


def die_with_parent() -> None:
    """For preexec_fn: the process is killed when the tests are, be they killed themselves."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))


def spark_home() -> Path:
    """Of the PySpark that is installed here."""
    import pyspark

    return Path(pyspark.__file__).parent


def own_mounts(root: Path) -> tuple[str, ...]:
    """What starts a command that has mounts of its own; () if nothing does."""
    for prefix in (OWN_MOUNTS, AS_ROOT):
        try:
            command = [*prefix, "sh", "-c", EMPTY, str(root)]
            if subprocess.run(command, capture_output=True, timeout=60).returncode == 0:
                return prefix
        except (OSError, subprocess.TimeoutExpired):
            pass
    return ()


def environment(**more: str) -> dict[str, str]:
    """For processes of Spark: a Java, and nothing of ours that an executor could inherit."""
    ensure_java()
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    kept |= {"SPARK_HOME": str(spark_home()), "SPARK_LOCAL_IP": "127.0.0.1"}
    return {**kept, **more}


class StandaloneCluster:
    """See the head of this module. Use as a context manager; `url` is then spark://..."""

    def __init__(self, root: Path, path: Path, workers: int = 2) -> None:
        self.root = root
        self.is_isolated = False
        self.url = ""
        self._workers = workers
        self._logs = root / "logs"
        self._path = path
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> "StandaloneCluster":
        self._logs.mkdir(parents=True)
        prefix = own_mounts(self.root)
        self.is_isolated = bool(prefix)
        path = {"PATH": f"{self._path}:{os.environ['PATH']}"}
        try:
            self._start("master", (), "deploy.master.Master", ["--port", "0"], {})
            self.url = self._told("master", r"Starting Spark master at (spark://\S+)")
            for number in range(self._workers):
                options = ["--cores", "1", "--memory", "900m", self.url]
                self._start(f"worker{number}", prefix, "deploy.worker.Worker", options, path)
            for number in range(self._workers):
                self._told(f"worker{number}", "(Successfully registered)")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.close()

    def close(self) -> None:
        """SIGKILL to all of it: workers with their executors first."""
        for process in reversed(self._processes):
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
        self._processes.clear()

    def log_text(self) -> str:
        """What all of them wrote, the last of it."""
        logs = sorted(self._logs.glob("*.log"))
        return "\n".join(f"--- {log.name}\n{log.read_text()[-3000:]}" for log in logs)

    def _start(
        self, name: str, prefix: tuple[str, ...], kind: str, options: list[str],
        more: Mapping[str, str],
    ) -> None:  # fmt: skip
        home = self.root / name
        command = [str(spark_home() / "bin" / "spark-class"), f"org.apache.spark.{kind}"]
        command += ["--host", "127.0.0.1", "--webui-port", "0", *options]
        if name != "master":
            command += ["--work-dir", str(home)]
        begin = 'mkdir "$1" && cd "$1" && shift && exec "$@"'
        if prefix:
            begin = f"{EMPTY} && {begin}"
        command = [*prefix, "sh", "-c", begin, str(self.root), str(home), *command]
        variables = environment(
            SPARK_DAEMON_MEMORY="128m", SPARK_DAEMON_JAVA_OPTS=JAVA_OPTIONS,
            SPARK_LOCAL_DIRS=str(home / "local"), **more,
        )  # fmt: skip
        with (self._logs / f"{name}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=variables,
                    start_new_session=True, preexec_fn=die_with_parent,
                )
            )  # fmt: skip

    def _told(self, name: str, pattern: str) -> str:
        """What the log of that process says in time; AssertionError with the logs if it ends."""
        log, process = self._logs / f"{name}.log", self._processes[-1]

        def look() -> str | None:
            found = re.search(pattern, log.read_text(errors="replace"))
            assert found is not None or process.poll() is None, self.log_text()
            return found[1] if found else None

        told: str = wait_until(look, f"{name} of Spark", START_S)
        return told


def commands_in(directory: Path, names: Mapping[str, str]) -> Path:
    """A new directory with commands of these names, for a PATH: name -> the Python it executes, as
    quick_spark.py does."""
    directory.mkdir()
    for name, python in names.items():
        quick_python(directory / name, python)
    return directory


def python_without_penstock(directory: Path) -> Path:
    """The interpreter of a new environment that has all that ours has, but for penstock."""
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(directory)], check=True, timeout=60
    )
    (packages,) = directory.glob("lib/python3*/site-packages")
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if "penstock" not in entry.name.lower() and entry.suffix != ".pth":
            (packages / entry.name).symlink_to(entry)
    return directory / "bin" / "python3"
