"""Runner: what runs scenarios, each a process of its own, and says how far it is.

A scenario is a function of a script of this directory (storage.py, queues.py, peers.py), called
with JSON and answering with a line of JSON. "pure" is the same source from src/, uncompiled.
"""

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent

Result = dict[str, Any]


class Runner:
    """Runs the scenarios of `script` in `data`, a directory on the disk that is measured."""

    script: str

    def __init__(self, data: Path, *, is_quick: bool, say: Callable[[str], None]) -> None:
        self.data = data
        self.is_quick = is_quick
        self.say = say
        self.figures: Result = {}

    def scenarios(self) -> dict[str, Callable[[], None]]:
        """What can be measured: a name, and what puts it into `figures`."""
        raise AssertionError("each part of the bench has its own")

    def end(self) -> None:
        """Whatever still runs is ended."""

    def pick(self, quick: Any, full: Any) -> Any:
        return quick if self.is_quick else full

    def child(
        self, scenario: str, store: str, *, is_pure: bool = False, is_killed: bool = False,
        keep: bool = False, script: str = "", **given: Any,
    ) -> Result:  # fmt: skip
        """Run a scenario on the store of that name; its result. is_killed: kill it with SIGKILL
        once it has told."""
        path = self.data / store
        environment = dict(os.environ)
        environment.pop("PYTHONPATH", None)
        if is_pure:
            environment["PYTHONPATH"] = str(ROOT / "src")
        arguments = json.dumps({"data": str(path), **given})
        child = subprocess.Popen(
            [sys.executable, str(HERE / (script or self.script)), scenario, arguments],
            stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip
        assert child.stdout is not None
        line = child.stdout.readline()
        if is_killed and line:
            os.kill(child.pid, signal.SIGKILL)
        child.stdout.read()
        code = child.wait()
        if code != (-signal.SIGKILL if is_killed else 0) or not line:
            sys.exit(f"{scenario} ended with status {code}")
        if not keep:
            for left in path.parent.glob(f"{path.name}*"):
                shutil.rmtree(left)
        result: Result = json.loads(line)
        return result


class Progress:
    """What is being measured: one line that changes on a terminal, plain lines in a pipe."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._status: Any = None
        if sys.stdout.isatty():
            from rich.console import Console

            self._status = Console().status("")
            self._status.start()

    def __call__(self, text: str) -> None:
        text = f"{time.monotonic() - self._started:5.0f} s  {text}"
        if self._status is None:
            print(text, flush=True)
        else:
            self._status.update(text)

    def end(self) -> None:
        if self._status is not None:
            self._status.stop()


def spread(values: list[float]) -> list[float]:
    """The least, the median, the most."""
    return [min(values), statistics.median(values), max(values)]
