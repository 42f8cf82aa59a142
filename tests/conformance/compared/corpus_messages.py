"""Scripts on messages: routing, confirms, transactions, acknowledging, limits, dead letters."""

from tests.conformance.compared.amqp import f32, i8, i64, time
from tests.conformance.compared.corpus_methods import COMMIT, CONFIRM, ROLLBACK, SELECT
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

Table = dict[str, object]
VALUES: dict[str, object] = {
    "int": 1, "i8": i8(1), "i64": i64(1), "double": 1.0, "float": f32(1.0), "true": True,
    "text": "1", "bytes": b"1", "nothing": None, "time": time(1), "table": {"a": 1},
    "table-i64": {"a": i64(1)}, "list": [1], "list-double": [1.0], "two": 2,
}  # fmt: skip


def header_values() -> list[Script]:
    """Which value of a header is equal to which of a binding."""
    found = []
    for bound, value in VALUES.items():
        script = Script(f"headers/{bound}")
        q, x = script.name("q"), script.name("x")
        script.step(declare(q), exchange(x, "headers"))
        script.step(bind(q, x, "", {"x-match": "all", "h": value}))
        for given in VALUES.values():
            script.step(publish("k", exchange=x, mandatory=1, headers={"h": given}))
        found.append(script.step(get(q, no_ack=1)))
    return found


MATCHES: dict[str, Table] = {
    "none": {},
    "all-empty": {"x-match": "all"},
    "any-empty": {"x-match": "any"},
    "all": {"x-match": "all", "a": 1, "b": "2"},
    "any": {"x-match": "any", "a": 1, "b": "2"},
    "default": {"a": 1, "b": "2"},
    "present": {"x-match": "all", "a": None},
    "all-x": {"x-match": "all", "a": 1, "x-b": 1},
    "all-with-x": {"x-match": "all-with-x", "a": 1, "x-b": 1},
    "any-with-x": {"x-match": "any-with-x", "x-b": 1},
    "any-x": {"x-match": "any", "x-b": 1},
    "what": {"x-match": "what", "a": 1},
    "int": {"x-match": 1, "a": 1},
    "empty-text": {"x-match": "", "a": 1},
    "bytes": {"x-match": b"all", "a": 1},
    "nothing": {"x-match": None, "a": 1},
}
HEADERS: tuple[Table, ...] = (
    {}, {"a": 1}, {"a": 1, "b": "2"}, {"b": "2"}, {"a": 2, "b": "2"}, {"a": 1, "x-b": 1},
    {"x-b": 1}, {"a": 1, "b": "2", "c": 3},
)  # fmt: skip


def matches() -> list[Script]:
    """x-match, and what selects."""
    found = []
    for label, arguments in MATCHES.items():
        script = Script(f"match/{label}")
        q, x = script.name("q"), script.name("x")
        script.step(declare(q), exchange(x, "headers")).step(bind(q, x, "", arguments))
        script.step(REOPEN).step(publish("k", exchange=x, mandatory=1))
        for headers in HEADERS:
            script.step(publish("k", exchange=x, mandatory=1, headers=headers))
        script.step(get(q, no_ack=1)).step(unbind(q, x, "", arguments))
        found.append(script)
    return found


TOPICS = ("a", "a.b", "a.b.c", "", ".", "a.", ".a", "a..b", "b", "a.b.c.d")


def topics() -> list[Script]:
    """Patterns of topic exchanges."""
    found = []
    patterns = ("#", "*", "a.*", "a.#", "#.b", "*.b.*", "a.*.#", "#.#", "", ".", "*.*", "a.b", "a*",
                "#.a.#", "*.", "a.#.d")  # fmt: skip
    for pattern in patterns:
        script = Script(f"topic/{pattern}")
        q, x = script.name("q"), script.name("x")
        script.step(declare(q), exchange(x, "topic"), bind(q, x, pattern))
        script.step(*[publish(key, exchange=x, mandatory=1) for key in TOPICS])
        found.append(script.step(purge(q)))
    return found


def bindings() -> list[Script]:
    """Bindings that are the same or not, and what they keep alive."""
    found = []

    def script(label: str, connections: int = 1) -> tuple[Script, str, str]:
        one = Script(f"binding/{label}", connections=connections)
        found.append(one)
        return one, one.name("q"), one.name("x")

    one, q, x = script("twice")
    one.step(declare(q), exchange(x)).each(bind(q, x, "k"), bind(q, x, "k"))
    one.each(publish("k", exchange=x), unbind(q, x, "k"), publish("k", exchange=x), purge(q))
    for label, first, second in (
        ("width", {"a": 1}, {"a": i64(1)}),
        ("double", {"a": 1}, {"a": 1.0}),
        ("order", {"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ("more", {"a": 1}, {"a": 1, "b": 2}),
    ):
        one, q, x = script(f"unbind-{label}")
        one.step(declare(q), exchange(x)).step(bind(q, x, "k", first))
        one.each(unbind(q, x, "k", second), publish("k", exchange=x, mandatory=1), purge(q))
    one, q, x = script("auto-delete-exchange")
    one.step(declare(q), exchange(x, auto_delete=1)).each(bind(q, x, "k"), unbind(q, x, "k"))
    one.step(exchange(x, passive=1))
    one, q, x = script("auto-delete-exchange-queue")
    one.step(declare(q), exchange(x, auto_delete=1)).each(bind(q, x, "k"), delete(q))
    one.step(exchange(x, passive=1))
    one, q, x = script("auto-delete-chain")
    y = one.name("y")
    one.step(exchange(x, auto_delete=1), exchange(y, auto_delete=1), declare(q))
    one.each(bind_exchange(y, x, "k"), bind(q, y, "k"), delete(q), exchange(y, passive=1))
    one.step(REOPEN).step(exchange(x, passive=1))
    one, q, x = script("if-unused")
    one.step(declare(q), exchange(x), bind(q, x, "k")).step(delete_exchange(x, if_unused=1))
    one, q, x = script("if-unused-as-target")
    one.step(exchange(x), exchange(one.name("y")), bind_exchange(x, one.name("y")))
    one.step(delete_exchange(x, if_unused=1))
    one, q, x = script("exchange-to-exchange")
    y = one.name("y")
    one.step(exchange(x, "fanout"), exchange(y, "topic"), declare(q))
    one.step(bind_exchange(y, x, ""), bind(q, y, "a.#"))
    one.step(publish("a.b", exchange=x, mandatory=1), publish("b", exchange=x, mandatory=1))
    one.step(get(q, no_ack=1)).step(get(q, no_ack=1))
    one, q, x = script("cycle")
    y = one.name("y")
    one.step(exchange(x, "fanout"), exchange(y, "fanout"), declare(q), bind(q, y))
    one.step(bind_exchange(y, x), bind_exchange(x, y), bind_exchange(x, x))
    one.each(publish("", exchange=x, mandatory=1), purge(q))
    one, q, x = script("unbind-nothing")
    one.step(unbind(q, x, "k"))
    one, q, x = script("unbind-no-exchange")
    one.step(declare(q)).step(unbind(q, x, "k"))
    one, q, x = script("unbind-no-queue")
    one.step(exchange(x)).step(unbind(q, x, "k"))
    one, q, x = script("exchange-unbind-nothing")
    one.step(unbind_exchange(q, x, "k"))
    one, q, x = script("exchange-bind-no-source")
    one.step(exchange(q)).step(bind_exchange(q, x, "k"))
    one, q, x = script("exchange-bind-no-target")
    one.step(exchange(x)).step(bind_exchange(q, x, "k"))
    one, q, x = script("empty-key-names-queue")
    one.step(declare(q)).step(exchange(x)).step(bind("", x, "")).step(bind(q, x, ""))
    one.step(publish(q, exchange=x, mandatory=1), publish("", exchange=x, mandatory=1))
    one, q, x = script("bind-foreign-exclusive", 2)
    one.step(by(1, declare(q, exclusive=1))).step(exchange(x)).step(bind(q, x, "k"))
    return found


def alternates() -> list[Script]:
    """Alternate exchanges."""
    found = []

    def script(label: str) -> tuple[Script, str, str, str]:
        one = Script(f"alternate/{label}")
        found.append(one)
        return one, one.name("q"), one.name("x"), one.name("y")

    one, q, x, y = script("taken")
    one.step(declare(q), exchange(y, "fanout"), exchange(x, "direct", {"alternate-exchange": y}))
    one.step(bind(q, y)).step(publish("k", exchange=x, mandatory=1)).step(get(q, no_ack=1))
    one, q, x, y = script("missing")
    one.step(exchange(x, "direct", {"alternate-exchange": y}))
    one.step(publish("k", exchange=x, mandatory=1))
    one, q, x, y = script("itself")
    one.step(exchange(x, "direct", {"alternate-exchange": x}))
    one.step(publish("k", exchange=x, mandatory=1))
    one, q, x, y = script("circle")
    one.step(exchange(x, "direct", {"alternate-exchange": y}))
    one.step(exchange(y, "direct", {"alternate-exchange": x}))
    one.step(publish("k", exchange=x, mandatory=1))
    one, q, x, y = script("default")
    one.step(declare(q), exchange(x, "direct", {"alternate-exchange": ""}))
    one.step(publish(q, exchange=x, mandatory=1)).step(get(q, no_ack=1))
    one, q, x, y = script("internal")
    one.step(declare(q), exchange(y, "fanout", internal=1), bind(q, y))
    one.step(exchange(x, "direct", {"alternate-exchange": y}))
    one.step(publish("k", exchange=x, mandatory=1)).step(get(q, no_ack=1))
    one, q, x, y = script("second-hop")
    one.step(declare(q), exchange(y, "direct", {"alternate-exchange": "amq.fanout"}))
    one.step(exchange(x, "direct", {"alternate-exchange": y}), bind(q, "amq.fanout"))
    one.step(publish("k", exchange=x, mandatory=1)).step(get(q, no_ack=1))
    return found


def confirms() -> list[Script]:
    """Publisher confirms."""
    found = []

    def script(label: str, *calls: Call) -> Script:
        one = Script(f"confirm/{label}")
        found.append(one)
        return one.step(CONFIRM).each(*calls)

    script("unroutable", publish("nowhere-at-all"))
    script("unroutable-mandatory", publish("nowhere-at-all", mandatory=1))
    script("no-exchange", publish("k", exchange="no-such-exchange"))
    script("twice", CONFIRM, publish("nowhere"))
    script("then-tx", SELECT)
    one = script("routed")
    q = one.name("q")
    one.step(declare(q)).each(publish(q), publish(q, delivery_mode=2))
    one = script("rejected")
    q = one.name("q")
    one.step(declare(q, {"x-max-length": 1, "x-overflow": "reject-publish"}))
    one.each(publish(q), publish(q), get(q, no_ack=1), publish(q))
    one = script("dropped")
    q = one.name("q")
    one.step(declare(q, {"x-max-length": 1})).each(publish(q, b"1"), publish(q, b"2"), get(q))
    one = script("queue-gone")
    q = one.name("q")
    one.step(declare(q)).each(delete(q), publish(q), publish(q, mandatory=1))
    found.append(Script("confirm/tx-first").each(SELECT, CONFIRM))
    return found


def transactions() -> list[Script]:
    """tx.*: nothing is seen before the commit."""
    found = []

    def script(label: str, *more: Table) -> tuple[Script, str]:
        one = Script(f"tx/{label}")
        found.append(one)
        q = one.name("q")
        one.step(declare(q, *more)).step(SELECT)
        return one, q

    one, q = script("publish-commit")
    one.each(publish(q), declare(q, passive=1), COMMIT, declare(q, passive=1), get(q))
    one, q = script("publish-rollback")
    one.each(publish(q), ROLLBACK, COMMIT, declare(q, passive=1))
    one, q = script("mandatory")
    one.each(publish("nowhere", mandatory=1), COMMIT)
    one, q = script("mandatory-rollback")
    one.each(publish("nowhere", mandatory=1), ROLLBACK)
    one, q = script("mandatory-queue-gone")
    one.each(publish(q, mandatory=1), delete(q), COMMIT)
    one, q = script("no-exchange")
    one.step(publish("k", exchange="no-such-exchange"))
    one, q = script("ack-commit")
    one.each(publish(q), COMMIT, get(q), ack(1), COMMIT, ack(1))
    one, q = script("ack-rollback")
    one.each(publish(q), COMMIT, get(q), ack(1), ROLLBACK, ack(1), COMMIT)
    one, q = script("ack-twice")
    one.each(publish(q), COMMIT, get(q), ack(1), ack(1), COMMIT)
    one, q = script("ack-unknown")
    one.each(ack(7), COMMIT)
    one, q = script("nack-commit")
    one.each(publish(q), COMMIT, get(q), nack(1), get(q), COMMIT, get(q))
    one, q = script("reject-rollback")
    one.each(publish(q), COMMIT, get(q), reject(1), ROLLBACK, get(q), nack(1), COMMIT, get(q))
    one, q = script("select-twice")
    one.each(publish(q), SELECT, COMMIT, declare(q, passive=1))
    one, q = script("prefetch")
    one.each(qos(1), publish(q, b"1"), publish(q, b"2"), COMMIT, consume(q), ack(1), COMMIT)
    one, q = script("closed")
    one.step(publish(q)).step(call("channel.close", 200, "", 0, 0)).step(REOPEN)
    one.step(declare(q, passive=1))
    one, q = script("reject-publish", {"x-max-length": 1, "x-overflow": "reject-publish"})
    one.each(publish(q), publish(q), COMMIT, declare(q, passive=1))
    one, q = script("recover")
    one.each(publish(q), COMMIT, get(q), ack(1), call("basic.recover", 1), ROLLBACK, get(q))
    return found


def acknowledging() -> list[Script]:
    """What comes back, where, and how it is marked."""
    found = []

    def script(label: str, n: int = 3, connections: int = 1) -> tuple[Script, str]:
        one = Script(f"ack/{label}", connections=connections)
        found.append(one)
        q = one.name("q")
        one.step(declare(q)).step(*[publish(q, str(at).encode()) for at in range(n)])
        return one, q

    one, q = script("requeue-order")
    one.each(get(q), get(q), get(q), nack(2), get(q), reject(1), get(q))
    one, q = script("nack-multiple")
    one.each(
        get(q), get(q), get(q), nack(2, multiple=1), get(q), get(q), ack(3), ack(0, multiple=1)
    )
    one, q = script("drop-multiple")
    one.each(get(q), get(q), nack(2, multiple=1, requeue=0), get(q))
    one, q = script("ack-again")
    one.each(get(q), ack(1), ack(1))
    one, q = script("ack-other-channel")
    one.step(get(q)).step(on(2, REOPEN)).step(on(2, ack(1)))
    one, q = script("ack-no-ack")
    one.each(get(q, no_ack=1), ack(1))
    one, q = script("multiple-of-acked")
    one.each(get(q), get(q), ack(1), ack(1, multiple=1))
    one, q = script("multiple-above")
    one.each(get(q), ack(9, multiple=1))
    one, q = script("recover")
    one.each(get(q), get(q), call("basic.recover", 1), get(q), get(q), get(q))
    one, q = script("recover-consumer")
    one.each(consume(q), call("basic.recover", 1), ack(0, multiple=1))
    one, q = script("channel-closed")
    one.each(get(q), get(q), call("channel.close", 200, "", 0, 0)).step(REOPEN).step(get(q))
    one, q = script("connection-lost", connections=2)
    one.each(by(1, get(q)), by(1, get(q)), by(1, LOSE)).step(get(q))
    one, q = script("channel-error")
    one.each(get(q), ack(7)).step(REOPEN).step(get(q))
    one, q = script("cancel-keeps")
    one.each(qos(1), consume(q), cancel("tag"), get(q), ack(1), declare(q, passive=1))
    one, q = script("qos")
    one.each(qos(2), consume(q), ack(1), qos(0), consume(q, "two"))
    one, q = script("qos-global")
    one.each(qos(1, is_global=1), consume(q), ack(1), qos(0, is_global=1))
    one, q = script("qos-no-ack")
    one.each(qos(1), consume(q, no_ack=1))
    one, q = script("get-under-prefetch")
    one.each(qos(1), consume(q), get(q))
    one, q = script("requeue-to-consumer", 1)
    one.each(consume(q), reject(1), ack(2))
    one, q = script("delete-with-unacked")
    one.each(get(q), delete(q), ack(1))
    one, q = script("purge-with-unacked")
    one.each(get(q), purge(q), nack(1), get(q))
    one, q = script("if-empty-unacked", 1)
    one.each(get(q), delete(q, if_empty=1))
    return found


def limits() -> list[Script]:
    """Lengths, times to live, priorities, and dead letters, as far as a step shows them."""
    found = []

    def script(label: str, arguments: Table) -> tuple[Script, str, str]:
        one = Script(f"limit/{label}", patience_s=0.2)
        found.append(one)
        q, dead = one.name("q"), one.name("d")
        to_dead: Table = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
        given = {**arguments, **(to_dead if "dlx" in label else {})}
        one.step(declare(dead, durable=1), declare(q, given, durable=1))
        return one, q, dead

    for dlx in ("", "-dlx"):
        one, q, dead = script(f"length{dlx}", {"x-max-length": 1})
        one.each(publish(q, b"1"), publish(q, b"2"), get(q), get(dead))
        one, q, dead = script(f"length-zero{dlx}", {"x-max-length": 0})
        one.each(publish(q, b"1"), get(q), get(dead))
        one, q, dead = script(f"bytes{dlx}", {"x-max-length-bytes": 3})
        one.each(publish(q, b"12"), publish(q, b"34"), publish(q, b"12345"), get(q), get(dead))
        one, q, dead = script(f"ttl-zero{dlx}", {"x-message-ttl": 0})
        one.each(publish(q, b"1"), get(q), get(dead))
        one, q, dead = script(f"expiration-zero{dlx}", {})
        one.each(publish(q, b"1", expiration="0"), get(q), get(dead))
        one, q, dead = script(f"expiration-zero-behind{dlx}", {})
        one.step(publish(q, b"1"), publish(q, b"2", expiration="0"))
        one.each(get(q), get(q), get(dead))
        one, q, dead = script(f"rejected{dlx}", {})
        one.each(publish(q, b"1", headers={"a": 1}), get(q), reject(1, requeue=0), get(dead))
        one, q, dead = script(f"nacked{dlx}", {})
        one.each(publish(q, b"1"), publish(q, b"2"), consume(q))
        one.step(nack(2, multiple=1, requeue=0)).each(get(dead), get(dead))
        one, q, dead = script(
            f"reject-publish-dlx{dlx}", {"x-max-length": 1, "x-overflow": "reject-publish-dlx"}
        )
        one.each(publish(q, b"1"), publish(q, b"2"), get(q), get(dead))
        one, q, dead = script(f"delivery-limit{dlx}", {
            "x-queue-type": "quorum", "x-delivery-limit": 1,
        })  # fmt: skip
        one.each(publish(q, b"1"), get(q), nack(1), get(q), nack(2), get(q), get(dead))
    one, q, dead = script("priorities", {"x-max-priority": 5})
    one.each(*[publish(q, str(at).encode(), priority=at) for at in (0, 3, 9, 5, 1)])
    one.each(publish(q, b"none"), *[get(q) for _ in range(6)])
    one, q, dead = script("ttl-zero-consumer", {"x-message-ttl": 0})
    one.each(consume(q), publish(q, b"1"), ack(1))
    one, q, dead = script("length-consumer", {"x-max-length": 1})
    one.each(consume(q, no_ack=1)).step(publish(q, b"1"), publish(q, b"2"), publish(q, b"3"))
    one, q, dead = script("dead-again-dlx", {})
    one.each(publish(q, b"1"), get(q), reject(1, requeue=0), get(dead))
    one.step(nack(2)).step(get(dead))
    return found


def streams() -> list[Script]:
    """What streams do and refuse."""
    found = []

    def script(label: str, n: int = 0, **arguments: object) -> tuple[Script, str]:
        one = Script(f"stream/{label}", patience_s=0.4)
        found.append(one)
        q = one.name("q")
        one.step(declare(q, {"x-queue-type": "stream", **arguments}, durable=1)).step(CONFIRM)
        if n:
            one.step(*[publish(q, str(at).encode()) for at in range(n)])
        return one, q

    for label, value in {
        "first": "first", "next": "next", "offset": i64(1), "int": 1, "what": "what",
        "interval": "1h", "time": time(0), "minus": -1, "bool": True, "double": 1.0,
        "beyond": 99, "none-unit": "1x",
    }.items():  # fmt: skip
        one, q = script(f"offset-{label}", 2)
        one.step(qos(10)).step(consume(q, args={"x-stream-offset": value}))
    one, q = script("no-qos", 1)
    one.step(consume(q))
    one, q = script("no-ack", 1)
    one.step(qos(10)).step(consume(q, no_ack=1))
    one, q = script("global-qos", 1)
    one.step(qos(10, is_global=1)).step(consume(q))
    one, q = script("exclusive-consumer", 1)
    one.step(qos(10)).step(consume(q, exclusive=1))
    one, q = script("get", 1)
    one.step(get(q))
    one, q = script("purge", 1)
    one.step(purge(q))
    one, q = script("delete-if-empty", 1)
    one.step(delete(q, if_empty=1))
    one, q = script("delete-if-unused", 1)
    one.step(delete(q, if_unused=1))
    one, q = script("nack", 1)
    one.step(qos(10)).step(consume(q, args={"x-stream-offset": "first"})).step(nack(1))
    return found


FAMILIES = (
    header_values, matches, topics, bindings, alternates, confirms, transactions, acknowledging,
    limits, streams,
)  # fmt: skip
