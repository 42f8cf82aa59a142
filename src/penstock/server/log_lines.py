r"""One line on stderr for each event, in the same shape from every process of the broker.

    2026-11-21 16:30:00,123 WARNING vhost '/': 12 half-open connections dropped

Who speaks stands in the line, since all processes write to the same place. Whatever else wants to
go to a file or a collector takes it from there; the broker keeps no log files of its own.

Events of a vhost come with a kind; those that somebody must look at are warnings. How many of them
are told, if they are alerts, the vhost itself limits (penstock.broker.alerts).

What clients can cause must harm nobody who reads the log, nor fill the disk:

* Characters that are not printable are written as `\xNN`, also those in the lines of a traceback,
  and these are indented; so no client can forge a line or write to a terminal.
* A line that a client caused is logged by `client_line`, with the address that it came from. Of an
  address BURST lines are written at once and then one in a second; of all addresses together ten
  times as many. The next line says how many were left out before it.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from penstock.clock import Clock, SystemClock, TokenBucket
from penstock.escaping import one_line

LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
ERRORS: Final = frozenset({"corruption", "failed", "internal_error", "stopped"})
WARNINGS: Final = frozenset(
    {
        "consumer_cancelled", "disk_full", "torn_tail", "warning", "memory_alarm", "crashed",
        "lease_old", "batch_waits", "batch_unroutable", "memory_holders", "blocked", "count_up",
        "size_up", "depth_up", "age_up", "page_out_failed", "page_in_failed",
    }
)  # fmt: skip
BURST: Final = 20  # lines of one address at once
ALL_BURST: Final = 200  # and of all together
ALL_PER_S: Final = 10.0
ADDRESSES_MAX: Final = 1024


class Lines(logging.Formatter):
    """Our lines. who: the process, as in "vhost '/'"."""

    def __init__(self, who: str) -> None:
        shown = one_line(who).replace("%", "%%")
        super().__init__(f"%(asctime)s %(levelname)s {shown}: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The line, without its traceback."""
        return one_line(super().formatMessage(record))

    def formatException(self, ei: object) -> str:
        """The traceback, its lines indented."""
        return _indented(super().formatException(ei))  # type: ignore[arg-type]

    def formatStack(self, stack_info: str) -> str:
        """A stack, its lines indented."""
        return _indented(super().formatStack(stack_info))


class ClientLines(logging.Filter):
    """Keeps back lines that clients caused when there are too many; the others pass."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self._of_all = TokenBucket(ALL_BURST, ALL_PER_S, clock.monotonic())
        self._of: OrderedDict[str, TokenBucket] = OrderedDict()  # the longest unused first

    def filter(self, record: logging.LogRecord) -> bool:
        """Is it written?"""
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
        if not self._of_all.has_room(now_s):
            self._of_all.left_out += 1
            return False
        bucket.take()
        self._of_all.take()
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
    """A warning that a client at that address caused; text and args as logging has them."""
    logger.warning(text, *args, extra={"client_address": address})


def set_up(level: str, who: str) -> None:
    """For this process; level as in LEVELS. Again: nothing but the level and the name change."""
    handler = logging.StreamHandler()
    handler.setFormatter(Lines(who))
    handler.addFilter(ClientLines(SystemClock()))
    logging.basicConfig(level=LEVELS[level], handlers=[handler], force=True)
    # asyncio says at "debug" which selector it has, which tells nobody anything.
    logging.getLogger("asyncio").setLevel(logging.INFO)


def teller(logger: logging.Logger) -> Callable[[str, str], None]:
    """on_event(kind, text) of the core, as lines."""

    def tell(kind: str, text: str) -> None:
        if kind in ERRORS:
            logger.error("%s: %s", kind, text)
        elif kind in WARNINGS:
            logger.warning("%s: %s", kind, text)
        else:
            logger.info("%s: %s", kind, text)

    return tell


def _indented(text: str) -> str:
    return "\n".join(["    " + one_line(line) for line in text.split("\n")])
