"""A request that ends a vhost's process, again and again: the vhost serves others, and refuses it.

The process is the real one, with a mistake planted: one operation ends it by a signal, another one
never returns.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from penstock.clock import SystemClock
from penstock.config import Config
from penstock.operation_json import dumps, read
from penstock.server import polling_loop
from penstock.server.control import ControlError
from penstock.server.watched_vhost import VhostDown, WatchedVhost
from penstock.storage.files.data_directory import DataDirectory
from penstock.storage.files.filesystem import OsFileSystem

PROGRAM = """
import dataclasses, os, signal, sys, threading
from penstock.broker.operations import FUNCTIONS
from penstock.server import vhost_process
from penstock.server.linked_process import main

def replace(op, function):
    FUNCTIONS[op] = function

replace("purge_queue", lambda _: os.kill(os.getpid(), signal.SIGSEGV))
replace("delete_queue", lambda _: threading.Event().wait())
sys.exit(main("vhost", vhost_process.VhostProcess, sys.argv[1:]))
"""

pytestmark = pytest.mark.real


def with_vhost(
    directory: Path, scenario: Callable[[WatchedVhost], Awaitable[None]], **settings: float
) -> None:
    async def run() -> None:
        fs = OsFileSystem(0)
        data = DataDirectory(fs, str(directory / "data"))
        given = Config(vhost_restarts_max=20, **settings)  # type: ignore[arg-type]
        vhost = WatchedVhost(
            "/", data.vhost_path(b"/"), given, SystemClock(), lambda _: None,
            (sys.executable, "-P", "-c", PROGRAM),
        )  # fmt: skip
        vhost.memory_bytes = 64 << 20
        try:
            async with asyncio.timeout(120):
                await scenario(vhost)
        finally:
            await vhost.stop()
            data.close()
            fs.close()

    polling_loop.run(run())


@pytest.mark.parametrize(
    ("deadly", "settings"),
    [("purge_queue", {}), ("delete_queue", {"vhost_hang_s": 10.0, "ping_s": 0.2})],
)
def test_it_ends_the_process_twice_and_then_is_refused(
    tmp_path: Path, deadly: str, settings: dict[str, float]
) -> None:
    async def scenario(vhost: WatchedVhost) -> None:
        args = dumps({"queue": "q"})
        await vhost.call("declare_queue", args)
        for _ in range(2):
            with pytest.raises(VhostDown):
                await vhost.call(deadly, args)
        for _ in range(3):  # its client repeats it, and everybody else is served
            with pytest.raises(ControlError, match=f"{deadly} of user 'operator' is refused for"):
                await vhost.call(deadly, args)
            found = read(await vhost.call("declare_queue", args))
            assert (found["queue"], found["messages"]) == ("q", 0)
        assert [one["operation"] for one in vhost.refused()] == [deadly]

    with_vhost(tmp_path, scenario, **settings)
