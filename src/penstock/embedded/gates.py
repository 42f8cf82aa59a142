"""Gates: what every call on a box, or on a stream that stands alone, enters first of all.

While all is well the gate is the lock itself. What is closed, or in a forked child, has another
thing there, whose `__enter__` raises; so none of this costs a call anything. Within the gate stands
a guard, which notices that a call was interrupted in the middle of a change.

Not here: the gate of a box that is to be mended (`box_thread`).
"""

from collections.abc import Callable
from types import TracebackType
from typing import Protocol

Exit = Callable[[type[BaseException] | None, BaseException | None, TracebackType | None], None]


class Gate:
    """What a call enters instead of the lock of a box that nobody may enter. refuse: raises why."""

    def __init__(self, refuse: Callable[[], None]) -> None:
        self._refuse = refuse

    def __enter__(self) -> bool:
        self._refuse()
        return True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        """It was never entered."""


class Interruptible(Protocol):
    """What an interrupt may have left half changed."""

    def interrupted(self, error: BaseException) -> None:
        """Under the lock: nothing of it may be believed any more."""
        ...


class Guard:
    """Within the gate: an exception that is no Exception has interrupted the core."""

    def __init__(self, box: Interruptible) -> None:
        self._box = box

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if error is not None and not isinstance(error, Exception):
            self._box.interrupted(error)
