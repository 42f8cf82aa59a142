"""Scripts on frames, channels and connections that are used wrongly, and on the handshake."""

import struct

from tests.conformance.compared.amqp import METHODS, frame, method_payload, shortstr
from tests.conformance.compared.script import (
    REOPEN,
    Call,
    Script,
    call,
    declare,
    get,
    method_frame,
    on,
    publish,
    raw,
)

START_OK = frame(
    1, 0, method_payload("connection.start-ok", {}, "PLAIN", "\0guest\0guest", "en_US")
)
HELLO = b"AMQP\x00\x00\x09\x01"
SERVER_ONLY = tuple(
    name for name in METHODS
    if name.endswith(("-ok", "-empty")) or name in ("basic.deliver", "basic.return")
)  # fmt: skip


def _sized(name: str) -> bytes:
    """A method of which every field is zero or empty."""
    class_id, method_id, fields = METHODS[name]
    sizes = {"o": 1, "s": 2, "l": 4, "L": 8, "n": 1, "S": 4, "T": 4, "b": 1}
    bits = "b" in fields
    size = sum(sizes[form] for form in fields if form != "b") + bits
    return struct.pack(">HH", class_id, method_id) + b"\0" * size


def unexpected() -> list[Script]:
    """Methods that only servers send, on a channel and on channel 0; and client methods there."""
    found = []
    for name in SERVER_ONLY:
        if name == "channel.close-ok" or name.startswith("connection."):
            continue
        script = Script(f"unexpected/channel/{name}")
        found.append(script.step(method_frame(_sized(name), is_asking=False)))
    for name in METHODS:
        if name in ("connection.close", "connection.close-ok"):
            continue
        script = Script(f"unexpected/zero/{name}")
        found.append(script.step(on(0, method_frame(_sized(name), is_asking=False))))
        if name.startswith("connection."):
            script = Script(f"unexpected/channel/{name}")
            found.append(script.step(method_frame(_sized(name), is_asking=False)))
    for label, payload in {
        "class": struct.pack(">HH", 99, 10), "method": struct.pack(">HH", 50, 99),
        "short": b"\x00", "empty": b"", "file": struct.pack(">HH", 70, 10),
        "basic-qos-cut": struct.pack(">HH", 60, 10) + b"\0",
        "declare-cut": struct.pack(">HH", 50, 10) + b"\0\0\x05a",
        "declare-trailing": method_payload("queue.declare", 0, "", 0, 0, 1, 0, 0, {}) + b"xyz",
        "qos-trailing": method_payload("basic.qos", 0, 1, 0) + b"xyz",
        "commit-trailing": method_payload("tx.select") + b"xyz",
        "declare-no-table": struct.pack(">HHH", 50, 10, 0) + shortstr("") + b"\4",
    }.items():  # fmt: skip
        script = Script(f"method/{label}")
        found.append(script.step(method_frame(payload, is_asking=False)))
    return found


def frames() -> list[Script]:
    """Frames that are wrong themselves."""
    found = []
    flow = method_payload("channel.flow", 1)
    for label, data in {
        "end": frame(1, 1, flow, b"\x00"),
        "type-0": frame(0, 1, flow),
        "type-9": frame(9, 1, flow),
        "type-4": frame(4, 1, b""),
        "heartbeat": frame(8, 0, b""),
        "heartbeat-channel": frame(8, 1, b""),
        "heartbeat-payload": frame(8, 0, b"abc"),
        "large": frame(3, 1, b"x" * 140_000),
        "largest": frame(1, 1, flow + b"x" * (131_072 - 8 - len(flow))),
        "hello-again": HELLO,
        "text": b"GET / HTTP/1.1\r\n\r\n",
        "header-zero": frame(2, 0, b"\0" * 14),
        "body-zero": frame(3, 0, b"x"),
        "header-short": frame(2, 1, b"\0\x3c"),
    }.items():
        script = Script(f"frame/{label}")
        found.append(script.step(raw(data)).step(call("channel.flow", 1)))
    return found


def channels() -> list[Script]:
    """Channels: opened, closed, not open, too many."""
    found = []
    cases: dict[str, tuple[Call, ...]] = {
        "not-open": (on(5, get("q")),),
        "not-open-publish": (on(5, publish("q")),),
        "not-open-close": (on(5, call("channel.close", 200, "", 0, 0)),),
        "not-open-close-ok": (on(5, call("channel.close-ok")),),
        "open-twice": (call("channel.open", ""),),
        "open-name": (on(5, call("channel.open", "name")),),
        "closed": (call("channel.close", 200, "", 0, 0), get("q")),
        "close-error": (call("channel.close", 404, "what", 50, 10), REOPEN),
        "highest": (on(2047, call("channel.open", "")),),
        "above": (on(2048, call("channel.open", "")),),
        "close-ok-alone": (call("channel.close-ok"), call("channel.flow", 1)),
        "second": (on(2, REOPEN), on(2, call("channel.flow", 1)), call("channel.flow", 1)),
    }
    for label, calls in cases.items():
        found.append(Script(f"channel/{label}").each(*calls))
    script = Script("channel/after-error")
    found.append(script.step(get("none"), declare("", exclusive=1), publish("q")).step(REOPEN))
    script = Script("channel/reopen-at-once")
    found.append(script.step(call("channel.close", 200, "", 0, 0), call("channel.open", "")))
    close = on(0, call("connection.close", 200, "bye", 0, 0))
    found.append(Script("connection/close").step(close))
    found.append(Script("connection/close-then-more").step(close, get("q")))
    script = Script("connection/close-ok-alone")
    found.append(script.step(on(0, call("connection.close-ok"))).step(call("channel.flow", 1)))
    script = Script("connection/update-secret")
    found.append(script.step(on(0, call("connection.update-secret", "secret", "why"))))
    return found


def _start_ok(mechanism: str = "PLAIN", response: str = "\0guest\0guest") -> bytes:
    capabilities = {"capabilities": {"authentication_failure_close": True}}
    payload = method_payload("connection.start-ok", capabilities, mechanism, response, "en_US")
    return frame(1, 0, payload)


def _tune_ok(channels: int = 2047, size: int = 131072, heartbeat: int = 0) -> bytes:
    return frame(1, 0, method_payload("connection.tune-ok", channels, size, heartbeat))


def _open(vhost: str = "/") -> bytes:
    return frame(1, 0, method_payload("connection.open", vhost, "", 0))


def handshakes() -> list[Script]:
    """From the first byte on."""
    found = []
    cases: dict[str, tuple[bytes, ...]] = {
        "http": (b"GET / HTTP/1.1\r\n\r\n",),
        "version-1-0": (b"AMQP\x00\x01\x00\x00",),
        "version-0-8": (b"AMQP\x01\x01\x08\x00",),
        "version-0-9": (b"AMQP\x01\x01\x00\x09",),
        "version-3": (b"AMQP\x03\x01\x00\x00",),
        "wrong-password": (HELLO, _start_ok(response="\0guest\0wrong")),
        "unknown-user": (HELLO, _start_ok(response="\0nobody\0guest")),
        "mechanism": (HELLO, _start_ok("WHAT")),
        "vhost": (HELLO, START_OK, _tune_ok() + _open("none")),
        "open-early": (HELLO, _open()),
        "channel-early": (HELLO, frame(1, 1, method_payload("channel.open", ""))),
        "amqplain": (HELLO, _start_ok("AMQPLAIN", "\x05LOGINS\0\0\0\x05guest"
                                      "\x08PASSWORDS\0\0\0\x05guest")),
        "right": (HELLO, START_OK, _tune_ok() + _open()),
        "small-frames": (HELLO, START_OK, _tune_ok(size=4096) + _open()),
        "open-twice": (HELLO, START_OK, _tune_ok() + _open(), _open()),
    }  # fmt: skip
    for label, pieces in cases.items():
        # RabbitMQ says nothing to some, and ends the connection after three seconds.
        is_silent = label in ("mechanism", "open-early", "channel-early")
        script = Script(f"handshake/{label}", is_bare=True, patience_s=4.5 if is_silent else 1.0)
        for data in pieces:
            script.step(raw(data))
        found.append(script)
    # Nor does it to these.
    for label, start_ok, tune_ok in (
        ("too-small-frames", START_OK, _tune_ok(size=100)),
        ("no-frame-max", START_OK, _tune_ok(size=0)),
        ("no-channel-max", START_OK, _tune_ok(channels=0)),
        ("response", _start_ok(response="what"), b""),
    ):
        script = Script(f"handshake/{label}", is_bare=True, patience_s=4.5)
        found.append(script.each(raw(HELLO), raw(start_ok), raw(tune_ok + _open())))
    return found


FAMILIES = (unexpected, frames, channels, handshakes)
