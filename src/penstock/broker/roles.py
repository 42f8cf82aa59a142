"""What the parts of the core see of each other: who owes answers, who has output, who is a client.

Each is seen by modules below the one that it is made in, and is called in each turn, so they are
abstract classes here at the bottom; a class that has several roles has them in one line of descent.
"""

from abc import ABC, abstractmethod

from penstock.native import mypyc_attr


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
