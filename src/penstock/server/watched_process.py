"""WatchedProcess: a process below the supervisor: starts it, watches it, starts it again.

    stopped --ready()--> starting --ready--> running --stop()--> stopped
                            ^    \\            |  the process ends, its link ends,
                            |     \\           |  or it answers no ping for vhost_hang_s (killed)
                            +------\\----------+
                                    \\  it cannot start for a reason that stays,
                                     +--> or fails too often: down   --restart(), or--> starting
                                                                       after a pause

A failure is only logged. After more than vhost_restarts_max failures within vhost_restart_window_s
the process is down for vhost_retry_s, then tried once; each attempt that fails doubles the pause,
up to RETRY_MAX_S, without an end. After a process has run for vhost_restart_window_s, the next
pause is the first one again. After a failure that the process reports as final (damaged files) only
`restart` starts it. While it is down, calls raise ProcessDown with the reason (`why`). Other
processes go on. The settings for vhosts apply to every process here.

The next process is started only after the old one has ended and was waited for.

News of the link that all processes have (control has their bytes):

    to it     ping (n) · stop
    from it   ready · failed (why; is_final) · pong (n) · line (time_ms, level, text: of its log)

watched_vhost and watched_http list their own.
"""

import asyncio
import logging
import signal
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from penstock.clock import Clock, until_next
from penstock.config import Config
from penstock.errors import PenstockError
from penstock.server import control
from penstock.server.children import Child, StartChild, executed
from penstock.server.control import Facts
from penstock.server.process_link import CALL_S, AskedCall, LinkEndedError, ProcessLink, no_calls

STOPPED: Final = "stopped"
STARTING: Final = "starting"
RUNNING: Final = "running"
STOPPING: Final = "stopping"
DOWN: Final = "down"

WAITING_MAX: Final = 2000  # packets that the process has not taken
LINK_ENDED_S: Final = 2.0  # for a process to end once its link has
RETRY_MAX_S: Final = 300.0  # the longest pause between two attempts to start one that is down
BACK_OFF_S: Final = 0.1  # before the second start in a row, and twice as long before each more

logger = logging.getLogger(__name__)


def _ended(status: int) -> str:
    """Return how a process ended. status: as Child has it, negative after a signal."""
    if status == -signal.SIGKILL:
        return "was killed (SIGKILL), by somebody or by the kernel for want of memory"
    return f"ended with status {status}"


class ProcessDown(PenstockError):
    """A process does not run. who: as in "vhost '/'". why: the reason."""

    def __init__(self, who: str, why: str) -> None:
        super().__init__(f"{who} is down: {why}")
        self.who = who
        self.why = why


class WatchedProcess(ABC):
    """Base of the watched processes. who: its name in the log. program: the command; the descriptor
    of its end of the link is added as the last argument."""

    def __init__(self, who: str, settings: Config, clock: Clock, program: Sequence[str]) -> None:
        self.who = who
        self.since_ms: int | None = None  # when it began or ceased to serve; None: never started
        self._state = STOPPED
        self.why = ""
        self.last_failure = ""  # why it last ended by itself
        self.failed_ms = 0
        self.starts = 0
        self.ends: Counter[str] = Counter()  # why it had to be started again
        self.pid = 0
        self.pongs = 0
        self.on_line: Callable[[int, str, str], None] | None = None  # log_lines.Take
        self.start_child: StartChild = executed
        self._settings = settings
        self._is_behind = False
        self._clock = clock
        self._program = program
        self._loop = asyncio.get_running_loop()
        self._running: asyncio.Task[None] | None = None
        self._settled: asyncio.Future[None] = self._loop.create_future()
        self._process: Child | None = None
        self._link: ProcessLink | None = None
        self._failures: deque[float] = deque()
        self._retries = 0  # attempts since it went down: how often the pause was doubled
        self._retry: asyncio.TimerHandle | None = None
        self._retry_at_s = 0.0
        self._has_hung = False  # this process was killed because it did not answer, not by SIGSTOP
        self._has_failed = False  # this process said that it failed
        self._ready_s: float | None = None  # when this process became ready
        self._is_final = False
        # Seconds since its last message, without those in which this process did not run.
        self._silent_s = 0.0
        self._watched_s = 0.0  # when that was last counted
        self._hearing: dict[int, asyncio.Future[None]] = {}  # by the numbers of their pings
        self._heard_n = 0  # the last of these numbers: those of `_watch` are positive

    # ---- what a kind of process defines --------------------------------------------------------

    @abstractmethod
    def _begin_life(self, link: ProcessLink) -> None:
        """Send a process that was started what it needs."""

    @abstractmethod
    def _on_own_message(self, do: str, facts: Facts) -> None:
        """Handle a message of this kind of process, or a pong."""

    @abstractmethod
    def _environment(self) -> dict[str, str]:
        """Return variables for the environment of the next start; those already set win."""

    @abstractmethod
    def _is_down(self) -> None:
        """Note that the process is down."""

    def _has_started(self) -> None:  # noqa: B027 - nothing, for most
        """Send what has changed since `_begin_life`: `notify` did nothing meanwhile."""

    def _waits_for(self) -> str:
        """Return what its start waits for, "" if it goes on."""
        return ""

    def _life_ended(self) -> None:
        """Reset what was counted of a process that has ended."""
        self.pid = 0

    def _failed(self, status: int) -> None:  # noqa: B027 - nothing, for most
        """Note that the process ended by itself with this status (negative: a signal)."""

    def down(self) -> ProcessDown:
        """Return the error that says why it is down, and when it is started again."""
        return self._down(self._why_down())

    def _down(self, why: str) -> ProcessDown:
        """Return the error for calls while it is down."""
        return ProcessDown(self.who, why)

    @property
    def state(self) -> str:
        """The state, one of those above."""
        return self._state

    @state.setter
    def state(self, new: str) -> None:
        if self.since_ms is None or (new == RUNNING) != (self._state == RUNNING):
            self.since_ms = self._clock.wall_ms()
        self._state = new

    @property
    def retry_in_s(self) -> float | None:
        """Seconds until it is started again, None if that is not planned."""
        if self._retry is None:
            return None
        return max(self._retry_at_s - self._clock.monotonic(), 0.0)

    @property
    def silent_s(self) -> float:
        """Seconds for which it has not answered although it runs; 0.0 up to two pings."""
        if self.state != RUNNING or not self._silent_s:
            return 0.0
        pause_s = self._pause_s
        silent_s = self._silent_s + min(self._clock.monotonic() - self._watched_s, pause_s)
        return silent_s if silent_s > 2 * pause_s else 0.0

    @property
    def _is_leaving(self) -> bool:
        """Return whether its link has ended, and the process not yet: calls wait for the next."""
        return self.state == RUNNING and self._link is not None and self._link.is_closed

    @property
    def _pause_s(self) -> float:
        """Seconds between two pings."""
        return min(self._settings.ping_s, self._settings.vhost_hang_s / 4)

    @property
    def restarts(self) -> int:
        """How often it was started again."""
        return max(self.starts - 1, 0)

    # ---- for the supervisor --------------------------------------------------------------------

    def start(self) -> None:
        """Start it if it is stopped. Does nothing if it runs or is down."""
        if self.state == STOPPED:
            self._begin()

    @property
    def is_ready(self) -> bool:
        """Return whether `ready` returns at once."""
        return self.state == RUNNING and not self._is_leaving

    async def ready(self) -> None:
        """Start it if need be, and wait until it runs. Raises ProcessDown, also if its start waits
        for something that may never come."""
        if self.is_ready:
            return
        self.start()
        while self.state == STARTING or self._is_leaving:
            why = self._waits_for()
            if why:
                raise self._down(why)
            if self._settled.done():
                self._settled = self._loop.create_future()
            await asyncio.shield(self._settled)
        if self.state != RUNNING:
            raise self.down()

    async def restart(self) -> None:
        """Forget its failures and start it: at once if it is down, after an orderly stop if it
        runs. Returns when it runs. Raises ProcessDown."""
        self._forget_failures()
        if self.state == RUNNING:
            self.ends["asked"] += 1
            await self.stop()
        if self.state == DOWN:
            self._begin()
        await self.ready()

    def use(self, settings: Config) -> None:
        """Take changed settings, for the process that runs and for those that are started later."""
        self._settings = settings
        self._is_behind = self.state != RUNNING  # one that is starting may have got earlier ones
        self.notify("settings", **settings.live_settings())

    def notify(self, do: str, **facts: object) -> None:
        """Send news. Does nothing if the process does not run: it gets everything when it
        starts (`_begin_life`), and when it has started (`_has_started`)."""
        if self._link is not None and self.state == RUNNING:
            self._link.send({"do": do, **facts})

    async def heard(self) -> None:
        """Wait until the process has taken the news that it was sent, or has ended. Does nothing
        if it does not run."""
        if self._link is None or self.state != RUNNING:
            return
        self._heard_n -= 1  # never twice: who has given up may be answered yet
        number = self._heard_n
        self._hearing[number] = self._loop.create_future()
        self._link.send({"do": "ping", "n": number})
        try:
            await self._hearing[number]
        finally:
            self._hearing.pop(number, None)

    async def call(self, op: str, args: bytes, seconds: float = CALL_S) -> bytes:
        """Return the result of an operation. args, result: JSON. Raises ControlError, ProcessDown,
        and TimeoutError after `seconds`."""
        await self.ready()
        assert self._link is not None
        try:
            return (await self._link.call(op, None, args, seconds)).data
        except LinkEndedError as error:
            raise self._down(self.why or "its process has ended") from error

    async def stop(self) -> None:
        """Stop it in order. Kills it after stop_s."""
        running = self._running
        self._cancel_retry()
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
            logger.error("%s does not stop, it is killed", self.who)
            self.kill("it did not stop")
            await asyncio.wait([running])

    def kill(self, why: str) -> None:
        """Kill it. why: the reason."""
        if self._process is not None and self._process.status is None:
            self.why = why
            self._process.kill()

    # ---- one process after the other
    # ------------------------------------------------------------------------

    def _begin(self) -> None:
        self._cancel_retry()
        self.state = STARTING
        self.why = ""
        self._is_final = False
        if self._settled.done():
            self._settled = self._loop.create_future()
        self._running = self._loop.create_task(self._live_on())

    def _forget_failures(self) -> None:
        self.last_failure = ""
        self._failures.clear()
        self._retries = 0

    def _cancel_retry(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    def _retry_later(self) -> None:
        """Start it after a pause, which doubles with each attempt."""
        pause_s = min(self._settings.vhost_retry_s * 2 ** min(self._retries, 16), RETRY_MAX_S)
        self._retries += 1
        self._retry_at_s = self._clock.monotonic() + pause_s
        self._retry = self._loop.call_later(pause_s, self._begin)
        logger.error("%s is down: %s; it is started again in %g s", self.who, self.why, pause_s)

    def _why_down(self) -> str:
        why = self.why or self.state
        left_s = self.retry_in_s
        return why if left_s is None else f"{why}; it is started again in {left_s:.0f} s"

    def _settle(self) -> None:
        if not self._settled.done():
            self._settled.set_result(None)

    async def _live_on(self) -> None:
        """Run one process after the other, until it is stopped or down."""
        while True:
            self.starts += 1
            self._ready_s = None
            self._has_hung = self._has_failed = False
            try:
                status = await self._live()
            except OSError as error:
                self.why, status = f"it cannot be started: {error}", -1
            finally:
                self._end_of_life()
            if self.state == STOPPING:
                self.state = STOPPED
                return
            self.why = self.why or f"its process {_ended(status)}"
            self.last_failure, self.failed_ms = self.why, self._clock.wall_ms()
            self.ends[self._reason()] += 1
            self._failed(status)
            if self._is_final or self._has_failed_too_often():
                self._go_down()
                return
            logger.error("%s has failed and is started again: %s", self.who, self.why)
            self.state = STARTING
            if self._settled.done():
                self._settled = self._loop.create_future()
            if len(self._failures) > 1:
                await asyncio.sleep(BACK_OFF_S * (1 << min(len(self._failures) - 2, 6)))
                if self.state != STARTING:  # stopped meanwhile
                    self.state = STOPPED
                    return
            self.why = ""

    @property
    def is_hopeless(self) -> bool:
        """Return whether another start would fail the same way, because of its files."""
        return self._is_final

    def _reason(self) -> str:
        """Return why the process ended by itself, in a word: see the metric process_restarts."""
        if self._is_final:
            return "damaged"
        if self._has_hung:
            return "hang"
        return "failed" if self._has_failed else "died"

    def _go_down(self) -> None:
        self.state = DOWN
        if self._is_final:
            logger.error("%s stays down: %s", self.who, self.why)
        else:
            self._retry_later()
        self._settle()
        self._is_down()

    def _has_failed_too_often(self) -> bool:
        now = self._clock.monotonic()
        window_s = self._settings.vhost_restart_window_s
        if self._ready_s is not None and now - self._ready_s >= window_s:
            self._retries = 0
        self._failures.append(now)
        while self._failures and self._failures[0] <= now - window_s:
            self._failures.popleft()
        return self._retries > 0 or len(self._failures) > self._settings.vhost_restarts_max

    async def _live(self) -> int:
        """Start a process and wait for its end. Returns its exit status."""
        ours, theirs = control.pair()
        try:
            self._process = self.start_child(self._program, theirs.fileno(), self._environment())
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self.pid = self._process.pid
        self._link = ProcessLink(ours, self._on_link_closed, self._on_news, self._on_call)
        self._silent_s, self._watched_s = 0.0, self._clock.monotonic()
        watching = self._loop.create_task(self._watch())
        try:
            self._begin_life(self._link)
            if self.state == STOPPING:
                self._link.send({"do": "stop"})
            return await self._process.wait()
        finally:
            watching.cancel()
            self._process.kill()  # if this task was cancelled

    def _end_of_life(self) -> None:
        if self._link is not None:
            self._link.close()
        self._link = self._process = None
        for hearing in self._hearing.values():
            if not hearing.done():
                hearing.set_result(None)
        self._life_ended()

    async def _watch(self) -> None:
        """Ping the process, and kill it when it does not answer. A start may take longer. Time in
        which this process itself did not run does not count."""
        settings = self._settings
        pause_s = self._pause_s
        number = 0
        while True:
            await asyncio.sleep(until_next(self._clock.monotonic(), pause_s))
            now_s = self._clock.monotonic()
            self._silent_s += min(now_s - self._watched_s, 2 * pause_s)
            self._watched_s = now_s
            limit_s = settings.vhost_hang_s
            if self.state != RUNNING:
                limit_s = max(settings.vhost_start_s, settings.stop_s)
            if self._silent_s > limit_s:
                why = f"it did not answer for {self._silent_s:.1f} s"
                self._has_hung = not is_stopped(self.pid)
                logger.error("%s is killed: %s", self.who, why)
                self.kill(why)
                return
            if self._link is not None and self._link.waiting < WAITING_MAX:
                number += 1
                self._link.send({"do": "ping", "n": number})

    # ---- its messages -------------------------------------------------------------------------

    def _on_link_closed(self, why: str) -> None:
        """Kill the process if it has not ended LINK_ENDED_S after its link closed."""
        process = self._process

        def look() -> None:
            if process is not None and self._process is process:
                self.kill(f"its link ended: {why}")

        self._loop.call_later(max(self._settings.ping_s, LINK_ENDED_S), look)

    def _on_news(self, facts: Facts, _data: bytes, _descriptors: list[int]) -> None:
        self._silent_s = 0.0
        do = facts["do"]
        if do == "pong":
            self.pongs += 1
            hearing = self._hearing.get(whole(facts["n"]))
            if hearing is not None and not hearing.done():
                hearing.set_result(None)
            self._on_own_message("pong", facts)
        elif do == "ready" and self.state == STARTING:
            self.state = RUNNING
            self._ready_s = self._clock.monotonic()
            if self._is_behind:
                self.use(self._settings)
            self._has_started()
            logger.info("%s serves, process %d", self.who, self.pid)
            self._settle()
        elif do == "failed":
            self.why = str(facts["why"])
            self._is_final, self._has_failed = bool(facts["is_final"]), True
        elif do == "line":
            if self.on_line is not None:
                self.on_line(whole(facts["time_ms"]), str(facts["level"]), str(facts["text"]))
        else:
            self._on_own_message(str(do), facts)

    def _on_call(self, asked: AskedCall) -> None:
        """Answer a call of the process."""
        no_calls(asked)


def is_stopped(pid: int) -> bool:
    """Return whether the process is stopped by a signal (SIGSTOP)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] in ("T", "t")


def entry_of(facts: Facts) -> Facts:
    """Return the entry of the audit log in a message of one of our processes."""
    entry = facts["entry"]
    assert isinstance(entry, dict)
    return entry


def whole(value: object) -> int:
    """Return an integer of a message. Our own processes send it."""
    assert isinstance(value, int)
    return value
