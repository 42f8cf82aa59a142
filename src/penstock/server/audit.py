"""Audit: who has changed what, and who could not log in, as lines of JSON in a file and a stream.

    {"time": "2026-11-27T15:04:05.123+00:00", "event": "delete_queue", "user": "ada",
     "from": "10.0.0.7:51034", "vhost": "/", "args": {"queue": "orders"}}

event is the operation (operation_table.AUDITED), for an AMQP method too, or login_failed with why.
from: the client's address, "http" for a user of the HTTP process, or "control socket", where the
user is "operator". args: the operation's arguments, without passwords and definitions.
Each is written once what it says has been decided; that it is durable is waited for by the client
alone. Messages are not audited.

The supervisor writes all of it: the file in a thread, the stream by calls of the vhost that has it
(operations.streams), so a slow disk and a vhost that is down delay nobody, and neither of the two
waits for the other. WAITING_MAX entries wait for each, of one user not more than there is room for
those of others; what comes beyond is left out, and so are arguments that are longer than
ARGUMENT_CHARS, and failed logins beyond LOGINS_PER_S. The next entry says how many were left out,
and so does the metric audit_left_out_total. A file that exceeds its size becomes FILE.1, in place
of the one before, so both together take twice that at most. A file or stream that cannot be written
is an error in the log, once, and is tried again with the next entries.
"""

import asyncio
import json
import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Final

from penstock.clock import Clock, TokenBucket, date
from penstock.errors import PenstockError
from penstock.storage.files.filesystem import FileSystem

WAITING_MAX: Final = 10_000
ARGUMENT_CHARS: Final = 2000  # of an argument as JSON; names are shorter
AT_ONCE: Final = 256  # entries of one call
CLOSE_S: Final = 5.0
LOGINS_BURST: Final = 100
LOGINS_PER_S: Final = 10
LOGIN_FAILED: Final = "login_failed"

logger = logging.getLogger(__name__)

Line = tuple[str, int, str]  # JSON, how many entries it counts for, and whose it is


class AuditEntries(ABC):
    """Entries that wait to be written to one place. left_out_total: how many it does not have.
    place: how the log calls it."""

    def __init__(self, place: str, clock: Clock) -> None:
        self.left_out_total = 0
        self._place = place
        self._clock = clock
        self._lock = Lock()  # of what is below
        self._waiting: list[Line] = []
        self._of_user: Counter[str] = Counter()  # of these
        self._left_out = 0  # since the last entry
        self._is_writing = False
        self._logins = TokenBucket(LOGINS_BURST, LOGINS_PER_S, clock.monotonic())
        self._has_failed = False

    def note(self, entry: Mapping[str, object]) -> None:
        """Write an entry: event, user, from, vhost and others. Its time is now if it has none."""
        has_room = entry["event"] != LOGIN_FAILED or self._logins.take_room(self._clock.monotonic())
        user = str(entry.get("user", ""))
        with self._lock:
            if not has_room or self._of_user[user] >= WAITING_MAX - len(self._waiting):
                self._left_out += 1
                self.left_out_total += 1
                return
            line = {"time": date(self._clock.wall_ms()), **_shortened(entry)}
            count = 1 + self._left_out
            if self._left_out:
                line["left_out"], self._left_out = self._left_out, 0
            self._waiting.append((json.dumps(line, default=str), count, user))
            self._of_user[user] += 1
            if self._is_writing:
                return
            self._is_writing = True
        self._begin()

    @abstractmethod
    def _begin(self) -> None:
        """Begin to write what waits."""

    def _take(self, most: int) -> list[Line]:
        """Return the lines to write next; none: the writing has ended."""
        with self._lock:
            lines, self._waiting = self._waiting[:most], self._waiting[most:]
            self._of_user -= Counter(user for _, _, user in lines)
            self._is_writing = bool(lines)
            return lines

    def _failed(self, lines: list[Line], error: Exception) -> None:
        """Note that the lines could not be written."""
        with self._lock:
            self._left_out += sum(count for _, count, _ in lines)
            self.left_out_total += len(lines)
        if not self._has_failed:
            logger.error("the %s cannot be written: %s", self._place, error)
        self._has_failed = True


def _shortened(entry: Mapping[str, object]) -> Mapping[str, object]:
    """Return the entry without arguments that are long."""
    args = entry.get("args")
    if not isinstance(args, Mapping):
        return entry
    shown: dict[str, object] = {}
    for name, value in args.items():
        chars = len(json.dumps(value, default=str))
        shown[name] = value if chars <= ARGUMENT_CHARS else f"left out: {chars} characters"
    return {**entry, "args": shown}


class AuditLog(AuditEntries):
    """The log at `path`. bytes_max: of the file. Raises OSError if it cannot be opened."""

    def __init__(self, fs: FileSystem, path: str, bytes_max: int, clock: Clock) -> None:
        super().__init__(f"audit log {path}", clock)
        self._fs = fs
        self._path = path
        self._bytes_max = bytes_max
        self._file = fs.open(path, create=True)
        self._end = self._file.size()
        self._executor = ThreadPoolExecutor(1, "penstock-audit")

    def close(self) -> None:
        """Write what waits, and close the file."""
        self._executor.shutdown()
        self._file.close()

    def _begin(self) -> None:
        self._executor.submit(self._write_all)

    def _write_all(self) -> None:
        while lines := self._take(WAITING_MAX):
            try:
                self._write("".join(f"{line}\n" for line, _, _ in lines).encode())
                self._has_failed = False
            except OSError as error:
                self._failed(lines, error)

    def _write(self, data: bytes) -> None:
        if self._end and self._end + len(data) > self._bytes_max:
            self._file.close()
            self._fs.rename(self._path, self._path + ".1")
            self._file = self._fs.open(self._path, create=True)
            self._end = self._file.size()
        self._file.pwrite(data, self._end)
        self._end += len(data)


class VhostEntries(AuditEntries):
    """Entries for a vhost: the stream of the audit, or events. append(lines): has the vhost take
    them; raises PenstockError, and TimeoutError."""

    def __init__(
        self, place: str, append: Callable[[list[str]], Awaitable[None]], clock: Clock
    ) -> None:
        super().__init__(place, clock)
        self._append = append
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False

    async def close(self) -> None:
        """Wait until what waits is appended, CLOSE_S at most: the vhost may be starting. Later
        entries are left out."""
        task = self._task
        if task is not None and not (await asyncio.wait([task], timeout=CLOSE_S))[0]:
            logger.warning("the %s does not have the last entries", self._place)
            task.cancel()
        self._is_closed = True

    def _begin(self) -> None:
        if self._is_closed:
            self.left_out_total += len(self._take(WAITING_MAX))
            self._take(0)
        else:
            self._task = asyncio.get_running_loop().create_task(self._append_all())

    async def _append_all(self) -> None:
        while lines := self._take(AT_ONCE):
            try:
                await self._append([line for line, _, _ in lines])
                self._has_failed = False
            except (PenstockError, TimeoutError) as error:
                self._failed(lines + self._take(WAITING_MAX), error)
