"""Sessions in which guest's topic permissions come and go, and limits of a user and of a vhost.

A channel of RabbitMQ keeps what it was allowed, so after each change the channel is a new one.
"""

from tests.conformance.compared.amqp import frame, method_payload
from tests.conformance.compared.script import (
    CONNECT,
    REOPEN,
    Call,
    Script,
    bind,
    bind_exchange,
    call,
    declare,
    delete,
    exchange,
    get,
    on,
    operation,
    publish,
    raw,
    topic_permissions,
    unbind,
)

CLOSE = call("channel.close", 200, "", 0, 0)


class Topics:
    """A script with an exchange "x" and a queue "q" that gets all of it."""

    def __init__(self, label: str, kind: str = "topic") -> None:
        self.script = Script(f"topics/{label}", patience_s=0.4)
        self.x = self.script.name("x")
        self.q = self.script.name("q")
        self.script.each(exchange(self.x, kind), declare(self.q), bind(self.q, self.x, "#"))

    def allow(self, write: str | None, read: str = ".*", source: str = "") -> None:
        """Set the permissions, on a channel that has asked for none yet; None: clear them."""
        self.script.each(topic_permissions(source or self.x, write, read), CLOSE, REOPEN)

    def try_each(self, *calls: Call) -> Script:
        """Each, and what is in the queue after them; on a new channel after a refusal."""
        for one in calls:
            self.script.each(one, REOPEN)
        return self.script.each(get(self.q, no_ack=1), get(self.q, no_ack=1))


def writing() -> list[Script]:
    """Which keys may be published with."""
    found = []
    for label, kind, pattern in (
        ("write", "topic", "^a\\."), ("write-all", "topic", ".*"), ("write-none", "topic", "^$"),
        ("write-direct", "direct", "^a\\."), ("write-fanout", "fanout", "^a\\."),
        ("write-user", "topic", "^{username}\\."), ("write-vhost", "topic", "^{vhost}a"),
        ("write-half", "topic", "{username"), ("write-unknown", "topic", "^{client_id}$"),
        ("write-wrong", "topic", "("),
    ):  # fmt: skip
        topics = Topics(label, kind)
        topics.allow(pattern)
        keys = ("a.b", "b.a.b", "", "guest.a", "/a", "{client_id}")
        found.append(topics.try_each(*(publish(key, key.encode(), topics.x) for key in keys)))
    return found


def reading() -> list[Script]:
    """Which keys may be bound and unbound with."""
    topics = Topics("read")
    topics.allow("", "^a\\.")
    other = topics.script.name("y")
    topics.script.step(exchange(other, "fanout"))
    found = [
        topics.try_each(
            bind(topics.q, topics.x, "a.*"), bind(topics.q, topics.x, "b.*"),
            unbind(topics.q, topics.x, "a.*"), unbind(topics.q, topics.x, "#"),
            bind_exchange(other, topics.x, "a.#"), bind_exchange(other, topics.x, "b"),
            bind(topics.q, other, "b"),
        )
    ]  # fmt: skip
    topics = Topics("read-direct", "direct")
    topics.allow("", "^a\\.")
    found.append(topics.try_each(bind(topics.q, topics.x, "b")))
    return found


def changes() -> list[Script]:
    """What holds after a change, and where there is none."""
    topics = Topics("clear")
    topics.allow("^a$")
    topics.try_each(publish("b", b"1", topics.x))
    topics.allow(None)
    found = [topics.try_each(publish("b", b"2", topics.x))]
    topics = Topics("replace")
    topics.allow("^a$")
    topics.allow("^b$")
    found.append(topics.try_each(publish("b", b"1", topics.x), publish("a", b"2", topics.x)))
    topics = Topics("other-exchange")
    topics.allow("^a$", source=topics.script.name("other"))
    found.append(topics.try_each(publish("b", b"1", topics.x)))
    topics = Topics("default-exchange")
    topics.allow("^a$")
    found.append(topics.try_each(publish(topics.q, b"1")))
    topics = Topics("alternate")
    dead = topics.script.name("alternate")
    topics.script.step(exchange(dead, "topic", {"alternate-exchange": topics.x}))
    topics.allow("^a$")
    found.append(topics.try_each(publish("b", b"1", dead)))
    return found


class Limited:
    """A script of a user of its own in "/", or of guest in a vhost of its own, who logs in when
    `connect` says so. An operation of RabbitMQ takes a second, so there are few."""

    def __init__(self, label: str, *, has_user: bool = False) -> None:
        self.script = Script(f"limits/{label}", patience_s=0.4)
        own = f"{self.script.prefix}own"
        self.has_user = has_user
        self.user, self.vhost = (own, "/") if has_user else ("guest", own)
        self.password = "secret" if has_user else "guest"
        made = {"name": own, **({"password": self.password} if has_user else {})}
        allowed = {"configure": ".*", "write": ".*", "read": ".*"}
        self.each(
            operation("add_user" if has_user else "add_vhost", **made),
            operation("set_permissions", vhost=self.vhost, user=self.user, **allowed),
        )

    def connect(self) -> None:
        capabilities = {"capabilities": {"authentication_failure_close": True}}
        secret = f"\0{self.user}\0{self.password}"
        self.script.step(CONNECT, raw(b"AMQP\x00\x00\x09\x01"))
        for name, values in (
            ("connection.start-ok", (capabilities, "PLAIN", secret, "en_US")),
            ("connection.tune-ok", (2047, 131072, 0)),
            ("connection.open", (self.vhost, "", 0)),
        ):
            self.each(raw(frame(1, 0, method_payload(name, *values))))

    def allow(self, **limits: int) -> None:
        """Set limits of the user, or of the vhost."""
        named = {name.replace("_", "-"): value for name, value in limits.items()}
        where = {"user": self.user} if self.has_user else {"vhost": self.vhost}
        what = "user" if self.has_user else "vhost"
        self.each(operation(f"set_{what}_limits", **where, limits=named))

    def each(self, *calls: Call) -> None:
        self.script.each(*calls)

    def end(self) -> Script:
        """The script, which closes the connection and deletes what it has made."""
        own, what = (self.user, "user") if self.has_user else (self.vhost, "vhost")
        self.each(on(0, call("connection.close", 200, "", 0, 0)))
        self.each(operation(f"delete_{what}", name=own))
        return self.script


def limits() -> list[Script]:
    """What one more than allowed is answered, and what a limit does that comes, falls and goes."""
    found = []
    for has_user in (True, False):
        limited = Limited(
            "user/connections" if has_user else "vhost/connections", has_user=has_user
        )
        limited.allow(max_connections=0)
        limited.connect()
        found.append(limited.end())
    limited = Limited("vhost/queues")
    limited.connect()
    limited.allow(max_queues=0, max_connections=0)
    limited.each(REOPEN, declare("q"), REOPEN)
    limited.allow(max_queues=1)
    limited.each(declare("q"), declare("q"), declare("q2"), REOPEN)
    limited.each(declare("q", passive=1), declare("q2", passive=1), REOPEN)
    limited.each(declare("", exclusive=1), REOPEN)
    limited.allow(max_queues=2)
    limited.each(declare("q2", durable=1), delete("q"), declare("q3"))
    limited.allow(max_queues=1)
    limited.each(declare("q3"), delete("q2"), declare("q2"), REOPEN, delete("q3"), declare("q2"))
    limited.allow(max_queues=-1)
    limited.each(declare("q4"), declare("q5"))
    found.append(limited.end())
    limited = Limited("user/channels", has_user=True)
    limited.allow(max_channels=1)
    limited.connect()
    limited.each(REOPEN, on(2, REOPEN))
    found.append(limited.end())
    limited = Limited("user/channels-later", has_user=True)
    limited.connect()
    limited.each(REOPEN, on(2, REOPEN))
    limited.allow(max_channels=1, max_connections=0)
    q = limited.script.name("q")
    limited.each(declare(q), on(2, get(q)), delete(q))
    limited.each(on(2, CLOSE), CLOSE, on(2, REOPEN), REOPEN)
    found.append(limited.end())
    return found


FAMILIES = (writing, reading, changes, limits)
