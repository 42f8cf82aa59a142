"""QueueBacking: where bodies go that have left RAM, the seam of Qpid's Flow to Disk Design.

That design lets each queue flow its messages to disk and recover them, through an
interface of three calls (flow, recover, delete), so that nothing above needs to know
what a body's place on disk looks like. Here the calls are named after what a body does:

    design      here            answers with
    flow        unload          the address, which is all that stays in RAM
    recover     load            the body, verified
    delete      delete          nothing; the address means nothing any more

Forms of it: ``MessageStore`` (append files shared by all queues) and
``FileQueueBacking`` (one file per body, the design's own, for very large ones).
``tests/contracts/queue_backing.py`` is what every form must show.

An **address** is (file number, id): u32 and u64. The id is the message's; the file
number is the form's own and means nothing elsewhere. A pair is smaller than a path and
is what logs, slots and checkpoints hold.

Failure: a body that is not there, or is not what was unloaded, is a ``CorruptionError``
with path and position, never another body. A failed ``unload`` (a full disk) is the
``OSError`` and leaves nothing behind: the body stays in RAM, and an alarm is raised [10].

This module is not compiled, so that compiled and interpreted classes may both be forms.
"""

from abc import ABC, abstractmethod
from typing import TypeAlias

Address: TypeAlias = tuple[int, int]
"""(file number 0..2^32-1, message id 0..2^64-1)."""


class QueueBacking(ABC):
    """Bodies that left RAM. All calls belong to one thread, the owner's."""

    @abstractmethod
    def unload(self, id: int, body: bytes) -> Address:
        """Write ``body`` with one reference and answer with its address.

        The same id may be unloaded again later (it was loaded and its body is unchanged, for
        no id ever means two bodies); each answer is an address of its own reference. It is on
        disk in the sense of a write, not of a sync. Raises OSError, after which nothing is there.
        """

    @abstractmethod
    def load(self, address: Address) -> bytes:
        """The body that was unloaded to ``address``.

        Raises CorruptionError when there is none (never was, or deleted) or when its bytes do
        not verify; OSError when the disk does not read.
        """

    @abstractmethod
    def delete(self, address: Address) -> None:
        """Drop one reference; with the last the body is dead and ``load`` refuses it.

        Its bytes go later, when no checkpoint can need them [6]. Raises StorageError when
        nothing is alive at ``address``.
        """
