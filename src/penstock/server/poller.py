"""Poller: waits for the sockets of a vhost's clients, and runs what they bring.

A process of a vhost runs an asyncio loop for what is not per message: its link to the supervisor,
timers, signals, operations. To bring one message through asyncio's transports takes two passes of
its loop and a dozen calls of Python, which costs more than the message. So the clients' sockets are
not registered with asyncio. The loop waits, as always, in the `select` of its selector; that is
PollingSelector (polling_loop), which waits in `Poller.poll`:

    poll     epoll: clients' sockets, an eventfd of the workers, and asyncio's own descriptors
               a socket is ready      source.ready(mask): reads, handles and writes
               a worker has finished  hub.completed
             then, once for all that was ready: hub.turn; when it is time: hub.tick
             again, until asyncio has something to do

asyncio's descriptors stand behind one other: the descriptor of its own epoll. `poll` returns when
that is ready, when the time that asyncio gave is over, or when something that ran here has called
the loop (`must_return`, set by PollingLoop in call_soon, and in call_at for what is due before that
time). So everything that runs here may use the loop, tasks and futures as if it had been called by
it.

One pass takes at most EVENTS_MAX events, and each source reads once, so no client can keep the
others, or asyncio, waiting. After PASS_S the sources that are left are served in the next pass:
many clients of one user together take no longer than one.
"""

import os
import select
from abc import ABC, abstractmethod
from time import monotonic, thread_time
from typing import Final

from penstock.counts import TURN_S, Histogram

EVENTS_MAX: Final = 256
PASS_S: Final = 0.02
READ: Final = 0x001  # EPOLLIN
WRITE: Final = 0x004  # EPOLLOUT


class PolledSource(ABC):
    """Something with a descriptor."""

    @abstractmethod
    def ready(self, mask: int) -> None:
        """Handle what epoll reports of the descriptor. Raises nothing."""


class Turns(ABC):
    """What a poller runs besides its sources: a hub."""

    def __init__(self) -> None:
        self.is_awake: bool = False  # a turn is due
        self.tick_at: float = -1.0  # time.monotonic() of the next tick; negative: none

    @abstractmethod
    def turn(self) -> None:
        """Do what the sources have left to be done, once."""

    @abstractmethod
    def tick(self) -> None:
        """Do what is due by time."""

    @abstractmethod
    def completed(self) -> None:
        """Take the results of workers."""


class Poller:
    """inner: the descriptor of asyncio's own selector."""

    def __init__(self, inner: int) -> None:
        self.must_return: bool = False
        self.until_s: float = -1.0  # when `poll` returns at the latest, monotonic; negative: never
        self.turns: Turns | None = None
        self.is_measuring: bool = False
        self.longest_s: float = 0.0  # CPU seconds of the longest pass, if it is measuring
        self.pass_seconds: Histogram = Histogram(TURN_S)  # of each pass, without its wait
        self.late_seconds: Histogram = Histogram(TURN_S)  # from when a tick was due until it ran
        self._left: list[tuple[int, int]] = []  # events that the last pass had no time for
        self._inner: int = inner
        self._epoll: select.epoll = select.epoll()
        self._sources: dict[int, PolledSource] = {}
        self._masks: dict[int, int] = {}
        self._worker: int = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._is_signalled: bool = False  # the eventfd was written to and not read yet
        self._epoll.register(inner, READ)
        self._epoll.register(self._worker, READ)

    def close(self) -> None:
        """Close the descriptors."""
        self._sources.clear()
        self._epoll.close()
        worker, self._worker = self._worker, -1
        if worker >= 0:
            os.close(worker)

    def watch(self, descriptor: int, source: PolledSource, mask: int) -> None:
        """Call source.ready for these events of a descriptor from now on; 0: for none."""
        now = self._masks.get(descriptor, 0)
        if now == mask:
            return
        if not mask:
            self._epoll.unregister(descriptor)
            del self._masks[descriptor], self._sources[descriptor]
            return
        if now:
            self._epoll.modify(descriptor, mask)
        else:
            self._epoll.register(descriptor, mask)
            self._sources[descriptor] = source
        self._masks[descriptor] = mask

    def wake_from_thread(self) -> None:
        """Have `completed` called. May be called by any thread."""
        if not self._is_signalled and self._worker >= 0:
            self._is_signalled = True
            os.eventfd_write(self._worker, 1)

    def poll(self, timeout_s: float) -> bool:
        """Run what is ready until asyncio has something to do. Returns whether one of its
        descriptors is ready. timeout_s: when asyncio has something to do by time; negative: never.
        """
        self.must_return = False
        self.until_s = until = monotonic() + timeout_s if timeout_s > 0 else -1.0
        while True:
            has_inner = self._pass(self._wait_s(timeout_s, until))
            if has_inner or self.must_return or timeout_s == 0:
                return has_inner
            if timeout_s > 0 and monotonic() >= until:
                return False

    def _wait_s(self, timeout_s: float, until: float) -> float:
        """How long epoll may wait; negative: as long as nothing is ready."""
        turns = self.turns
        if timeout_s == 0 or self._left or (turns is not None and turns.is_awake):
            return 0.0
        if turns is not None and turns.tick_at >= 0 and (until < 0 or turns.tick_at < until):
            until = turns.tick_at
        if until < 0:
            return -1.0
        return max(until - monotonic(), 0.0)

    def _pass(self, wait_s: float) -> bool:
        """Wait, and run what is ready. Returns whether asyncio's descriptor is."""
        if wait_s > 0:
            wait_s = (int(wait_s * 1000) + 1) * 0.001  # epoll counts in ms: not before it is time
        events = self._left
        if not events:
            events = self._epoll.poll(wait_s, EVENTS_MAX)
        began_s = thread_time() if self.is_measuring else 0.0
        last = len(events) - 1
        now_s = monotonic()
        until_s = now_s + PASS_S
        has_inner = False
        sources = self._sources
        self._left = []
        for i, event in enumerate(events):
            descriptor = event[0]
            source = sources.get(descriptor)
            if source is not None:
                source.ready(event[1])
                if i < last and monotonic() > until_s:
                    self._left = events[i + 1 :]
                    break
            elif descriptor == self._inner:
                has_inner = True
            elif descriptor == self._worker:
                self._take_signal()
        turns = self.turns
        if turns is not None and turns.is_awake:
            turns.turn()
        done_s = monotonic()
        if turns is not None and 0 <= turns.tick_at <= done_s:
            self.late_seconds.record(done_s - turns.tick_at)
            turns.tick()
            done_s = monotonic()
        self.pass_seconds.record(done_s - now_s)
        if self.is_measuring:
            self.longest_s = max(self.longest_s, thread_time() - began_s)
        return has_inner

    def _take_signal(self) -> None:
        os.eventfd_read(self._worker)
        self._is_signalled = False  # what finishes from here on signals again
        if self.turns is not None:
            self.turns.completed()
