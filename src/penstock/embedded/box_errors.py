"""The errors of the library's own face: those of `queue.Queue`, of a closed box, of transactions.

A program that was written for `queue.Queue` has `except queue.Empty` and `except queue.Full`, and
keeps it. One that was written for Penstock catches `penstock.QueueEmptyError` and
`penstock.QueueFullError`, or their root `penstock.errors.PenstockError`.
"""

import queue

from penstock import errors


class QueueEmptyError(errors.QueueEmptyError, queue.Empty):
    """No message came in the time given: queue, timeout_s."""


class QueueFullError(errors.QueueFullError, queue.Full):
    """The queue is at its limit, and had no room in the time given; nothing was put.

    queue, limit (which one), given (what it would be), allowed.
    """


class BoxClosedError(errors.StoppedError):
    """The box, or the stream that stands alone, was closed; open it again: path."""

    def __init__(self, path: str, what: str = "box") -> None:
        super().__init__(f"the {what} {path} is closed")
        self.path = path


class TransactionError(errors.PenstockError):
    """A transaction is used in a way that it cannot be: nested, over, of another thread or task."""
