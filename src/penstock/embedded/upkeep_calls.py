"""Upkeep calls: a checkpoint and a backup while the box is in use, in steps with others in between.

Both are long, and done in little steps of the engine; the lock is let go after each. Between steps
that wait for the disk the caller sleeps a millisecond. They run in the thread of the caller, who
for asyncio is a thread of its own.
"""

from pathlib import Path
from typing import Final

from penstock.embedded.driver import Driver
from penstock.embedded.waiting import ThreadWaiter
from penstock.storage.backup import Backup
from penstock.storage.checkpointer import IDLE, SLICES
from penstock.storage.fresh_directory import FreshDirectory

PAUSE_S: Final = 0.001


def checkpoint(driver: Driver) -> bool:
    """A whole checkpoint whose cut is after this call; False if there was no room for it."""
    _finish(driver)
    with driver.gate, driver.guard:
        engine = driver.core.engine
        before = engine.checkpoint_count
        engine.begin_checkpoint()
    _finish(driver)
    return engine.checkpoint_count > before


def _finish(driver: Driver) -> None:
    """Go on with the checkpoint that is in progress until it is over."""
    while True:
        with driver.gate, driver.guard:
            engine = driver.core.engine
            engine.check()
            phase = engine.checkpoint_phase
            if phase == IDLE:
                return
            if phase == SLICES:
                until = engine.clock.monotonic() + engine.options.slice_ms / 1000
                engine.step_checkpoint(until)
            driver.turn()
        if phase != SLICES:
            _pause()


def backup(driver: Driver, path: str | Path) -> None:
    """A backup of the box into a free path, verified."""
    with driver.gate, driver.guard:
        engine = driver.core.engine
        engine.check()
    fresh = FreshDirectory(engine.fs, str(path), "a backup")
    part = Backup(engine, fresh)
    try:
        is_going = True
        while is_going:
            with driver.gate, driver.guard:
                is_going = part.step()
                driver.turn()
            if part.is_waiting:
                _pause()
        fresh.finish()
    except BaseException:
        with driver.lock, driver.guard:
            part.abandon()
        fresh.abandon()
        raise


def _pause() -> None:
    ThreadWaiter().sleep(PAUSE_S)
