"""RemoteBoxes: boxes on a live broker, for the contract that boxes in directories keep too.

One broker serves all tests of a module, for its start takes a second. Each test begins with an
empty vhost. A test that closes its box and opens it again means that whatever holds its messages is
started again, so the broker is: in an orderly way, on the same directory and port.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import penstock
from tests.helpers.live_broker import LiveBroker


class RemoteBoxes:
    """Of one test. make(url, **options): opens a box. end(box): closes it for good."""

    def __init__(
        self, broker: LiveBroker, make: Callable[..., Any], end: Callable[[Any], None]
    ) -> None:
        self._broker = broker
        self._make = make
        self._end = end
        self._boxes: list[Any] = []
        self._empty()

    def _empty(self) -> None:
        with penstock.open(self._broker.url) as box:
            for name in (*box.queues(), *box.streams()):
                box.delete(name)

    def open(self, **options: Any) -> Any:
        """The box of this test."""
        if self._boxes:
            self._broker.restart()
        self._boxes.append(self._make(self._broker.url, **options))
        return self._boxes[-1]

    def close(self) -> None:
        """At the end of the test."""
        for box in self._boxes:
            self._end(box)


@contextmanager
def served(data: Path) -> Iterator[Any]:
    """The box of the vhost / in this directory, by a broker that serves it meanwhile."""
    with LiveBroker(data) as broker, penstock.open(broker.url) as box:
        yield box
