"""A broker's staging endpoints in memory, for tests of the sink without a broker.

    with FakeStaging() as broker:
        ...
        assert [record.payload for record in broker.published] == [b"a", b"b"]

A batch is judged as the broker does it, by its target, rows and checksum, and gaps are noticed.
Chunks are decoded by chunk_records, so what is wrong with one is an AssertionError, told as a 500.
`faults` stand in the way of the next requests of a method, one each: a status refuses, "cut" breaks
the connection before the answer ("PUT": after it was done), "cut early" in the middle of a POST's
body, an Early answers a POST before its body has come, a text is the reason of a 503.
"""

import json
import socket
import zlib
from collections import deque
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from tests.helpers.chunk_records import Record, records_of_chunk
from tests.helpers.http_on_thread import HttpOnThread, QuietHandler

Key = tuple[str, int]


def checksum(records: list[Record]) -> int:
    """Of rows, in whatever order."""
    return sum(zlib.crc32(record.meta, zlib.crc32(record.payload)) for record in records)


class Early(NamedTuple):
    """An answer to a POST before its body."""

    status: int


class FakeStaging(HttpOnThread):
    """See the head of this module."""

    def __init__(self) -> None:
        self.faults: dict[str, deque[Any]] = {"POST": deque(), "PUT": deque(), "DELETE": deque()}
        self.staged: dict[Key, dict[str, list[Record]]] = {}  # by page name
        self.last: dict[str, int] = {}
        self.contents: dict[str, object] = {}  # of the last batch: what it is compared by
        self.gapless: set[str] = set()
        self.published: list[Record] = []
        self.commits: list[dict[str, Any]] = []
        self.asked: list[tuple[str, list[str]]] = []  # method, parts behind /api/staging
        self.targets: list[str] = []  # ?target= of each POST
        self.problems: list[str] = []
        self.partitions = 1  # of the target
        super().__init__()

    @property
    def url(self) -> str:
        """With user and password."""
        return f"http://guest:guest@127.0.0.1:{self.port}/"

    def stage(self, parts: list[str], chunks: list[bytes]) -> tuple[int, dict[str, Any]]:
        """(status, answer) of a POST."""
        _, query, batch, partition, attempt = parts
        of_batch = self.staged.setdefault((query, int(batch)), {})
        prefix = f"{batch}.{partition}.{attempt}."
        if any(name.startswith(prefix) for name in of_batch):
            return 409, {"error": "conflict", "reason": f"attempt {attempt} is there"}
        pages: dict[int, list[Record]] = {}
        for chunk in chunks:
            records, rest = records_of_chunk(chunk)
            assert not rest
            page = pages.setdefault(int.from_bytes(chunk[16:24], "little"), [])
            assert records[0].offset == len(page)
            page += records
        told = []
        for index, (page_id, records) in enumerate(pages.items()):
            name = f"{prefix}{index}.page"
            of_batch[name] = records
            size = sum(24 + len(record.payload) + len(record.meta) for record in records)
            told.append(
                {
                    "name": name,
                    "page_id": f"{page_id:016x}",
                    "rows": len(records),
                    "bytes": size,
                    "checksum": f"{checksum(records):016x}",
                }
            )
        rows = sum(len(records) for records in pages.values())
        token = {"query": query, "batch": int(batch), "partition": int(partition)}
        return 201, {**token, "attempt": attempt, "rows": rows, "pages": told}

    def commit(self, query: str, batch: int, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """(status, answer) of a PUT."""
        self.commits.append(body)
        last, previous = self.last.get(query, -1), body.get("previous")
        pages = [page for token in body["tokens"] for page in token["pages"]]
        content = (
            body["target"], sum(page["rows"] for page in pages),
            sum(int(page["checksum"], 16) for page in pages),
        )  # fmt: skip
        if batch == last and (body.get("keep_first") or self.contents[query] == content):
            return 200, {"status": "already done", "batch": last}
        is_checked = query in self.gapless if last >= 0 else not body.get("begins_late")
        is_gap = previous not in (None, last) and is_checked
        if batch <= last or is_gap:
            return 409, {"error": "batch_conflict", "reason": f"the last batch is {last}"}
        of_batch = self.staged.pop((query, batch), {})
        for token in body["tokens"]:
            for page in token["pages"]:
                if page["name"] not in of_batch:
                    return 400, {"error": "bad_request", "reason": f"no page {page['name']}"}
                self.published += of_batch[page["name"]]
        self.last[query], self.contents[query] = batch, content
        self.gapless.discard(query)
        if previous is not None:
            self.gapless.add(query)
        return 200, {"status": "committed", "batch": batch}

    def _handler(self) -> type[QuietHandler]:
        outer = self

        class Handler(QuietHandler):
            def _parts(self) -> list[str]:
                path = urlsplit(self.path).path
                assert path.startswith("/api/staging/")
                parts = [unquote(part) for part in path.removeprefix("/api/staging/").split("/")]
                outer.asked.append((self.command, parts))
                return parts

            def _fault(self) -> Any:
                waiting = outer.faults[self.command]
                return waiting.popleft() if waiting else None

            def _tell(self, status: int, told: Any) -> None:
                data = json.dumps(told).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def _refuse(self, status: int, reason: str = "") -> None:
                reason = reason or f"status {status} by the test"
                self._tell(status, {"error": "refused", "reason": reason})
                self.close_connection = True

            def _let_go(self) -> None:
                """Read on until the client closes: a close with bytes unread is a reset, which can
                take the answer from the client before it has seen it."""
                self.connection.shutdown(socket.SHUT_WR)
                while self.rfile.read1(1 << 16):
                    pass

            def _cut(self) -> None:
                self.connection.close()
                self.close_connection = True

            def do_POST(self) -> None:
                if urlsplit(self.path).path.count("/") == 3:  # the target is checked
                    self._tell(200, {})
                    return
                parts, fault = self._parts(), self._fault()
                outer.targets += parse_qs(urlsplit(self.path).query).get("target", [])
                if isinstance(fault, Early):
                    self._refuse(fault.status)
                    self._let_go()
                    return
                if len(parts) == 2:
                    self._claim(fault)
                    return
                chunks = []
                while size := int(self.rfile.readline(), 16):
                    chunks.append(self.rfile.read(size))
                    self.rfile.readline()
                    if fault == "cut early":
                        self._cut()
                        return
                self.rfile.readline()
                if isinstance(fault, int):
                    self._refuse(fault)
                    return
                try:
                    status, told = outer.stage(parts, chunks)
                except AssertionError as error:
                    outer.problems.append(repr(error))
                    status, told = 500, {"reason": repr(error)}
                if fault == "cut":
                    self._cut()
                    return
                self._tell(status, told)

            def _claim(self, fault: Any) -> None:
                if isinstance(fault, int):
                    self._refuse(fault)
                else:
                    self._tell(200, {"owner": "guest", "partitions": outer.partitions})

            def do_PUT(self) -> None:
                (_, query, batch), fault = self._parts(), self._fault()
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                if isinstance(fault, int):
                    self._refuse(fault)
                    return
                if isinstance(fault, str) and fault != "cut":
                    self._refuse(503, fault)
                    return
                status, told = outer.commit(query, int(batch), body)
                if fault == "cut":
                    self._cut()
                    return
                self._tell(status, told)

            def do_DELETE(self) -> None:
                (_, query, batch), fault = self._parts(), self._fault()
                if isinstance(fault, int):
                    self._refuse(fault)
                    return
                outer.staged.pop((query, int(batch)), None)
                self._tell(200, {})

        return Handler
