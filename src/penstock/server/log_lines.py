r"""The log: one line on stderr for each event, in the same form from every process of the broker.

    2026-11-21 16:30:00,123 WARNING vhost '/': 12 half-open connections dropped

A line names its process, because all processes write to the same place. The broker keeps no log
files; a service manager or collector reads stderr. The last lines of all processes are kept in the
first one, in a LogTail, for who has no access to that; those of a process that has ended, too.

Events of a vhost have a kind, which decides the level: those that somebody must look at are
warnings. The vhost limits how many alerts it reports (penstock.broker.alerts).

Lines that clients cause must not harm readers of the log, nor fill the disk:

* Characters that are not printable are written as `\xNN`, also in tracebacks, whose lines are
  indented. So no client can forge a line or write to a terminal.
* `client_line` logs a line that a client caused, with its address. Of one address BURST lines are
  written at once, then one in a second; of all addresses together ten times as many. The next line
  says how many were left out.
"""

import logging
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final

from penstock.clock import Clock, SystemClock, TokenBucket, date
from penstock.escaping import one_line
from penstock.operation_table import LEVELS, TAIL_LINES

LEVEL_OF: Final = {name: logging.getLevelNamesMapping()[name.upper()] for name in LEVELS}
ERRORS: Final = frozenset({"corruption", "failed", "internal_error", "stopped"})
WARNINGS: Final = frozenset(
    {
        "consumer_cancelled", "consumer_timeout", "disk_full", "torn_tail", "warning",
        "memory_alarm", "crashed",
        "lease_old", "batch_waits", "batch_unroutable", "memory_holders", "blocked", "count_up",
        "size_up", "depth_up", "age_up", "page_out_failed", "page_in_failed",
        "dead_letter_missing", "dead_letter_cycle", "dead_letter_hops", "dead_letter_full",
    }
)  # fmt: skip
BURST: Final = 20  # lines of one address at once
ALL_BURST: Final = 200  # and of all together
ALL_PER_S: Final = 10.0
ADDRESSES_MAX: Final = 1024
TAIL_CHARACTERS: Final = 4000  # of a line with its traceback

# Takes a line, of any thread: when, in milliseconds since 1970, the level and the text. Raises
# nothing: who logs must not fail.
Take = Callable[[int, str, str], None]


class Lines(logging.Formatter):
    """Formats lines. who: the process, as in "vhost '/'"; "" leaves out all but the message."""

    def __init__(self, who: str) -> None:
        shown = one_line(who).replace("%", "%%")
        super().__init__(f"%(asctime)s %(levelname)s {shown}: %(message)s" if who else None)

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line without its traceback."""
        return one_line(super().formatMessage(record))

    def formatException(self, ei: object) -> str:
        """Return the traceback with its lines indented."""
        return _indented(super().formatException(ei))  # type: ignore[arg-type]

    def formatStack(self, stack_info: str) -> str:
        """Return a stack with its lines indented."""
        return _indented(super().formatStack(stack_info))


class ClientLines(logging.Filter):
    """Drops lines that clients caused when there are too many; all others pass."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self._of_all = TokenBucket(ALL_BURST, ALL_PER_S, clock.monotonic())
        self._of: OrderedDict[str, TokenBucket] = OrderedDict()  # the longest unused first

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the line is written."""
        address: str | None = getattr(record, "client_address", None)
        if address is None:
            return True
        now_s = self._clock.monotonic()
        bucket = self._of.get(address)
        if bucket is None:
            bucket = self._of[address] = TokenBucket(BURST, 1.0, now_s)
            if len(self._of) > ADDRESSES_MAX:
                _, forgotten = self._of.popitem(last=False)
                self._of_all.left_out += forgotten.left_out
        self._of.move_to_end(address)
        if not bucket.has_room(now_s):
            bucket.left_out += 1
            return False
        if not self._of_all.take_room(now_s):
            self._of_all.left_out += 1
            return False
        bucket.take()
        left_out = [
            f"{one.left_out} lines about {what} were left out before this one"
            for one, what in ((bucket, address), (self._of_all, "clients"))
            if one.left_out
        ]
        bucket.left_out = self._of_all.left_out = 0
        if left_out:
            record.msg = f"{record.getMessage()} ({'; '.join(left_out)})"
            record.args = ()
        return True


def client_line(logger: logging.Logger, address: str, text: str, *args: object) -> None:
    """Log a warning that a client at this address caused. text, args: as in logging."""
    logger.warning(text, *args, extra={"client_address": address})


class LogHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes lines to stderr. take: gets each of them, too."""

    def __init__(self, who: str, take: Take | None) -> None:
        super().__init__()
        self.setFormatter(Lines(who))
        self._message = Lines("")
        self._take = take

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line."""
        super().emit(record)
        if self._take is None:
            return
        text = self._message.format(record)
        self._take(int(record.created * 1000), record.levelname.lower(), text)


class LogTail:
    """The last TAIL_LINES lines, each with a number: those of a broker from 1 on."""

    def __init__(self) -> None:
        self._rows: deque[dict[str, object]] = deque(maxlen=TAIL_LINES)
        self._count = 0

    def add(self, process: str, vhost: str | None, time_ms: int, level: str, text: str) -> None:
        """Keep a line; the first TAIL_CHARACTERS of it. vhost: whose process it is, or None."""
        self._count += 1
        cut = text if len(text) <= TAIL_CHARACTERS else text[: TAIL_CHARACTERS - 2] + " …"
        self._rows.append(
            {
                "time": date(time_ms), "level": level, "process": process, "text": cut,
                "vhost": vhost, "number": self._count,
            }
        )  # fmt: skip

    def rows(self, count: int, level: str, after: int | None) -> list[dict[str, object]]:
        """Return the last `count` lines of this level or above, the oldest first. after: only those
        after the line of this number; all, if the broker has started again since."""
        least = LEVEL_OF[level]
        first = 0 if after is None or after > self._count else after
        found: list[dict[str, object]] = []
        for row in reversed(self._rows):
            number = row["number"]
            assert isinstance(number, int)
            if number <= first or len(found) == count:
                break
            if LEVEL_OF.get(str(row["level"]), logging.CRITICAL) >= least:
                found.append(row)
        return found[::-1]


def set_up(level: str, who: str, take: Take | None = None) -> None:
    """Set up the log of this process. level: one of LEVELS. take: gets each line, too. May be
    called again."""
    handler = LogHandler(who, take)
    handler.addFilter(ClientLines(SystemClock()))
    logging.basicConfig(level=LEVEL_OF[level], handlers=[handler], force=True)
    # At "debug" asyncio logs which selector it has, which is of no use.
    logging.getLogger("asyncio").setLevel(logging.INFO)


def set_level(level: str) -> None:
    """Change from which level on this process logs. level: one of LEVELS."""
    logging.getLogger().setLevel(LEVEL_OF[level])


def event_logger(logger: logging.Logger) -> Callable[[str, str], None]:
    """Return an on_event(kind, text) that logs the core's events."""

    def log(kind: str, text: str) -> None:
        if kind in ERRORS:
            logger.error("%s: %s", kind, text)
        elif kind in WARNINGS:
            logger.warning("%s: %s", kind, text)
        else:
            logger.info("%s: %s", kind, text)

    return log


def _indented(text: str) -> str:
    return "\n".join(["    " + one_line(line) for line in text.split("\n")])
