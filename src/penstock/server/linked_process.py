"""LinkedProcess: a process that the supervisor has started: its loop, its link and its end.

The program gets one argument, the descriptor of its end of the link to the supervisor, which sends
it everything else. It ends when `stop` or SIGTERM asks for it, when the link ends, or when it
cannot go on, which it reports as `failed`; the first of these is the reason. vhost_process and
http.process finish in their own way. Before the link is closed its last messages are sent, which
may take LAST_WORDS_S, so that a supervisor that hangs does not keep the process alive.

SIGINT and SIGHUP are ignored: a terminal sends them to the whole group, and the supervisor decides.

**Measuring the loop.** PENSTOCK_MEASURE_LOOP=1 in the environment of a broker makes its processes
measure the CPU time of each iteration of their loop, for tests that limit it: during an iteration
no other client is served. It is the CPU time of the thread, so it does not depend on the load of
the machine. The operation `loop` of the control socket returns the longest one, and resets it.
"""

import asyncio
import contextlib
import os
import selectors
import signal
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextvars import Context
from typing import Any, Final

from penstock.clock import SystemClock
from penstock.queues.budget import rss_bytes
from penstock.server.control import Facts
from penstock.server.descriptors import raise_limit
from penstock.server.heap import Heap, find_trim
from penstock.server.log_lines import TAIL_CHARACTERS, set_up
from penstock.server.poller import Poller
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
    kind: str, make: Callable[[socket.socket], LinkedProcess], arguments: list[str],
    loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop,
) -> int:  # fmt: skip
    """Run the program. kind: the name in its log lines. arguments: the descriptor of its end of the
    link. loop: makes the loop that it runs on. Returns the exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    raise_limit()
    set_up("info", kind)
    sock = socket.socket(fileno=int(arguments[0]))
    sock.setblocking(False)

    async def live() -> int:
        return await make(sock).run()

    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(live())


VARIABLE: Final = "PENSTOCK_MEASURE_LOOP"


class PollingSelector(selectors.DefaultSelector):
    """The selector of a PollingLoop: it waits in a Poller, which runs what is not asyncio's.

    If it measures, longest_s is the CPU seconds of the longest iteration; its reader resets it. A
    loop asks its selector what is ready, calls what is due, and asks again: the time between two
    calls of `select` is one iteration, and so is each pass of the poller.
    """

    def __init__(self, *, is_measuring: bool) -> None:
        super().__init__()
        self.poller = Poller(self.fileno())
        self.poller.is_measuring = is_measuring
        self._since_s = time.thread_time()

    def select(
        self, timeout: float | None = None
    ) -> list[tuple[selectors.SelectorKey, int]]:  # fmt: skip
        """Wait as every selector does."""
        poller = self.poller
        if poller.is_measuring:
            poller.longest_s = max(poller.longest_s, time.thread_time() - self._since_s)
        is_ready = poller.poll(-1.0 if timeout is None else max(timeout, 0.0))
        ready = super().select(0) if is_ready else []
        if poller.is_measuring:
            self._since_s = time.thread_time()
        return ready

    def close(self) -> None:
        """Close the descriptors."""
        self.poller.close()
        super().close()


class PollingLoop(asyncio.SelectorEventLoop):
    """An event loop that waits in a Poller."""

    def __init__(self, *, is_measuring: bool) -> None:
        selector = PollingSelector(is_measuring=is_measuring)
        self.poller = selector.poller
        super().__init__(selector)

    # What the poller runs may call these: then it has to return, for the loop has something to do.

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        self.poller.must_return = True
        return super().call_soon(callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:  # fmt: skip
        poller = self.poller
        if not 0 <= poller.until_s <= when:  # else the loop looks again before it is due
            poller.must_return = True
        return super().call_at(when, callback, *args, context=context)


def polling_loop(environment: Mapping[str, str] = os.environ) -> PollingLoop:
    """Return a loop with a poller; it measures if the environment asks for it."""
    return PollingLoop(is_measuring=environment.get(VARIABLE) == "1")


def take_longest_s(loop: asyncio.AbstractEventLoop) -> float | None:
    """Return the CPU seconds of the longest iteration since the last call, None if the loop does
    not measure."""
    if not isinstance(loop, PollingLoop) or not loop.poller.is_measuring:
        return None
    longest_s, loop.poller.longest_s = loop.poller.longest_s, 0.0
    return longest_s
