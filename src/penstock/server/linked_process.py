"""LinkedProcess: a process that the supervisor has started: its loop, its link and its end.

The program gets one argument, the descriptor of its end of the link to the supervisor, which sends
it everything else. It ends when `stop` or SIGTERM asks for it, when the link ends, or when it
cannot go on, which it reports as `failed`; the first of these is the reason. vhost_process and
http.process finish in their own way. Before the link is closed its last messages are sent, which
may take LAST_WORDS_S, so that a supervisor that hangs does not keep the process alive.

SIGINT and SIGHUP are ignored: a terminal sends them to the whole group, and the supervisor decides.
"""

import asyncio
import contextlib
import signal
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final

from setproctitle import setproctitle

from penstock.clock import SystemClock
from penstock.queues.budget import rss_bytes
from penstock.server.control import Facts
from penstock.server.descriptors import raise_limit
from penstock.server.heap import Heap, find_trim
from penstock.server.log_lines import TAIL_CHARACTERS, set_up
from penstock.server.polling_loop import run
from penstock.server.process_link import AskedCall, ProcessLink, no_calls
from penstock.storage.files.filesystem import FileSystem

LAST_WORDS_S: Final = 1.0
LINES_WAITING_MAX: Final = 100  # packets that the supervisor has not taken: then no lines are sent
EX_OK: Final = 0


class LinkedProcess(ABC):
    """Base of the processes. Runs on the running loop until it is ended; `run` returns the exit
    status."""

    def __init__(self, sock: socket.socket, fs: FileSystem) -> None:
        self._fs = fs
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[str] = self._loop.create_future()  # why; "" if it was asked to
        self._link = ProcessLink(sock, self._on_link_closed, self._on_message, self._on_call)
        self._clock = SystemClock()
        self._status = EX_OK
        self._thread = threading.get_ident()
        self._heap = Heap(self._loop, find_trim(), counted=self._counted_bytes, rss=self._rss_bytes)

    async def run(self) -> int:
        """Run until the end. Returns the exit status."""
        self._loop.add_signal_handler(signal.SIGTERM, self._end, "")
        self._heap.start()
        await self._finish(await self._ended)
        await self._last_words()
        return self._status

    @abstractmethod
    def _on_message(self, facts: Facts, data: bytes, descriptors: list[int]) -> None:
        """Handle news of the supervisor."""

    def _on_call(self, asked: AskedCall) -> None:
        """Answer a call of the supervisor."""
        no_calls(asked)

    @abstractmethod
    async def _finish(self, why: str) -> None:
        """Finish before the last messages are sent. why: the reason, "" if it was asked to end."""

    def _counted_bytes(self) -> int:
        """Return the bytes of memory that are counted as in use, for the heap."""
        return 0

    def _rss_bytes(self) -> int:
        """Return the bytes of RAM that this process occupies, 0 if that is not known."""
        return rss_bytes(self._fs) or 0

    def _links(self) -> list[ProcessLink]:
        """Return its links, which are closed at the end."""
        return [self._link]

    def _end(self, why: str) -> None:
        if not self._ended.done():
            self._ended.set_result(why)

    def _give_up(self, status: int, why: str, *, is_final: bool = False) -> None:
        """Report a failure and end. is_final: another start would fail the same way."""
        self._status = status
        self._link.send({"do": "failed", "why": why, "is_final": is_final})
        self._end(why)

    def _send_line(self, time_ms: int, level: str, text: str) -> None:
        """Send a line of the log, as log_lines.Take, unless the supervisor does not keep up."""
        if self._link.waiting >= LINES_WAITING_MAX:
            return
        cut = text[: TAIL_CHARACTERS + 1]
        line: Facts = {"do": "line", "time_ms": time_ms, "level": level, "text": cut}
        with contextlib.suppress(RuntimeError):  # the loop has ended
            if threading.get_ident() == self._thread:
                self._link.send(line)
            else:
                self._loop.call_soon_threadsafe(self._link.send, line)

    def _on_link_closed(self, why: str) -> None:
        self._end(f"the supervisor has gone ({why})")

    async def _last_words(self) -> None:
        """Send what still waits for the link, then close it."""
        until = self._loop.time() + LAST_WORDS_S
        self._heap.stop()
        while any(one.waiting for one in self._links()) and self._loop.time() < until:
            await asyncio.sleep(0.01)
        for one in self._links():
            one.close()


def main(
    kind: str, make: Callable[[socket.socket], LinkedProcess], arguments: list[str]
) -> int:  # fmt: skip
    """Run the program. kind: the name in its log lines. arguments: the descriptor of its end of the
    link. Returns the exit status."""
    setproctitle(f"penstock {kind}")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    raise_limit()
    set_up("info", kind)
    sock = socket.socket(fileno=int(arguments[0]))
    sock.setblocking(False)

    async def live() -> int:
        return await make(sock).run()

    return run(live())
