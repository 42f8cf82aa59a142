"""Scripts on what messages carry: properties, headers, bodies; and on names and tables."""

from tests.conformance.compared.amqp import (
    Typed,
    decimal,
    f32,
    i8,
    i16,
    i64,
    longstr,
    method_payload,
    time,
)
from tests.conformance.compared.script import (
    REOPEN,
    Call,
    Script,
    bind,
    bind_exchange,
    body,
    call,
    cancel,
    consume,
    declare,
    delete,
    delete_exchange,
    exchange,
    get,
    header,
    method_frame,
    publish,
    purge,
    unbind,
    unbind_exchange,
)

Table = dict[str, object]
PROPERTIES: dict[str, Table] = {
    "all": {
        "content_type": "text/plain", "content_encoding": "utf-8", "headers": {"a": 1},
        "delivery_mode": 2, "priority": 3, "correlation_id": "c", "reply_to": "r",
        "expiration": "60000", "message_id": "m", "timestamp": 5, "type": "t", "user_id": "guest",
        "app_id": "a", "cluster_id": "x",
    },
    "mode-0": {"delivery_mode": 0}, "mode-7": {"delivery_mode": 7},
    "priority-255": {"priority": 255},
    "user-other": {"user_id": "somebody"}, "user-empty": {"user_id": ""},
    "expiration-text": {"expiration": "soon"}, "expiration-empty": {"expiration": ""},
    "expiration-minus": {"expiration": "-1"}, "expiration-float": {"expiration": "1.5"},
    "expiration-space": {"expiration": " 100000"}, "expiration-trail": {"expiration": "100000 "},
    "expiration-plus": {"expiration": "+100000"}, "expiration-huge": {"expiration": "9" * 30},
    "expiration-large": {"expiration": "4294967296"},
    "expiration-underscore": {"expiration": "100_000"},
    "cc-text": {"headers": {"CC": "a"}}, "cc-list": {"headers": {"CC": ["a", "b"]}},
    "cc-ints": {"headers": {"CC": [1]}}, "bcc-list": {"headers": {"BCC": ["a"]}},
    "bcc-text": {"headers": {"BCC": "a"}}, "cc-nothing": {"headers": {"CC": None}},
    "cc-empty": {"headers": {"CC": []}},
    "x-death-text": {"headers": {"x-death": "what"}},
    "not-utf8": {"content_type": b"\xff\xfe"},
    "headers-types": {"headers": {
        "b": i8(-1), "s": i16(-300), "l": i64(5), "f": f32(1.5), "d": 1.5, "t": True, "V": None,
        "T": time(7), "D": decimal(2, 314), "x": b"\xff", "A": [1, "a", [2]], "F": {"g": {}},
    }},
    "headers-unsigned": {"headers": {
        "B": Typed("B", b"\xff"), "u": Typed("u", b"\xff\xff"), "i": Typed("i", b"\xff" * 4),
    }},
    "headers-L": {"headers": {"L": Typed("L", b"\0" * 7 + b"\5")}},
}  # fmt: skip


def properties() -> list[Script]:
    found = []
    for label, given in PROPERTIES.items():
        script = Script(f"properties/{label}")
        q = script.name("q")
        script.step(declare(q)).step(publish(q, **given))  # type: ignore[arg-type]
        found.append(script.step(REOPEN).step(get(q, no_ack=1)))
    return found


def copies() -> list[Script]:
    """CC and BCC name more queues."""
    found = []
    for label, headers in {
        "cc": lambda a: {"CC": [a]}, "bcc": lambda a: {"BCC": [a]},
        "both": lambda a: {"CC": [a], "BCC": [a]}, "bytes": lambda a: {"CC": [a.encode()]},
        "lower": lambda a: {"cc": [a]},
    }.items():  # fmt: skip
        script = Script(f"copies/{label}")
        q, a = script.name("q"), script.name("a")
        script.step(declare(q), declare(a))
        script.step(publish(q, headers=headers(a), mandatory=1))
        found.append(script.step(get(q, no_ack=1)).step(get(a, no_ack=1)))
    return found


def contents() -> list[Script]:
    """Frames of contents that do not fit together."""
    found = []

    def script(label: str) -> tuple[Script, str]:
        one = Script(f"content/{label}")
        found.append(one)
        q = one.name("q")
        one.step(declare(q))
        return one, q

    def method(q: str) -> Call:
        return method_frame(method_payload("basic.publish", 0, "", q, 0, 0), is_asking=False)

    one, q = script("header-alone")
    one.step(header(1))
    one, q = script("body-alone")
    one.step(body(b"x"))
    one, q = script("method-instead-of-header")
    one.step(method(q)).step(get(q))
    one, q = script("method-instead-of-body")
    one.step(method(q), header(3)).step(get(q))
    one, q = script("body-instead-of-header")
    one.step(method(q), body(b"x"))
    one, q = script("header-twice")
    one.step(method(q), header(3), header(3))
    one, q = script("publish-twice")
    one.step(method(q), method(q))
    one, q = script("wrong-class")
    one.step(method(q), header(1, class_id=50))
    one, q = script("weight")
    one.step(method(q), header(0, weight=1)).step(get(q))
    one, q = script("too-much")
    one.step(method(q), header(2), body(b"xyz"))
    one, q = script("too-much-later")
    one.step(method(q), header(2), body(b"xy"), body(b"z"))
    one, q = script("pieces")
    one.step(method(q), header(3), body(b"x"), body(b""), body(b"yz")).step(get(q))
    one, q = script("empty")
    one.step(method(q), header(0)).step(get(q))
    one, q = script("empty-and-body")
    one.step(method(q), header(0), body(b"")).step(get(q))
    one, q = script("flags-but-nothing")
    one.step(method(q), header(1, b"\x80\x00"), body(b"x")).step(get(q))
    one, q = script("flags-more")
    one.step(method(q), header(1, b"\x00\x01\x00\x00"), body(b"x")).step(get(q))
    one, q = script("flags-unknown")
    one.step(method(q), header(1, b"\x00\x02"), body(b"x")).step(get(q))
    one, q = script("trailing")
    one.step(method(q), header(1, b"\x00\x00abc"), body(b"x")).step(get(q))
    one, q = script("no-flags")
    one.step(method(q), header(1, b""), body(b"x")).step(get(q))
    one, q = script("headers-cut")
    one.step(method(q), header(1, b"\x20\x00\x00\x00\x00\x09\x01a"), body(b"x")).step(get(q))
    one, q = script("headers-unknown-letter")
    one.step(method(q), header(1, b"\x20\x00" + longstr(b"\x01aZ")), body(b"x")).step(get(q))
    one, q = script("large-size")
    one.step(method(q), header(1 << 40)).step(REOPEN).step(get(q))
    one, q = script("two-channels")
    one.step(REOPEN, method(q), header(2), body(b"a"), get("other"))
    one, q = script("nothing-then-close")
    one.step(method(q), header(5), call("channel.close", 200, "", 0, 0))
    return found


NAMES: dict[str, str | bytes] = {
    "lf": "a\nb", "cr": "a\rb", "crlf": "a\r\nb", "lf-end": "a\n", "lf-begin": "\na",
    "tab": "a\tb", "nul": "a\0b", "space": " a b ", "quote": "a'b\"", "percent": "100%",
    "braces": "{a}~p~n", "utf8": "größe-☃", "emoji": "😀", "latin": b"a\xffb", "cut": b"\xe2\x98",
    "slash": "a/b\\c", "long": "x" * 246, "bell": "a\x07b", "del": "a\x7f", "u2028": "a\u2028b",
    "nbsp": "a\u00a0b", "c1": "a\u0085b", "only-lf": "\n", "only-cr": "\r", "vt": "a\vb",
    "ff": "a\fb",
}  # fmt: skip


def names() -> list[Script]:
    """Odd names: declared, found, bound, published to, deleted."""
    found = []
    for label, text in NAMES.items():
        script = Script(f"name/queue/{label}")
        prefix = script.name("").encode()
        name = prefix + (text if isinstance(text, bytes) else text.encode())
        script.names += [prefix.decode() + "ab", name.decode("utf-8", "surrogateescape")]
        asked = (
            declare(name), declare(name, passive=1), declare(prefix + b"ab", passive=1),
            publish(name, mandatory=1), bind(name, "amq.direct", name),
            publish(name, exchange="amq.direct", mandatory=1), get(name), consume(name, name),
            cancel(name), purge(name), unbind(name, "amq.direct", name), delete(name),
            declare(name, passive=1),
        )  # fmt: skip
        for one in asked:
            script.step(REOPEN).step(one)
        found.append(script)
        script = Script(f"name/exchange/{label}")
        prefix = script.name("").encode()
        name = prefix + (text if isinstance(text, bytes) else text.encode())
        script.names += [prefix.decode() + "ab", name.decode("utf-8", "surrogateescape")]
        asked = (
            exchange(name), exchange(name, passive=1), exchange(prefix + b"ab", passive=1),
            exchange(name, "topic"), publish(b"k", exchange=name, mandatory=1),
            bind(prefix + b"q", name, "k"), bind_exchange(name, "amq.fanout"),
            bind_exchange("amq.fanout", name), unbind_exchange(name, "amq.fanout"),
            delete_exchange(name), exchange(name, passive=1),
        )  # fmt: skip
        for one in asked:
            script.step(REOPEN).step(one)
        found.append(script)
    for label, text in {"lf": "\n", "cr": "\r", "crlf": "\r\n"}.items():
        script = Script(f"name/nothing-left/{label}")
        script.each(declare(text, exclusive=1), REOPEN, exchange(text), REOPEN, get(text))
        found.append(script)
        script = Script(f"name/reserved/{label}")
        script.each(declare(f"a{text}mq.q"), REOPEN, exchange(f"a{text}mq.x"))
        found.append(script)
    return found


def nested(depth: int, letter: str = "F") -> Table:
    """A table with tables in tables, `depth` of them."""
    inner: bytes = longstr(b"")
    for _ in range(depth - 1):
        inner = longstr((b"\x01a" if letter == "F" else b"") + letter.encode() + inner)
    return {"a": Typed(letter, inner)}


TABLES: dict[str, Table | bytes] = {
    **{f"deep-{n}": nested(n) for n in (1, 10, 30, 31, 32, 33, 40, 100, 400, 1000)},
    **{f"deep-list-{n}": nested(n, "A") for n in (31, 32, 33, 100, 1000)},
    "twice": b"\x01aI\0\0\0\1\x01aI\0\0\0\2",
    "empty-name": b"\x00I\0\0\0\1",
    "name-255": b"\xff" + b"n" * 255 + b"I\0\0\0\1",
    "name-not-utf8": b"\x01\xffI\0\0\0\1",
    "unknown-letter": b"\x01aZ\0\0\0\1",
    "letter-L": b"\x01aL\0\0\0\0\0\0\0\1",
    "letter-U": b"\x01aU\0\1",
    "cut-name": b"\x05a",
    "cut-value": b"\x01aI\0\0",
    "no-value": b"\x01a",
    "cut-text": b"\x01aS\0\0\0\x05a",
    "cut-table": b"\x01aF\0\0\0\x05a",
    "text-not-utf8": b"\x01aS\0\0\0\x01\xff",
    "bool-7": b"\x01at\x07",
}


def tables() -> list[Script]:
    """Tables in arguments and in headers: how deep, of what, and how wrong."""
    found = []
    for label, inside in TABLES.items():
        script = Script(f"table/arguments/{label}")
        q = script.name("q")
        script.step(declare(q, inside)).step(REOPEN).step(declare(q, passive=1))
        found.append(script)
        script = Script(f"table/headers/{label}")
        q = script.name("q")
        script.step(declare(q)).step(publish(q, headers=inside))
        found.append(script.step(get(q, no_ack=1)))
        script = Script(f"table/binding/{label}")
        q, x = script.name("q"), script.name("x")
        script.step(declare(q)).step(exchange(x, "headers")).step(bind(q, x, "", inside))
        found.append(script.step(publish("k", exchange=x, headers=inside, mandatory=1)))
        script = Script(f"table/consumer/{label}")
        q = script.name("q")
        found.append(script.step(declare(q)).step(consume(q, args=inside)))
    return found


FAMILIES = (properties, copies, contents, names, tables)
