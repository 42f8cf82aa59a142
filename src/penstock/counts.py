"""What is counted: counters of a vhost (what RabbitMQ calls message_stats, churn_rates and
object_totals), sums by user, and histograms.

    Channel.counts       MessageCounts of one channel; what its consumers were given is theirs
    QueueOrStream.counts DeliveryCounts of one queue or stream
    Exchange.counts      ExchangeCounts of one exchange: of what was published to it by name, as in
                         RabbitMQ; an exchange that messages reach through another counts nothing
    VHost.counts         VHostCounts: of all there were since the start

Each is added to once for a run (of publishes with one route, of deliveries of one queue, of acks of
one queue, of confirms), and the vhost's in the same place, so that its totals need no walk. All
begin with 0 when the vhost is opened.

A histogram counts how often a value was in each of a few fixed ranges, and sums all values. A range
ends at a bound, and the value that is the bound is in it; the last range has no end. So two
histograms with the same bounds can be added, and a quantile can be read from the counts, as
Prometheus does. A record costs a search in a dozen numbers and two additions: it is made once for a
turn, a sync or a read of a run, never for each message.
"""

from collections import deque
from typing import Final

CLOSED_MAX: Final = 100  # connections whose end is remembered
DELIVERY_NAMES: Final = (
    "deliver", "deliver_no_ack", "get", "get_no_ack", "get_empty", "ack", "redeliver",
)  # fmt: skip


class DeliveryCounts:
    """What was delivered and settled. deliver, get: to consumers and by basic.get, what is to be
    acknowledged; deliver_no_ack, get_no_ack: what is not. get_empty: there was nothing. redeliver:
    of the four, those that came again. ack: by clients."""

    __slots__ = ("ack", "deliver", "deliver_no_ack", "get", "get_empty", "get_no_ack", "redeliver")

    def __init__(self) -> None:
        self.deliver: int = 0
        self.deliver_no_ack: int = 0
        self.get: int = 0
        self.get_no_ack: int = 0
        self.get_empty: int = 0
        self.ack: int = 0
        self.redeliver: int = 0

    def stats(self) -> dict[str, int]:
        """Return all counters by RabbitMQ's names, with the sum of the four."""
        return {
            "deliver": self.deliver,
            "deliver_no_ack": self.deliver_no_ack,
            "get": self.get,
            "get_no_ack": self.get_no_ack,
            "get_empty": self.get_empty,
            "deliver_get": self.deliver + self.deliver_no_ack + self.get + self.get_no_ack,
            "ack": self.ack,
            "redeliver": self.redeliver,
        }

    def got(self, count: int, redelivered: int, *, no_ack: bool) -> None:
        """Count messages that were got."""
        if no_ack:
            self.get_no_ack += count
        else:
            self.get += count
        self.redeliver += redelivered

    def delivered(self, deliver: int, deliver_no_ack: int, redeliver: int) -> None:
        """Count messages that consumers were given."""
        self.deliver += deliver
        self.deliver_no_ack += deliver_no_ack
        self.redeliver += redeliver


class MessageCounts(DeliveryCounts):
    """What was published, too. publish: all that clients sent, or committed; confirm: by basic.ack;
    return_unroutable, drop_unroutable: no queue got it, and it was mandatory, or not. requeue: of
    the vhost, what clients gave back, or had when they went."""

    __slots__ = ("confirm", "drop_unroutable", "publish", "requeue", "return_unroutable")

    def __init__(self) -> None:
        super().__init__()
        self.publish: int = 0
        self.requeue: int = 0
        self.confirm: int = 0
        self.return_unroutable: int = 0
        self.drop_unroutable: int = 0

    def stats(self) -> dict[str, int]:
        return {
            "publish": self.publish,
            "confirm": self.confirm,
            "return_unroutable": self.return_unroutable,
            "drop_unroutable": self.drop_unroutable,
            **super().stats(),
        }

    def unroutable(self, count: int, *, is_mandatory: bool) -> None:
        """Count messages that no queue got."""
        if is_mandatory:
            self.return_unroutable += count
        else:
            self.drop_unroutable += count


class ExchangeCounts:
    """What was published to one exchange: publish_in messages, which publish_out queues got;
    unroutable of them went to none. noted: publish_in when rates were computed last."""

    __slots__ = ("noted", "publish_in", "publish_out", "unroutable")

    def __init__(self) -> None:
        self.publish_in: int = 0
        self.publish_out: int = 0
        self.unroutable: int = 0
        self.noted: int = 0

    def add(self, count: int, out: int, unroutable: int) -> None:
        """Count messages, which so many queues got together."""
        self.publish_in += count
        self.publish_out += out
        self.unroutable += unroutable

    def stats(self) -> dict[str, int]:
        """Return publish_in and publish_out."""
        return {"publish_in": self.publish_in, "publish_out": self.publish_out}


class VHostCounts:
    """Of a vhost since it was opened. consumers: that there are now. queue_declared: each declare
    that succeeded, also of a queue that existed. closed_connections: rows of the last ones that
    ended, and why."""

    def __init__(self) -> None:
        self.messages: MessageCounts = MessageCounts()
        self.connection_created: int = 0
        self.connection_closed: int = 0
        self.channel_created: int = 0
        self.channel_closed: int = 0
        self.queue_declared: int = 0
        self.queue_created: int = 0
        self.queue_deleted: int = 0
        self.consumers: int = 0
        self.stream_records: int = 0  # that consumers of streams read
        self.stream_bytes: int = 0
        self.received_bytes: int = 0
        self.sent_bytes: int = 0
        self.closed_connections: deque[dict[str, object]] = deque(maxlen=CLOSED_MAX)

    def octets(self) -> dict[str, int]:
        """Return how many bytes clients have sent, and were sent, by RabbitMQ's names."""
        return {"recv_oct": self.received_bytes, "send_oct": self.sent_bytes}

    def all(self) -> dict[str, int]:
        """Return all counters together."""
        return {**self.messages.stats(), **self.churn(), **self.octets()}

    def churn(self) -> dict[str, int]:
        """Return the counters of RabbitMQ's churn_rates."""
        return {
            "connection_created": self.connection_created,
            "connection_closed": self.connection_closed,
            "channel_created": self.channel_created,
            "channel_closed": self.channel_closed,
            "queue_declared": self.queue_declared,
            "queue_created": self.queue_created,
            "queue_deleted": self.queue_deleted,
        }


class UserSums:
    """Sums by user, of bytes or of what is open; "" stands for nobody. total: of all users."""

    def __init__(self) -> None:
        self.total: int = 0
        self._of: dict[str, int] = {}

    def add(self, user: str, change: int = 1) -> None:
        """Count more, or fewer."""
        self.total += change
        now = self._of.get(user, 0) + change
        if now:
            self._of[user] = now
        else:
            self._of.pop(user, None)

    def of(self, user: str) -> int:
        """Return the sum of this user."""
        return self._of.get(user, 0)

    def largest(self) -> str:
        """Return the user with the largest sum, "" if there are none."""
        return max(self._of, key=self.of, default="")


# ---- histograms ----------------------------------------------------------------------------------

Bounds = tuple[float, ...]

TURN_S: Final[Bounds] = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
CONFIRM_S: Final[Bounds] = (
    0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0,
)  # fmt: skip
DISK_S: Final[Bounds] = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 1.0, 10.0,
)  # fmt: skip
LONG_S: Final[Bounds] = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)
WAIT_S: Final[Bounds] = (
    0.0, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 21_600.0, 86_400.0,
)  # fmt: skip
RECORDS: Final[Bounds] = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 500.0, 2000.0, 10_000.0)


class Histogram:
    """bounds: the ends of the ranges, ascending. counts: of the values in each range, one more than
    there are bounds. total: the sum of the values."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds: Bounds = bounds
        self.counts: list[int] = [0] * (len(bounds) + 1)
        self.total: float = 0.0

    def record(self, value: float) -> None:
        """Count a value."""
        i = 0
        for bound in self.bounds:  # most values are in one of the first ranges
            if value <= bound:
                break
            i += 1
        self.counts[i] += 1
        self.total += value

    def facts(self) -> list[float]:
        """Return the sum, then the counts."""
        return [self.total, *self.counts]
