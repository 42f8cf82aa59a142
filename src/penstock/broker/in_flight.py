r"""What a vhost's process is handling at this moment, written where its supervisor can read it.

A request that ends the process does so again when its client repeats it after the restart. The
supervisor therefore must know what was being handled when a process died, also when the kernel
killed it. So the process writes each request to memory that both share, a memfd of SIZE bytes:

    state u8   since f64 (monotonic seconds)   length u16   "<user>\0<operation>" UTF-8

    NOTHING    nothing is being handled
    HANDLING   this request is being handled
    TURN       it was handled, and the turn in which its work is finished has not ended
    SHARED     it is being handled, or was in this turn, and costs what others have added

The operation is a method of AMQP ("queue.declare"), an operation by name ("declare_queue"), or
MESSAGES for everything else that one read of a socket brought: publishes, acks, gets. If several
requests were handled in a turn, none is named, because it is unknown which one the turn failed in.

What a message costs is not only its publisher's doing: whoever may read an exchange may bind
hundreds of queues to it, or queues whose dead letters go to hundreds more. From a publish to many
queues, or a dead letter, on, until the turn ends or another operation begins, the state is SHARED,
and the operation names the exchange. A death then is logged and nobody is refused: to keep the
publisher out would do what somebody else wanted, and end nothing.

What ended the process twice is refused for a while, by `begin`. The supervisor decides which
requests these are (penstock.server.watched_vhost).

The death of the process may tear an update. A torn name is seen once and has no effect, because two
equal ones are needed.
"""

import struct
from collections.abc import Callable, Iterable, Mapping
from mmap import mmap
from typing import Final

from penstock.errors import ACCESS_REFUSED, ChannelError

SIZE: Final = 512
HEAD: Final = struct.Struct("<BdH")
NOTHING: Final = 0
HANDLING: Final = 1
TURN: Final = 2
SHARED: Final = 3
MESSAGES: Final = "messages"
NAME_BYTES_MAX: Final = SIZE - HEAD.size


def signature(user: str, operation: str) -> bytes:
    """Return how a request of this user is named in the shared memory."""
    return f"{user}\0{operation}".encode(errors="replace")[:NAME_BYTES_MAX]


def parsed(memory: bytes) -> tuple[int, float, str, str]:
    """Return (state, since, user, operation) of what a process left; state NOTHING if
    unreadable."""
    state, since_s, length = HEAD.unpack_from(memory)
    name = memory[HEAD.size : HEAD.size + length].decode(errors="replace")
    user, separator, operation = name.partition("\0")
    if state not in (HANDLING, TURN, SHARED) or not separator:
        return NOTHING, 0.0, "", ""
    return state, since_s, user, operation


class InFlight:
    """The writer of the shared memory. memory: shared with the supervisor. monotonic: the clock of
    both."""

    def __init__(
        self, monotonic: Callable[[], float], memory: mmap | bytearray | None = None
    ) -> None:
        self._monotonic: Callable[[], float] = monotonic
        self._memory: mmap | bytearray = bytearray(SIZE) if memory is None else memory
        self._read: bytes = b""  # whose socket is being read
        self._has_other: bool = False  # the read brought more than messages
        self._written: bytes = b""
        self._handled: bytes = b""  # the first since the last turn ended
        self._is_several: bool = False  # others as well
        self._shared: bytes = b""  # how this read is named once it is SHARED
        self._shared_turn: bytes = b""  # the same of the reads of this turn
        self._refused: dict[tuple[str, str], float] = {}  # (user, operation) -> until

    def refuse(self, requests: Iterable[Mapping[str, object]]) -> None:
        """Refuse each {user, operation, seconds} for so long, instead of those refused before."""
        now = self._monotonic()
        self._refused = {
            (str(one["user"]), str(one["operation"])): now + float(str(one["seconds"]))
            for one in requests
        }

    # ---- one read of a socket ------------------------------------------------------------------

    def begin_read(self, name: bytes) -> None:
        """Note that what one read of a socket brought is handled; name: signature(user, MESSAGES).
        The time is not written: nobody needs it for messages, and there may be 100,000 reads in a
        second."""
        self._read = name
        self._has_other = False
        self._shared = b""
        if self._written == name:
            self._memory[0] = HANDLING
        else:
            self._write(HANDLING, name)

    def end_read(self) -> None:
        """Note that all of it was handled, but for the turn."""
        if not self._has_other:
            self._note(self._read)
        self._read = b""
        self._wait_for_turn()

    def share(self, exchange: bytes) -> None:
        """Note that what is handled goes through this exchange to many queues, to which others may
        have bound them. Nothing happens if nothing is handled."""
        if self._shared or self._memory[0] != HANDLING:
            return
        user = self._written.partition(b"\0")[0]
        name = user + b"\0" + MESSAGES.encode() + b" through exchange '" + exchange + b"'"
        self._shared = self._shared_turn = name[:NAME_BYTES_MAX]
        self._write(SHARED, self._shared)

    # ---- one request that may be costly --------------------------------------------------------

    def begin(self, user: str, operation: str) -> None:
        """Note that a request is handled. ChannelError 403: it ended the process twice."""
        if self._refused:
            self._check(user, operation)
        name = signature(user, operation)
        self._note(name)
        self._has_other = True
        self._shared = b""
        self._write(HANDLING, name)

    def end(self) -> None:
        """Note that it was handled, but for the turn."""
        if self._read:
            self._write(HANDLING, self._read)
        else:
            self._wait_for_turn()

    def _check(self, user: str, operation: str) -> None:
        until_s = self._refused.get((user, operation))
        left_s = 0.0 if until_s is None else until_s - self._monotonic()
        if left_s > 0:
            text = (
                f"{operation} of user '{user}' is refused for {left_s:.0f} s: the vhost's process "
                "ended twice while it was handled (an operator allows it again by `penstock "
                "restart_vhost`)"
            )
            raise ChannelError(ACCESS_REFUSED, text)

    # ---- the turn ------------------------------------------------------------------------------

    def turned(self) -> None:
        """Note that a turn has ended: what was handled before it cannot fail any more."""
        if self._handled:
            self._handled = b""
            self._is_several = False
            self._shared_turn = b""
            self._memory[0] = NOTHING

    def blameless(self) -> None:
        """Write nothing more: the process ends for a reason that no request caused, such as a disk
        error."""
        self._memory[0] = NOTHING
        self._memory = bytearray(SIZE)

    def freeze(self) -> None:
        """Write nothing more: the process ends because of what is written now."""
        self._memory = bytearray(SIZE)

    def _note(self, name: bytes) -> None:
        if not self._handled:
            self._handled = name
        elif self._handled != name:
            self._is_several = True

    def _wait_for_turn(self) -> None:
        if self._is_several:
            self._memory[0] = NOTHING
        elif self._shared_turn:
            self._write(SHARED, self._shared_turn)
        elif self._written == self._handled:
            self._memory[0] = TURN
        else:
            self._write(TURN, self._handled)

    def _write(self, state: int, name: bytes) -> None:
        self._written = name
        self._memory[: HEAD.size + len(name)] = (
            HEAD.pack(state, self._monotonic(), len(name)) + name
        )
