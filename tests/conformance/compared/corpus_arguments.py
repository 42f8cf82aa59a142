"""Scripts on what queues and exchanges are declared with: x-arguments, flags, declared again."""

from tests.conformance.compared.amqp import decimal, f32, i8, i16, i64, time
from tests.conformance.compared.script import REOPEN, Script, declare, delete, exchange

KINDS: dict[str, dict[str, object]] = {
    "plain": {},
    "classic": {"x-queue-type": "classic"},
    "quorum": {"x-queue-type": "quorum"},
    "stream": {"x-queue-type": "stream"},
}
INTS = {
    "one": 1, "zero": 0, "minus": -1, "i8": i8(5), "i64": i64(5), "large": 1 << 40, "text": "5",
    "bool": True, "double": 5.0,
}  # fmt: skip
TEXTS = {"text": "abc", "empty": "", "int": 1, "bool": False, "bytes": b"abc", "table": {"a": 1}}
BOOLS = {"true": True, "false": False, "int": 1, "text": "true"}
ODD = {"nothing": None, "list": [1], "time": time(1), "decimal": decimal(1, 5), "float": f32(1.5)}

ARGUMENTS: dict[str, dict[str, object]] = {
    "x-message-ttl": {**INTS, **ODD, "year": 86_400_000 * 366, "most": 4294967295},
    "x-expires": {**INTS, "century": 86_400_000 * 366 * 100, "most": 4294967295},
    "x-max-length": {**INTS, "nothing": None},
    "x-max-length-bytes": INTS,
    "x-max-priority": {**INTS, "ten": 10, "255": 255, "256": 256, "float": f32(3.0)},
    "x-delivery-limit": INTS,
    "x-max-in-memory-length": {"one": 1, "minus": -1, "text": "5"},
    "x-max-in-memory-bytes": {"one": 1, "minus": -1, "text": "5"},
    "x-initial-cluster-size": {"one": 1, "zero": 0, "minus": -1, "text": "5"},
    "x-quorum-initial-group-size": {"one": 1, "zero": 0, "text": "5"},
    "x-queue-version": {"one": 1, "two": 2, "three": 3, "zero": 0, "text": "1"},
    "x-stream-max-segment-size-bytes": {
        "small": 1000, "zero": 0, "minus": -1, "text": "5", "most": 3_000_000_000,
        "more": 3_000_000_001,
    },
    "x-overflow": {
        **TEXTS, "drop-head": "drop-head", "reject": "reject-publish", "dlx": "reject-publish-dlx",
    },
    "x-queue-mode": {**TEXTS, "lazy": "lazy", "default": "default"},
    "x-dead-letter-exchange": TEXTS,
    "x-dead-letter-routing-key": TEXTS,
    "x-dead-letter-strategy": {**TEXTS, "most": "at-most-once", "least": "at-least-once"},
    "x-queue-leader-locator": {
        "text": "abc", "int": 1, "local": "client-local", "balanced": "balanced",
    },
    "x-queue-master-locator": {"text": "abc", "int": 1, "local": "client-local"},
    "x-single-active-consumer": BOOLS,
    "x-max-age": {"days": "7D", "plain": "7", "wrong": "7X", "int": 7, "year": "1Y", "zero": "0s"},
    "x-unknown": {**TEXTS, **ODD},
    "x-cancel-on-ha-failover": BOOLS,
    "x-ha-policy": {"text": "all", "int": 1},
    "no-x-at-all": {"text": "abc"},
    "alternate-exchange": {"text": "abc"},
}  # fmt: skip


def declared() -> list[Script]:
    """One queue with one argument, of each type of queue."""
    found = []
    for kind, kind_arguments in KINDS.items():
        for argument, values in ARGUMENTS.items():
            for label, value in values.items():
                script = Script(f"declare/{kind}/{argument}/{label}")
                given = {**kind_arguments, argument: value}
                if argument == "x-dead-letter-routing-key":
                    given["x-dead-letter-exchange"] = ""
                queue = script.name("q")
                script.step(declare(queue, given, durable=True))
                found.append(script)
    return found


def types() -> list[Script]:
    """x-queue-type itself, and what the flags of a type may be."""
    found = []
    for label, value in {**TEXTS, "nothing": None, "upper": "QUORUM"}.items():
        script = Script(f"type/{label}")
        found.append(script.step(declare(script.name("q"), {"x-queue-type": value}, durable=True)))
    flags = ("durable", "exclusive", "auto_delete")
    for kind, arguments in KINDS.items():
        for bits in range(8):
            given = {name: bool(bits & 1 << at) for at, name in enumerate(flags)}
            label = "+".join(name for name in flags if given[name]) or "none"
            script = Script(f"flags/{kind}/{label}")
            found.append(script.step(declare(script.name("q"), arguments, **given)))
    for label, given in {
        "key-alone": {"x-dead-letter-routing-key": "k"},
        "strategy-alone": {"x-queue-type": "quorum", "x-dead-letter-strategy": "at-least-once"},
        "strategy-drop-head": {
            "x-queue-type": "quorum", "x-dead-letter-strategy": "at-least-once",
            "x-dead-letter-exchange": "", "x-overflow": "drop-head",
        },
        "two-wrong": {"x-message-ttl": -1, "x-expires": 0},
        "wrong-then-right": {"x-max-length": "a", "x-message-ttl": 5},
    }.items():  # fmt: skip
        script = Script(f"together/{label}")
        found.append(script.step(declare(script.name("q"), given, durable=True)))
    return found


AGAIN: dict[str, tuple[object, object, str]] = {  # argument -> two good values, its types of queue
    "x-message-ttl": (5000, 6000, "cq"),
    "x-expires": (500_000, 600_000, "cq"),
    "x-max-length": (5, 6, "cq"),
    "x-max-length-bytes": (5000, 6000, "cqs"),
    "x-max-priority": (5, 6, "c"),
    "x-delivery-limit": (5, 6, "q"),
    "x-overflow": ("drop-head", "reject-publish", "cq"),
    "x-queue-mode": ("default", "lazy", "c"),
    "x-queue-version": (1, 2, "c"),
    "x-dead-letter-exchange": ("", "other", "cq"),
    "x-dead-letter-routing-key": ("k", "other", "cq"),
    "x-dead-letter-strategy": ("at-most-once", "at-least-once", "q"),
    "x-queue-leader-locator": ("client-local", "balanced", "qs"),
    "x-queue-master-locator": ("client-local", "min-masters", "c"),
    "x-single-active-consumer": (True, False, "cq"),
    "x-max-age": ("7D", "8D", "s"),
    "x-stream-max-segment-size-bytes": (1000, 2000, "s"),
    "x-max-in-memory-length": (5, 6, "q"),
    "x-initial-cluster-size": (1, 2, "s"),
    "x-quorum-initial-group-size": (1, 2, "q"),
    "x-unknown": ("a", "b", "cqs"),
    "x-unknown-int": (1, 2, "cq"),
    "alternate-exchange": ("a", "b", "c"),
}
LETTERS = {"c": "plain", "q": "quorum", "s": "stream"}


def again() -> list[Script]:
    """A queue declared with one argument, and again with it, without it, with another value."""
    found = []
    for argument, (first, second, letters) in AGAIN.items():
        for letter in letters:
            base = dict(KINDS[LETTERS[letter]])
            if argument == "x-dead-letter-routing-key":
                base["x-dead-letter-exchange"] = ""
            pairs: dict[str, tuple[dict[str, object], dict[str, object]]] = {
                "same": ({argument: first}, {argument: first}),
                "other": ({argument: first}, {argument: second}),
                "without": ({argument: first}, {}),
                "with": ({}, {argument: first}),
                "nothing": ({argument: first}, {argument: None}),
            }
            if isinstance(first, int) and not isinstance(first, bool):
                pairs["width"] = ({argument: first}, {argument: i64(first)})
                pairs["small"] = ({argument: i16(5)}, {argument: 5})
                pairs["double"] = ({argument: first}, {argument: float(first)})
                pairs["text"] = ({argument: first}, {argument: str(first)})
            elif isinstance(first, str):
                pairs["bytes"] = ({argument: first}, {argument: first.encode()})
                pairs["int"] = ({argument: first}, {argument: 1})
            for label, (one, two) in pairs.items():
                script = Script(f"again/{LETTERS[letter]}/{argument}/{label}")
                queue = script.name("q")
                script.step(declare(queue, {**base, **one}, durable=True))
                script.step(REOPEN).step(declare(queue, {**base, **two}, durable=True))
                found.append(script)
    return found


def again_flags() -> list[Script]:
    """A queue declared again with other flags, or another type."""
    found = []
    cases: dict[str, tuple[dict[str, object], dict[str, object]]] = {
        "durable-not": ({"durable": 1}, {}),
        "not-durable": ({}, {"durable": 1}),
        "auto-delete-not": ({"auto_delete": 1}, {}),
        "not-auto-delete": ({}, {"auto_delete": 1}),
        "exclusive-not": ({"exclusive": 1}, {}),
        "not-exclusive": ({}, {"exclusive": 1}),
        "all-three": ({"durable": 1, "auto_delete": 1}, {"exclusive": 1}),
        "passive-other-flags": ({"durable": 1}, {"passive": 1, "auto_delete": 1, "exclusive": 1}),
        "passive-other-arguments": (
            {"args": {"x-max-length": 5}}, {"passive": 1, "args": {"x-max-length": 6}},
        ),
        "passive-wrong-arguments": ({}, {"passive": 1, "args": {"x-max-length": "a"}}),
        "argument-before-flag": ({"args": {"x-max-length": 5}, "durable": 1}, {}),
        "two-arguments": (
            {"args": {"x-max-length": 5, "x-expires": 500_000}},
            {"args": {"x-max-length": 6, "x-expires": 600_000}},
        ),
        "two-arguments-turned": (
            {"args": {"x-message-ttl": 500_000, "x-max-length": 5}},
            {"args": {"x-max-length": 6, "x-message-ttl": 600_000}},
        ),
        "wrong-argument": ({}, {"args": {"x-max-length": "a"}}),
        "unknown-added": ({}, {"args": {"x-unknown": "a"}}),
        "type-named": ({}, {"args": {"x-queue-type": "classic"}}),
        "type-not-named": ({"args": {"x-queue-type": "classic"}}, {}),
        "classic-quorum": ({"durable": 1}, {"durable": 1, "args": {"x-queue-type": "quorum"}}),
        "classic-stream": ({"durable": 1}, {"durable": 1, "args": {"x-queue-type": "stream"}}),
        "quorum-classic": ({"durable": 1, "args": {"x-queue-type": "quorum"}}, {"durable": 1}),
        "stream-classic": ({"durable": 1, "args": {"x-queue-type": "stream"}}, {"durable": 1}),
        "stream-quorum": (
            {"durable": 1, "args": {"x-queue-type": "stream"}},
            {"durable": 1, "args": {"x-queue-type": "quorum"}},
        ),
    }  # fmt: skip
    for label, (one, two) in cases.items():
        script = Script(f"again-flags/{label}")
        queue = script.name("q")
        script.step(declare(queue, **one)).step(REOPEN)  # type: ignore[arg-type]
        found.append(script.step(declare(queue, **two)))  # type: ignore[arg-type]
    return found


def exchanges() -> list[Script]:
    """Exchanges of all types, and declared again."""
    found = []
    for kind in ("direct", "fanout", "topic", "headers", "x-none", "", "Direct", "x-random"):
        for durable in (0, 1):
            script = Script(f"exchange/{kind}/{durable}")
            name = script.name("x")
            script.step(exchange(name, kind, durable=durable))
            script.step(REOPEN).step(exchange(name, passive=1)).step(REOPEN)
            found.append(script.step(exchange(name, kind, durable=durable)))
    cases: dict[str, tuple[dict[str, object], dict[str, object]]] = {
        "type": ({}, {"kind": "fanout"}),
        "durable": ({}, {"durable": 1}),
        "durable-not": ({"durable": 1}, {}),
        "auto-delete": ({}, {"auto_delete": 1}),
        "internal": ({}, {"internal": 1}),
        "all": ({}, {"kind": "topic", "durable": 1, "auto_delete": 1, "internal": 1}),
        "passive": ({}, {"kind": "topic", "durable": 1, "passive": 1}),
        "passive-unknown-type": ({}, {"kind": "what", "passive": 1}),
        "unknown": ({}, {"args": {"x-unknown": 1}}),
        "unknown-not": ({"args": {"x-unknown": 1}}, {}),
        "alternate": ({}, {"args": {"alternate-exchange": "a"}}),
        "alternate-not": ({"args": {"alternate-exchange": "a"}}, {}),
        "alternate-same": (
            {"args": {"alternate-exchange": "a"}}, {"args": {"alternate-exchange": "a"}},
        ),
        "alternate-other": (
            {"args": {"alternate-exchange": "a"}}, {"args": {"alternate-exchange": "b"}},
        ),
        "alternate-int": ({"args": {"alternate-exchange": 1}}, {}),
        "alternate-empty": ({"args": {"alternate-exchange": ""}}, {}),
        "alternate-nothing": ({"args": {"alternate-exchange": None}}, {}),
        "alternate-bytes": ({"args": {"alternate-exchange": b"a"}}, {}),
        "alternate-again-int": (
            {"args": {"alternate-exchange": "a"}}, {"args": {"alternate-exchange": 1}},
        ),
    }  # fmt: skip
    for label, (one, two) in cases.items():
        script = Script(f"exchange-again/{label}")
        name = script.name("x")
        script.step(exchange(name, **one)).step(REOPEN)  # type: ignore[arg-type]
        found.append(script.step(exchange(name, **two)))  # type: ignore[arg-type]
    return found


def deleted() -> list[Script]:
    """Declared, deleted, declared as something else."""
    found = []
    for kind, arguments in KINDS.items():
        script = Script(f"deleted/{kind}")
        queue = script.name("q")
        script.each(
            declare(queue, arguments, durable=1), delete(queue), delete(queue),
            declare(queue, durable=1), declare(queue, passive=1),
        )  # fmt: skip
        found.append(script)
    return found


FAMILIES = (declared, types, again, again_flags, exchanges, deleted)
