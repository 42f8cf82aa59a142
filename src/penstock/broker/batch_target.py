"""BatchTarget: where the messages of a batch go, as its commit says and as the log keeps it.

    {"queue": "q"}                           every message, to this queue or stream
    {"exchanges": ["x", ""]}                 each to the exchange that it names itself, of these
    + "dead_letter_to": "dead"               a queue or stream for what cannot go there

A queue must be durable, and nobody's own. Exchanges must exist, and be none that only other
exchanges publish to; "" is the default exchange, which routes by the names of queues. All of that
is looked at when the batch is committed: from then on its messages belong to the target, and what
is deleted later makes them wait, or go to `dead_letter_to`.

Not here: who asks (operations_batches.py), where a message goes (batch_slices.py).
"""

import json
from typing import TYPE_CHECKING

from penstock.access.permissions import Identity
from penstock.broker import refusals
from penstock.broker.operation_args import refused
from penstock.broker.served_queue import Served

if TYPE_CHECKING:
    from penstock.broker.vhost import VHost

EXPECTED = (
    'expected {"queue": name} or {"exchanges": [names]}, and perhaps "dead_letter_to": name of a '
    "queue"
)


class BatchTarget:
    """queue: "" if it is exchanges. dead_letter_to: "" for none."""

    __slots__ = ("dead_letter_to", "exchanges", "queue")

    def __init__(self, queue: str, exchanges: tuple[str, ...], dead_letter_to: str) -> None:
        self.queue: str = queue
        self.exchanges: tuple[str, ...] = exchanges
        self.dead_letter_to: str = dead_letter_to

    @classmethod
    def of(cls, given: object) -> "BatchTarget":
        """As a commit has it. ChannelError 406."""
        if not isinstance(given, dict):
            raise refused(f"target: given {given!r}, {EXPECTED}")
        queue, exchanges = given.get("queue", ""), given.get("exchanges", [])
        dead = given.get("dead_letter_to") or ""
        is_right = (
            isinstance(queue, str)
            and isinstance(exchanges, list)
            and all(isinstance(name, str) for name in exchanges)
            and isinstance(dead, str)
            and bool(queue) != bool(exchanges)
            and not set(given).difference(("queue", "exchanges", "dead_letter_to"))
        )
        if not is_right:
            raise refused(f"target: given {str(given)[:200]}, {EXPECTED}")
        return cls(queue, tuple(sorted(set(exchanges))), dead)

    @classmethod
    def nowhere(cls) -> "BatchTarget":
        """Of a batch without rows, which names no exchange."""
        return cls("", (), "")

    @property
    def is_nowhere(self) -> bool:
        """Whether it names nothing."""
        return not self.queue and not self.exchanges

    @classmethod
    def from_text(cls, text: str) -> "BatchTarget":
        """As the log has it. ValueError."""
        given = json.loads(text)
        if not isinstance(given, dict):
            raise ValueError(f"the target of a batch is no object: {text[:100]!r}")
        names = given.get("exchanges", [])
        return cls(
            str(given.get("queue", "")), tuple(str(name) for name in names),
            str(given.get("dead_letter_to") or ""),
        )  # fmt: skip

    def text(self) -> str:
        """For the log."""
        return json.dumps(self.facts(), separators=(",", ":"), ensure_ascii=True)

    def facts(self) -> dict[str, object]:
        """For people."""
        found: dict[str, object] = (
            {"queue": self.queue} if self.queue else {"exchanges": list(self.exchanges)}
        )
        if self.dead_letter_to:
            found["dead_letter_to"] = self.dead_letter_to
        return found

    def called(self) -> str:
        """For messages: "queue 'q'", "exchanges 'x', 'y'"."""
        if self.queue:
            return f"queue '{self.queue}'"
        if self.is_nowhere:
            return "no target"
        return "exchanges " + ", ".join([f"'{name}'" for name in self.exchanges])

    def is_same_place(self, text: str) -> bool:
        """Whether the target of a decided batch is the same queue or exchanges; where its dead
        letters go may differ."""
        try:
            other = BatchTarget.from_text(text)
        except ValueError:
            return False
        return (self.queue, self.exchanges) == (other.queue, other.exchanges)

    def is_writable(self, identity: Identity) -> bool:
        """Whether the user may write to all of it, and it is something."""
        if self.is_nowhere:
            return False
        names = [name for name in (self.queue, self.dead_letter_to) if name]
        return all(identity.may_write(name) for name in (*names, *self.exchanges))

    def check(self, vhost: "VHost") -> None:
        """ChannelError: 403, 404, 406 unless everything is there."""
        for name in (self.queue, self.dead_letter_to):
            if name:
                queue = vhost.find_queue(name)
                if not is_lasting(queue):
                    kind = "exclusive" if queue.is_exclusive else "not durable"
                    raise refusals.precondition_failed(
                        f"{vhost.table.called(name)} is {kind}: a batch is written exactly once, "
                        "which such a queue cannot keep"
                    )
        for name in self.exchanges:
            what = refusals.called("exchange", name, vhost.name)
            if not vhost.router.has(name):
                raise refusals.not_found(what)
            if vhost.is_internal(name):
                raise refusals.access_refused(f"cannot publish to internal {what}")


def is_lasting(queue: Served) -> bool:
    """Whether it is still there after a restart."""
    return queue.is_durable and not queue.is_exclusive
