"""Requests whose names or arguments raise where they are answered: none ends the vhost.

Four such requests, one after the other, used to keep a vhost down: an error text that cannot be
encoded was raised in a turn. Asked here by penstock.call, by methods of AMQP, and over the control
socket, while a healthy client goes on; the vhost's process is the same one at the end.
"""

import contextlib
import json
import struct

import pytest
from pamqp import commands

from penstock.broker.operations import FUNCTIONS
from penstock.server.control import ControlError
from tests.helpers.live_broker import LiveBroker
from tests.helpers.wire import Ended, Wire, open_channel, raw_method
from tests.robustness.conftest import Healthy

pytestmark = pytest.mark.real

NAMES = ("\ud800", "\udc80\udcff", "q\udfff")
PAGE = {"name": "\ud800", "page_id": "0" * 16, "rows": 1, "bytes": 1}
BAD = b"q\xff\xfe"


def short(data: bytes) -> bytes:
    return bytes((len(data),)) + data


def call(op: str, arguments: bytes) -> bytes:
    return raw_method(
        1, 9000, 10, short(op.encode()) + struct.pack(">I", len(arguments)) + arguments
    )


def every_name(name: str) -> list[dict[str, object]]:
    """Arguments with this name in each place that operations have."""
    return [
        {"queue": name, "reader": "r", "messages": 1, "bytes": 1},
        {"queue": "q", "reader": name, "messages": 1, "bytes": 1},
        {"query": name, "batch": 1, "target": {"queue": name}, "pages": []},
        {"query": "q", "batch": 1, "target": {"queue": "healthy"},
         "pages": [PAGE | {"name": name}]},
        {"query": "q", "batch": 1, "target": {"exchanges": [name]}, "pages": [],
         "mandatory_keys": [[name, name]]},
        {"query": name, "batch": 1},
        {"name": name}, {"queue": name}, {"exchange": name}, {name: name},
        {"queue": name, "arguments": {"x-dead-letter-exchange": name}},
    ]  # fmt: skip


class RawFrames:
    """The frames of a connection as they are: pamqp decodes no name that is not UTF-8."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.unread = b""

    def next(self) -> bytes:
        """Raises Ended."""
        while len(self.unread) < 7 or len(self.unread) < 8 + int.from_bytes(self.unread[3:7]):
            data = self.wire.sock.recv(65_536)
            if not data:
                raise Ended
            self.unread += data
        size = 8 + int.from_bytes(self.unread[3:7])
        frame, self.unread = self.unread[:size], self.unread[size:]
        return frame


def answered(wire: Wire, n: int) -> None:
    """So many answers of penstock.call come; each has a text that is UTF-8."""
    frames = RawFrames(wire)
    for _ in range(n):
        frame = frames.next()
        assert frame[7:9] == struct.pack(">H", 9000), frame
        frame[15:-1].decode()


def restarts(broker: LiveBroker) -> int:
    return sum(int(row["restarts"]) for row in broker.control("list_vhosts"))


def test_names_that_are_no_utf8_in_operations(small_broker: LiveBroker, healthy: Healthy) -> None:
    with open_channel(small_broker) as wire:
        asked = 0
        for op in sorted(FUNCTIONS.keys() - {"backup", "checkpoint", "box.sync"}):
            said = b""
            for name in NAMES:
                for arguments in every_name(name):
                    said += call(op, json.dumps(arguments).encode())
                    asked += 1
            said += (
                call(op, b'{"queue": "\xff\xfe"}') + call(op, b"\xff") + call(op, b'["\\ud800"]')
            )
            asked += 3
            wire.send_raw(said)
        answered(wire, asked)
    healthy.wait_for(5)
    assert restarts(small_broker) == 0


def test_names_that_are_no_utf8_over_the_control_socket(
    small_broker: LiveBroker, healthy: Healthy
) -> None:
    for op in sorted(FUNCTIONS.keys() - {"backup", "checkpoint"}):
        for arguments in every_name("\ud800")[:6]:
            with contextlib.suppress(ControlError):
                small_broker.control(op, "/", **arguments)
    healthy.wait_for(5)
    assert restarts(small_broker) == 0


def test_names_that_are_no_utf8_in_methods(small_broker: LiveBroker, healthy: Healthy) -> None:
    name, none, table = short(BAD), short(b""), struct.pack(">I", 0)
    bad_table = short(BAD) + b"S" + struct.pack(">I", 3) + BAD
    bad_table = struct.pack(">I", len(bad_table)) + bad_table
    methods = [
        (50, 10, b"\0\0" + name + b"\1" + table),
        (50, 10, b"\0\0" + name + b"\0" + bad_table),
        (50, 10, b"\0\0" + short(b"amq." + BAD) + b"\0" + table),
        (50, 20, b"\0\0" + name + name + name + b"\0" + table),
        (50, 30, b"\0\0" + name + b"\0"),
        (50, 50, b"\0\0" + name + name + name + table),
        (40, 10, b"\0\0" + name + name + b"\0" + table),
        (40, 10, b"\0\0" + name + short(b"topic") + b"\1" + table),
        (40, 30, b"\0\0" + name + name + name + b"\0" + table),
        (60, 20, b"\0\0" + name + name + b"\0" + table),
        (60, 20, b"\0\0" + short(b"healthy") + name + b"\2" + bad_table),
        (60, 30, name + b"\0"),
        (60, 70, b"\0\0" + name + b"\0"),
        (9000, 10, name + table),
        (50, 40, b"\0\0" + name + b"\0"),
        (40, 20, b"\0\0" + name + b"\0"),
        (40, 20, b"\0\0" + none + b"\0"),
    ]
    for class_id, method_id, arguments in methods:
        with open_channel(small_broker) as wire:
            wire.send_raw(raw_method(1, class_id, method_id, arguments) * 2)
            wire.send(commands.Channel.Open(), 2)
            frames = RawFrames(wire)
            with contextlib.suppress(Ended):
                while frames.next()[1:3] != b"\0\2":
                    pass
    healthy.wait_for(5)
    assert restarts(small_broker) == 0
