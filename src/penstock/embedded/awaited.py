"""Awaited: what jobs and openings of asyncio have in common, in a directory and on a broker.

A job settles itself in `async with`, as one of threads does in `with`; what opens or gets something
can be awaited, or entered at once. Which queue does the settling, and what is opened, is the
user's: penstock.embedded.aio, penstock.client.remote_aio.
"""

from collections.abc import Awaitable, Callable, Generator
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from penstock.embedded.spellings import Time
from penstock.errors import PenstockError, SettledError

T = TypeVar("T")


class AwaitedSettling:
    """The methods of a job that has `_queue`, `is_settled` and `tag`."""

    __slots__ = ()

    _queue: Any
    is_settled: bool
    tag: Any

    async def ack(self) -> None:
        """It is done, and gone."""
        await self._queue.ack(self)

    async def nack(self, delay: Time | None = None) -> None:
        """It failed: it comes back, after the back-off of the queue or this delay."""
        await self._queue.nack(self, delay)

    async def reject(self) -> None:
        """It is not wanted back: it goes to the dead-letter queue, or away if there is none."""
        await self._queue.reject(self)

    async def __aenter__(self) -> Self:
        if self.is_settled:
            raise SettledError(self._queue.name, self.tag)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self.is_settled:
            return
        if error is None:
            await self.ack()
            return
        try:
            await self.nack()
        except PenstockError as second:  # the box was closed, say: then it comes back anyway
            error.add_note(f"the job could not be returned: {second}")


class Opening(Generic[T]):
    """What can be awaited, and what can be entered by `async with` without."""

    def __init__(self, make: Callable[[], Awaitable[T]]) -> None:
        self._make = make
        self._made: Any = None

    def __await__(self) -> Generator[object, None, T]:
        return self._make().__await__()

    async def __aenter__(self) -> T:
        made = self._made = await self._make()
        return made

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        made, self._made = self._made, None
        await made.__aexit__(kind, error, at)
