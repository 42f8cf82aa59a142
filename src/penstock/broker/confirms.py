"""Confirms: which publishes of a channel are not confirmed yet.

A channel in confirm mode counts its publishes from 1. Each is acknowledged once it is as safe as
its mode says: its record's LSN is settled. LSNs rise with the publishes, so a channel is a run of
(publishes up to this tag, their LSN): all publishes of one turn of the loop are one entry, and one
basic.ack with `multiple` answers them.

Publishes with nothing to wait for (transient, unroutable) have LSN 0 and are answered with the
entry that they are added to: confirms are sent in order. RabbitMQ may answer them sooner, out of
order; a publisher must accept both.

A publish that a queue refused is a basic.nack, which splits the run.
"""

from collections import deque

from penstock.native import mypyc_attr


@mypyc_attr(acyclic=True)
class Run:
    """Publishes from `first_tag` to `last_tag` that are answered alike once `lsn` is settled."""

    __slots__ = ("first_tag", "is_ack", "last_tag", "lsn")

    def __init__(self, last_tag: int, lsn: int, is_ack: bool) -> None:
        self.first_tag: int = last_tag
        self.last_tag: int = last_tag
        self.lsn: int = lsn
        self.is_ack: bool = is_ack

    @property
    def is_multiple(self) -> bool:
        """Return whether the answer is for more than one publish."""
        return self.first_tag != self.last_tag


class Confirms:
    """The confirms of one channel. last_tag: of its last publish. `answered`: the last tag that was
    answered."""

    def __init__(self) -> None:
        self.last_tag: int = 0
        self.answered: int = 0
        self._runs: deque[Run] = deque()
        self._open: Run | None = None  # the last run, while its turn lasts

    def published(self, lsn: int) -> None:
        """Count a publish; it is safe once lsn is settled, 0: at once."""
        self.last_tag += 1
        run = self._open
        if run is not None and run.is_ack:
            run.last_tag = self.last_tag
            if lsn:
                run.lsn = lsn
            return
        self._open = run = Run(self.last_tag, lsn, True)
        self._runs.append(run)

    def refused(self) -> None:
        """Count a publish that a queue refused."""
        self.last_tag += 1
        self._open = run = Run(self.last_tag, 0, False)
        self._runs.append(run)

    @property
    def has_unconfirmed(self) -> bool:
        """Return whether publishes are unconfirmed."""
        return bool(self._runs)

    def settle(self, settled: int) -> list[Run]:
        """End the turn: return the runs to answer, with LSNs up to `settled`."""
        self._open = None
        runs = self._runs
        done: list[Run] = []
        while runs and runs[0].lsn <= settled:
            run = runs.popleft()
            last = done[-1] if done else None
            if last is not None and last.is_ack and run.is_ack:
                last.last_tag = run.last_tag
            else:
                done.append(run)
        if done:
            self.answered = done[-1].last_tag
        return done
