"""RemoteJob: a message of a queue on a broker, in somebody's hands until it is settled.

As `penstock.Job`: acknowledged, returned or rejected, and as a context manager it settles itself.
The broker gives a job to somebody else when the connection that it came on is lost, or the box is
closed; settling it then is a SettledError, or a BoxClosedError.

Not here: what settling does (remote_calls.py), asyncio (remote_aio.py).
"""

from types import TracebackType
from typing import TYPE_CHECKING

from penstock.client.remote_message import RemoteMessage
from penstock.client.taken import Taken
from penstock.embedded.spellings import Time
from penstock.errors import PenstockError, SettledError

if TYPE_CHECKING:
    from penstock.client.remote_queue import RemoteQueue


class RemoteJobView(RemoteMessage):
    """What jobs have in common for threads and asyncio. is_settled: by this job's own methods."""

    __slots__ = ("is_settled", "taken")

    def __init__(self, taken: Taken) -> None:
        message = taken.message
        super().__init__(message.header, message.body, is_redelivered=message.is_redelivered)
        self.taken: Taken = taken
        self.is_settled: bool = False

    @property
    def tag(self) -> int:
        """The delivery tag by which the broker knows it."""
        return self.taken.delivery_tag


class RemoteJob(RemoteJobView):
    """See the head of this module. Errors of settling: SettledError, when it is settled already,
    the queue was deleted or the connection lost; BoxClosedError."""

    __slots__ = ("_queue",)

    def __init__(self, queue: "RemoteQueue", taken: Taken) -> None:
        super().__init__(taken)
        self._queue: RemoteQueue = queue

    def ack(self) -> None:
        """It is done, and gone."""
        self._queue.ack(self)

    def nack(self, delay: Time | None = None) -> None:
        """It failed: it comes back, by default after the back-off of the queue. delay: seconds, or
        a text as "5m"; 0: at once, at its old place. After `max_attempts` it is dead-lettered."""
        self._queue.nack(self, delay)

    def reject(self) -> None:
        """It is not wanted back: it goes to the dead-letter queue, or away if there is none."""
        self._queue.reject(self)

    def __enter__(self) -> "RemoteJob":
        if self.is_settled:
            raise SettledError(self._queue.name, self.tag)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self.is_settled:
            return
        if error is None:
            self.ack()
            return
        try:
            self.nack()
        except PenstockError as second:  # the box was closed, say: then it comes back anyway
            error.add_note(f"the job could not be returned: {second}")
