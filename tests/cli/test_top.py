"""penstock top on a terminal, against a broker that runs."""

import contextlib
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from tests.helpers.live_broker import LiveBroker

pytestmark = pytest.mark.real

LIMIT_S = 60.0
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
LEFT = "\x1b[?1049l"  # the other screen


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    with LiveBroker(tmp_path_factory.mktemp("top") / "data", "--memory", "64MiB") as live:
        with penstock.open(live.url) as box:
            box.queue("orders").put(b"one")
        yield live


class Terminal:
    """The command on a terminal of 100 columns and 24 lines. Use as a context manager."""

    def __init__(self, data: Path, *words: str, **environment: str) -> None:
        self.master, self._slave = pty.openpty()
        self.text = ""
        self.resize(24, 100)
        self.before = termios.tcgetattr(self._slave)
        inherited = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "penstock", "top", "--data", str(data), *words],
            stdin=self._slave, stdout=self._slave, stderr=self._slave,
            env=inherited | {"TERM": "xterm-256color"} | environment,
        )  # fmt: skip

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.master)
        os.close(self._slave)

    def resize(self, lines: int, columns: int) -> None:
        termios.tcsetwinsize(self.master, (lines, columns))

    def press(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def until(self, wanted: str) -> str:
        """Read until this stands in what was written after the last call; return what was."""
        text = ""
        while wanted not in text and wanted not in ESCAPES.sub("", text):
            assert select.select([self.master], [], [], LIMIT_S)[0], f"no {wanted!r} in {text!r}"
            text += os.read(self.master, 65536).decode()
        self.text = text
        return text

    def ended(self) -> int:
        """Wait for the end; return the exit code. The terminal is as it was."""
        self.until(LEFT)
        code = self.process.wait(LIMIT_S)
        with contextlib.suppress(BlockingIOError):
            while select.select([self.master], [], [], 0)[0]:
                self.text += os.read(self.master, 65536).decode()
        assert termios.tcgetattr(self._slave) == self.before
        assert self.text.rfind("\x1b[?25h") > self.text.rfind("\x1b[?25l")  # the cursor is seen
        return code


def test_keys_sizes_and_a_broker_that_comes_back(broker: LiveBroker) -> None:
    with Terminal(broker.data, "-d", "0.2") as top:
        top.until("healthy: 1 vhost of 1 opened")
        top.until("orders")
        top.press(b"s")
        top.until("by ready")
        top.press(b"r")
        top.until("by ready, the least first")
        top.press(b" ")
        top.until("(paused)")
        top.resize(12, 160)
        top.until("acked/s")
        top.press(b" ")
        broker.kill()
        top.until("no broker there, waiting for it")
        broker.start()
        top.until("healthy: 1 vhost of 1 opened")
        top.press(b"\x1a")  # Ctrl-Z does nothing
        top.press(b"q")
        assert top.ended() == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_leaves_the_terminal_as_it_was(
    broker: LiveBroker, number: signal.Signals, code: int
) -> None:
    with Terminal(broker.data) as top:
        top.until("orders")
        top.process.send_signal(number)
        assert top.ended() == code


def test_colours_are_left_out_if_they_are_to_be(broker: LiveBroker) -> None:
    with Terminal(broker.data) as top:
        assert "\x1b[1;32m" in top.until("orders")
    with Terminal(broker.data, NO_COLOR="1") as top:
        assert "\x1b[1;32m" not in top.until("orders")


def test_without_a_terminal_it_prints_once(broker: LiveBroker) -> None:
    words = [sys.executable, "-m", "penstock", "top", "--data", str(broker.data)]
    done = subprocess.run(
        words, stdin=subprocess.DEVNULL, capture_output=True, check=True, text=True, timeout=LIMIT_S
    )
    lines = done.stdout.splitlines()
    assert lines[0] == "healthy: 1 vhost of 1 opened, 0 connections"
    assert lines[4] == "1 queue, by messages"
    assert lines[6].startswith("orders ")
    assert "\x1b" not in done.stdout
