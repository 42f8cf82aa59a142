"""QueueModel: what a BackingQueue is to its owner, an ordered map of messages; History: the log.

The model knows of each message which it is, whether it is pending, how often it was tried, and
whether it was delivered before (None where only the queue can know: after a crash everything below
a reserved mark says so). It knows nothing of where messages are.

A History has the state of all queues after each change, beside the LSN that the change reached. The
log is recovered as a prefix, so after a crash the queues must be what they were at one of those
moments, and not at one from before what was settled.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from penstock.queues.backing_queue import PART_SHIFT

Durable = dict[bytes, dict[int, tuple[int, int]]]  # queue -> tag -> (number, attempts)


@dataclass(slots=True)
class Sent:
    """One message in one queue. id: 0 until it was seen."""

    number: int
    size: int
    is_persistent: bool
    header: bytes
    expiry_ms: int = 0
    attempts: int = 0
    is_delivered: bool | None = False
    is_pending: bool = False
    id: int = 0


class QueueModel:
    """tag -> message, of one queue."""

    def __init__(self) -> None:
        self.sent: dict[int, Sent] = {}

    def _order(self, tags: Iterable[int]) -> list[int]:
        """By priority, the highest first, then by seq."""
        return sorted(tags, key=lambda tag: (-(tag >> PART_SHIFT), tag))

    def all(self) -> list[int]:
        """Tags of all messages, in the order of delivery."""
        return self._order(self.sent)

    def ready(self) -> list[int]:
        """Tags of the ready, in the order of delivery."""
        return self._order(tag for tag, m in self.sent.items() if not m.is_pending)

    def ready_behind(self, after: int | None) -> list[int]:
        """Tags of the ready that come after this place."""
        ready = self.ready()
        if after is None:
            return ready
        return [tag for tag in ready if tag != after and self._order([tag, after])[0] == after]

    def pending(self) -> list[int]:
        """Tags of the pending, ascending."""
        return sorted(tag for tag, m in self.sent.items() if m.is_pending)

    def body_bytes(self) -> int:
        """Of the ready."""
        return sum(m.size for m in self.sent.values() if not m.is_pending)

    def durable(self) -> dict[int, tuple[int, int]]:
        """What a crash may leave of it."""
        return {t: (m.number, m.attempts) for t, m in self.sent.items() if m.is_persistent}

    def stop(self) -> None:
        """The process stops in order: pending messages come back, transient ones are gone."""
        self.sent = {t: m for t, m in self.sent.items() if m.is_persistent}
        for m in self.sent.values():
            m.is_pending = False

    def recover(self, found: dict[int, tuple[int, int]], known: dict[int, Sent]) -> None:
        """Become what a crash has left. known: every message that was ever at these tags."""
        self.sent = {}
        for tag, (number, attempts) in found.items():
            m = replace(known[tag], attempts=attempts, is_pending=False)
            assert m.number == number
            m.is_delivered = m.is_delivered or None
            self.sent[tag] = m


class History:
    """States of all queues, each with the last LSN as it was then."""

    def __init__(self) -> None:
        self._states: list[tuple[int, Durable]] = []

    def note(self, lsn: int, state: Durable) -> None:
        """The queues are in this state after the record of this LSN."""
        self._states.append((lsn, state))

    def settle(self, lsn: int) -> None:
        """Everything up to this LSN outlives a crash: states from before it are out."""
        while len(self._states) > 1 and self._states[1][0] <= lsn:
            del self._states[0]

    def allows(self, found: Durable) -> bool:
        """Whether a crash may have left this."""
        return any(state == found for _, state in self._states)

    def restart(self, lsn: int, state: Durable) -> None:
        """A new life begins with this."""
        self._states = [(lsn, state)]

    def __str__(self) -> str:
        return "\n".join(f"{lsn}: {state}" for lsn, state in self._states)
