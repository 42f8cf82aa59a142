"""WatchedVhost: one vhost's process as the supervisor sees it: started, watched, started again.

    stopped --ready()--> starting --ready--> running --stop()--> stopped
                            ^    \\            |  the process ends, its link ends,
                            |     \\           |  or it answers no ping for vhost_hang_s (killed)
                            +------\\----------+
                                    \\  it cannot start for a reason that stays,
                                     +--> or fails too often: down        --restart()--> starting

A failure is told to nobody but the log: its clients see their connections end, come again, and find
the vhost as it was at its last confirm. More than vhost_restarts_max failures within
vhost_restart_window_s, or files that cannot be read, and it stays down; `why` says what happened,
and whoever wants to open it is told (VhostDown). The other vhosts know nothing of all that.

An old process has ended, and been waited for, before the next is started; the lock of the vhost's
directory keeps a second one out in any case.

Not here: which vhosts there are, what is done about one that is down (supervisor), the process
itself (vhost_process).
"""

import asyncio
import logging
import os
import socket
import sys
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from penstock.access.permissions import Identity
from penstock.clock import Clock
from penstock.errors import AMQPConnectionError, PenstockError
from penstock.server import process_link
from penstock.server.control import ControlError, from_json, to_json
from penstock.server.handoff import Opened, pack
from penstock.server.process_link import Facts, Link
from penstock.server.serve_settings import ServeSettings

STOPPED: Final = "stopped"
STARTING: Final = "starting"
RUNNING: Final = "running"
STOPPING: Final = "stopping"
DOWN: Final = "down"

# -P: what lies in the current directory is not imported.
PROGRAM: Final = (sys.executable, "-P", "-m", "penstock.server.vhost_process")
ROOMY_BYTES: Final = 512 << 20
KEPT_BYTES_MOST: Final = 128 << 20
MAPPED_BYTES: Final = 8 << 20  # larger ones are mapped, and go back to the system at once
PAD_BYTES: Final = 1 << 20
WAITING_MAX: Final = 2000  # messages that it has not taken; more, and clients are refused
CALL_S: Final = 60.0
LINK_ENDED_S: Final = 2.0  # for a process to end once its link has
INTERNAL_ERROR: Final = 541
BACK_OFF_S: Final = 0.1  # before the second start in a row, and twice as long before each more

logger = logging.getLogger(__name__)


def allocator(memory_bytes: int) -> dict[str, str]:
    """What glibc reads at the start of a process. Memory that bodies lived in is used again, up to
    a sixteenth of the budget, instead of given back to the system, which clears each page that it
    gives out: a third of the cost of a message of 16 KiB. With a small budget every MiB counts more
    than that. An operator's own settings come first."""
    if memory_bytes < ROOMY_BYTES:
        return {}
    return {
        "MALLOC_TRIM_THRESHOLD_": str(min(memory_bytes >> 4, KEPT_BYTES_MOST)),
        "MALLOC_MMAP_THRESHOLD_": str(MAPPED_BYTES),
        "MALLOC_TOP_PAD_": str(PAD_BYTES),
    }


class VhostDown(PenstockError):
    """It does not run. why: what keeps it from it."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"vhost '{name}' is down: {why}")
        self.name = name
        self.why = why


class WatchedVhost:
    """`path`: its directory, which is there. on_down(vhost): it stays down from now on. program:
    what is started, with the descriptor of its end of the link behind.

    Counters of the last pong: depth_bytes, connections, rss_bytes. memory_bytes: what it was told.
    """

    def __init__(
        self,
        name: str,
        path: str,
        settings: ServeSettings,
        clock: Clock,
        on_down: Callable[["WatchedVhost"], None],
        program: Sequence[str] = PROGRAM,
    ) -> None:
        self.name = name
        self.path = path
        self.state = STOPPED
        self.why = ""
        self.starts = 0
        self.pid = 0
        self.memory_bytes = 0
        self.depth_bytes = 0
        self.connections = 0
        self.rss_bytes = 0
        self.pongs = 0
        self.on_memory: Callable[[], None] | None = None  # it has taken what it was told
        self._settings = settings
        self._clock = clock
        self._on_down = on_down
        self._program = program
        self._loop = asyncio.get_running_loop()
        self._running: asyncio.Task[None] | None = None
        self._settled: asyncio.Future[None] = self._loop.create_future()
        self._process: asyncio.subprocess.Process | None = None
        self._link: Link | None = None
        self._failures: deque[float] = deque()
        self._is_final = False
        self._calls: dict[int, asyncio.Future[object]] = {}
        self._calls_n = 0
        self._silent_s = (
            0.0  # since it last said anything, as far as this process was there to hear
        )

    @property
    def restarts(self) -> int:
        """How often it was started again."""
        return max(self.starts - 1, 0)

    # ---- what the supervisor asks --------------------------------------------------------------

    def start(self) -> None:
        """Have it run; nothing happens if it does, or is down."""
        if self.state == STOPPED:
            self._begin()

    async def ready(self) -> None:
        """Started if need be, and running. VhostDown."""
        self.start()
        while self.state == STARTING:
            await asyncio.shield(self._settled)
        if self.state != RUNNING:
            raise VhostDown(self.name, self.why or self.state)

    def restart(self) -> None:
        """One that is down tries again; its failures are forgotten."""
        if self.state == DOWN:
            self._failures.clear()
            self._begin()

    def hand_over(
        self, opened: Opened, identity: Identity, leftover: bytes, sock: socket.socket
    ) -> None:
        """The client is the vhost's from now on, and the socket closed here. AMQPConnectionError
        541: it takes no more; the socket is the caller's still."""
        if self.state != RUNNING or self._link is None:
            raise VhostDown(self.name, self.why or self.state)
        if self._link.waiting >= WAITING_MAX:
            text = f"vhost '{self.name}' does not answer"
            raise AMQPConnectionError(INTERNAL_ERROR, text, 10, 40)
        self._link.send({"do": "connection", **pack(opened, identity)}, leftover, sock)

    def tell(self, do: str, **facts: object) -> None:
        """News; lost if it does not run, for it learns all anew when it starts."""
        if self._link is not None and self.state == RUNNING:
            self._link.send({"do": do, **facts})

    def tell_memory(self, number: int) -> None:
        """Its part of the memory, in bytes."""
        self.memory_bytes = number
        self.tell("memory", bytes=number)

    async def call(self, op: str, args: dict[str, object], seconds: float = CALL_S) -> object:
        """The result of an operation. ControlError, VhostDown; TimeoutError after so long."""
        await self.ready()
        assert self._link is not None
        self._calls_n += 1
        number = self._calls_n
        answer = self._calls[number] = self._loop.create_future()
        self._link.send({"do": "call", "n": number, "op": op, "args": to_json(args)})
        try:
            async with asyncio.timeout(seconds):
                return await answer
        finally:
            self._calls.pop(number, None)

    async def stop(self) -> None:
        """In order, killed if that takes longer than stop_s."""
        running = self._running
        if running is None or running.done():
            if self.state != DOWN:
                self.state = STOPPED
            return
        was_running = self.state == RUNNING
        self.state = STOPPING
        self._settle()
        if self._link is not None:
            self._link.send({"do": "stop"})
        elif was_running:
            self.kill("it has no link")
        done, _ = await asyncio.wait([running], timeout=self._settings.stop_s)
        if not done:
            logger.error("vhost %r does not stop, it is killed", self.name)
            self.kill("it did not stop")
            await asyncio.wait([running])

    def kill(self, why: str) -> None:
        """At once."""
        if self._process is not None and self._process.returncode is None:
            self.why = why
            try:
                self._process.kill()
            except ProcessLookupError:
                pass

    # ---- its lives -----------------------------------------------------------------------------

    def _begin(self) -> None:
        self.state = STARTING
        self.why = ""
        self._is_final = False
        if self._settled.done():
            self._settled = self._loop.create_future()
        self._running = self._loop.create_task(self._live_on())

    def _settle(self) -> None:
        if not self._settled.done():
            self._settled.set_result(None)

    async def _live_on(self) -> None:
        """One life after the other."""
        while True:
            self.starts += 1
            try:
                status = await self._live()
            except OSError as error:
                self.why, status = f"it cannot be started: {error}", -1
            finally:
                self._end_of_life()
            if self.state == STOPPING:
                self.state = STOPPED
                return
            self.why = self.why or f"its process ended with status {status}"
            if self._is_final or self._has_failed_too_often():
                logger.error("vhost %r stays down: %s", self.name, self.why)
                self.state = DOWN
                self._settle()
                self._on_down(self)
                return
            logger.error("vhost %r has failed and is started again: %s", self.name, self.why)
            self.state = STARTING
            if self._settled.done():
                self._settled = self._loop.create_future()
            if len(self._failures) > 1:
                await asyncio.sleep(BACK_OFF_S * (1 << min(len(self._failures) - 2, 6)))
                if self.state != STARTING:  # stopped meanwhile
                    self.state = STOPPED
                    return
            self.why = ""

    def _has_failed_too_often(self) -> bool:
        now = self._clock.monotonic()
        self._failures.append(now)
        while self._failures and self._failures[0] <= now - self._settings.vhost_restart_window_s:
            self._failures.popleft()
        return len(self._failures) > self._settings.vhost_restarts_max

    async def _live(self) -> int:
        """From the start of the process to its end; its exit status."""
        ours, theirs = process_link.pair()
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._program, str(theirs.fileno()),
                pass_fds=[theirs.fileno()], stdin=asyncio.subprocess.DEVNULL,
                env=allocator(self.memory_bytes) | os.environ,
            )  # fmt: skip
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self.pid = self._process.pid
        self._link = Link(ours, self._on_message, self._on_link_closed)
        self._link.send({
            "do": "start", "name": self.name, "path": self.path,
            "settings": self._settings.vhost_settings(self.memory_bytes),
        })  # fmt: skip
        if self.state == STOPPING:
            self._link.send({"do": "stop"})
        self._silent_s = 0.0
        watching = self._loop.create_task(self._watch())
        try:
            return await self._process.wait()
        finally:
            watching.cancel()
            if self._process.returncode is None:  # this task was cancelled
                self._process.kill()

    def _end_of_life(self) -> None:
        if self._link is not None:
            self._link.close()
        self._link = self._process = None
        self.pid = self.connections = self.depth_bytes = self.rss_bytes = 0
        for answer in self._calls.values():
            if not answer.done():
                answer.set_exception(VhostDown(self.name, self.why or "its process has ended"))
        self._calls = {}

    async def _watch(self) -> None:
        """Ping it; kill it when it does not answer. A start has its own, longer time. If this
        process itself was stopped for a while, that is nobody's silence."""
        settings = self._settings
        pause_s = min(settings.ping_s, settings.vhost_hang_s / 4)
        number = 0
        before_s = self._clock.monotonic()
        while True:
            await asyncio.sleep(pause_s)
            now_s = self._clock.monotonic()
            self._silent_s += min(now_s - before_s, 2 * pause_s)
            before_s = now_s
            limit_s = settings.vhost_hang_s
            if self.state != RUNNING:
                limit_s = max(settings.vhost_start_s, settings.stop_s)
            if self._silent_s > limit_s:
                why = f"it did not answer for {self._silent_s:.1f} s"
                logger.error("vhost %r is killed: %s", self.name, why)
                self.kill(why)
                return
            if self._link is not None and self._link.waiting < WAITING_MAX:
                number += 1
                self._link.send({"do": "ping", "n": number})

    # ---- what it says --------------------------------------------------------------------------

    def _on_link_closed(self, why: str) -> None:
        """It is about to end; if it does not, it has lost its senses."""
        process = self._process

        def look() -> None:
            if process is not None and self._process is process:
                self.kill(f"its link ended: {why}")

        self._loop.call_later(max(self._settings.ping_s, LINK_ENDED_S), look)

    def _on_message(self, facts: Facts, data: bytes, descriptors: list[int]) -> None:
        self._silent_s = 0.0
        do = facts["do"]
        if do == "result":
            self._on_result(facts)
        elif do == "pong":
            self.pongs += 1
            self.depth_bytes = _number(facts["depth_bytes"])
            self.connections = _number(facts["connections"])
            self.rss_bytes = _number(facts["rss_bytes"])
        elif do == "memory_is" and self.on_memory is not None:
            self.on_memory()
        elif do == "ready" and self.state == STARTING:
            self.state = RUNNING
            logger.info("vhost %r serves, process %d", self.name, self.pid)
            self._settle()
        elif do == "failed":
            self.why = str(facts["why"])
            self._is_final = bool(facts["is_final"])

    def _on_result(self, facts: Facts) -> None:
        answer = self._calls.get(_number(facts["id"]))
        if answer is None or answer.done():
            return
        fault = facts.get("error")
        if isinstance(fault, dict):
            answer.set_exception(ControlError(int(fault["code"]), str(fault["text"])))
        else:
            answer.set_result(from_json(facts.get("result")))


def _number(value: object) -> int:
    assert isinstance(value, int)
    return value
