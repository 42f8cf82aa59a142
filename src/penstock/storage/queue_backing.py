"""QueueBacking: where bodies are that have left RAM, the interface of Qpid's Flow to Disk Design.

    design      here            returns
    flow        unload          the address, which is all that stays in RAM
    recover     load            the body, verified
    delete      delete          nothing; the address has no meaning any more

There are two: `MessageStore` (append files shared by all queues) and `FileQueueBacking` (one file
per body, as in the design, for very large ones). `tests/contracts/queue_backing.py` checks both.

An address is (file number, id): u32 and u64. The id is the message's. The file number has a meaning
only for the QueueBacking that returned it. Logs, slots and checkpoints contain such pairs.

Failure: a body that is missing, or is not what was unloaded, is a CorruptionError with path and
position, never another body. A failed `unload` (a full disk) is the OSError and leaves nothing: the
body stays in RAM, and an alarm is raised [10].

Not compiled, so that compiled and interpreted classes may both be QueueBackings.
"""

from abc import ABC, abstractmethod
from typing import TypeAlias

Address: TypeAlias = tuple[int, int]
"""(file number 0..2^32-1, message id 0..2^64-1)."""


class QueueBacking(ABC):
    """Bodies that left RAM. Only the owner's thread calls it."""

    @abstractmethod
    def unload(self, id: int, body: bytes) -> Address:
        """Write `body` with one reference, without a sync, and return its address.

        The same id may be unloaded again after it was loaded; its body is the same then, and each
        address is one reference. Raises OSError, and then nothing was written.
        """

    @abstractmethod
    def load(self, address: Address) -> bytes:
        """Return the body that was unloaded to `address`.

        Raises CorruptionError if there is none (any more) or it does not verify; OSError.
        """

    @abstractmethod
    def delete(self, address: Address) -> None:
        """Release one reference; after the last one `load` refuses the body.

        Its bytes are deleted later, when no checkpoint needs them [6]. Raises StorageError if no
        body is alive at `address`.
        """
