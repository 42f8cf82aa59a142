"""One sync of the log fails, in the kernel's own way: nothing is confirmed after it [10].

strace attaches to the process of the vhost and has one fdatasync return EIO. What the client sees
then is the end of its connection and no confirm; the vhost comes back from what is on the disk, and
everything that was confirmed before is there.
"""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from pamqp import commands

from penstock.server.control import ControlClient
from tests.helpers.live_broker import LiveBroker, is_gone, wait_until
from tests.helpers.wire import Ended, Wire, open_channel

pytestmark = [pytest.mark.real, pytest.mark.crash]

PERSISTENT = b"\x10\x00\x02"


@pytest.fixture(scope="module")
def strace() -> str:
    """The strace that is there, or that apt brings if we may."""
    if shutil.which("strace") is None and os.geteuid() == 0 and shutil.which("apt-get"):
        for words in (["update", "-q"], ["install", "-y", "-q", "strace"]):
            subprocess.run(["apt-get", *words], capture_output=True)
    found = shutil.which("strace")
    if found is None:
        pytest.skip("strace is not installed (Debian and Ubuntu: apt install strace)")
    tried = subprocess.run([found, "-f", "true"], capture_output=True, text=True)
    if tried.returncode != 0:
        pytest.skip(f"strace may not trace here: {tried.stderr.strip()[-200:]}")
    return found


@contextlib.contextmanager
def next_sync_fails(strace: str, pid: int) -> Iterator[None]:
    """While the block runs, every fdatasync of that process returns EIO."""
    command = [strace, "-f", "-p", str(pid), "-e", "trace=fdatasync"]
    command += ["-e", "inject=fdatasync:error=EIO"]
    tracer = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    try:
        assert tracer.stderr is not None
        line = tracer.stderr.readline()
        assert "attached" in line, line
        yield
    finally:
        tracer.kill()  # it may wait for ever for a thread that has ended
        tracer.communicate()


def pid_of(broker: LiveBroker) -> int:
    with ControlClient(str(broker.data)) as client:
        (row,) = client.call("list_vhosts")
    return int(row["pid"] or 0) if row["state"] == "running" else 0


def confirmed_publish(wire: Wire, data: bytes) -> None:
    """Raises Ended, at once if a sync that nobody asked for has failed before."""
    wire.publish(1, "q", data, properties=PERSISTENT)
    wire.expect(commands.Basic.Ack, 1)


def test_nothing_is_confirmed_after_a_failed_sync(strace: str, tmp_path: Path) -> None:
    with LiveBroker(tmp_path / "data") as broker:
        with open_channel(broker) as wire:
            wire.declare("q", durable=True, exclusive=False)
            wire.ask(commands.Confirm.Select(), commands.Confirm.SelectOk)
            for n in range(5):
                wire.publish(1, "q", b"%d" % n, properties=PERSISTENT)
            while wire.expect(commands.Basic.Ack, 1).delivery_tag != 5:
                pass
            pid = pid_of(broker)
            with next_sync_fails(strace, pid):
                with pytest.raises(Ended):
                    confirmed_publish(wire, b"5")
                wait_until(lambda: is_gone(pid), "the end of the process")
        wait_until(lambda: pid_of(broker) not in (0, pid), "the next process")
        assert "has failed and is started again" in broker.log_text()
        assert "sync failed" in broker.log_text()
        with open_channel(broker) as wire:
            found = wire.ask(
                commands.Queue.Declare(queue="q", passive=True), commands.Queue.DeclareOk
            )
            assert found.message_count in (5, 6)
            wire.ask(commands.Confirm.Select(), commands.Confirm.SelectOk)
            confirmed_publish(wire, b"6")
