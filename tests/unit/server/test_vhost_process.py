"""What a vhost's process does before it serves. The process as a whole: tests/server."""

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.broker.vhost import VHostSettings
from penstock.clock import ManualClock
from penstock.errors import DiskFullError, LockedError
from penstock.server import vhost_process
from penstock.server.heap import Heap
from penstock.server.vhost_process import VhostProcess
from tests.helpers.faulty_filesystem import FaultyFileSystem

ROOM = """
import os
from penstock.server.vhost_process import make_room_for_files

def size():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("FDSize:"))

before = size(), sorted(os.listdir("/proc/self/fd"))
make_room_for_files(before[0] * 4)
after = size(), sorted(os.listdir("/proc/self/fd"))
print(before[1] == after[1], after[0] >= before[0] * 4)
"""


def test_the_kernels_table_is_made_large_and_no_file_stays_open() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ROOM], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "True True\n"


class Waiting:
    """A loop that keeps what is to be called later, and an end that has not come."""

    def __init__(self) -> None:
        self.calls: list[tuple[float, Callable[[], None]]] = []

    def call_later(self, seconds: float, call: Callable[..., None], *values: object) -> None:
        self.calls.append((seconds, partial(call, *values)))

    def done(self) -> bool:
        return False


def test_a_start_without_space_is_tried_again_when_there_is_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fs, loop, starts = FaultyFileSystem(capacity=1000), Waiting(), [0]
    process = VhostProcess.__new__(VhostProcess)
    process._fs = fs  # type: ignore[assignment]
    process._loop = process._ended = loop  # type: ignore[assignment]
    process._clock = ManualClock()  # type: ignore[assignment]
    process._vhost = process._hub = None
    process._blocked_reason = ""
    process._nofile = 1024
    told: list[Any] = []
    process._link = SimpleNamespace(send=told.append)  # type: ignore[assignment]
    process._heap = Heap(loop, None)  # type: ignore[arg-type]

    def vhost(*_: object, **__: object) -> None:
        starts[0] += 1
        raise DiskFullError("/", fs.free_bytes("/"), 4096)

    monkeypatch.setattr(vhost_process, "VHost", vhost)
    process._open({"path": "/", "name": "/"}, VHostSettings(), 60.0)
    assert [(pong["do"], pong["blocked_reason"]) for pong in told] == [("pong", "disk")]
    for _ in range(3):
        (seconds, look) = loop.calls.pop()
        assert seconds == vhost_process.FULL_AGAIN_S
        look()
    assert starts == [1], "nothing has changed"
    assert process._pong({"n": 1})["blocked_reason"] == "disk"
    fs.capacity = 2000
    loop.calls.pop()[1]()
    assert starts == [2]
    assert len(loop.calls) == 1, "it waits again"
    fs.capacity = 500  # what was free when it failed was somebody else's a moment later
    loop.calls.pop()[1]()
    fs.capacity = 1500
    loop.calls.pop()[1]()
    assert starts == [3], "there is more than there was"
    loop.calls.pop()[1]()
    assert starts == [3]


def test_a_directory_that_another_process_has_is_reported_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    loop = Waiting()
    process = VhostProcess.__new__(VhostProcess)
    process._fs = FaultyFileSystem()  # type: ignore[assignment]
    process._loop = process._ended = loop  # type: ignore[assignment]
    process._clock = ManualClock()  # type: ignore[assignment]

    def vhost(*_: object, **__: object) -> None:
        raise LockedError("/data/LOCK", "pid 7")

    monkeypatch.setattr(vhost_process, "VHost", vhost)
    caplog.set_level("INFO")
    process._open({"path": "/", "name": "/"}, VHostSettings(), 60.0)
    for _ in range(3):
        loop.calls.pop()[1]()
    assert len(loop.calls) == 1, "it is tried again"
    assert [record.message.partition(":")[0] for record in caplog.records] == ["waits"]
