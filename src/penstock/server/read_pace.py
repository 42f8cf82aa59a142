"""ReadPace: how much of a client is read at once, and when it is read again.

A publisher at full speed fills every chunk that is read, and all others wait while it is handled.
So a chunk is as large as can be handled in about BULK_S: a MiB of a few large bodies, less of many
small ones. Smaller chunks cost too many turns; larger ones delay the publisher's own confirms and
the deliveries of all.

If another client publishes a little at a time, and so waits for each message, chunks shrink to
QUICK_S, and after each the publisher is not read for REST_S: most of the time the loop is free when
a single message arrives. A read of less than SHORT_BYTES that begins with a basic.publish shows
such a client, and sets this pace for all others for RECENT_S. (Acks arrive in short reads as well,
but their senders do not wait.)
"""

from typing import Final

from penstock.codec.frames import begins_with_publish

LEAST_BYTES: Final = 16 << 10
FIRST_BYTES: Final = 256 << 10
MOST_BYTES: Final = 1 << 20
BULK_S: Final = 0.002
QUICK_S: Final = 0.0003
REST_S: Final = 0.002
RECENT_S: Final = 0.1
SHORT_BYTES: Final = 2 << 10


class ReadPace:
    """Detects, for one vhost, clients that wait for single messages."""

    def __init__(self) -> None:
        # The last client that published a little, and the time of the last other one.
        self._last: object = None
        self._last_until = 0.0
        self._other_until = 0.0

    def is_quick(self, who: object, data: bytes, now: float) -> bool:
        """Take what was just read of a client, at this time (seconds of the loop). Returns whether
        other clients publish a little at a time."""
        if len(data) < SHORT_BYTES and begins_with_publish(data):
            if who is not self._last:
                self._other_until = self._last_until
                self._last = who
            self._last_until = now + RECENT_S
        return now < (self._other_until if who is self._last else self._last_until)


def next_bytes(read_bytes: int, spent_s: float, *, is_quick: bool) -> int:
    """Return how many bytes to read after a full chunk of read_bytes that took spent_s to
    handle."""
    limit_s = QUICK_S if is_quick else BULK_S
    if spent_s > limit_s:
        return max(read_bytes >> 1, LEAST_BYTES)
    if spent_s < limit_s / 4:
        return min(read_bytes << 1, MOST_BYTES)
    return read_bytes
