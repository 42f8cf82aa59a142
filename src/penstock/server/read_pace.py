"""ReadPace: how much of a client is read at once, and when it is read again.

A publisher at full speed fills whatever is read of it, and while that is handled all others wait.
One rule for its chunks: what is handled in about BULK_S. Few large bodies are read a MiB at a time,
many small ones less; much less than this costs a turn too often, much more keeps its own confirms
and everybody's deliveries waiting.

Beside somebody who publishes a little at a time, and so waits for each of his messages, the chunks
shrink to QUICK_S, and after each the publisher is not read for REST_S: for most of the time the
loop is free when a single message comes. Who he is: a read of less than SHORT_BYTES that begins
with a basic.publish makes the next RECENT_S such a time, for everybody else. (Acks come in short
reads as well; whoever sends them waits for nothing.)

Not here: reading itself (session.py).
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
    """Of one vhost: whether somebody waits for single messages."""

    def __init__(self) -> None:
        # The last one who published a little, and the last one before who was somebody else.
        self._last: object = None
        self._last_until = 0.0
        self._other_until = 0.0

    def is_quick(self, who: object, data: bytes, now: float) -> bool:
        """Look at what was just read of a client, at this time (seconds of the loop): whether
        others than that one publish a little at a time."""
        if len(data) < SHORT_BYTES and begins_with_publish(data):
            if who is not self._last:
                self._other_until = self._last_until
                self._last = who
            self._last_until = now + RECENT_S
        return now < (self._other_until if who is self._last else self._last_until)


def next_bytes(read_bytes: int, spent_s: float, *, is_quick: bool) -> int:
    """How much to read after a full chunk of so many bytes that took so long to handle."""
    limit_s = QUICK_S if is_quick else BULK_S
    if spent_s > limit_s:
        return max(read_bytes >> 1, LEAST_BYTES)
    if spent_s < limit_s / 4:
        return min(read_bytes << 1, MOST_BYTES)
    return read_bytes
