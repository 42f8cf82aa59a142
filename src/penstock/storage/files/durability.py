"""Durability modes: when a change may be confirmed.

    DISK       after an fdatasync that covers it
    INTERVAL   after it was written; it is synced every so many milliseconds
    OS         after it was written, so that it survives the death of the process, not a power cut
    NONE       transient messages, which are never in the log

A group of records has the strongest mode of its members.
"""

from dataclasses import dataclass
from typing import Final

from penstock.errors import OptionError

NONE: Final = 0  # never in the log
OS: Final = 1  # confirmed when written
INTERVAL: Final = 2  # confirmed when written, synced every interval
DISK: Final = 3  # confirmed when synced

MODE_NAMES: Final = ("none", "os", "interval", "disk")


@dataclass(slots=True, eq=False)
class Durability:
    """A mode, and the interval in ms that goes with INTERVAL (0 in other modes)."""

    mode: int
    interval_ms: int = 0

    @staticmethod
    def parse(text: str) -> "Durability":
        """Decode "none", "os", "interval=<ms>" or "disk". OptionError for anything else."""
        name, equals, number = text.partition("=")
        if name == "interval" and number.isascii() and number.isdigit() and int(number) > 0:
            return Durability(INTERVAL, int(number))
        if not equals and name in MODE_NAMES and name != "interval":
            return Durability(MODE_NAMES.index(name))
        raise OptionError("durability", text, "none, os, interval=<ms> or disk")
