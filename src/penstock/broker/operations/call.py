"""Call: one call of an operation, with its arguments checked (penstock.operation_table).

An error that an operation raises is its answer, if there is an AMQP error for it. A failure of the
engine is raised: it ends the vhost.

An operation that may take longer than a moment is a generator, which yields where it may be
interrupted and returns the answer (`Call.in_slices`). One whose answer may be large asks
`check_room` before it makes more of it, because an answer on a channel has to fit into a frame.
"""

from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Final, TypeVar

from penstock.access.permissions import Identity, everything
from penstock.broker import permissions
from penstock.broker.background_tasks import AGAIN, DONE, BackgroundTask, FinishingWork
from penstock.broker.channel import Channel
from penstock.broker.connection_facts import client_of
from penstock.broker.dispatch import STEP_BYTES, Reply, SlicedWork, TurnBudget
from penstock.broker.refusals import access_refused, precondition_failed
from penstock.broker.vhost import VHost
from penstock.errors import (
    CONTENT_TOO_LARGE,
    RESOURCE_ERROR,
    AMQPError,
    ChannelError,
    DiskFullError,
    QueueFullError,
)
from penstock.operation_json import JsonParts
from penstock.operation_table import (
    CLIENTS,
    MANAGEMENT,
    OPERATORS,
    Arguments,
    Operation,
    check_tags,
)

OPERATOR: Final = everything("operator")
OVERHEAD_BYTES: Final = 32  # of a frame with an answer, more than enough
ROW_STEPS: Final = 16  # to describe one
PIECE_BYTES: Final = 256 << 10  # of a large body that is read in slices
PIECE_STEPS: Final = 256

Slices = Generator[None, None, object]  # of an operation; it returns the answer


class Call:
    """One call of an operation, with its arguments checked. reply: takes the answer, once.

    asked_on: the client's channel; None if an operator calls. user: the user for whom an operator
    calls; that user's permissions count then. address: where that user calls from. lsn: what an
    answer that is made in slices waits for.
    """

    def __init__(
        self, vhost: VHost, channel: Channel | None, user: Identity | None, args: Arguments,
        reply: Reply, address: str = "",
    ) -> None:  # fmt: skip
        self.vhost: VHost = vhost
        self.args: Arguments = args
        self.reply: Reply = reply
        self.lsn: int = 0
        self.identity: Identity = user or (OPERATOR if channel is None else channel.identity)
        self.is_operator: bool = channel is None and user is None
        self.owner: object | None = None if channel is None else channel.handler
        self.asked_on: Channel | None = channel
        self._address: str = address

    @property
    def place(self) -> str:
        """Where a user has called from, for the audit log."""
        channel = self.asked_on
        return self._address or "http" if channel is None else client_of(channel.handler.name)

    @property
    def channel(self) -> Channel:
        """The client's channel, in an operation for CLIENTS."""
        assert self.asked_on is not None, "the table says that it is for clients"
        return self.asked_on

    def check(self, verb: str, kind: str, name: str) -> None:
        """Raise ChannelError 403 unless the user may do this to that queue or exchange."""
        if not self.is_operator:
            permissions.check(self.vhost, self.identity, verb, kind, name)

    def may_read(self, name: str) -> bool:
        """Return whether the caller may read the queue of this name."""
        return self.is_operator or self.identity.may_read(name)

    @property
    def room_bytes(self) -> int:
        """Return how many bytes of JSON the answer may have; 0: as many as there are."""
        frame_max = 0 if self.asked_on is None else self.asked_on.output.frame_max
        return max(frame_max - OVERHEAD_BYTES, 0)

    def check_room(self, size: int) -> None:
        """Raise ChannelError 311 if an answer of so many bytes, at least, does not fit."""
        room = self.room_bytes
        if 0 < room < size:
            raise too_large(f"at least {size} bytes", room + OVERHEAD_BYTES)

    def in_slices(self, slices: Slices) -> None:
        """Reply with what the generator returns; between its slices others have their turns. An
        error of it is the answer."""
        answering = _Answering(self, slices)
        budget = self.vhost.budget
        if self.asked_on is not None:
            self.asked_on.handler.do_in_slices(self.asked_on, answering)
            return
        budget.begin_short()  # nobody's turn: a client may wait
        if not answering.step():
            self.vhost.background.wake(FinishingWork(answering, budget))

    def in_slices_after(self, held: tuple[int, int], slices: Callable[[], Slices]) -> None:
        """Reply with what the generator returns that `slices` makes once this LSN is settled in
        this mode. What the client sends on the channel meanwhile waits."""
        if self.asked_on is not None:
            self.asked_on.is_waiting = True
        task = _Later(self, slices)
        self.vhost.dispatch.when_settled(*held, lambda: self.vhost.background.wake(task))

    def settled(self, lsn: int, answer: object) -> None:
        """Reply once the LSN is settled in the vhost's mode; at once if it is 0."""
        reply = self.reply
        if not lsn:
            reply(answer)
        else:
            self.vhost.dispatch.when_settled(lsn, self.vhost.mode, lambda: reply(answer))

    def answer_errors(self, do: Callable[[], None]) -> None:
        """Call `do`, the rest of an operation that had to wait; an error of it is the answer."""
        try:
            do()
        except Exception as error:  # noqa: BLE001 - it is answered or raised
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """Reply with the AMQP error for `error`. Raises it if there is none, or if the engine has
        failed."""
        answer = error_of(error)
        if answer is None or self.vhost.engine.failed is not None:
            raise error
        self.reply(answer)


Rows = Iterator[dict[str, object] | None]  # of a listing; None: only time was taken
NAMES_SLICE: Final = 256


def listed(call: Call, rows: Rows) -> Slices:
    """Return the rows as JSON, each made when its turn comes. ChannelError 311: the answer is too
    large."""
    found = JsonParts(is_exact=call.is_operator)
    yield from add_rows(call, found, rows)
    return found


def add_rows(
    call: Call, found: JsonParts, rows: Rows, key: str | None = None
) -> Generator[None, None, int]:
    """Add a list of these rows to an answer, as `listed` does; return how many. key: of it in the
    object."""
    budget = call.vhost.budget
    n = 0
    found.begin(b"[", key)
    for row in rows:
        if row is not None:
            n += 1
            budget.left -= found.add(row) // STEP_BYTES
            call.check_room(found.bytes)
        budget.left -= ROW_STEPS
        if budget.left <= 0:
            yield
    found.end(b"]")
    return n


T = TypeVar("T")


def in_budget(
    budget: TurnBudget, part: Generator[None, None, T], steps: int
) -> Generator[None, None, T]:
    """Return what a part of an answer returns, whose slices take so many steps of the turn's
    budget."""
    while True:
        try:
            next(part)
        except StopIteration as end:
            found: T = end.value
            return found
        budget.left -= steps
        if budget.left <= 0:
            yield


def first_names(
    call: Call, names: list[str], n: int, after: str, is_shown: Callable[[str], bool]
) -> Generator[None, None, list[str]]:
    """Return the first n of the names, sorted, that come after `after` and are shown; in slices."""
    found: list[str] = []
    for at in range(0, len(names), NAMES_SLICE):
        some = names[at : at + NAMES_SLICE]
        found += [name for name in some if name > after and is_shown(name)]
        if len(found) > n:
            found = sorted(found)[:n]
        call.vhost.budget.left -= len(some)
        yield
    return sorted(found)


class _Answering(SlicedWork):
    """The slices of one call."""

    def __init__(self, call: Call, slices: Slices) -> None:
        self._call = call
        self._slices = slices

    def step(self) -> bool:
        budget = self._call.vhost.budget
        try:
            while True:
                next(self._slices)
                if budget.is_over():
                    return False
        except StopIteration as end:
            self._call.settled(self._call.lsn, end.value)
        except Exception as error:  # noqa: BLE001 - it is answered or raised
            self._call.fail(error)
        return True

    def abandon(self) -> None:
        self._slices.close()
        self._call.reply(ChannelError(RESOURCE_ERROR, "its channel is closed"))  # to nobody


class _Later(BackgroundTask):
    """One call whose slices begin later, while its channel waits."""

    def __init__(self, call: Call, slices: Callable[[], Slices]) -> None:
        self._call = call
        self._slices = slices
        self._answering: _Answering | None = None

    def step(self) -> int:
        call, channel = self._call, self._call.asked_on
        if channel is not None and channel.is_closed:
            if self._answering is not None:
                self._answering.abandon()
            else:
                call.fail(access_refused("its channel is closed"))  # to nobody
            return DONE
        call.vhost.budget.begin_later()
        if self._answering is None:
            self._answering = _Answering(call, self._slices())
        if not self._answering.step():
            return AGAIN
        if channel is not None:
            channel.go_on(_nothing)
        return DONE

    def failed(self, error: Exception) -> None:
        """Answer with the error."""
        self._call.fail(error)
        if self._call.asked_on is not None:
            self._call.asked_on.go_on(_nothing)


def _nothing() -> None:
    """Do nothing: the answer was sent."""


Functions = Mapping[str, Callable[[Call], None]]  # of a module, by the names of operations


def check_caller(row: Operation, channel: Channel | None, user: Identity | None) -> None:
    """Raise ChannelError 403 or 406 if a caller of this kind may not call the operation at all."""
    if row.audience == CLIENTS and channel is None:
        raise precondition_failed(f"{row.name}: is for channels of AMQP connections")
    identity = user if channel is None else channel.identity
    if identity is None:
        return
    if row.audience == OPERATORS or (row.audience == MANAGEMENT and channel is not None):
        ways = "control socket alone" if row.audience == OPERATORS else "control socket or HTTP"
        raise access_refused(
            f"operation '{row.name}' refused for user '{identity.name}': it is done over the "
            f"broker's {ways}, by the command penstock"
        )
    check_tags(row, identity.name, identity.tags)


def too_large(size: str, frame_max: int) -> AMQPError:
    """Return the error for an answer of this size."""
    text = f"an answer of {size} does not fit into a frame of {frame_max}"
    return AMQPError(CONTENT_TOO_LARGE, text)


def error_of(error: Exception) -> AMQPError | None:
    """Return the AMQP error that answers an error of a queue; None if there is none."""
    if isinstance(error, AMQPError):
        return error
    if isinstance(error, DiskFullError | QueueFullError):
        return ChannelError(RESOURCE_ERROR, str(error))
    return None
