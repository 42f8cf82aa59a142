"""LinkedProcess: what every process that the supervisor starts has in common: its link and its end.

Such a program gets one argument, its end of the link to the supervisor, by which it learns all
else. It ends when it is told to, by `stop` or SIGTERM; when the link ends, for then there is nobody
to work for; or when it can do nothing any more, which it says as `failed`. Whatever comes first is
why it ends, and it ends once. It finishes in its own way, and what it said last leaves before the
link is closed, for LAST_WORDS_S at most: a supervisor that hangs does not keep it.

SIGINT and SIGHUP are not for it: a terminal sends them to the whole group, and the supervisor
decides.

Not here: what it does while it runs, and how it finishes (vhost_process, penstock.http.process).

MeasuredSelector: how much CPU one iteration of an event loop took, for tests that bound it.

A loop asks its selector what is ready, calls what is due, and asks again. What its thread computes
between two questions is one iteration: for so long nobody else is served. It is CPU time of the
thread and not time on the wall, so that it does not depend on what else the machine does.

PENSTOCK_MEASURE_LOOP=1 in the environment of a broker makes its vhosts measure; the operation
`loop` of the control socket tells and forgets the longest one. Nobody else pays for it.
"""

import asyncio
import os
import resource
import selectors
import signal
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Final

from penstock.clock import SystemClock
from penstock.server.heap import Heap, find_trim
from penstock.server.log_lines import set_up
from penstock.server.process_link import Facts, Link

LAST_WORDS_S: Final = 1.0
EX_OK: Final = 0


class LinkedProcess(ABC):
    """Runs until it is told to end; `run` returns the exit status. On the running loop."""

    def __init__(self, sock: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[str] = self._loop.create_future()  # why; "" when told to
        self._link = Link(sock, self._on_message, self._on_link_closed)
        self._clock = SystemClock()
        self._status = EX_OK
        self._heap = Heap(self._loop, find_trim(), counted=self._counted_bytes)

    async def run(self) -> int:
        """The whole life."""
        self._loop.add_signal_handler(signal.SIGTERM, self._end, "")
        self._heap.start()
        await self._finish(await self._ended)
        await self._last_words()
        return self._status

    @abstractmethod
    def _on_message(self, facts: Facts, data: bytes, descriptors: list[int]) -> None:
        """A message of the supervisor."""

    @abstractmethod
    async def _finish(self, why: str) -> None:
        """It ends: what there is to do before the last words. why: "" when it was told to."""

    def _counted_bytes(self) -> int:
        """Bytes of memory that it counts as in use, for the heap."""
        return 0

    def _end(self, why: str) -> None:
        if not self._ended.done():
            self._ended.set_result(why)

    def _give_up(self, status: int, why: str, *, is_final: bool = False) -> None:
        """Nothing can be done here any more. is_final: another start would fail the same way."""
        self._status = status
        self._link.send({"do": "failed", "why": why, "is_final": is_final})
        self._end(why)

    def _on_link_closed(self, why: str) -> None:
        self._end(f"the supervisor has gone ({why})")

    async def _last_words(self) -> None:
        """What the supervisor is told last must leave before the link ends."""
        until = self._loop.time() + LAST_WORDS_S
        self._heap.stop()
        while self._link.waiting and self._loop.time() < until:
            await asyncio.sleep(0.01)
        self._link.close()


def main(kind: str, make: Callable[[socket.socket], LinkedProcess], arguments: list[str]) -> int:
    """The program. kind: what its log lines begin with. arguments: the descriptor of its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    set_up("info", kind)
    sock = socket.socket(fileno=int(arguments[0]))
    sock.setblocking(False)

    async def live() -> int:
        return await make(sock).run()

    with asyncio.Runner(loop_factory=lambda: new_loop(os.environ)) as runner:
        return runner.run(live())


VARIABLE: Final = "PENSTOCK_MEASURE_LOOP"


class MeasuredSelector(selectors.DefaultSelector):
    """longest_s: CPU seconds of the longest iteration so far; the reader sets it back."""

    def __init__(self) -> None:
        super().__init__()
        self.longest_s = 0.0
        self._since_s = time.thread_time()

    def select(
        self, timeout: float | None = None
    ) -> list[tuple[selectors.SelectorKey, int]]:  # fmt: skip
        """As every selector does."""
        self.longest_s = max(self.longest_s, time.thread_time() - self._since_s)
        ready = super().select(timeout)
        self._since_s = time.thread_time()
        return ready


def new_loop(environment: Mapping[str, str]) -> asyncio.AbstractEventLoop:
    """An event loop, measured if the environment says so."""
    if environment.get(VARIABLE) != "1":
        return asyncio.new_event_loop()
    return asyncio.SelectorEventLoop(MeasuredSelector())


def take_longest_s(loop: asyncio.AbstractEventLoop) -> float | None:
    """The longest iteration since this was last asked, in CPU seconds; None: it does not
    measure."""
    selector = getattr(loop, "_selector", None)
    if not isinstance(selector, MeasuredSelector):
        return None
    longest_s, selector.longest_s = selector.longest_s, 0.0
    return longest_s
