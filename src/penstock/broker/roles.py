"""What the parts of the core see of each other: who owes answers, who has output, what delivers.

Each is seen by modules below the one that it is made in, and is called in each turn, so they are
abstract classes here at the bottom; a class that has several roles has them in one line of descent.
"""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from penstock.native import mypyc_attr

if TYPE_CHECKING:
    from penstock.broker.dispatch import Dispatch


@mypyc_attr(allow_interpreted_subclasses=True)
class Owing(ABC):
    """Who owes answers to publishers: a channel in confirm mode."""

    @abstractmethod
    def settle(self, settled: int) -> bool:
        """LSNs up to this are safe; True if more is owed."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Peer(ABC):
    """A client's connection, as dispatch and vhost see it."""

    @abstractmethod
    def flush(self) -> None:
        """The turn ends: hand the output to the transport."""

    @abstractmethod
    def blocked(self, reason: str) -> None:
        """The vhost is short of something; "": no longer."""

    @abstractmethod
    def held(self) -> tuple[int, str]:
        """Bytes that its unfinished messages take in RAM, and what to call it."""

    @abstractmethod
    def relieve(self, reason: str) -> None:
        """End it, so that what it holds is free; the client is told the reason."""

    @abstractmethod
    def look_at_stalled(self, now_s: float, most_s: float) -> None:
        """End it if a message that has begun made no progress for more than `most_s`."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Source(ABC):
    """Where deliveries come from, and with whom they are settled: a queue, which gives each message
    to one of its consumers, or one consumer's own reading of a stream. What it delivered it knows
    by tags of its own.

    is_marked: the dispatch has it on its list of work. is_touched: a tick is to look at it, or no
    tick ever is. is_deleted, is_crashed: nothing comes from it, and nothing is settled with it.
    """

    is_marked: bool = False
    is_touched: bool = False
    is_deleted: bool = False
    is_crashed: bool = False

    @abstractmethod
    def deliver(self, dispatch: "Dispatch") -> int:
        """Give its consumers what they are ready for, a slice of it; how many messages."""

    @abstractmethod
    def ack(self, tags: list[int]) -> None:
        """These are done with. Unknown tags are ignored, here as everywhere."""

    def sent(self, tags: list[int]) -> None:
        """Clients that need not acknowledge these have got them. Where a full disk keeps that from
        being logged, it is done later."""
        self.ack(tags)

    @abstractmethod
    def requeue(self, tags: list[int]) -> None:
        """These failed, and are wanted again."""

    @abstractmethod
    def discard(self, tags: list[int]) -> None:
        """These failed, and are not wanted again."""

    @abstractmethod
    def release(self, tags: list[int]) -> None:
        """Nobody has tried these: they go back, and no attempt is counted."""

    def give_back(self, tags: list[int]) -> None:
        """Who had these is gone, or wants them again: they go back. A queue with a delivery limit
        counts that as an attempt, for it may be the message that ended its consumer."""
        self.release(tags)
