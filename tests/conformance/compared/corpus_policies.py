"""Sessions in which policies come and go: what they do to what there is, and to what comes.

Time passes by events: a message that expires comes to a consumer by its dead letter exchange.
"""

from typing import Any

from tests.conformance.compared.script import (
    REOPEN,
    Call,
    Script,
    bind,
    call,
    consume,
    declare,
    exchange,
    get,
    nack,
    policy,
    publish,
    reject,
)

CONFIRM = call("confirm.select", False)
QUORUM = {"x-queue-type": "quorum"}
SOON_MS = 60
LATER_MS = 1500


class Session:
    """A script with a queue "q", and a queue "dead" for its dead letters."""

    def __init__(self, label: str, arguments: dict[str, Any] | None = None) -> None:
        self.script = Script(f"policy/{label}", patience_s=0.4)
        self.q = self.script.name("q")
        self.dead = self.script.name("dead")
        self.script.step(declare(self.q, arguments or {}, durable=1))
        self.script.step(declare(self.dead, durable=1))
        self._set: dict[tuple[str, bool], None] = {}

    def to_dead(self, **more: Any) -> dict[str, Any]:
        """Keys of a policy for dead letters."""
        return {"dead-letter-exchange": "", "dead-letter-routing-key": self.dead, **more}

    def set(
        self, definition: dict[str, Any], name: str = "p", *, pattern: str | None = None,
        **how: Any,
    ) -> None:  # fmt: skip
        """Set a policy of the queue, or of what matches the pattern."""
        full = self.script.name(name)
        self._set[full, bool(how.get("is_operators"))] = None
        pattern = f"^{self.q}$" if pattern is None else pattern
        self.script.step(policy(full, pattern, definition, **how))

    def clear(self, name: str = "p", *, is_operators: bool = False) -> None:
        full = self.script.name(name)
        self._set.pop((full, is_operators), None)
        self.script.step(policy(full, "", None, is_operators=is_operators))

    def put(self, *bodies: bytes) -> None:
        self.script.step(*[publish(self.q, body, delivery_mode=2) for body in bodies])

    def depth(self) -> None:
        self.script.step(declare(self.q, passive=1))

    def each(self, *calls: Call) -> None:
        self.script.each(*calls)

    def end(self) -> Script:
        """The script, which clears what is set."""
        for full, is_operators in list(self._set):
            self.script.step(policy(full, "", None, is_operators=is_operators))
        return self.script


def lengths() -> list[Script]:
    """Limits on full queues, with arguments, with an operator's."""
    found = []
    kinds: dict[str, dict[str, Any]] = {"classic": {}, "quorum": QUORUM}
    for label, kind in kinds.items():
        s = Session(f"length/{label}", kind)
        s.put(b"1", b"2", b"3")
        s.set(s.to_dead(**{"max-length": 1}))
        s.depth()
        s.each(get(s.dead, no_ack=1), get(s.dead, no_ack=1), get(s.q, no_ack=1))
        s.put(b"4", b"5")
        s.depth()
        s.clear()
        s.put(b"6", b"7")
        s.depth()
        found.append(s.end())
        for own, policys, operators in ((2, 3, None), (3, 2, None), (None, 3, 2), (4, 3, 9)):
            arguments = {**kind, **({} if own is None else {"x-max-length": own})}
            s = Session(f"least/{label}/{own}-{policys}-{operators}", arguments)
            s.set({"max-length": policys})
            if operators is not None:
                s.set({"max-length": operators}, "o", is_operators=True)
            s.put(b"1", b"2", b"3", b"4", b"5")
            s.depth()
            s.clear()
            s.put(b"1", b"2", b"3", b"4", b"5")
            s.depth()
            found.append(s.end())
    s = Session("length/bytes")
    s.put(b"1" * 10, b"2" * 10, b"3" * 10)
    s.set({"max-length-bytes": 25})
    s.depth()
    s.put(b"4" * 30)
    s.depth()
    found.append(s.end())
    return found


def overflows() -> list[Script]:
    """What gives way."""
    found = []
    cases: dict[str, dict[str, Any]] = {
        "classic": {}, "quorum": QUORUM, "classic-own": {"x-overflow": "drop-head"},
    }  # fmt: skip
    for label, arguments in cases.items():
        s = Session(f"overflow/{label}", arguments)
        s.each(CONFIRM)
        s.set({"max-length": 1, "overflow": "reject-publish"})
        s.put(b"1")
        if label != "quorum":  # which refuses later, when it has noticed
            s.put(b"2")
            s.depth()
        s.clear()
        s.put(b"3")
        found.append(s.end())
    s = Session("overflow/full")
    s.put(b"1", b"2", b"3")
    s.set({"max-length": 1, "overflow": "reject-publish"})
    s.depth()
    found.append(s.end())
    return found


def times() -> list[Script]:
    """Time to live, and queues that nobody uses."""
    found = []
    kinds: dict[str, dict[str, Any]] = {
        "classic": {}, "quorum": QUORUM, "own-longer": {"x-message-ttl": 3_600_000},
    }  # fmt: skip
    for label, arguments in kinds.items():
        s = Session(f"ttl/{label}", arguments)
        s.each(consume(s.dead, no_ack=1))
        s.put(b"old")
        s.set(s.to_dead(**{"message-ttl": SOON_MS}))
        s.each(get(s.q, no_ack=1))  # which was there before
        s.put(b"new")
        s.clear()
        s.put(b"stays")
        s.depth()
        found.append(s.end())
    own: dict[str, tuple[dict[str, Any], int]] = {
        "comes": ({}, 300), "own-longer": ({"x-expires": 3_600_000}, 300),
        "own-shorter": ({"x-expires": 300}, 3_600_000),
    }  # fmt: skip
    for label, (arguments, ms) in own.items():
        s = Session(f"expires/{label}", arguments)
        clock = s.script.name("clock")
        late = {"x-message-ttl": LATER_MS, "x-dead-letter-exchange": ""}
        s.each(
            declare(clock, {**late, "x-dead-letter-routing-key": s.dead}),
            consume(s.dead, no_ack=1),
        )
        s.set({"expires": ms})
        s.script.patience_s = 2 * LATER_MS / 1000
        s.each(publish(clock, b"now"))
        s.depth()
        s.each(REOPEN)
        found.append(s.end())
    return found


def dead_letters() -> list[Script]:
    """Where dead letters go."""
    found = []
    kinds: dict[str, dict[str, Any]] = {"classic": {}, "quorum": QUORUM}
    for label, arguments in kinds.items():
        s = Session(f"dead/{label}", arguments)
        s.put(b"1", b"2", b"3")
        s.set(s.to_dead())
        s.each(get(s.q), reject(1, requeue=0), get(s.dead, no_ack=1))
        s.clear()
        s.each(get(s.q), reject(3, requeue=0), get(s.dead, no_ack=1))
        found.append(s.end())
    s = Session("dead/own")
    own, q = s.script.name("own"), s.script.name("q2")
    to_own = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": own}
    s.each(declare(own, durable=1), declare(q, to_own, durable=1))
    s.set(s.to_dead(), pattern=f"^{q}$")
    s.each(publish(q, b"1"), get(q), reject(1, requeue=0), get(own, no_ack=1), get(s.dead))
    found.append(s.end())
    s = Session("dead/own-exchange", {"x-dead-letter-exchange": ""})
    s.set({"dead-letter-routing-key": s.dead})
    s.put(b"1")
    s.each(get(s.q), reject(1, requeue=0), get(s.dead, no_ack=1))
    found.append(s.end())
    for label, arguments, limit in (
        ("limit", QUORUM, 1),
        ("limit-least", {**QUORUM, "x-delivery-limit": 1}, 5),
    ):
        s = Session(f"dead/{label}", arguments)
        s.set(s.to_dead(**{"delivery-limit": limit}))
        s.put(b"1")
        s.each(get(s.q), nack(1), get(s.q), nack(2), get(s.q), get(s.dead, no_ack=1))
        found.append(s.end())
    return found


def alternates() -> list[Script]:
    """Alternate exchanges."""
    s = Session("alternate/comes")
    x, rest = s.script.name("x"), s.script.name("rest")
    s.each(exchange(x), exchange(rest, "fanout"), bind(s.q, rest))
    s.each(publish("k", b"1", x))
    s.set({"alternate-exchange": rest}, pattern=f"^{x}$", apply_to="exchanges")
    s.each(publish("k", b"2", x), get(s.q, no_ack=1))
    s.clear()
    s.each(publish("k", b"3", x), get(s.q, no_ack=1))
    one = s.end()
    s = Session("alternate/own")
    x, rest, other = (s.script.name(name) for name in ("x", "rest", "other"))
    s.each(
        exchange(rest, "fanout"), exchange(other, "fanout"), bind(s.q, rest), bind(s.dead, other),
        exchange(x, args={"alternate-exchange": rest}),
    )  # fmt: skip
    s.set({"alternate-exchange": other}, pattern=f"^{x}$")
    s.each(publish("k", b"1", x), get(s.q, no_ack=1), get(s.dead, no_ack=1))
    s.each(exchange(x, args={"alternate-exchange": rest}), exchange(x), REOPEN)
    return [one, s.end()]


def which() -> list[Script]:
    """Which policy applies."""
    found = []
    s = Session("which/priority")
    s.set({"max-length": 2}, "low", priority=-1)
    s.set({"max-length": 4}, "high", priority=5)
    s.put(b"1", b"2", b"3", b"4", b"5")
    s.depth()
    s.clear("high")
    s.depth()
    s.clear("low")
    s.put(b"6", b"7")
    s.depth()
    found.append(s.end())
    kinds: dict[str, dict[str, Any]] = {"classic": {}, "quorum": QUORUM}
    for label, arguments in kinds.items():
        for key, value in {
            "max-age": "1D", "queue-mode": "lazy", "ha-mode": "all", "alternate-exchange": "x",
            "queue-master-locator": "min-masters", "dead-letter-strategy": "at-most-once",
            "stream-max-segment-size-bytes": 10_000_000, "queue-version": 1,
            "queue-leader-locator": "balanced", "initial-cluster-size": 1,
            "max-in-memory-length": 5, "max-in-memory-bytes": 5000,
        }.items():  # fmt: skip
            s = Session(f"which/{label}/{key}", arguments)
            s.set({"max-length": 1, key: value})
            s.put(b"1", b"2", b"3")
            s.depth()
            found.append(s.end())
    for apply_to in ("queues", "exchanges", "all"):
        s = Session(f"which/{apply_to}")
        s.set({"max-length": 1}, apply_to=apply_to)
        s.put(b"1", b"2", b"3")
        s.depth()
        found.append(s.end())
    for label, pattern in {
        "anywhere": "{prefix}", "end": "{prefix}q$", "not": "{prefix}q.$",
        "class": "{prefix}[pq]", "repeat": "{prefix}q{{1,3}}$",
    }.items():  # fmt: skip
        s = Session(f"which/pattern-{label}")
        s.set({"max-length": 1}, pattern=pattern.format(prefix=s.script.prefix))
        s.put(b"1", b"2", b"3")
        s.depth()
        found.append(s.end())
    s = Session("which/declared-later")
    q = s.script.name("later")
    s.set({"max-length": 1}, pattern=f"^{q}$")
    s.each(declare(q, durable=1), publish(q, b"1"), publish(q, b"2"), declare(q, durable=1))
    s.each(declare(q, {"x-max-length": 1}, durable=1), REOPEN)
    found.append(s.end())
    return found


def refused() -> list[Script]:
    """What is no policy."""
    found = []
    definitions: dict[str, dict[str, Any]] = {
        "empty": {}, "unknown": {"z": 1}, "text": {"max-length": "x"},
        "negative": {"max-length": -1}, "overflow": {"max-length": 5, "overflow": "x"},
        "expires-0": {"expires": 0}, "ttl-negative": {"message-ttl": -1},
        "double": {"max-length": 1.5}, "bool": {"max-length": True}, "age": {"max-age": "x"},
        "dlx-int": {"dead-letter-exchange": 5}, "mode": {"queue-mode": "x"},
        "priority": {"max-priority": 5}, "alternate-int": {"alternate-exchange": 5},
        "key-alone": {"dead-letter-routing-key": "k"}, "version": {"queue-version": 3},
        "prefix": {"x-max-length": 1}, "nothing": {"max-length": None},
    }  # fmt: skip
    for label, definition in definitions.items():
        s = Session(f"refused/{label}")
        s.set({"max-length": 2})
        s.set(definition)
        s.put(b"1", b"2", b"3")
        s.depth()
        found.append(s.end())
    s = Session("refused/others")
    s.set({"max-length": 2}, pattern="(")
    s.set({"max-length": 2}, apply_to="channels")
    s.clear()
    s.set({"overflow": "drop-head"}, is_operators=True)
    s.clear(is_operators=True)
    found.append(s.script)
    return found


FAMILIES = (lengths, overflows, times, dead_letters, alternates, which, refused)
