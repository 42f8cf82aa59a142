"""AuditLog: who has changed what, and who could not log in, as lines of JSON in a file.

    {"time": "2026-11-27T15:04:05.123+00:00", "event": "delete_queue", "user": "ada",
     "from": "10.0.0.7:51034", "vhost": "/", "args": {"queue": "orders"}}

event is the operation (operation_table.AUDITED), for an AMQP method too, or login_failed with why.
from: the client's address, "http" for a user of the HTTP process, or "control socket", where the
user is "operator". args: the operation's arguments, without passwords and definitions.
Each is written once what it says has been decided; that it is durable is waited for by the client
alone. Messages are not audited.

The supervisor writes all of it, in a thread, so a slow disk delays nobody. WAITING_MAX entries
wait; what comes beyond is left out, and so are failed logins beyond LOGINS_PER_S. The next entry
says how many were left out. A file that exceeds its size becomes FILE.1, in place of the one
before, so both together take twice that at most. A file that cannot be written is an error in
the log, once, and is tried again with the next entries.
"""

import json
import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Final

from penstock.clock import Clock, TokenBucket, date
from penstock.storage.files.filesystem import FileSystem

WAITING_MAX: Final = 10_000
LOGINS_BURST: Final = 100
LOGINS_PER_S: Final = 10
LOGIN_FAILED: Final = "login_failed"

logger = logging.getLogger(__name__)


class AuditLog:
    """The log at `path`. bytes_max: of the file. Raises OSError if it cannot be opened."""

    def __init__(self, fs: FileSystem, path: str, bytes_max: int, clock: Clock) -> None:
        self._fs = fs
        self._path = path
        self._bytes_max = bytes_max
        self._clock = clock
        self._file = fs.open(path, create=True)
        self._end = self._file.size()
        self._lock = Lock()  # of the three below
        self._waiting: list[tuple[bytes, int]] = []  # lines, and how many entries each counts for
        self._left_out = 0
        self._is_writing = False
        self._logins = TokenBucket(LOGINS_BURST, LOGINS_PER_S, clock.monotonic())
        self._has_failed = False
        self._executor = ThreadPoolExecutor(1, "penstock-audit")

    def note(self, entry: Mapping[str, object]) -> None:
        """Write an entry: event, user, from, vhost and others."""
        has_room = entry["event"] != LOGIN_FAILED or self._logins.take_room(self._clock.monotonic())
        with self._lock:
            if not has_room or len(self._waiting) >= WAITING_MAX:
                self._left_out += 1
                return
            line = {"time": date(self._clock.wall_ms()), **entry}
            count = 1 + self._left_out
            if self._left_out:
                line["left_out"], self._left_out = self._left_out, 0
            self._waiting.append((json.dumps(line, default=str).encode() + b"\n", count))
            if self._is_writing:
                return
            self._is_writing = True
        self._executor.submit(self._write_all)

    def close(self) -> None:
        """Write what waits, and close the file."""
        self._executor.shutdown()
        self._file.close()

    def _write_all(self) -> None:
        while True:
            with self._lock:
                lines, self._waiting = self._waiting, []
                if not lines:
                    self._is_writing = False
                    return
            try:
                self._write(b"".join([line for line, _ in lines]))
                self._has_failed = False
            except OSError as error:
                with self._lock:
                    self._left_out += sum(count for _, count in lines)
                if not self._has_failed:
                    logger.error("the audit log %s cannot be written: %s", self._path, error)
                self._has_failed = True

    def _write(self, data: bytes) -> None:
        if self._end and self._end + len(data) > self._bytes_max:
            self._file.close()
            self._fs.rename(self._path, self._path + ".1")
            self._file = self._fs.open(self._path, create=True)
            self._end = self._file.size()
        self._file.pwrite(data, self._end)
        self._end += len(data)
