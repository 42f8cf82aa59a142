"""What has changed of a vhost's queues since somebody asked last, so that nobody looks at all.

Whoever keeps something of each queue (rates, an order, the text of metrics) remembers the stamp of
its last look, and asks `QueueChanges.since` for the names that may have changed after it. A queue
is noticed where something happens in it (Dispatch.mark, QueueSet.tick), once in a tick however many
messages pass, and where it is declared, opened, replaced or deleted. Streams are not: they are few
enough to be looked at each time.
"""

from collections.abc import Callable, Generator, Iterable
from typing import Any, Final

from penstock.broker.dispatch import Dispatch

NEVER: Final = -1  # a stamp before all others
GONE_MAX: Final = 4096  # names of deleted queues that are remembered
LOOK_SLICE: Final = 256  # queues between two yields


class QueueChanges:
    """The names of queues in the order of their last changes."""

    def __init__(self, dispatch: Dispatch) -> None:
        self._dispatch = dispatch
        self._stamps: dict[str, int] = {}  # the newest last
        self._last: int = 0
        self._gone: set[str] = set()
        self._forgotten: int = 0  # what was deleted up to this stamp is not known any more

    def note(self, name: str, *, is_gone: bool = False) -> None:
        """Note that a queue has changed, or was deleted."""
        self._last += 1
        self._stamps.pop(name, None)
        self._stamps[name] = self._last
        if not is_gone:
            self._gone.discard(name)
            return
        self._gone.add(name)
        if len(self._gone) > GONE_MAX:
            for one in self._gone:
                del self._stamps[one]
            self._gone.clear()
            self._forgotten = self._last

    def stamp(self) -> int:
        """Return the stamp of this moment: `since` it, nothing has changed."""
        dispatch = self._dispatch
        changed: list[Any] = [*dispatch.changed, *dispatch.touched]  # only queues are touched
        dispatch.changed.clear()
        for queue in changed:
            if not queue.is_deleted:
                self.note(queue.name)
        return self._last

    def since(self, stamp: int) -> list[str] | None:
        """Return the names of queues that may have changed after the stamp, also of deleted ones.
        None: it is too old, and any may have changed."""
        self.stamp()
        if stamp < self._forgotten:
            return None
        found: list[str] = []
        for name, at in reversed(self._stamps.items()):
            if at <= stamp:
                break
            found.append(name)
        return found


class KeptNumber:
    """A number of each queue, of those for which it is not 0, and of all together. What has changed
    is looked at when somebody asks.

    number(name): of the queue or stream now, 0 if there is none. all_names, streams: the names of
    all, and of streams.
    """

    def __init__(
        self, changes: QueueChanges, number: Callable[[str], int],
        all_names: Callable[[], Iterable[str]], streams: Callable[[], Iterable[str]],
    ) -> None:  # fmt: skip
        self.of: dict[str, int] = {}
        self.total: int = 0
        self._changes = changes
        self._number = number
        self._all_names = all_names
        self._streams = streams
        self._stamp: int = NEVER

    def update(self) -> Generator[None, None, None]:
        """Bring it up to date; others may have their turn at each yield."""
        stamp = self._changes.stamp()
        changed = self._changes.since(self._stamp)
        names = (*self.of, *self._all_names()) if changed is None else (*changed, *self._streams())
        for n, name in enumerate(names, 1):
            number = self._number(name)
            self.total += number - self.of.pop(name, 0)
            if number:
                self.of[name] = number
            if n % LOOK_SLICE == 0:
                yield
        self._stamp = stamp
