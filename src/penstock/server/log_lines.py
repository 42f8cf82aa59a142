"""One line on stderr for each event, in the same shape from every process of the broker.

    2026-11-21 16:30:00,123 WARNING vhost '/': 12 half-open connections dropped

Who speaks stands in the line, since all processes write to the same place. Whatever else wants to
go to a file or a collector takes it from there; the broker keeps no log files of its own.

Events of the storage engine come with a kind; those that somebody must look at are warnings.
"""

import logging
from collections.abc import Callable
from typing import Final

LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
ERRORS: Final = frozenset({"corruption", "failed", "mistake", "stopped"})
WARNINGS: Final = frozenset(
    {
        "disk_full", "torn_tail", "warning", "memory_alarm", "crashed", "lease_old", "batch_waits",
        "batch_unroutable",
    }
)  # fmt: skip


def set_up(level: str, who: str) -> None:
    """For this process; level as in LEVELS. Again: nothing but the level and the name change."""
    shown = who.replace("%", "%%")
    logging.basicConfig(
        level=LEVELS[level], format=f"%(asctime)s %(levelname)s {shown}: %(message)s", force=True
    )


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
