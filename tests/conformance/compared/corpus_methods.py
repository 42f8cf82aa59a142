"""Scripts on the methods, each in the states that a client can bring a broker into."""

from collections.abc import Callable

from tests.conformance.compared.script import (
    LOSE,
    REOPEN,
    Call,
    Script,
    ack,
    bind,
    bind_exchange,
    by,
    call,
    cancel,
    consume,
    declare,
    delete,
    delete_exchange,
    exchange,
    get,
    nack,
    on,
    publish,
    purge,
    qos,
    reject,
    unbind,
    unbind_exchange,
)

SELECT, COMMIT, ROLLBACK = call("tx.select"), call("tx.commit"), call("tx.rollback")
CONFIRM = call("confirm.select", 0)
STREAM: dict[str, object] = {"x-queue-type": "stream"}
QUORUM: dict[str, object] = {"x-queue-type": "quorum"}

# Each takes the name of a queue and of an exchange.
METHODS: dict[str, Callable[[str, str], Call]] = {
    "declare": lambda q, x: declare(q),
    "declare-durable": lambda q, x: declare(q, durable=1),
    "declare-passive": lambda q, x: declare(q, passive=1),
    "declare-exclusive": lambda q, x: declare(q, exclusive=1),
    "declare-nowait": lambda q, x: declare(q, nowait=1),
    "bind": lambda q, x: bind(q, x, "k"),
    "bind-default": lambda q, x: bind(q, "", "k"),
    "bind-default-own": lambda q, x: bind(q, "", q),
    "unbind": lambda q, x: unbind(q, x, "k"),
    "unbind-other": lambda q, x: unbind(q, x, "other"),
    "unbind-default": lambda q, x: unbind(q, "", "k"),
    "purge": lambda q, x: purge(q),
    "delete": lambda q, x: delete(q),
    "delete-if-unused": lambda q, x: delete(q, if_unused=1),
    "delete-if-empty": lambda q, x: delete(q, if_empty=1),
    "consume": lambda q, x: consume(q),
    "consume-no-ack": lambda q, x: consume(q, no_ack=1),
    "consume-exclusive": lambda q, x: consume(q, exclusive=1),
    "consume-no-local": lambda q, x: consume(q, no_local=1),
    "consume-nowait": lambda q, x: consume(q, nowait=1),
    "get": lambda q, x: get(q),
    "get-no-ack": lambda q, x: get(q, no_ack=1),
    "publish": lambda q, x: publish(q),
    "publish-mandatory": lambda q, x: publish(q, mandatory=1),
    "publish-immediate": lambda q, x: publish(q, immediate=1),
    "publish-exchange": lambda q, x: publish("k", exchange=x),
    "publish-exchange-mandatory": lambda q, x: publish("none", exchange=x, mandatory=1),
    "exchange-declare": lambda q, x: exchange(x),
    "exchange-declare-topic": lambda q, x: exchange(x, "topic"),
    "exchange-passive": lambda q, x: exchange(x, passive=1),
    "exchange-delete": lambda q, x: delete_exchange(x),
    "exchange-delete-if-unused": lambda q, x: delete_exchange(x, if_unused=1),
    "exchange-bind": lambda q, x: bind_exchange(x, "amq.fanout", "k"),
    "exchange-bind-from": lambda q, x: bind_exchange("amq.fanout", x, "k"),
    "exchange-bind-self": lambda q, x: bind_exchange(x, x, "k"),
    "exchange-unbind": lambda q, x: unbind_exchange(x, "amq.fanout", "k"),
    "exchange-bind-default": lambda q, x: bind_exchange("", x, "k"),
    "exchange-bind-of-default": lambda q, x: bind_exchange(x, "", "k"),
    "exchange-unbind-default": lambda q, x: unbind_exchange("", x, "k"),
    "qos": lambda q, x: qos(10),
    "qos-global": lambda q, x: qos(10, is_global=1),
    "qos-size": lambda q, x: qos(10, size=1),
    "cancel": lambda q, x: cancel("tag"),
    "cancel-unknown": lambda q, x: cancel("what"),
    "ack": lambda q, x: ack(1),
    "ack-unknown": lambda q, x: ack(7),
    "ack-zero": lambda q, x: ack(0),
    "ack-all": lambda q, x: ack(0, multiple=1),
    "nack": lambda q, x: nack(1),
    "nack-zero": lambda q, x: nack(0),
    "nack-all-drop": lambda q, x: nack(0, multiple=1, requeue=0),
    "nack-unknown": lambda q, x: nack(7, multiple=1),
    "reject": lambda q, x: reject(1),
    "reject-drop": lambda q, x: reject(1, requeue=0),
    "reject-zero": lambda q, x: reject(0),
    "recover": lambda q, x: call("basic.recover", 1),
    "recover-not": lambda q, x: call("basic.recover", 0),
    "recover-async": lambda q, x: call("basic.recover-async", 1),
    "recover-async-not": lambda q, x: call("basic.recover-async", 0),
    "tx-select": lambda q, x: SELECT,
    "tx-commit": lambda q, x: COMMIT,
    "tx-rollback": lambda q, x: ROLLBACK,
    "confirm": lambda q, x: CONFIRM,
    "confirm-nowait": lambda q, x: call("confirm.select", 1, nowait=1),
    "flow": lambda q, x: call("channel.flow", 1),
    "flow-off": lambda q, x: call("channel.flow", 0),
    "access": lambda q, x: call("access.request", "/data", 0, 1, 1, 1, 1),
    "access-odd": lambda q, x: call("access.request", "what", 1, 0, 0, 0, 0),
    "open-twice": lambda q, x: call("channel.open", ""),
    "close": lambda q, x: call("channel.close", 200, "bye", 0, 0),
}


def _nothing(script: Script, q: str, x: str) -> None:
    """Neither queue nor exchange are there."""


def _there(script: Script, q: str, x: str) -> None:
    script.step(declare(q), exchange(x), bind(q, x, "k"))


def _full(script: Script, q: str, x: str) -> None:
    script.step(declare(q), exchange(x), bind(q, x, "k"))
    script.step(publish(q, b"one"), publish(q, b"two"))


def _unacked(script: Script, q: str, x: str) -> None:
    _full(script, q, x)
    script.step(get(q)).step(get(q))


def _consumed(script: Script, q: str, x: str) -> None:
    _full(script, q, x)
    script.step(consume(q))


def _foreign(script: Script, q: str, x: str) -> None:
    """The queue is exclusive to another connection."""
    script.connections = 2
    script.step(by(1, declare(q, exclusive=1)))
    script.step(exchange(x))


def _foreign_consumer(script: Script, q: str, x: str) -> None:
    """Another connection consumes, exclusively."""
    script.connections = 2
    script.step(by(1, declare(q))).step(by(1, consume(q, exclusive=1)))
    script.step(exchange(x))


def _durable(script: Script, q: str, x: str) -> None:
    script.step(declare(q, durable=1), exchange(x, durable=1), bind(q, x, "k"))


def _auto_delete(script: Script, q: str, x: str) -> None:
    script.step(declare(q, auto_delete=1), exchange(x, auto_delete=1), bind(q, x, "k"))


def _internal(script: Script, q: str, x: str) -> None:
    script.step(declare(q), exchange(x, internal=1), bind(q, x, "k"))


def _transaction(script: Script, q: str, x: str) -> None:
    _full(script, q, x)
    script.step(SELECT).step(get(q)).step(get(q))


def _confirms(script: Script, q: str, x: str) -> None:
    _full(script, q, x)
    script.step(CONFIRM)


def _stream(script: Script, q: str, x: str) -> None:
    script.step(declare(q, STREAM, durable=1)).step(exchange(x), bind(q, x, "k"))


def _quorum(script: Script, q: str, x: str) -> None:
    script.step(declare(q, QUORUM, durable=1)).step(exchange(x), bind(q, x, "k"))


STATES: dict[str, Callable[[Script, str, str], None]] = {
    "nothing": _nothing, "there": _there, "full": _full, "unacked": _unacked,
    "consumed": _consumed, "foreign": _foreign, "foreign-consumer": _foreign_consumer,
    "durable": _durable, "auto-delete": _auto_delete, "internal": _internal,
    "transaction": _transaction, "confirms": _confirms, "stream": _stream, "quorum": _quorum,
}  # fmt: skip


def in_states() -> list[Script]:
    """Every method in every state; then what the queue looks like. How soon a stream counts what
    was published is a matter of chance in both brokers."""
    found = []
    for state, prepare in STATES.items():
        for name, method in METHODS.items():
            if state == "stream" and name.startswith("publish"):
                continue
            script = Script(f"state/{state}/{name}")
            q, x = script.name("q"), script.name("x")
            prepare(script, q, x)
            script.step(method(q, x))
            script.step(REOPEN).step(declare(q, passive=1)).step(REOPEN)
            script.step(exchange(x, passive=1))
            found.append(script)
    return found


SYSTEM: dict[str, Callable[[Script], Call]] = {
    "declare-default": lambda s: exchange(""),
    "passive-default": lambda s: exchange("", passive=1),
    "delete-default": lambda s: delete_exchange(""),
    "declare-amq": lambda s: exchange("amq.new"),
    "declare-amq-direct": lambda s: exchange("amq.direct", durable=1),
    "declare-amq-direct-other": lambda s: exchange("amq.direct", "topic"),
    "declare-amq-direct-transient": lambda s: exchange("amq.direct"),
    "passive-amq-direct": lambda s: exchange("amq.direct", passive=1),
    "passive-amq-none": lambda s: exchange("amq.none", passive=1),
    "passive-amq-trace": lambda s: exchange("amq.rabbitmq.trace", "topic", passive=1),
    "publish-amq-trace": lambda s: publish("k", exchange="amq.rabbitmq.trace"),
    "passive-amq-log": lambda s: exchange("amq.rabbitmq.log", "topic", passive=1),
    "passive-amq-event": lambda s: exchange("amq.rabbitmq.event", "topic", passive=1),
    "delete-amq-direct": lambda s: delete_exchange("amq.direct"),
    "delete-amq-none": lambda s: delete_exchange("amq.none"),
    "queue-amq": lambda s: declare("amq.queue"),
    "queue-amq-passive": lambda s: declare("amq.queue", passive=1),
    "queue-amq-gen": lambda s: declare("amq.gen-mine"),
    "queue-amq-bind": lambda s: bind("amq.queue", "amq.direct", "k"),
    "queue-amq-delete": lambda s: delete("amq.queue"),
    "publish-none": lambda s: publish("k", exchange=s.name("none")),
    "purge-none": lambda s: purge(s.name("none")),
    "no-last-declare": lambda s: declare("", passive=1),
    "no-last-bind": lambda s: bind("", "amq.direct", "k"),
    "no-last-unbind": lambda s: unbind("", "amq.direct", "k"),
    "no-last-purge": lambda s: purge(""),
    "no-last-delete": lambda s: delete(""),
    "no-last-get": lambda s: get(""),
    "no-last-consume": lambda s: consume(""),
}


def system() -> list[Script]:
    """Names that are the broker's, and the queue of no name."""
    found = []
    for label, make in SYSTEM.items():
        script = Script(f"system/{label}")
        found.append(script.step(make(script)))
    return found


def generated() -> list[Script]:
    """Queues and consumers whose names the broker makes; "" is the queue declared last."""
    found = []
    after: dict[str, tuple[Call, ...]] = {
        "alone": (),
        "bind": (bind("", "amq.direct", ""), publish("", exchange="amq.direct"), get("")),
        "bind-key": (bind("", "amq.direct", "k"), unbind("", "amq.direct", "k")),
        "get": (get(""), purge(""), declare("", passive=1)),
        "consume": (consume("", ""), consume("", "")),
        "delete": (delete(""), get("")),
        "twice": (declare(exclusive=1), purge("")),
        "passive": (declare("", passive=1),),
    }
    for label, calls in after.items():
        script = Script(f"generated/{label}")
        found.append(script.step(declare(exclusive=1)).each(*calls))
    for label, arguments in {"quorum": QUORUM, "stream": STREAM}.items():
        script = Script(f"generated/{label}")
        script.step(declare("", arguments, durable=1)).step(REOPEN)
        found.append(script.step(delete("")))
    return found


def consumers() -> list[Script]:
    """Consumers: tags, limits of who else may, arguments, what ends them."""
    found = []

    def script(label: str, connections: int = 1) -> tuple[Script, str]:
        one = Script(f"consumer/{label}", connections=connections)
        found.append(one)
        return one, one.name("q")

    one, q = script("tag-twice")
    one.step(declare(q)).step(consume(q)).step(consume(q))
    one, q = script("tag-on-two-channels")
    one.step(declare(q)).step(on(2, REOPEN)).step(consume(q)).step(on(2, consume(q)))
    one, q = script("tag-again")
    one.step(declare(q)).each(consume(q), cancel("tag"), consume(q), cancel("tag", nowait=1))
    one.step(consume(q))
    for label, value in {
        "int": 5, "minus": -5, "text": "5", "bool": True, "double": 1.5, "large": 1 << 40,
        "nothing": None,
    }.items():  # fmt: skip
        one, q = script(f"priority-{label}")
        one.step(declare(q)).step(consume(q, args={"x-priority": value}))
    one, q = script("unknown-argument")
    one.step(declare(q)).step(consume(q, args={"x-what": {"a": [1]}}))
    one, q = script("cancel-on-failover")
    one.step(declare(q)).step(consume(q, args={"x-cancel-on-ha-failover": True}))
    one, q = script("exclusive-then")
    one.step(declare(q)).step(consume(q, "a", exclusive=1)).step(consume(q, "b"))
    one, q = script("then-exclusive")
    one.step(declare(q)).step(consume(q, "a")).step(consume(q, "b", exclusive=1))
    one, q = script("exclusive-again")
    one.step(declare(q)).each(consume(q, "a", exclusive=1), cancel("a"), consume(q, "b"))
    one, q = script("single-active")
    one.step(declare(q, {"x-single-active-consumer": True}))
    one.each(consume(q, "a"), consume(q, "b"), publish(q, b"1"), cancel("a"), publish(q, b"2"))
    one, q = script("single-active-exclusive")
    one.step(declare(q, {"x-single-active-consumer": True})).step(consume(q, "a", exclusive=1))
    one, q = script("queue-deleted", 2)
    one.step(declare(q)).step(consume(q)).step(by(1, delete(q)))
    one, q = script("auto-delete-last")
    one.step(declare(q, auto_delete=1)).each(consume(q, "a"), consume(q, "b"), cancel("a"))
    one.each(declare(q, passive=1), cancel("b"), declare(q, passive=1))
    one, q = script("auto-delete-channel")
    one.step(declare(q, auto_delete=1)).step(consume(q))
    one.step(call("channel.close", 200, "", 0, 0)).step(REOPEN).step(declare(q, passive=1))
    one, q = script("exclusive-lost", 2)
    one.step(declare(q, exclusive=1)).step(LOSE).step(by(1, declare(q, passive=1)))
    one, q = script("count")
    one.step(declare(q)).step(consume(q, "a")).step(consume(q, "b")).step(declare(q, passive=1))
    one, q = script("own-exclusive-queue")
    one.step(declare(q, exclusive=1)).step(consume(q)).step(get(q)).step(delete(q, if_unused=1))
    one, q = script("tag-long")
    one.step(declare(q)).step(consume(q, "t" * 255)).step(cancel("t" * 255))
    return found


def reply_to() -> list[Script]:
    """Direct reply-to."""
    found = []
    name = "amq.rabbitmq.reply-to"
    cases: dict[str, tuple[Call, ...]] = {
        "with-ack": (consume(name, ""),),
        "twice": (consume(name, "a", no_ack=1), consume(name, "b", no_ack=1)),
        "get": (get(name),),
        "get-no-ack": (get(name, no_ack=1),),
        "declare": (declare(name),),
        "declare-passive": (declare(name, passive=1),),
        "delete": (delete(name),),
        "purge": (purge(name),),
        "bind": (bind(name, "amq.direct", "k"),),
        "publish": (publish(name, mandatory=1),),
        "cancel": (consume(name, "a", no_ack=1), cancel("a"), consume(name, "b", no_ack=1)),
        "without-consumer": (publish("nowhere", reply_to=name),),
        "exclusive": (consume(name, "a", no_ack=1, exclusive=1),),
        "unknown-target": (publish(name + ".what", mandatory=1),),
        "unknown-target-declare": (declare(name + ".what", passive=1),),
    }
    for label, calls in cases.items():
        found.append(Script(f"reply-to/{label}").each(*calls))
    one = Script("reply-to/request")
    q = one.name("q")
    one.step(declare(q)).step(consume(name, "a", no_ack=1)).step(publish(q, reply_to=name))
    found.append(one.step(get(q)))
    return found


FAMILIES = (in_states, system, generated, consumers, reply_to)
