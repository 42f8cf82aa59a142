"""Events: what a box or a stream reports that is not an error of a call.

Each is logged under "penstock" and given to the callback that the user passed to `open`. A callback
that fails is logged and ends nothing, because it is called in a thread that others need.
"""

import logging
from collections.abc import Callable
from typing import Final

from penstock.errors import damaged_at
from penstock.options import check_callable
from penstock.queues.thresholds import Alert

OnEvent = Callable[[str, str], None]
OnAlert = Callable[[Alert], None]

LOG: Final = logging.getLogger("penstock")
LEVELS: Final[dict[str, int]] = {
    "stopped": logging.ERROR,
    "corruption": logging.ERROR,
    "disk_full": logging.WARNING,
    "memory_alarm": logging.WARNING,
    "page_out_failed": logging.WARNING,
    "dead_letter_missing": logging.WARNING,
    "dead_letter_cycle": logging.WARNING,
    "dead_letter_hops": logging.WARNING,
    "dead_letter_full": logging.WARNING,
    "warning": logging.WARNING,
    "blocked": logging.WARNING,
    "stream_write": logging.WARNING,
    "cut": logging.WARNING,
    "healed": logging.WARNING,
    "checkpoint": logging.DEBUG,
    "clean": logging.DEBUG,
}  # others: INFO


def reporter(path: str, on_event: OnEvent | None) -> OnEvent:
    """Return what logs an event of this box or stream and calls `on_event(kind, text)`. OptionError
    if that cannot be called."""
    check_callable("on_event", on_event)

    def report(kind: str, text: str) -> None:
        LOG.log(LEVELS.get(kind, logging.INFO), "%s: %s: %s", path, kind, text)
        if on_event is not None:
            try:
                on_event(kind, text)
            except BaseException:  # not even sys.exit may end the thread that reports
                LOG.exception("%s: on_event has failed", path)

    return report


def alert_reporter(path: str, on_alert: OnAlert | None) -> OnAlert:
    """Return what logs an alert of this box and calls `on_alert(alert)`. OptionError if that cannot
    be called."""
    check_callable("on_alert", on_alert)

    def report(alert: Alert) -> None:
        LOG.warning("%s: %s", path, alert.text())
        if on_alert is not None:
            try:
                on_alert(alert)
            except BaseException:
                LOG.exception("%s: on_alert has failed", path)

    return report


FILES_MAX: Final = 4096  # damaged files that are told apart


class DamageReports:
    """Reports damaged messages by file: the first of a file at once, then how many more with the
    next tick, so that a lost file is not a line for each of its messages."""

    def __init__(self, report: OnEvent) -> None:
        self._report = report
        self._more: dict[str, int] = {}  # file -> damaged messages that were not reported
        self._has_more = False

    def found(self, text: str) -> None:
        """Report or count a damaged message; the text ends with the CorruptionError's."""
        file = damaged_at(text)
        if file not in self._more and len(self._more) >= FILES_MAX:
            file = ""
        if file in self._more:
            self._more[file] += 1
            self._has_more = True
        else:
            self._more[file] = 0
            self._report("corruption", text)

    def tick(self) -> None:
        """Report how many more there are."""
        if not self._has_more:
            return
        self._has_more = False
        for file, count in self._more.items():
            if count:
                self._more[file] = 0
                self._report("corruption", f"{file or 'other files'}: {count} more in this file")
