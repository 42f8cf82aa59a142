"""Sessions in which guest's topic permissions come and go.

A channel of RabbitMQ keeps what it was allowed, so after each change the channel is a new one.
"""

from tests.conformance.compared.script import (
    REOPEN,
    Call,
    Script,
    bind,
    bind_exchange,
    call,
    declare,
    exchange,
    get,
    publish,
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


FAMILIES = (writing, reading, changes)
