"""Every exception that Penstock raises on purpose.

One root, ``PenstockError``, so that a caller can tell Penstock's errors from a
program's own. ``StorageError`` is the disk's side: each says what was expected,
what was found, and where. All keep their arguments as attributes.
"""

import difflib
import errno
import json
import queue
import re
from collections.abc import Iterable, Mapping
from typing import Final

_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def blocked_advice(reason: str) -> str:
    """Return what helps publishers that wait for this, such as "memory and disk"."""
    words = reason.split()
    return "; ".join(advice for word, advice in BLOCKED_ADVICE.items() if word in words)


def valid_text(text: str) -> str:
    """Return the text with U+FFFD for each lone surrogate (which stands for a byte that is not
    UTF-8), so that any encoder accepts it."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


class PenstockError(Exception):
    """Root of all errors that Penstock raises on purpose."""


class StorageError(PenstockError):
    """An error of the files on disk."""


DAMAGE_ADVICE: Final = (
    "'penstock store verify DIR' lists all damage to a store that is not running, 'penstock store "
    "salvage DIR INTO' saves what can be read"
)
NEWER: Final = "a newer Penstock wrote it"
VERSION_ADVICE: Final = (
    "use the Penstock that wrote it or a later one, or restore a backup from before the upgrade; "
    "nothing was changed"
)
# What publishers wait for -> what ends it. Consumers go on in any case.
BLOCKED_ADVICE: Final[Mapping[str, str]] = {
    "memory": "consume, purge or delete what fills it, or give the broker more (--memory)",
    "disk": "make room on the disk, or consume, purge or delete (penstock status shows the limit)",
    "descriptors": "close connections, or raise the limit of open files (ulimit -n)",
}
CERTIFICATE_ADVICE: Final = "put a new one in its place, the broker reads it by itself"
LOCKED_ADVICE: Final = (
    "a broker or a box has it: 'penstock status' shows a broker. Several processes share a store "
    "by 'penstock serve --data DIR' and an amqp:// address in place of the path"
)


class CorruptionError(StorageError):
    """A file contains what was never written. A torn tail is not this. Its note says what to do."""

    def __init__(self, path: str, position: int, reason: str) -> None:
        super().__init__(f"{path}: at byte {position}: {reason}")
        self.add_note(DAMAGE_ADVICE)
        self.path = path
        self.position = position
        self.reason = reason


def damaged_at(text: str) -> str:
    """Return the file in a text that ends with a CorruptionError's; the whole text if there is
    none."""
    before, found, _ = text.rpartition(": at byte ")
    return before.rpartition(": ")[2] if found else text


class LockedError(StorageError):
    """Another process, or another part of this one (is_own), owns the directory."""

    def __init__(self, path: str, holder: str, *, is_own: bool = False) -> None:
        owner = f"{holder}, this process" if is_own else holder
        super().__init__(f"{path}: locked by {owner}; {LOCKED_ADVICE}")
        self.path = path
        self.holder = holder
        self.is_own = is_own


class VersionError(StorageError):
    """A newer version of Penstock wrote it, in a form that this one does not read. Its note says
    what to do."""

    def __init__(self, path: str, expected: object, found: object) -> None:
        super().__init__(f"{path}: expected version {expected}, found {found}: {NEWER}")
        self.add_note(VERSION_ADVICE)
        self.path = path
        self.expected = expected
        self.found = found


class NotAStoreError(StorageError):
    """The path is not a data directory of Penstock."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: not a store of Penstock: {reason}")
        self.path = path
        self.reason = reason


class PathNotFreeError(NotAStoreError):
    """The path for a backup or a salvaged store is not free."""

    def __init__(
        self, path: str, reason: str, advice: str = "give a path that is missing or empty"
    ) -> None:
        StorageError.__init__(self, f"{path}: {reason}; {advice}")
        self.path = path
        self.reason = reason
        self.advice = advice


class NetworkFileSystemError(StorageError):
    """The directory is on a network file system, whose locks and syncs cannot be trusted."""

    def __init__(self, path: str, kind: str) -> None:
        super().__init__(f"{path}: is on a network file system ({kind})")
        self.path = path
        self.kind = kind


class DiskFullError(StorageError):
    """Too little free space to go on."""

    def __init__(self, path: str, free_bytes: int, needed_bytes: int) -> None:
        super().__init__(f"{path}: {free_bytes} bytes free, {needed_bytes} needed")
        self.path = path
        self.free_bytes = free_bytes
        self.needed_bytes = needed_bytes


class DescriptorsError(DiskFullError):
    """The process, or the machine, has no file descriptor left to open a file with. It is treated
    as a full disk is: nothing has changed, and the same may be tried again."""

    def __init__(self, path: str) -> None:
        StorageError.__init__(self, f"{path}: no file descriptor is left to open it ({NOFILE})")
        self.path = path
        self.free_bytes = 0
        self.needed_bytes = 0


NOFILE: Final = "see ulimit -n"
NO_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE)
SHORTAGES: Final = (errno.ENOSPC, errno.EDQUOT, *NO_DESCRIPTORS)


def is_shortage(error: BaseException) -> bool:
    """Return whether this is a lack of space on the disk, or of descriptors to open files with,
    after which the same may be tried again."""
    if isinstance(error, OSError):
        return error.errno in SHORTAGES
    return isinstance(error, DiskFullError)


def has_no_descriptor(error: BaseException) -> bool:
    """Return whether a file could not be opened because no descriptor is left."""
    if isinstance(error, OSError):
        return error.errno in NO_DESCRIPTORS
    return isinstance(error, DescriptorsError)


class SyncFailedError(StorageError):
    """A sync failed: what was written may be lost, and no retry can tell. Rule [10]."""

    def __init__(self, path: str, cause: OSError) -> None:
        super().__init__(f"{path}: sync failed: {cause}")
        self.path = path
        self.cause = cause


class StoppedError(StorageError):
    """The engine stopped after a failed sync; it must be reopened from the disk."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the store has stopped: {reason}")
        self.reason = reason


class TransactionTooLargeError(StorageError):
    """A commit would take more log than a transaction may."""

    def __init__(self, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(f"transaction of {size_bytes} log bytes, the limit is {limit_bytes}")
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes


class UnknownQueueError(StorageError):
    """No queue of that name or number."""

    def __init__(self, queue: str | int) -> None:
        super().__init__(f"no queue {queue!r}")
        self.queue = queue


def deleted_error(name: bytes) -> UnknownQueueError:
    """Return the error for a queue or stream that is still in use, but deleted."""
    return UnknownQueueError(f"{name.decode('utf-8', 'replace')} (deleted)")


class UnknownLeaseError(StorageError):
    """A reader has leased nothing of a queue, or its lease is being released."""

    def __init__(self, queue: str, reader: str) -> None:
        super().__init__(f"queue {queue!r}: reader {reader!r} has no lease")
        self.queue = queue
        self.reader = reader


class QueueLeasedError(PenstockError):
    """A queue cannot be deleted: readers have leased messages of it and not committed them."""

    def __init__(self, queue: str, messages: int, readers: list[str]) -> None:
        super().__init__(
            f"queue {queue!r} is leased: {messages} messages by readers {readers}; commit, release "
            "(penstock release_lease), or delete with force"
        )
        self.queue = queue
        self.messages = messages
        self.readers = readers


class BatchConflictError(PenstockError):
    """A batch was not written, because the broker knows another one: with the same number and other
    rows or another target, or a newer one; or batches before it are missing. reason: names both,
    and what to do."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class ReaderTakenError(PenstockError):
    """A reader of a classic queue belongs to another running query, or to one that took over
    because this one was silent for too long. reason: which reader of which queue."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class NotLeasableError(PenstockError):
    """Messages of this queue cannot be leased; `why` says why."""

    def __init__(self, queue: str, why: str) -> None:
        super().__init__(f"queue {queue!r} cannot be leased: {why}")
        self.queue = queue
        self.why = why


def shortened(value: object, most: int = 80) -> str:
    """Return a value as an error's text shows it: its first characters, if it has more than so
    many."""
    text = repr(value)
    return text if len(text) <= most else text[:most] + "..."


class OptionError(PenstockError):
    """An option's name is unknown or its value is not allowed.

    expected: a text that says which values are right (the value was wrong), or the
    names of all options (the name was: the nearest right one is suggested, or all are named).
    """

    def __init__(self, name: str, given: object, expected: object) -> None:
        text = f"option {name}: given {shortened(given, 300)}, expected {expected}"
        if isinstance(expected, Iterable) and not isinstance(expected, str):
            known = [str(one) for one in expected]
            near = difflib.get_close_matches(name, known, n=1)
            names = ", ".join(known)
            names = names if len(names) <= 300 else names[:300] + "..."
            hint = f"did you mean {near[0]!r}?" if near else f"known are {names}"
            text = f"unknown option {shortened(name)}, {hint}"
        super().__init__(text)
        self.name = name
        self.given = given
        self.expected = expected


def install_advice(extra: str) -> str:
    """Return how to install the packages of an extra of pyproject.toml, from where Penstock itself
    was installed, such as a wheel: it is on no index."""
    from importlib import metadata  # 20 ms, which nobody else needs

    try:
        origin = metadata.distribution("penstock").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        origin = None
    if origin is None:
        return f"in a clone of Penstock, type pip install '.[{extra}]'"
    wanted = f"penstock[{extra}] @ {json.loads(origin)['url']}"
    return f"type pip install '{wanted}'"


class MissingPackageError(PenstockError):
    """A package that is needed is not installed. reason: which, and how to install it."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class QueueFullError(PenstockError, queue.Full):
    """A queue has reached its limit and refuses more; nothing was put. limit: which one; given:
    what it would be. A program that was written for `queue.Queue` catches `queue.Full`."""

    def __init__(self, queue: str, limit: str, given: int, allowed: int) -> None:
        super().__init__(
            f"queue {queue!r} is full: {limit} would be {given}, allowed are {allowed}"
        )
        self.queue = queue
        self.limit = limit
        self.given = given
        self.allowed = allowed

    @staticmethod
    def numbers_in(text: str) -> tuple[str, int, int] | None:
        """Return (limit, given, allowed) from the text of such an error; None if it is another
        text, or cut off."""
        found = re.search(r" is full: (max_length\w*) would be (\d+), allowed are (\d+)$", text)
        return None if found is None else (found[1], int(found[2]), int(found[3]))


class QueueEmptyError(PenstockError, queue.Empty):
    """No message came in the time given. A program for `queue.Queue` catches `queue.Empty`."""

    def __init__(self, queue: str, timeout_s: float) -> None:
        super().__init__(f"queue {queue!r} is empty (waited {timeout_s:g} s)")
        self.queue = queue
        self.timeout_s = timeout_s


class StreamGapError(PenstockError):
    """Records that a reader of a stream should have got next were reclaimed by retention.

    queue, partition, asked (the next offset to read), first (the offset of the next existing
    record).
    """

    def __init__(self, queue: str, partition: int, asked: int, first: int) -> None:
        super().__init__(
            f"stream {queue!r}, partition {partition}: {first - asked} records from offset "
            f"{asked} on have been reclaimed, the next one is {first}"
        )
        self.queue = queue
        self.partition = partition
        self.asked = asked
        self.first = first


class SettledError(PenstockError):
    """A message was acknowledged, requeued or moved before, or its queue was purged or closed, or
    it is of another queue (owner)."""

    def __init__(self, queue: str, tag: int, owner: str | None = None) -> None:
        why = "is not pending any more"
        if owner is not None:
            why = f"is of queue {owner!r}: settle it there"
        super().__init__(f"queue {queue!r}: the message of tag {tag} {why}")
        self.queue = queue
        self.tag = tag
        self.owner = owner


class ForkedError(PenstockError):
    """A box that was opened by one process is used in a child forked from it."""

    def __init__(self, path: str, opened_by: int, used_by: int) -> None:
        super().__init__(
            f"{path}: opened by process {opened_by}, used in its forked child {used_by}: "
            "open a box of its own after the fork, in one of the two"
        )
        self.path = path
        self.opened_by = opened_by
        self.used_by = used_by


class AMQPError(PenstockError):
    """An AMQP exception: an error for the client, with the reply code of the specification.

    code: the reply code, such as 404. text: as it is sent, "NOT_FOUND - no queue ...": the code's
    name and the given text, valid Unicode. class_id, method_id: of the method that failed, 0 if it
    was none.
    """

    def __init__(self, code: int, text: str, class_id: int = 0, method_id: int = 0) -> None:
        self.code = code
        self.text = valid_text(f"{REPLY_NAMES.get(code, code)} - {text}")
        self.class_id = class_id
        self.method_id = method_id
        super().__init__(self.text)


class ChannelError(AMQPError):
    """A soft error: the channel is closed with it, the connection stays."""


class AMQPConnectionError(AMQPError):
    """A hard error: the connection is closed with it."""


# Reply codes: AMQP 0-9-1 specification, 1.2 "AMQP-defined constants". CONFLICT is Penstock's own;
# only operations are refused with it.
SUCCESS: Final = 200
CONTENT_TOO_LARGE: Final = 311
NO_ROUTE: Final = 312
NO_CONSUMERS: Final = 313
CONNECTION_FORCED: Final = 320
INVALID_PATH: Final = 402
ACCESS_REFUSED: Final = 403
NOT_FOUND: Final = 404
RESOURCE_LOCKED: Final = 405
PRECONDITION_FAILED: Final = 406
CONFLICT: Final = 409
FRAME_ERROR: Final = 501
SYNTAX_ERROR: Final = 502
COMMAND_INVALID: Final = 503
CHANNEL_ERROR: Final = 504
UNEXPECTED_FRAME: Final = 505
RESOURCE_ERROR: Final = 506
NOT_ALLOWED: Final = 530
NOT_IMPLEMENTED: Final = 540
INTERNAL_ERROR: Final = 541

# The names that texts on the wire begin with: those above.
REPLY_NAMES: Final[Mapping[int, str]] = {
    **{code: name for name, code in globals().items() if name.isupper() and type(code) is int},
    SUCCESS: "REPLY_SUCCESS",
}


class BoxClosedError(StoppedError):
    """The box, or the stream without a box, was closed: path. Open it again to use it."""

    def __init__(self, path: str, what: str = "box") -> None:
        super().__init__(f"the {what} {path} is closed")
        self.path = path
        self.what = what


class TransactionError(PenstockError):
    """A transaction was begun inside another one, or entered a second time. reason: which."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


# ---- on the way to a broker ----------------------------------------------------------------------

# What a broker says is an AMQPError. These two are also a ConnectionError, which programs that talk
# to networks catch anyway. After a lost connection the calls that were under way may or may not
# have taken effect: a message may have been put, and what was acknowledged may be delivered again.


class ConnectionLostError(PenstockError, ConnectionError):
    """The connection ended while it was in use: url (without the password), reason."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"the connection to {url} was lost: {reason}")
        self.url = url
        self.reason = reason


class UnreachableError(PenstockError, ConnectionError):
    """No connection could be made: url (without the password), reason. is_of_tls: the two do not
    agree about TLS, which waiting does not change."""

    def __init__(self, url: str, reason: str, *, is_of_tls: bool = False) -> None:
        super().__init__(f"no connection to {url}: {reason}")
        self.url = url
        self.is_of_tls = is_of_tls
        self.reason = reason


class MissingCapabilityError(PenstockError):
    """The broker cannot hold a box: url, product."""

    def __init__(self, url: str, product: str) -> None:
        super().__init__(
            f"{url} is {product}, which lacks the capability 'penstock.box' that a box needs: "
            "use penstock.client.connect, which needs nothing but AMQP 0-9-1"
        )
        self.url = url
        self.product = product
