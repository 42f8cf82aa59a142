"""Durability modes, and what the log asks of the store whose bodies its records name.

A confirm means: in mode DISK, synced; in INTERVAL, written, and synced every so many ms; in OS,
written, so that it survives the death of the process and not a power cut; NONE is never in the log.
A group of records takes the strongest mode of its members.

StoreSync is a Protocol and small, because the log must not know what a store is: rule [2] is about
order alone. The contract that the log builds on: a body is written to the store before the record
that names it is appended, so an operation taken now covers all bodies of all records up to now.
"""

from collections.abc import Callable
from typing import Final, Protocol

from penstock.errors import OptionError

NONE: Final = 0  # transient: never in the log
OS: Final = 1  # confirmed when written
INTERVAL: Final = 2  # the same, and synced every interval
DISK: Final = 3  # confirmed when synced
SOFT: Final = OS  # of acks and other records that nobody waits for

MODE_NAMES: Final = ("none", "os", "interval", "disk")


class Durability:
    """A mode, and the interval in ms that goes with INTERVAL (0 in other modes)."""

    __slots__ = ("interval_ms", "mode")

    def __init__(self, mode: int, interval_ms: int = 0) -> None:
        self.mode: int = mode
        self.interval_ms: int = interval_ms

    @staticmethod
    def parse(text: str) -> "Durability":
        """From "none", "os", "interval=<ms>" or "disk"; OptionError for anything else."""
        name, equals, number = text.partition("=")
        if name == "interval" and number.isascii() and number.isdigit() and int(number) > 0:
            return Durability(INTERVAL, int(number))
        if not equals and name in MODE_NAMES and name != "interval":
            return Durability(MODE_NAMES.index(name))
        raise OptionError("durability", text, "none, os, interval=<ms> or disk")


class StoreSync(Protocol):
    """What the log asks of the store whose bodies its records name."""

    def has_unsynced(self) -> bool:
        """Whether any file has changed since it was last synced; until `synced` says so."""
        ...

    def take_unsynced(self) -> Callable[[], object]:
        """An operation that syncs all that is unsynced at this instant, names included.

        It runs elsewhere, later, perhaps beside another one; it raises OSError or SyncFailedError.
        """
        ...

    def synced(self, result: object) -> None:
        """That operation has returned `result`; what changed since it was taken stays unsynced."""
        ...


class NoStore:
    """A store without bodies."""

    def has_unsynced(self) -> bool:
        return False

    def take_unsynced(self) -> Callable[[], object]:
        raise AssertionError("there is nothing to sync")

    def synced(self, result: object) -> None:
        raise AssertionError("there was nothing to sync")
