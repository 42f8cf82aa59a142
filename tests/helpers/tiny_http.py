"""A broker's HTTP process as a test wants it: answers from a table, and connections that break.

    with TinyHttp({"GET /api/streams/%2F/s": [Answer(200, {"name": "s"})]}) as broker:

Each address answers what stands in its list, in turn, the last one again and again. What was asked
is in `asked`, with the body of a PUT.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.helpers.http_on_thread import HttpOnThread, QuietHandler


@dataclass(frozen=True)
class Answer:
    """status, and a body: bytes, or what becomes JSON. cut_at: so many bytes of it, then the
    connection breaks."""

    status: int
    body: Any = b""
    cut_at: int | None = None


class TinyHttp(HttpOnThread):
    """See the head of this module."""

    def __init__(self, answers: Mapping[str, Sequence[Answer]], port: int = 0) -> None:
        self.answers = {address: list(of_it) for address, of_it in answers.items()}
        self.asked: list[tuple[str, Any, str]] = []  # address, body, authorization
        super().__init__(port)

    @property
    def url(self) -> str:
        """http://127.0.0.1:port"""
        return f"http://127.0.0.1:{self.port}"

    def _answer(self, address: str) -> Answer:
        of_it = self.answers.get(address)
        if of_it is None:
            return Answer(404, {"error": "not_found", "reason": f"no {address}"})
        return of_it.pop(0) if len(of_it) > 1 else of_it[0]

    def _handler(self) -> type[QuietHandler]:
        outer = self

        class Handler(QuietHandler):
            def _do(self) -> None:
                length = int(self.headers.get("content-length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                address = f"{self.command} {self.path}"
                outer.asked.append((address, body, self.headers.get("authorization", "")))
                answer = outer._answer(address)
                data = answer.body
                if not isinstance(data, bytes):
                    data = json.dumps(data).encode()
                self.send_response(answer.status)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data[: answer.cut_at])
                if answer.cut_at is not None:
                    self.wfile.flush()
                    self.connection.close()
                    self.close_connection = True

            do_GET = do_POST = do_PUT = do_DELETE = _do

        return Handler
