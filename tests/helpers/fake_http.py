"""A process that speaks the HTTP process' part of the link to the supervisor.

It tells what it is told by calls of its own: `seen` for each table of users, with the names in it
and how many listening sockets came, `told` for each result. An operation `die` ends it. As a
process of TLS it says how often it was to read the certificates again, as `accepted` connections.

Run as `python fake_http.py <descriptor>`.
"""

import os
import socket
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from penstock.operation_json import dumps, read
from penstock.server import control
from penstock.server.control import ANSWER, Facts, LinkMessage
from tests.helpers.fake_vhost import Fake


class FakeHttp(Fake):
    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self.socks: list[socket.socket] = []
        self.calls = 0
        self.reloads = 0

    def call(self, op: str, **args: object) -> None:
        self.calls += 1
        self.write(control.a_call(self.calls, op, None, dumps(args)))

    def answered(self, message: LinkMessage) -> None:
        result = error = None
        if message.kind == ANSWER:
            result = read(message.data)
        else:
            refused = message.error()
            error = {"code": refused.code, "text": refused.text}
        if result == "die":
            os._exit(3)
        if message.number == 1:
            self.call("told", result=result, error=error)

    def take(self, facts: Facts, data: bytes, descriptors: list[int]) -> int | None:
        do = facts["do"]
        if do == "socket":
            self.socks += [socket.socket(fileno=descriptor) for descriptor in descriptors]
            return None
        if do == "users":
            rows = facts["users"]
            assert isinstance(rows, list)
            ports = [sock.getsockname()[1] for sock in self.socks]
            self.call("seen", users=[row[0] for row in rows], ports=ports)
            return None
        if do == "start":
            self.send({"do": "ready"})
            return None
        if do == "ping":
            self.send(
                {
                    "do": "pong", "n": facts["n"], "rss_bytes": 7, "returned_bytes": 9,
                    "requests": 8, "accepted": self.reloads,
                }
            )  # fmt: skip
            return None
        if do == "reload":
            self.reloads += 1
            return None
        return super().take(facts, data, descriptors)


if __name__ == "__main__":
    END = socket.socket(fileno=int(sys.argv[1]))
    END.setblocking(True)
    sys.exit(FakeHttp(END).run())
