"""Points of a Spark job where it can be made to die: what a job reaches, and what a campaign plans.

A job calls `reached(point)` at:

    in_task         a task of the sink has got a batch of Arrow
    after_write     a task of the sink has staged everything, its message not told yet
    before_commit   all tasks are done, and the driver is about to commit
    after_commit    the sink has committed, and Spark has not written that down

The campaign plans what is to happen when one is reached for the n-th time (`Plan.set`):

    driver    the driver dies, and its JVM with it
    workers   all Python workers of the executor die
    fail      the task raises, so that Spark tries it again
    mark      the job waits until the campaign has seen it, which kills what it likes

A plan is a directory of files, so that any process of the job may meet it: whoever makes
`<point>.<n>` first was there as the n-th. Where the environment names no plan nothing happens.
"""

import json
import os
import shutil
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

VARIABLE: Final = "PENSTOCK_KILL_PLAN"
POINTS: Final = ("in_task", "after_write", "before_commit", "after_commit")
PIDS: Final = "pids"
SEEN_S_MAX: Final = 120.0  # a campaign that has not looked by then is no more


class PlannedFailureError(Exception):
    """A task that fails because a plan said so."""


class Plan:
    """The directory of a plan, as its campaign has it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clear()

    def clear(self) -> None:
        """Nothing is to happen, and nothing was reached."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.path.mkdir(parents=True)

    def set(self, point: str, action: str, after: int = 1) -> None:
        """What happens when this point is reached for the time `after`."""
        assert point in POINTS
        written = self.path / "plan.new"
        written.write_text(json.dumps({"action": action, "after": after}), encoding="utf-8")
        written.rename(self.path / f"{point}.plan")

    def has_happened(self, point: str) -> bool:
        """Whether what was planned there was done."""
        return (self.path / f"{point}.done").exists()

    def go_on(self, point: str) -> None:
        """The mark there was seen."""
        (self.path / f"{point}.seen").touch()


def say_pids(pids: Sequence[int]) -> None:
    """Tell whom `driver` kills: a group of processes, as a negative number, dies at one instant."""
    directory = os.environ.get(VARIABLE)
    if directory is not None:
        (Path(directory) / PIDS).write_text(json.dumps(list(pids)), encoding="utf-8")


def reached(point: str) -> None:
    """The job is there."""
    directory = os.environ.get(VARIABLE)
    if directory is None:
        return
    path = Path(directory)
    try:
        plan = json.loads((path / f"{point}.plan").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return
    if _claimed(path, point) != plan["after"]:
        return
    (path / f"{point}.done").touch()
    action = plan["action"]
    if action == "fail":
        raise PlannedFailureError(f"planned at {point}")
    if action == "driver":
        _kill(json.loads((path / PIDS).read_text(encoding="utf-8")))
    if action == "workers":
        _kill(workers_of_this_daemon())
    if action == "mark":
        _wait_for(path / f"{point}.seen")


def _wait_for(path: Path) -> None:
    deadline = time.monotonic() + SEEN_S_MAX
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.01)


def _claimed(path: Path, point: str) -> int:
    """The how-manieth this is to be there."""
    n = 1
    while True:
        try:
            os.close(os.open(path / f"{point}.{n}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            n += 1
        else:
            return n


def _kill(pids: Sequence[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def workers_of_this_daemon() -> list[int]:
    """The Python workers of the executor that this runs in, itself the last."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        pid = int(stat.parent.name)
        if parent == os.getppid() and pid != os.getpid():
            found.append(pid)
    return [*found, os.getpid()]
