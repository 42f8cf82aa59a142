"""Back-off: how long a message that came back has to wait before it is tried again.

A message that fails at once and comes back at once is a loop that eats a processor and fills a log.
So each retry waits twice as long as the one before: the first waits the least delay that the queue
allows, and none waits longer than the greatest. A least delay of 0 asks for no delay at all: the
message is requeued at its old place.

Not here: when a message has been tried often enough (amq_queue.py), where it waits (delays.py).
"""

from typing import Final

DOUBLINGS_MAX: Final = 62  # beyond that any delay has reached any limit


def retry_delay_ms(attempts: int, least_ms: int, most_ms: int) -> int:
    """The delay in ms before the next try of a message that was tried `attempts` times (>= 1).
    0 <= least_ms <= most_ms."""
    if not least_ms:
        return 0
    doublings = min(max(attempts, 1) - 1, DOUBLINGS_MAX)
    return min(least_ms << doublings, most_ms)
