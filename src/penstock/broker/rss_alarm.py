"""RssAlarm: publishers wait while a vhost's process takes much more RAM than it was given.

The memory alarm of the MemoryMonitor is about what is counted. What is not counted (a table that is
being decoded, garbage, memory that the allocator keeps) is in the process's resident memory (RSS)
all the same, and the kernel kills who has too much of that. So a second alarm looks at RSS:

    begins   RSS is above the vhost's budget and `slack_bytes` in two looks, one round of the
             monitor apart; in between free memory is given back to the system (`trim`)
    ends     RSS is CALM_BYTES below that
    gives up after PATIENCE_S, if less than half of the budget is counted: then it is not messages
             that take the memory, and nothing becomes better by waiting. What RSS is then counts as
             usual; the alarm comes again when it has grown by STEP_BYTES

Without the last rule a process whose memory has become fragmented would block its publishers for
ever. `usual` falls with RSS.
"""

from collections.abc import Callable
from typing import Final

from penstock.queues.budget import format_bytes

CALM_BYTES: Final = 16 << 20
STEP_BYTES: Final = 32 << 20
PATIENCE_S: Final = 30.0
COUNTED_PART: Final = 2  # half of the budget

ALARM: Final = "memory_alarm"
FREE: Final = "memory_free"


class RssAlarm:
    """rss(): resident bytes of this process, 0 if nobody knows. trim(): begin to give free memory
    back to the system. on_event(kind, text): told of "memory_alarm" and "memory_free"."""

    def __init__(
        self, rss: Callable[[], int], trim: Callable[[], None], slack_bytes: int,
        on_event: Callable[[str, str], None],
    ) -> None:  # fmt: skip
        self.is_alarmed: bool = False
        self.rss_bytes: int = 0  # as of the last look
        self.slack_bytes: int = slack_bytes
        self._rss = rss
        self._trim = trim
        self._on_event = on_event
        self._usual_bytes: int = 0  # what RSS has been taken for; 0: nothing was given up
        self._since_s: float = 0.0
        self._was_above: bool = False  # in the last look

    def limit_bytes(self, budget_bytes: int) -> int:
        """The RSS from which on there is an alarm."""
        usual = self._usual_bytes + STEP_BYTES if self._usual_bytes else 0
        return max(budget_bytes + self.slack_bytes, usual)

    def look(self, budget_bytes: int, counted_bytes: int, now_s: float) -> None:
        """Look at RSS. now_s: of the monotonic clock."""
        self.rss_bytes = self._rss()
        limit = self.limit_bytes(budget_bytes)
        if not self.is_alarmed:
            self._usual_bytes = min(self._usual_bytes, self.rss_bytes)
            was_above, self._was_above = self._was_above, self.rss_bytes > limit
            if was_above and self._was_above:
                self.is_alarmed = True
                self._since_s = now_s
                self._tell(ALARM, "is above the limit of", limit)
            elif self._was_above:
                self._trim()
        elif self.rss_bytes <= limit - CALM_BYTES:
            self._end("is below the limit of", limit)
        elif now_s - self._since_s >= PATIENCE_S and counted_bytes < budget_bytes // COUNTED_PART:
            self._usual_bytes = self.rss_bytes
            counted = format_bytes(counted_bytes)
            self._end(
                f"does not fall, and only {counted} are counted; publishers go on beyond", limit
            )
        else:
            self._trim()

    def _end(self, verb: str, limit: int) -> None:
        self.is_alarmed = self._was_above = False
        self._tell(FREE, verb, limit)

    def _tell(self, kind: str, verb: str, limit: int) -> None:
        rss = format_bytes(self.rss_bytes)
        self._on_event(kind, f"memory: the process's RSS of {rss} {verb} {format_bytes(limit)}")
